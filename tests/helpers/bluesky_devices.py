"""Devices for a bluesky RunEngine without ophyd: an angle, and detectors that give frames or write them to HDF5.

python bluesky_devices.py FILE ROWS COLUMNS    the detector's program: frames on standard input, a line after each
"""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


class _Device:
    parent = None

    def __init__(self, name: str) -> None:
        self.name = name

    def describe_configuration(self) -> dict[str, Any]:
        return {}

    def read_configuration(self) -> dict[str, Any]:
        return {}

    def _reading(self, value: Any) -> dict[str, Any]:
        return {self.name: {"value": value, "timestamp": time.time()}}


class Angle(_Device):
    """A rotation stage that stands where `value` says."""

    value, units = 0.0, "deg"

    def describe(self) -> dict[str, Any]:
        return {self.name: {"source": "SIM", "dtype": "number", "shape": [], "units": self.units}}

    def read(self) -> dict[str, Any]:
        return self._reading(self.value)


class FrameDetector(_Device):
    """A detector whose frames are in its events."""

    frame: Any = np.zeros((1, 1), np.uint16)

    def describe(self) -> dict[str, Any]:
        return {self.name: {"source": "SIM", "dtype": "array", "shape": list(self.frame.shape)}}

    def read(self) -> dict[str, Any]:
        return self._reading(self.frame)

    def expose(self, frame: Any) -> None:
        self.frame = frame


class FileDetector(_Device):
    """A detector that writes one HDF5 file, as areaDetector does, and tells of it by stream_resource and stream_datum.

    A process of its own writes it, since HDF5 cannot have a file open for writing and for reading in one.

    Arguments: name; path of the file; shape of a frame; late, whether frames reach the file only by `flush`.
    """

    def __init__(self, name: str, path: Path, shape: tuple[int, int], *, late: bool = False) -> None:
        super().__init__(name)
        self.path, self.shape, self.late, self.uid, self._told = path, shape, late, str(uuid.uuid4()), 0
        self._waiting: list[Any] = []
        self._exposed = 0
        words = [sys.executable, __file__, str(path), *map(str, shape)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._hear()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline()

    def close(self) -> None:
        self._process.communicate()

    def describe(self) -> dict[str, Any]:
        shape = {"dtype": "array", "dtype_numpy": "<u2", "shape": [1, *self.shape]}
        return {self.name: {"source": "SIM", "external": "STREAM:", **shape}}

    def read(self) -> dict[str, Any]:
        return {}

    def expose(self, frame: Any) -> None:
        self._exposed += 1
        self._waiting.append(frame)
        if not self.late:
            self.flush()

    def flush(self) -> None:
        assert self._process.stdin is not None
        for frame in self._waiting:
            self._process.stdin.write(np.asarray(frame, "<u2").tobytes())
            self._process.stdin.flush()
            self._hear()
        self._waiting = []

    def collect_asset_docs(self, index: int | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
        if self._told == 0:
            parameters = {"dataset": "/entry/data/data", "swmr": True, "chunk_shape": (1, *self.shape)}
            where = {"mimetype": "application/x-hdf5", "uri": f"file://localhost{self.path}"}
            yield "stream_resource", {"uid": self.uid, "data_key": self.name, "parameters": parameters, **where}
        if self._exposed > self._told:
            indices = {"start": self._told, "stop": self._exposed}
            numbers = {"indices": indices, "seq_nums": {"start": 0, "stop": 0}, "descriptor": ""}
            yield "stream_datum", {"uid": f"{self.uid}/{self._told}", "stream_resource": self.uid, **numbers}
            self._told = self._exposed


def tomography(
    detectors: dict[str, Any], angle: Angle, frames: dict[str, Any], degrees: Any, *, fail_at: int | None = None
) -> Iterator[Any]:
    """A plan: dark and flat fields, then projections.

    Arguments: detectors and frames by stream: dark, flat, primary; angle; degrees of the projections; fail_at, the
    projection at which it fails.
    """
    from bluesky import plan_stubs as bps

    yield from bps.open_run({"sample": "balls"})
    for stream in ("dark", "flat", "primary"):
        for n, frame in enumerate(frames[stream]):
            if stream == "primary" and n == fail_at:
                raise RuntimeError("the shutter is stuck")
            detectors[stream].expose(frame)
            angle.value = float(degrees[n]) if stream == "primary" else 0.0
            yield from bps.create(stream)
            yield from bps.read(detectors[stream])
            if stream == "primary":
                yield from bps.read(angle)
            yield from bps.save()
    yield from bps.close_run()


def _write_file(path: str, rows: int, columns: int) -> None:
    import h5py

    with h5py.File(path, "w", libver="latest") as file:
        shape = (rows, columns)
        data = file.create_dataset("entry/data/data", (0, *shape), "u2", chunks=(1, *shape), maxshape=(None, *shape))
        file.swmr_mode = True
        print("open", flush=True)
        while len(frame := sys.stdin.buffer.read(2 * rows * columns)) == 2 * rows * columns:
            data.resize(len(data) + 1, axis=0)
            data[-1] = np.frombuffer(frame, "<u2").reshape(shape)
            data.flush()
            print(len(data), flush=True)


if __name__ == "__main__":
    _write_file(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
