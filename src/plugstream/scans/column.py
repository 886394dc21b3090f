"""The arrays of a scan on the disk: those that grow view by view, and those that are complete at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.files import sync_folder, write_whole
from plugstream.scans.chunks import ChunkReader, Marks, encode_shard
from plugstream.scans.layout import Layout
from plugstream.scans.places import LocalFiles

__all__ = ["ColumnWriter", "write_array"]


class ColumnWriter:
    """One array with a row for each view; full shards are written at once, and the last one by `flush`."""

    def __init__(
        self, folder: Path, layout: Layout, marks: Marks | None, attributes: Mapping[str, Any] | None = None
    ) -> None:
        self.folder, self.name, self.layout = folder, folder.name, layout
        self._marks, self._attributes = marks, attributes or {}
        self.views = 0
        self._tail: list[NDArray[Any]] = []
        self._written = 0  # views whose shards are on the disk as they are now
        self._length = -1  # what zarr.json says

    def resume(self, views: int) -> None:
        """Go on after this many views: those of the last shard, if it is not full, are read back."""
        self.views = self._written = views
        first = views - views % self.layout.shard
        if first < views:
            reader = ChunkReader(LocalFiles(self.folder.parent), self.name, self.layout, self._marks)
            self._tail = [reader.read(np.arange(first, views))]

    def append(self, rows: NDArray[Any]) -> None:
        self._tail.append(np.array(rows, dtype=self.layout.dtype))
        self.views += len(rows)
        if sum(map(len, self._tail)) >= self.layout.shard:
            self._write(full_only=True)

    def flush(self) -> None:
        if self._written < self.views:
            self._write(full_only=False)

    def write_length(self) -> None:
        if self._length != self.views:
            text = self.layout.metadata(self.views, self._attributes)
            self.folder.mkdir(exist_ok=True)
            write_whole(self.folder / "zarr.json", [text])
            sync_folder(self.folder)
            self._length = self.views

    def _write(self, *, full_only: bool) -> None:
        rows = np.concatenate(self._tail)
        first = self.views - len(rows)  # a whole number of shards
        while len(rows) >= self.layout.shard or (len(rows) and not full_only):
            shard = rows[: self.layout.shard]
            path = self.folder / self.layout.file(first // self.layout.shard)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, encode_shard(self.layout, shard, self._marks, first))
            sync_folder(path.parent)
            first += len(shard)
            self._written = first
            if len(shard) < self.layout.shard:
                break
            rows = rows[self.layout.shard :]
        sync_folder(self.folder / "c")
        self._tail = [rows] if len(rows) else []


def write_array(folder: Path, values: NDArray[Any], marks: Marks | None, attributes: Mapping[str, Any]) -> None:
    """Write a complete array, as one chunk."""
    layout = Layout(values.dtype, values.shape[1:], len(values), len(values))
    path = folder / layout.file(0)
    path.parent.mkdir(parents=True)
    write_whole(path, encode_shard(layout, values, marks))
    write_whole(folder / "zarr.json", [layout.metadata(len(values), attributes)])
