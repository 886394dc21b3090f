"""A detector's program in another process: writes a growing HDF5 file or folder, as standard input tells it.

    python growing_files.py        a line on standard output after each command

Commands: `open FILE LAYOUT` begins a file, and with `again` goes on with one; a number n writes that frame; `burst a b`
frames a to b - 1; `flats`, `darks`; `close` ends the file; `plan n` extends the shape without any data; `nan n` writes
NaN; `again n` writes a frame of NXtomo anew; `frame n` and `angle n` write one of
the two, of Data Exchange.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np

ROWS, COLUMNS = 3, 24
DARK, FLAT = 10, 1000


def angle(n: int, views: int = 20) -> float:
    return 180.0 * n / views


def frame(n: int) -> np.ndarray[Any, Any]:
    """Counts of a disc beside the axis, at the n-th of 20 angles; later, of another half turn, the axis has moved."""
    t = np.deg2rad(angle(n))
    columns = np.arange(COLUMNS) - (COLUMNS - 1) / 2 - 3 * np.cos(t) - (0.5 if n >= 20 else 0)
    path = 0.2 * np.sqrt(np.maximum(0, 36 - columns**2))
    noise = np.random.default_rng(n).integers(0, 9, (ROWS, COLUMNS))
    return np.asarray(DARK + (FLAT - DARK) * np.exp(-path)[None] + noise).astype(np.uint16)


def field(level: int, n: int) -> np.ndarray[Any, Any]:
    return level + np.random.default_rng([level, n]).integers(0, 7, (ROWS, COLUMNS)).astype(np.uint16)


class Writer:
    """An HDF5 file in SWMR mode. Layouts: exchange, nexus; with a suffix: -planned (full shape from the beginning),
    -chunks (four frames a chunk, gzip), -early (all chunks allocated), -float, or a filter of hdf5plugin."""

    def __init__(self, path: Path, layout: str, *, again: bool = False, shared: bool = True) -> None:
        self.layout, _, self.kind = layout.partition("-")
        if again:
            self.file = h5py.File(path, "r+", libver="latest")
            self.find()
            self.file.swmr_mode = True
            return
        self.file = h5py.File(path, "w", libver="latest")
        if self.layout == "arrays":
            self.create_arrays(path)
        else:
            self.create()
            self.find()
        if shared:
            self.file.swmr_mode = True

    def create(self) -> None:
        planned = 24 if self.kind in ("planned", "early") else 0
        options: dict[str, Any] = {"chunks": (4 if self.kind == "chunks" else 1, ROWS, COLUMNS)}
        if self.kind == "chunks":
            options["compression"] = "gzip"
        if self.kind in ("bitshuffle", "blosc", "zstd"):
            import hdf5plugin

            options |= dict(
                getattr(hdf5plugin, {"bitshuffle": "Bitshuffle", "blosc": "Blosc", "zstd": "Zstd"}[self.kind])()
            )
        dtype = "f4" if self.kind == "float" else "u2"
        many = {"maxshape": (None, ROWS, COLUMNS), "dtype": dtype, **options}

        def stack(name: str, count: int = 0) -> None:
            if self.kind == "early":
                plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                plist.set_chunk((1, ROWS, COLUMNS))
                plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
                space = h5py.h5s.create_simple((count, ROWS, COLUMNS), (h5py.h5s.UNLIMITED, ROWS, COLUMNS))
                link = h5py.h5p.create(h5py.h5p.LINK_CREATE)
                link.set_create_intermediate_group(True)
                h5py.h5d.create(self.file.id, name.encode(), h5py.h5t.NATIVE_UINT16, space, plist, lcpl=link)
            else:
                self.file.create_dataset(name, (count, ROWS, COLUMNS), **many)

        def column(name: str, dtype: str, unit: str | None = None) -> None:
            made = self.file.create_dataset(name, (planned,), maxshape=(None,), chunks=(64,), dtype=dtype)
            if unit is not None:
                made.attrs["units"] = unit

        if self.layout == "exchange":
            stack("/exchange/data", planned)
            stack("/exchange/data_white")
            stack("/exchange/data_dark")
            column("/exchange/theta", "f8", "deg")
        else:
            stack("/entry/instrument/detector/data", planned)
            column("/entry/instrument/detector/image_key", "i4")
            column("/entry/sample/rotation_angle", "f8", "degree")

    def create_arrays(self, path: Path) -> None:
        """Views as an instrument declares them, with the values in FILE.json as attributes."""
        for name, value in json.loads(path.with_suffix(".json").read_text()).items():
            self.file.attrs[name] = json.dumps(value) if isinstance(value, dict) else value
        for name, row in (("data", (COLUMNS,)), ("rays", (4, 3))):
            self.file.create_dataset(name, (0, *row), maxshape=(None, *row), chunks=(1, *row), dtype="f8")

    def find(self) -> None:
        if self.layout == "exchange":
            group = self.file["exchange"]
            self.data, self.flats, self.darks = group["data"], group["data_white"], group["data_dark"]
            self.angles, self.key = group["theta"], None
        else:
            self.data = self.file["/entry/instrument/detector/data"]
            self.key = self.file["/entry/instrument/detector/image_key"]
            self.angles = self.file["/entry/sample/rotation_angle"]
        self.before = 0  # frames before the projections

    def put(self, dataset: Any, n: int, value: Any) -> None:
        if dataset.shape[0] <= n:
            dataset.resize(n + 1, axis=0)
        dataset[n] = value
        dataset.flush()

    def fields(self, kind: str, count: int = 3) -> None:
        level = FLAT if kind == "flats" else DARK
        if self.key is None:
            dataset = self.flats if kind == "flats" else self.darks
            begin = dataset.shape[0]
            for n in range(begin, begin + count):
                self.put(dataset, n, field(level, n))
            return
        for n in range(self.frames, self.frames + count):
            self.put(self.key, n, 1 if kind == "flats" else 2)
            self.put(self.angles, n, 0.0)
            self.put(self.data, n, field(level, n))
        self.frames += count

    frames = 0  # of NXtomo, written so far

    def view(self, n: int, *, nan: bool = False) -> None:
        value: Any = frame(n)
        if nan:
            value = np.full((ROWS, COLUMNS), np.nan, np.float32)
        if self.key is None:
            self.put(self.data, n, value)
            self.put(self.angles, n, angle(n))
            return
        self.put(self.data, self.frames, value)
        self.put(self.key, self.frames, 0)
        self.put(self.angles, self.frames, angle(n))
        self.frames += 1

    def plan(self, n: int) -> None:
        self.data.resize(n, axis=0)
        self.data.flush()


def clear_flags(path: Path) -> None:
    """Let a file be written again whose writer was killed, as `h5clear --status --increment` does."""
    with path.open("r+b") as file:
        head = bytearray(file.read(44))
        head[11] = 0
        head[28:36] = path.stat().st_size.to_bytes(8, "little")
        file.seek(0)
        file.write(head + _lookup3(bytes(head)).to_bytes(4, "little"))


def _lookup3(key: bytes) -> int:
    """Jenkins' hash of the superblock (HDF5's H5_checksum_lookup3)."""

    def rot(x: int, k: int) -> int:
        return (x << k | x >> (32 - k)) & mask

    mask = 0xFFFFFFFF
    a = b = c = (0xDEADBEEF + len(key)) & mask
    words = [int.from_bytes(key[n : n + 4].ljust(4, b"\0"), "little") for n in range(0, -(-len(key) // 12) * 12, 4)]
    for n in range(0, len(words) - 3, 3):
        a, b, c = (a + words[n]) & mask, (b + words[n + 1]) & mask, (c + words[n + 2]) & mask
        a, c = ((a - c) & mask) ^ rot(c, 4), (c + b) & mask
        b, a = ((b - a) & mask) ^ rot(a, 6), (a + c) & mask
        c, b = ((c - b) & mask) ^ rot(b, 8), (b + a) & mask
        a, c = ((a - c) & mask) ^ rot(c, 16), (c + b) & mask
        b, a = ((b - a) & mask) ^ rot(a, 19), (a + c) & mask
        c, b = ((c - b) & mask) ^ rot(b, 4), (b + a) & mask
    a, b, c = (a + words[-3]) & mask, (b + words[-2]) & mask, (c + words[-1]) & mask
    for x, y, k in (
        ("c", "b", 14),
        ("a", "c", 11),
        ("b", "a", 25),
        ("c", "b", 16),
        ("a", "c", 4),
        ("b", "a", 14),
        ("c", "b", 24),
    ):
        v = {"a": a, "b": b, "c": c}
        v[x] = ((v[x] ^ v[y]) - rot(v[y], k)) & mask
        a, b, c = v["a"], v["b"], v["c"]
    return c


def main() -> None:
    writer: Any = None
    for line in sys.stdin:
        word, *numbers = line.split()
        if word == "open":
            writer = Writer(Path(numbers[0]), numbers[1], again="again" in numbers)
        elif word == "close":
            writer.file.close()
        elif word in ("flats", "darks"):
            writer.fields(word)
        elif word == "burst":
            for n in range(*map(int, numbers)):
                writer.view(n)
        elif word in ("data", "rays"):
            n, t = int(numbers[0]), np.deg2rad(angle(int(numbers[0])))
            rays = [[np.cos(t), np.sin(t), 0], [0, 0, 0], [-0.001 * np.sin(t), 0.001 * np.cos(t), 0], [0, 0, 0]]
            writer.put(writer.file[word], n, frame(n)[1] / FLAT if word == "data" else rays)
        elif word == "angle":
            writer.put(writer.angles, int(numbers[0]), angle(int(numbers[0])))
        elif word == "frame":
            writer.put(writer.data, int(numbers[0]), frame(int(numbers[0])))
        elif word == "again":
            writer.put(writer.data, int(numbers[0]) + 6, np.full((ROWS, COLUMNS), 500))
        elif word == "plan":
            writer.plan(int(numbers[0]))
        elif word == "nan":
            writer.view(int(numbers[0]), nan=True)
        else:
            writer.view(int(word))
        print(word, flush=True)


if __name__ == "__main__":
    main()
