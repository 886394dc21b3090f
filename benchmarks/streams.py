"""From a frame's arrival by a detector's stream to its view on the disk: latencies, with the detector on this machine.

    python benchmarks/streams.py [--views 200]

A detector in another process sends frames at a fixed rate, compressed by bitshuffle and LZ4 as an Eiger does; the
import takes line integrals of all rows. The frames are the same all over, so that the detector costs nothing.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from plugstream.scans.importers.following import Following, follow_file


def compress(frame: Any) -> bytes:
    """What the HDF5 filter makes of a frame."""
    import h5py
    import hdf5plugin

    with h5py.File(io.BytesIO(), "w") as file:
        data = file.create_dataset("data", data=frame, chunks=frame.shape, **hdf5plugin.Bitshuffle(cname="lz4"))
        content: bytes = data.id.read_direct_chunk((0, 0))[1]
        return content


def send(size: int, views: int, rate: float, port: Any, sent: Any) -> None:
    """Play the detector: twenty flat fields, then views."""
    import cbor2
    import zmq

    socket = zmq.Context().socket(zmq.PUSH)
    port.put(socket.bind_to_random_port("tcp://127.0.0.1"))
    draw = np.random.default_rng(0)
    for key, count in ((1, 20), (0, views)):
        content = compress(draw.poisson(900 + 100 * key, (size, size)).astype(np.uint16))
        packed = cbor2.CBORTag(69, cbor2.CBORTag(56500, ["bslz4", 2, content]))
        start = {"type": "start", "series_id": key, "image_size_x": size, "image_size_y": size, "channels": ["a"]}
        angle = {"omega": {"start": 0.0, "increment": 180 / views}}
        socket.send(cbor2.dumps(start | {"goniometer": angle, "user_data": {"image_key": key}}))
        begin = time.time()
        for n in range(count):
            image = {
                "type": "image",
                "series_id": key,
                "image_id": n,
                "data": {"a": cbor2.CBORTag(40, [[size, size], packed])},
            }
            message = cbor2.dumps(image)
            time.sleep(max(0.0, begin + n / rate - time.time()) if key == 0 else 0.0)
            if key == 0:
                sent[n] = time.time()
            socket.send(message)
        socket.send(cbor2.dumps({"type": "end", "series_id": key}))
    time.sleep(30)


def measure(size: int, rate: float, views: int, folder: Path) -> None:
    """Print median, nine in ten and the longest time from a frame's sending to its view's commit."""
    context = multiprocessing.get_context("spawn")
    port, sent = context.Queue(), context.Array("d", views)
    process = context.Process(target=send, args=(size, views, rate, port, sent), daemon=True)
    process.start()
    seen: list[float] = []

    def note(count: int) -> None:
        seen.extend([time.time()] * (count - len(seen)))

    values = {"center": "middle"}
    address, out = f"dectris://127.0.0.1:{port.get()}", folder / f"{size}-{rate:g}.zarr"
    _, result = follow_file("ct", address, out, values, following=Following(grace=1), progress=note)
    process.terminate()
    waits = 1000 * (np.array(seen) - np.array(sent[:]))
    words = [f"{value:7.0f} ms" for value in (*np.quantile(waits, (0.5, 0.9)), waits.max())]
    print(f"{size:5} x {size:<5} {rate:5g} Hz {result.views:5} views  {'  '.join(words)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--views", type=int, default=200)
    parsed = parser.parse_args()
    print("frames, rate, views taken; median, nine in ten and longest time to the disk")
    with tempfile.TemporaryDirectory() as place:
        for side, hertz in ((512, 20), (512, 50), (1024, 10)):
            measure(side, hertz, parsed.views, Path(place))
