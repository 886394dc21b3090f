"""Which rows of an HDF5 dataset its writer has filled so far.

A writer in SWMR mode (single writer, multiple readers) lets others read its file. But the shape of a dataset does not
say what is there: it may be planned in full from the beginning, or be seen before the numbers are, and HDF5 reads what
was never written as the fill value. So a row counts if all its chunks are in the file. Where a chunk has several rows,
or all chunks were allocated in advance, a row of nothing but fill values is taken for one that was never written.

Reference: The HDF Group, HDF5 single-writer/multiple-reader user's guide; file format specification 3.0, superblock.
"""

from __future__ import annotations

import math
import os
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.scans.importers.growth import Growth
from plugstream.scans.importers.hdf5_filters import CheckedChunks
from plugstream.scans.importers.source import read_head

# Of the superblock: its version, and from version 3 on the flags of a file that is open for writing, and in SWMR mode,
# and where the file ended when it was last flushed as a whole.
_VERSION, _FLAGS, _WRITER, _SHARED, _END = 8, 11, 0x01, 0x04, slice(28, 36)
# A row of so few numbers is a column's: an angle, a position.
_FEW = 16


def writer_state(path: Path) -> str:
    """Whether a file is `open` for writing, `shared` by a writer in SWMR mode, or `closed`.

    A writer that was killed leaves the flags as they were. Files of older versions have none, but are locked while they
    are written. Nobody who looks may take a lock: a writer that opens the file again just then would fail.
    """
    head = read_head(path, 16)
    if len(head) == 16 and head[_VERSION] >= 3:
        flags = head[_FLAGS]
        return "closed" if not flags & _WRITER else "shared" if flags & _SHARED else "open"
    return "open" if _is_locked(path) else "closed"


def _is_locked(path: Path) -> bool:
    """Whether somebody holds a lock for writing, where the system tells."""
    try:
        status, locks = path.stat(), Path("/proc/locks").read_text()
    except OSError:
        return False
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any({"FLOCK", "WRITE", device} <= set(line.split()) for line in locks.splitlines())


def is_cut_off(path: Path) -> bool:
    """Whether a file is shorter than its superblock says; HDF5 would look for the rest without end."""
    head = read_head(path, 48)
    wide = len(head) == 48 and head[_VERSION] >= 3 and head[_VERSION + 1] == 8
    return wide and path.stat().st_size < int.from_bytes(head[_END], "little")


class WrittenRows:
    """The rows of a dataset that are there.

    Arguments: dataset, of h5py; name, for messages; growth of its file.
    Attributes: rows, the last one that is there and all before it, of which some may be missing.
    """

    def __init__(self, dataset: Any, name: str, growth: Growth) -> None:
        self.name, self._growth = name, growth
        self._missing: set[int] = set()
        self._fill = dataset.fillvalue
        self._doubtful = True
        if dataset.chunks is None:
            self.rows = dataset.shape[0] if dataset.id.get_storage_size() else 0
        else:
            self.rows = self._by_chunks(dataset)
        if math.prod(dataset.shape[1:]) <= _FEW:
            self.rows = min([self.rows, *self._missing])
            if (
                self._doubtful
                and not growth.closed
                and dataset.dtype.kind == "f"
                and self.rows
                and dataset.chunks is not None
            ):
                self.rows = self._by_values(dataset)
            self._doubtful = False

    def limit(self, key: Any) -> Any:
        """An index of the dataset that leads to no row beyond those that are there."""
        first, *rest = key if isinstance(key, tuple) and key else (slice(None) if key == () else key,)
        if isinstance(first, slice):
            start, stop, step = first.indices(self.rows)
            return (slice(start, max(start, stop), step), *rest)
        return key

    def check(self, key: Any, values: Any) -> None:
        """Refuse rows that were read, by an index of `limit`, but not written yet."""
        first = key[0] if isinstance(key, tuple) else key
        numbers = np.atleast_1d(np.arange(self.rows)[first])
        frames = np.asarray(values).reshape(len(numbers), -1) if self._doubtful and len(numbers) else ()
        for n, number in enumerate(numbers.tolist()):
            if number in self._missing or (len(frames) and self._is_fill(frames[n])):
                raise InputError(f"row {number} of {self.name} was not written yet")

    def _is_fill(self, row: NDArray[Any]) -> bool:
        if row.size == 0 or not self._equals(row[:1])[0]:
            return False
        return bool(self._equals(row).all())

    def _equals(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        return np.asarray(np.isnan(values) if self._fill != self._fill else values == self._fill)

    def _by_chunks(self, dataset: Any) -> int:
        """The rows whose chunks are all in the file."""
        import h5py

        (length, *row), (high, *wide) = dataset.shape, dataset.chunks
        across = math.prod(-(-n // chunk) for n, chunk in zip(row, wide, strict=True))
        incremental = dataset.id.get_create_plist().get_alloc_time() == h5py.h5d.ALLOC_TIME_INCR
        self._doubtful = self._doubtful and not (high == 1 and incremental)
        written, needed = dataset.id.get_num_chunks(), -(-length // high)
        if written >= needed * across:
            return int(length)
        known = self._growth.memory.setdefault("chunks", {})
        state, last, gaps = known.get(self.name, (None, 0, set()))
        if state != (written, length) and not gaps:  # usually they come in order
            last //= high
            places = [range(0, n, chunk) for n, chunk in zip(row, wide, strict=True)]
            find = dataset.id.get_chunk_info_by_coord
            while last < needed and all(find((last * high, *at)).byte_offset is not None for at in product(*places)):
                last += 1
            if last * across == written:
                known[self.name] = (written, length), min(int(length), last * high), set()
        if known.get(self.name, (None,))[0] != (written, length):
            starts: list[int] = []
            dataset.id.chunk_iter(lambda chunk: starts.append(chunk.chunk_offset[0]))
            whole = np.bincount(np.asarray(starts, dtype=np.int64) // high)[:needed] >= across
            last = int(np.flatnonzero(whole)[-1]) + 1 if whole.any() else 0
            gaps = [n for chunk in np.flatnonzero(~whole[:last]) for n in range(chunk * high, (chunk + 1) * high)]
            known[self.name] = (written, length), min(int(length), last * high), set(gaps)
        _, rows, self._missing = known[self.name]
        return int(rows)

    def _by_values(self, dataset: Any) -> int:
        """The rows of a column but the last ones that are the fill value."""
        CheckedChunks(dataset).check(slice(0, self.rows))
        empty = self._equals(np.asarray(dataset[: self.rows]).reshape(self.rows, -1))
        written = np.flatnonzero(~np.asarray(empty.all(1)))
        return int(written[-1]) + 1 if len(written) else 0
