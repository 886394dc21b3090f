"""A scan on disk: a Zarr v3 group whose data is checked by crc32c, and a commit record that says how much of it counts.

    scan.zarr/
      zarr.json       the group: format, version, id, instrument, attributes, declarations, provenance, a checksum
      data/           (views, *shape), a view a chunk, crc32c and mark on every chunk, many chunks a shard
      COLUMN/         (views, *row), for each column that the instrument declares and the scan has
      ARRAY/          for each fixed array of the instrument            truth/  the true image
      commit.json     {"views": n, "complete": true, "arrays": [...], "crc32c": ...}, replaced when all that is there

Readers never look past `views` of the commit record. docs/scan-format.md has the details.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.capacity import machine_memory
from plugstream.base.errors import DamagedError, InputError
from plugstream.base.progress import report
from plugstream.base.rows import Rows
from plugstream.instruments.base import Column, Columns, instrument_of
from plugstream.models.views import whole_numbers
from plugstream.scans.checks import check_columns, check_data_shape, check_truth, not_finite
from plugstream.scans.chunks import ChunkReader, Marks
from plugstream.scans.layout import (
    FORMAT,
    VERSION,
    VERSIONS,
    Commit,
    Layout,
    checksum,
    find_instrument,
    is_packed,
    upgrade_attributes,
)
from plugstream.scans.places import Files, LocalFiles, ZarrFiles, ZipFiles, parse_json
from plugstream.scans.rows import StoredRows, name_damage
from plugstream.scans.scan import MemoryScan

# Views are checked and loaded in blocks of about this size.
_BLOCK_BYTES = 32 << 20
# Masks and fields of all views are kept in memory up to this many bytes, and otherwise read with the data.
_ROWS_IN_MEMORY = 64 << 20
_NOT_FINITE = "it holds NaN or infinity"
# What an array claims is believed up to this many bytes, and beyond that if its files bear it out.
_BELIEVED = 64 << 20
# A folder with more than this part of the machine's memory is read past the page cache, which could not hold it.
_CACHED_PART = 0.5
_memory = machine_memory


def open_scan(path: str | Path, *, direct: bool | None = None) -> StoredScan:
    """Open a scan without reading its measurements; whatever does not agree with itself is refused.

    Holds for scans of versions 3 and 4, also while they are being written: `StoredScan.refresh` then looks for more
    views.

    Arguments: path, a folder, a zip file of one, or an address that fsspec knows, such as s3://bucket/scan.zarr;
    direct, whether the measurements in a folder are read past the system's page cache, by default if they are larger
    than half of the memory.
    """
    where, files = _files(path)
    attributes = _read_attributes(where, files)
    if attributes["version"] == VERSION and isinstance(name := attributes.get("instrument"), str):
        try:
            instrument_of(name)
        except InputError as error:
            raise InputError(f"the scan {where} cannot be read: {error}") from None
    try:
        if attributes["version"] == 3:
            attributes = upgrade_attributes(attributes)
        return StoredScan(where, files, attributes, direct=direct)
    except InputError as error:
        raise DamagedError(f"the scan {where} is damaged or contradicts itself: {error}") from error
    except FileNotFoundError as error:
        raise DamagedError(f"the scan {where} is damaged: {error.filename or 'a file'} is missing") from error
    except Exception as error:  # JSON of the wrong kind, and all that a distant store may raise
        raise DamagedError(f"the scan {where} is damaged: {error!r}".splitlines()[0]) from error


class StoredScan:
    """A scan on disk; it holds what the instrument needs, and reads measurements when they are asked for.

    Threads may share it. `columns`, `complete` and the number of views are those of the last `refresh`.
    """

    def __init__(self, where: str, files: Files, attributes: Mapping[str, Any], *, direct: bool | None = None) -> None:
        self.path = where
        self._direct = direct
        self.version = int(attributes["version"])
        self.id = str(attributes.get("id", ""))
        self.provenance: Mapping[str, Any] = dict(attributes.get("provenance", {}))
        self._files = files
        self._believed: dict[str, int] = {}
        self._commit = Commit.parse(files.load("commit.json"))
        if type(marks := attributes.get("marks", False)) is not bool:
            raise InputError(f"marks must be true or false, not {str(marks)[:40]!r}")
        self.marked = marks
        kind = find_instrument(attributes)
        arrays = {array.name: self._array(array.name) for array in kind.arrays if array.name in self._commit.arrays}
        self.instrument = kind.from_parts(arrays, attributes.get("attributes", {}))
        self.truth: NDArray[Any] | None = self._array("truth") if "truth" in self._commit.arrays else None
        if self.truth is not None:
            check_truth(self.truth, self.instrument.image)
        layout, _ = self.layout("data")
        if layout.dtype.name not in kind.data.dtypes:
            raise InputError(f"its data is {layout.dtype}, but must be {' or '.join(kind.data.dtypes)}")
        self._data = self._reader("data", layout)
        self._rows: dict[str, Rows] = {}
        self._columns: Columns = {}
        self._room: dict[str, NDArray[Any]] = {}
        self._spoiled: dict[int, str] = {}
        self.n_views = 0
        self.complete = False
        self.changed = time.monotonic()  # when it was opened, or a refresh last found something new
        self.refresh()

    @property
    def columns(self) -> Columns:
        """What the views have besides data; refused before the first commit, since there are no views."""
        if self.n_views == 0:
            raise InputError(f"the scan {self.path} has no views yet; wait for its first ones")
        return self._columns

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the measurements."""
        return self._data.layout.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the measurements."""
        return self.n_views * self._data.layout.view_bytes

    def refresh(self) -> bool:
        """Read the commit record again: True if there are more views than before, or the scan was finished."""
        commit = self._commit = Commit.parse(self._files.load("commit.json"))
        if commit.views < self.n_views:
            raise InputError(f"commit.json says there are {commit.views} views, but there were {self.n_views}")
        news = commit.views > self.n_views or commit.complete != self.complete
        if commit.views > self.n_views:
            self._extend(commit.views)
        self.complete = commit.complete
        if news:
            self.changed = time.monotonic()
        return news

    def read(self, views: Tensor | None = None) -> Tensor:
        """The measurements of these views, (B, *data_shape), on the CPU, all for None, each chunk checked."""
        numbers = np.arange(self.n_views) if views is None else whole_numbers(views).numpy()
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < self.n_views):
            raise InputError(f"the scan has views 0 to {self.n_views - 1}, not {numbers.min()} to {numbers.max()}")
        if self._spoiled and (bad := {v: self._spoiled[v] for v in numbers.tolist() if v in self._spoiled}):
            raise DamagedError(self.path, bad)
        if views is not None:
            for rows in self._on_disk():
                rows.ahead(numbers)
        return torch.from_numpy(self._data.read(numbers) if views is None else self._data.read_batch(numbers))

    def read_rows(self, views: Tensor, rows: slice, sums: NDArray[np.uint32]) -> Tensor:
        """Rows of the measurements of these views, (B, rows, ...), reading only their bytes where that is possible.

        Arguments: rows, along the first axis of a view's data; sums, their crc32c (`plugstream.scans.blocks`).
        """
        if not self._files.seekable:
            return self.read(views)[:, rows].clone()
        return torch.from_numpy(self._data.read_part(views.numpy(), rows, sums))

    def load(self) -> MemoryScan:
        """The whole scan in memory, checked for NaN and infinity."""
        report(f"reading {self.nbytes / 1e6:.3g} MB of the scan")
        columns = {name: rows[:] for name, rows in self.columns.items()}
        data = self.read()
        if bad := not_finite(data.numpy(), self.instrument.find_mask(columns)):
            raise DamagedError(self.path, dict.fromkeys(bad, _NOT_FINITE))
        return MemoryScan(data, self.instrument, self.truth, self.provenance, columns)

    def check(self) -> None:
        """Read every view, and refuse the scan if a chunk is damaged or holds NaN or infinity, naming the view."""
        if bad := self.damaged():
            raise DamagedError(self.path, bad)

    def damaged(self, first: int = 0) -> dict[int, str]:
        """Read every view from `first` on, and say what is wrong with those that cannot be used: {view: fault}."""
        bad = {view: fault for view, fault in self._spoiled.items() if view >= first}
        mask = self.instrument.find_mask(self.columns)
        for views in self.blocks(first):
            report("reading every view", int(views[0]), self.n_views)
            numbers = np.setdiff1d(views.numpy(), list(self._spoiled))
            for rows in self._on_disk():
                numbers, _ = _read_good(rows.__getitem__, numbers, bad)
            numbers, data = _read_good(self._data.read, numbers, bad)
            wrong = not_finite(data, None if mask is None else mask[numbers])
            bad.update(dict.fromkeys(numbers[wrong].tolist(), _NOT_FINITE))
        return bad

    @property
    def unmarked(self) -> int:
        """How many views that were read carry no marks, so that one swapped for another is not noticed."""
        shard, last = self._data.layout.shard, self.n_views
        return sum(max(0, min(last, (number + 1) * shard) - number * shard) for number in self._data.unmarked)

    def blocks(self, first: int = 0) -> Iterator[Tensor]:
        """Views from `first` on, in blocks that take little memory and whole shards."""
        shard = self._data.layout.shard
        layouts = [self._data.layout, *(rows.reader.layout for rows in self._on_disk())]
        view_bytes = sum(layout.view_bytes for layout in layouts)
        step = max(1, _BLOCK_BYTES // (shard * view_bytes)) * shard
        while first < self.n_views:
            end = min(self.n_views, (first // step + 1) * step)
            yield torch.arange(first, end)
            first = end

    def _extend(self, views: int) -> None:
        """Read positions of the new views, and masks and fields if they are small; data stays where it is."""
        layout, length = self.layout("data")
        if length < views:
            raise InputError(f"commit.json says there are {views} views, but there are {length}")
        self._check_claim("data", layout, views, in_memory=False)
        rows: dict[str, Rows] = {}
        for column in self.instrument.columns:
            name = column.name
            if name not in self._commit.arrays:
                continue
            layout, length = self.layout(name)
            if layout.dtype != np.dtype(column.dtype):
                raise InputError(f"{name} is {layout.dtype}, but must be {column.dtype}")
            count, before = min(views, length), self._rows.get(name)
            large = not is_packed(column) and count * layout.view_bytes > _ROWS_IN_MEMORY
            self._check_claim(name, layout, count, in_memory=not large)
            if isinstance(before, StoredRows):
                rows[name] = before.grown(count)
            elif large:
                rows[name] = StoredRows(self._reader(name, layout), count)
            else:
                old = np.empty((0, *layout.row), dtype=layout.dtype) if before is None else before[:]
                new = self._new_rows(self._reader(name, layout), np.arange(len(old), count), old, column)
                rows[name] = self._append(name, old, new)
        columns = self._check_columns(rows, views)
        check_data_shape((views, *self._data.layout.row), self.instrument, views)
        self._rows, self._columns, self.n_views = rows, columns, views
        if isinstance(self._files, LocalFiles):
            self._files.direct = self.nbytes > _CACHED_PART * _memory() if self._direct is None else self._direct

    def _append(self, name: str, old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
        """Both, in an array that has room for more, so that rows of a scan that grows are not copied each time."""
        count, room = len(old) + len(new), self._room.get(name)
        if room is None or len(room) < count or old.base is not room:
            room = np.empty((count + (count // 4 if len(old) else 0), *old.shape[1:]), old.dtype)
            room[: len(old)] = old
            self._room[name] = room
        room[len(old) : count] = new
        return room[:count]

    def _check_columns(self, rows: dict[str, Rows], views: int) -> Columns:
        """As `check_columns`, of new views alone where the instrument says that each is checked by itself."""
        if self.instrument.each_view and self._columns.keys() == rows.keys():
            new = {name: part[self.n_views :] for name, part in rows.items() if isinstance(part, np.ndarray)}
            if len(new) == len(rows):
                with contextlib.suppress(InputError):  # which the whole will tell, with the view's number
                    check_columns(self.instrument, new, views - self.n_views)
                    return dict(rows)
        return check_columns(self.instrument, rows, views)

    def _check_claim(self, name: str, layout: Layout, rows: int, *, in_memory: bool) -> None:
        """Refuse an array that claims far more than its files could hold, or than this machine could.

        A few files of an array are looked at once it claims so much that memory could be short, and again when it has
        doubled. Many of them may be missing: that is damage, which is reported view by view.
        """
        claimed, memory = rows * layout.view_bytes, machine_memory()
        if rows > memory // 64 or (in_memory and claimed > memory // 2):
            raise InputError(
                f"{name} claims {rows} rows of {claimed / 1e9:.3g} GB in all, more than fits this machine's memory"
            )
        if max(claimed, 8 * rows) <= _BELIEVED or rows <= 2 * self._believed.get(name, 0):
            return
        shards = -(-rows // layout.shard)
        sample = np.unique(np.linspace(0, shards - 1, 17).astype(np.int64)).tolist()
        stored = sum(self._files.size(f"{name}/{layout.file(shard)}") for shard in sample) / len(sample) * shards
        if 8 * stored + _BELIEVED < claimed:
            raise InputError(
                f"{name} claims {rows} rows, {claimed / 1e9:.3g} GB, but its files have about {stored / 1e6:.3g} MB"
            )
        self._believed[name] = rows

    def _on_disk(self) -> list[StoredRows]:
        return [rows for rows in self._rows.values() if isinstance(rows, StoredRows)]

    def _new_rows(
        self, reader: ChunkReader, views: NDArray[np.int64], before: NDArray[Any], column: Column
    ) -> NDArray[Any]:
        """Rows of views; a damaged one spoils its view, not the scan.

        It gets the row of another view, or an empty mask, since the view will not be read. If there is no other row,
        the scan is refused.
        """
        try:
            return reader.read(views)
        except DamagedError as error:
            good = np.setdiff1d(views, list(error.views))
            rows = reader.read(good)
            other = np.zeros((1, *reader.layout.row), bool) if column.covers else [*before[:1], *rows[:1]]
            if len(other) == 0:
                raise
            self._spoiled.update({view: name_damage(reader.name, fault) for view, fault in error.views.items()})
            out = np.repeat(other[:1], len(views), axis=0)
            out[np.searchsorted(views, good)] = rows
            return out

    def _reader(self, name: str, layout: Layout) -> ChunkReader:
        return ChunkReader(self._files, name, layout, Marks(self.id, name) if self.marked else None, self.path)

    def layout(self, name: str) -> tuple[Layout, int]:
        """How an array lies in files, and how many views it has."""
        try:
            return Layout.parse(self._files.load(f"{name}/zarr.json"))
        except InputError as error:
            raise InputError(f"{name} cannot be read: {error}") from error

    def _array(self, name: str) -> NDArray[Any]:
        """A complete array."""
        layout, length = self.layout(name)
        self._check_claim(name, layout, length, in_memory=True)
        try:
            return self._reader(name, layout).read(np.arange(length))
        except DamagedError as error:
            raise InputError(f"{name} cannot be read: {next(iter(error.views.values()))}") from error


def _read_attributes(where: str | Path, files: Files) -> dict[str, Any]:
    """The attributes of a scan's group, checked to be of a version that is known."""
    try:
        content = parse_json(files.load("zarr.json"), "zarr.json")
        attributes = content["attributes"]
        if content["zarr_format"] != 3 or content["node_type"] != "group" or not isinstance(attributes, dict):
            raise InputError("it is not a group of Zarr v3")
    except FileNotFoundError:
        raise InputError(f"{where} is not a scan: no Zarr v3 group can be read there") from None
    except Exception as error:
        raise InputError(f"{where} is not a scan: its zarr.json cannot be read ({error})".splitlines()[0]) from error
    if attributes.get("format") != FORMAT:
        raise InputError(f"{where} is a Zarr group, but not a {FORMAT}; make one with 'plugstream import'")
    version = attributes.get("version")
    if type(version) is not int or version not in VERSIONS:
        hint = ""
        if type(version) is int:
            hint = "; use a newer plugstream" if version > VERSION else "; import it again"
        number, versions = repr(version)[:40], " and ".join(map(str, VERSIONS))
        raise InputError(f"{where} is a scan of version {number}, and this plugstream reads versions {versions}{hint}")
    stored = attributes.pop("crc32c", None)
    if stored is not None and stored != checksum(attributes):
        raise InputError(
            f"the scan {where} is damaged: zarr.json fails its checksum; if you changed it yourself, remove its crc32c"
        )
    return attributes


def _read_good(
    read: Callable[[NDArray[np.int64]], NDArray[Any]], views: NDArray[np.int64], bad: dict[int, str]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The views that can be read, with their rows; what is wrong with the others is added to `bad`."""
    try:
        return views, read(views)
    except DamagedError as error:
        bad.update(error.views)
        good = np.setdiff1d(views, list(error.views))
        return good, read(good)


def _files(path: str | Path) -> tuple[str, Files]:
    """Where a scan lies, for messages, and its files."""
    if isinstance(path, str) and "://" in path:
        from zarr.storage import FsspecStore

        try:
            return path, ZarrFiles(FsspecStore.from_url(path, read_only=True))
        except ImportError as error:
            raise InputError(f"{path} needs a package that is not installed: {error}".splitlines()[0]) from error
        except Exception as error:
            raise InputError(f"there is no scan at {path}: {error}".splitlines()[0]) from error
    folder = Path(path)
    if not folder.exists():
        raise InputError(f"there is no scan at {folder}")
    if not folder.is_dir() and not folder.is_file():
        raise InputError(f"{folder} is not a scan: neither a folder nor a zip file, but a pipe or a device")
    return str(folder), LocalFiles(folder) if folder.is_dir() else ZipFiles(folder)
