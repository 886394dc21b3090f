"""A detector of DECTRIS that pushes stream v2: messages made by cbor2 after the published specification."""

from __future__ import annotations

import io
import time
from typing import Any

import cbor2
import h5py
import hdf5plugin
import numpy as np
import zmq

from growing_files import COLUMNS, DARK, FLAT, ROWS, angle, field, frame

_TYPES = {"uint8": 64, "uint16": 69, "uint32": 70, ">u2": 65}


def compress(array: np.ndarray[Any, Any], algorithm: str) -> Any:
    """Tag 56500: what the HDF5 filters make of an array."""
    shuffle = hdf5plugin.Bitshuffle
    options = hdf5plugin.LZ4() if algorithm == "lz4" else shuffle(cname=algorithm.removeprefix("bs"))
    with h5py.File(io.BytesIO(), "w") as file:
        data = file.create_dataset("data", data=array, chunks=array.shape, **options)
        content = data.id.read_direct_chunk((0,) * array.ndim)[1]
    return cbor2.CBORTag(56500, [algorithm, 0 if algorithm == "lz4" else array.itemsize, content])


def typed(array: np.ndarray[Any, Any], algorithm: str | None = None) -> Any:
    """Tag 40 of RFC 8746."""
    number = _TYPES[array.dtype.str if array.dtype.str[0] == ">" else array.dtype.name]
    content = array.tobytes() if algorithm is None else compress(array, algorithm)
    return cbor2.CBORTag(40, [list(array.shape), cbor2.CBORTag(number, content)])


def start(series: int = 1, images: int = 20, **more: Any) -> dict[str, Any]:
    return {
        "type": "start",
        "arm_date": cbor2.CBORTag(0, "2026-11-18T07:00:00.000Z"),
        "beam_center_x": 11.5,
        "beam_center_y": 1.0,
        "channels": ["threshold_1"],
        "count_time": 0.01,
        "goniometer": {"omega": {"increment": angle(1), "start": 0.0}, "chi": {"increment": 0.0, "start": 0.0}},
        "image_size_x": COLUMNS,
        "image_size_y": ROWS,
        "number_of_images": images,
        "pixel_size_x": 1e-4,
        "pixel_size_y": 1e-4,
        "series_id": series,
        "series_unique_id": f"series-{series}",
        "user_data": "",
    } | more


def image(n: int, data: Any, series: int = 1, **more: Any) -> dict[str, Any]:
    data = data if isinstance(data, dict) else {"threshold_1": data}
    return {
        "type": "image",
        "series_id": series,
        "series_unique_id": f"series-{series}",
        "image_id": n,
        "real_time": [1, 100],
        "data": data,
        "user_data": "",
    } | more


def end(series: int = 1) -> dict[str, Any]:
    return {"type": "end", "series_id": series, "series_unique_id": f"series-{series}"}


class Eiger:
    """The detector's end of the stream."""

    def __init__(self, port: int | None = None) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDTIMEO, 10_000)
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1") if port is None else port
        if port is not None:
            self._socket.bind(f"tcp://127.0.0.1:{port}")
        self.address = f"dectris://127.0.0.1:{self.port}"

    def send(self, *messages: Any) -> None:
        for message in messages:
            self._socket.send(message if isinstance(message, bytes) else cbor2.dumps(message))

    def fields(self, series: int = 1, algorithm: str | None = "bslz4") -> None:
        """Series of dark and flat fields, whose header_appendix says what they are."""
        for key, level in ((2, DARK), (1, FLAT)):
            self.send(start(series + key, 3, user_data={"image_key": key}, goniometer={}))
            self.send(*(image(n, typed(field(level, n + 3 * (key == 1)), algorithm), series + key) for n in range(3)))
            self.send(end(series + key))

    def views(self, numbers: Any, series: int = 1, algorithm: str | None = "bslz4", pause: float = 0.0) -> None:
        for n in numbers:
            self.send(image(n, typed(frame(n), algorithm), series))
            time.sleep(pause)

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def __enter__(self) -> Eiger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
