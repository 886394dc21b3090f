"""The bytes of an array that grows view by view, read and written: Zarr v3 chunks with crc32c, gathered in shards.

A shard is a file: chunks one after another, each followed by the crc32c of its bytes, then an index of (offset, length)
for every chunk, then the crc32c of the index. Before each chunk may stand a mark (`Marks`). Nothing is compressed, so
every chunk keeps its place, and a shard that is written again with more views has the earlier ones where they were.
Zarr reads and writes them as well; this reads them straight into place and names the views that are missing or damaged.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import DamagedError, InputError
from plugstream.base.files import sync_folder, write_whole
from plugstream.scans.layout import FARTHEST, Layout
from plugstream.scans.places import CHUNK_FAULTS, CRC, Files, LocalFiles, Piece, crc32c, read_bytes

_MARK = 20  # bytes of a mark
_ABSENT = 2**64 - 1
_REMEMBERED = 4_000_000  # chunks whose places in their shards are remembered, 16 bytes each
_AT_ONCE = 1 << 16  # views in one read, each of which takes a few Python objects

_Index = tuple[NDArray[np.uint64] | None, str]
"""Offset and size of each chunk of a shard, (chunks, 2), or None and what is wrong with it."""


class Marks:
    """The marks of an array: 20 bytes before each chunk that say which view of which scan it is.

    A checksum says that bytes are as they were written, but not that they are in their place: two files of a scan that
    were swapped, or a file of another scan, pass it. The marks are in gaps that the index of a shard skips, so that
    other readers of Zarr do not see them:

        8   the number of the chunk's first view, little-endian
        8   the first bytes of the scan's id
        4   crc32c of the chunk's own crc32c, these 16 bytes, and the array's name

    A shard that another program wrote again through Zarr has no gaps, begins with a chunk, and carries no marks.

    Arguments: scan_id, 32 hexadecimal digits; array, its name.
    """

    def __init__(self, scan_id: str, array: str) -> None:
        if not re.fullmatch(r"[0-9a-f]{32}", scan_id):
            raise InputError(f"the scan's id must be 32 hexadecimal digits, not {scan_id[:40]!r}")
        self.scan = bytes.fromhex(scan_id)[:8]
        self._array = array.encode()

    def make(self, view: int, checksum: bytes) -> bytes:
        """The mark of a chunk that begins with this view and has this crc32c."""
        label = view.to_bytes(8, "little") + self.scan
        return label + crc32c(checksum + label + self._array)

    def faults(self, edges: NDArray[np.uint8], views: Sequence[int]) -> dict[int, str]:
        """What is wrong with chunks that should begin with these views, by their place in the list.

        Arguments: edges (chunks, 20 + 4), the mark of each chunk and its crc32c; views.
        """
        from google_crc32c import value

        content, width, scan, array = edges.tobytes(), _MARK + CRC, self.scan, self._array
        wrong = {}
        for number, view in enumerate(views):  # for each view that is read: a microsecond
            start = number * width
            label, sums = content[start : start + 16], content[start + 16 : start + width]
            if int.from_bytes(sums[:CRC], "little") != value(sums[CRC:] + label + array):
                wrong[number] = "its mark fails its checksum: it is damaged, or of another array"
            elif label != view.to_bytes(8, "little") + scan:
                other = "this scan" if label[8:] == scan else f"another scan, {label[8:].hex()}..."
                stored = int.from_bytes(label[:8], "little")
                wrong[number] = f"it holds view {stored} of {other}; a file was swapped, or copied from elsewhere"
        return wrong


def encode_shard(layout: Layout, rows: NDArray[Any], marks: Marks | None = None, first: int = 0) -> list[bytes]:
    """The parts of a shard's file with these rows, the first being view `first`; the last chunk is filled up."""
    parts: list[bytes] = []
    index = np.full((layout.shard // layout.chunk, 2), _ABSENT, dtype="<u8")
    size, before = layout.chunk_bytes + CRC, 0 if marks is None else _MARK
    for number, start in enumerate(range(0, len(rows), layout.chunk)):
        chunk = rows[start : start + layout.chunk]
        if len(chunk) < layout.chunk:
            rest = np.full((layout.chunk - len(chunk), *layout.row), layout.fill, dtype=layout.dtype)
            chunk = np.concatenate([chunk, rest])
        content = np.ascontiguousarray(chunk, dtype=layout.dtype.newbyteorder("<")).tobytes()
        checksum = crc32c(content)
        parts += [b"" if marks is None else marks.make(first + start, checksum), content, checksum]
        index[number] = number * (before + size) + before, size
    end = index.tobytes()
    return [*parts, end, crc32c(end)]


class ChunkReader:
    """Reads rows of an array, checking every byte that it reads; errors name the scan. Threads may share one."""

    def __init__(
        self, files: Files, name: str, layout: Layout, marks: Marks | None = None, scan: str | None = None
    ) -> None:
        self.files, self.name, self.layout, self.scan = files, name, layout, scan or name
        self.marks = marks if layout.sharded else None
        self.unmarked: set[int] = set()  # shards without marks
        self._indices: dict[int, NDArray[np.uint64]] = {}
        self._at_once: tuple[str, str, int, bytes] | None = None  # what `LocalFiles.read_views` needs
        if isinstance(files, LocalFiles) and self.marks is not None and layout.chunk == 1:
            self._at_once = name, layout.file(0).removeprefix("c/0"), layout.shard, self.marks.scan

    def read_batch(self, views: NDArray[np.int64]) -> NDArray[Any]:
        """The rows of a few views, as `read` returns them, from where our shards have them, without their indices.

        In a scan of millions of views each of a batch is in another shard, whose index would cost several times as much
        to read. The view's mark says that it is the right one. If one is missing, `read` says what is wrong.
        """
        if self._at_once is not None and len(views) <= _AT_ONCE and isinstance(self.files, LocalFiles):
            out = np.empty((len(views), *self.layout.row), dtype=self.layout.dtype)
            content = out.view(np.uint8).reshape(len(views), self.layout.chunk_bytes)
            if self.files.read_views(views, content, *self._at_once):
                return out
        return self.read(views)

    def read(self, views: NDArray[np.int64]) -> NDArray[Any]:
        """The rows of these views, (B, *row); a `DamagedError` names those that cannot be read."""
        if len(views) <= _AT_ONCE:
            return self._read(views)
        out = np.empty((len(views), *self.layout.row), dtype=self.layout.dtype)
        bad: dict[int, str] = {}
        for start in range(0, len(views), _AT_ONCE):
            portion = slice(start, start + _AT_ONCE)
            try:
                out[portion] = self._read(views[portion])
            except DamagedError as error:
                bad.update(error.views)
        if bad:
            raise DamagedError(self.scan, bad)
        return out

    def _read(self, views: NDArray[np.int64]) -> NDArray[Any]:
        layout = self.layout
        shards: dict[int, dict[int, list[int]]] = {}  # shard, chunk within it, rows of the result
        for row, view in enumerate(views.tolist()):
            shard, within = divmod(view, layout.shard)
            shards.setdefault(shard, {}).setdefault(within // layout.chunk, []).append(row)
        bad: dict[int, str] = {}
        pieces: list[Piece] = []
        targets: list[list[int]] = []  # rows of the result, for each piece
        firsts: list[int] = []  # the view that each piece begins with, below zero for one without a mark
        indices = self._find(shards)
        for shard, chunks in shards.items():
            file, (index, _) = self._file(shard), indices[shard]
            # A shard with marks begins with one, not with a chunk.
            marked = self.marks is not None and index is not None and int(index[:, 0].min()) >= _MARK
            if index is not None and not marked:
                self.unmarked.add(shard)
            for number, rows in sorted(chunks.items()):
                offset, fault = self._locate(indices[shard], number)
                if fault:
                    bad.update(dict.fromkeys(views[rows].tolist(), fault))
                    continue
                # A chunk of one view is read into its place in the result; one of several has a row of its own.
                row = rows[0] if layout.chunk == 1 else len(pieces)
                pieces.append(Piece(file, offset - _MARK * marked, row))
                targets.append(rows)
                firsts.append(shard * layout.shard + number * layout.chunk if marked else -1)
        count = len(views) if layout.chunk == 1 else len(pieces)
        chunks_read = np.empty((count, layout.chunk, *layout.row), dtype=layout.dtype)
        faults = self._fill(pieces, firsts, chunks_read.view(np.uint8).reshape(count, layout.chunk_bytes))
        if sys.byteorder == "big":
            chunks_read.byteswap(inplace=True)
        out = chunks_read[:, 0] if layout.chunk == 1 else np.empty((len(views), *layout.row), dtype=layout.dtype)
        for piece, rows, fault in zip(pieces, targets, faults, strict=True):
            if fault:
                bad.update(dict.fromkeys(views[rows].tolist(), fault))
            elif layout.chunk > 1 or len(rows) > 1:
                out[rows] = chunks_read[piece.row, views[rows] % layout.chunk]
        if bad:
            raise DamagedError(self.scan, bad)
        return out

    def read_part(self, views: NDArray[np.int64], rows: slice, sums: NDArray[np.uint32]) -> NDArray[Any]:
        """Some rows of each view's data, (B, rows, ...), and nothing else, so that its chunk's checksum does not help.

        Arguments: views; rows, of the first axis of a view; sums, the crc32c of these rows of each view, taken when the
        chunk was whole. A `DamagedError` names the views that cannot be read.
        """
        layout = self.layout
        row = layout.dtype.itemsize * math.prod(layout.row[1:])
        count = row * (rows.stop - rows.start)
        out = np.empty((len(views), rows.stop - rows.start, *layout.row[1:]), dtype=layout.dtype.newbyteorder("<"))
        indices = self._find(np.unique(views // layout.shard).tolist())
        bad: dict[int, str] = {}
        for number, view in enumerate(views.tolist()):
            shard, within = divmod(view, layout.shard)
            offset, fault = self._locate(indices[shard], within // layout.chunk)
            content = b""
            if not fault:
                start = offset + within % layout.chunk * layout.view_bytes + rows.start * row
                content, fault = read_bytes(self.files, self._file(shard), start, count)
            if not fault and int.from_bytes(crc32c(content), "little") != sums[number]:
                fault = "some of its rows are not what they were when its checksum was looked at"
            if fault:
                bad[view] = fault
            else:
                out[number] = np.frombuffer(content, out.dtype).reshape(out.shape[1:])
        if bad:
            raise DamagedError(self.scan, bad)
        return out.astype(layout.dtype, copy=False)

    def _fill(self, pieces: list[Piece], firsts: list[int], out: NDArray[np.uint8]) -> list[str]:
        """Read pieces, and say what is wrong with each; a mark is read in one piece with its chunk."""
        if self.marks is None or max(firsts, default=-1) < 0:
            return self.files.read(pieces, out)
        if min(firsts) < 0:  # some of its shards were written again by another program
            faults = [""] * len(pieces)
            for kind in (True, False):
                numbers = [number for number, view in enumerate(firsts) if (view >= 0) is kind]
                portion = self._fill([pieces[n] for n in numbers], [firsts[n] for n in numbers], out)
                for number, fault in zip(numbers, portion, strict=True):
                    faults[number] = fault
            return faults
        edges = np.empty((len(pieces), _MARK + CRC), dtype=np.uint8)
        faults = self.files.read(pieces, out, edges)
        wrong_marks = self.marks.faults(edges, firsts)
        return [fault or wrong_marks.get(number, "") for number, fault in enumerate(faults)] if wrong_marks else faults

    def _file(self, shard: int) -> str:
        return f"{self.name}/{self.layout.file(shard)}"

    def _find(self, shards: Iterable[int]) -> dict[int, _Index]:
        """The indices of shards, or what is wrong; full ones, which are never written again, are remembered."""
        layout = self.layout
        if not layout.sharded:
            return dict.fromkeys(shards, (np.array([[0, layout.chunk_bytes + CRC]], dtype=np.uint64), ""))
        shards = list(shards)
        indices: dict[int, _Index] = {shard: (self._indices[shard], "") for shard in shards if shard in self._indices}
        unknown = [shard for shard in shards if shard not in indices]
        contents = np.empty((len(unknown), layout.index_bytes - CRC), dtype=np.uint8)
        pieces = [Piece(self._file(shard), -layout.index_bytes, n) for n, shard in enumerate(unknown)]
        for shard, content, fault in zip(unknown, contents, self.files.read(pieces, contents), strict=True):
            if fault:
                indices[shard] = None, "the index of its shard fails its checksum" if fault in CHUNK_FAULTS else fault
                continue
            index = content.view("<u8").reshape(-1, 2).copy()
            indices[shard] = index, ""
            if (len(self._indices) + 1) * len(index) <= _REMEMBERED and int(index.max()) < _ABSENT:
                self._indices[shard] = index
        return indices

    def _locate(self, entry: _Index, chunk: int) -> tuple[int, str]:
        """Where a chunk begins in its shard, and what is wrong with its entry in the index, "" if nothing."""
        index, fault = entry
        if index is None:
            return 0, fault
        offset, size = index[chunk].tolist()
        expected = self.layout.chunk_bytes + CRC
        if offset == _ABSENT:
            return 0, "it is missing from its shard"
        if size != expected:
            return 0, f"its chunk has {size} bytes instead of {expected}"
        return offset, "" if offset < FARTHEST else "its chunk is cut short"


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


def first_of(views: Iterable[int], most: int = 10) -> str:
    """Views for a person: the first few of a list."""
    numbers = list(views)
    return ", ".join(map(str, numbers[:most])) + (f" and {len(numbers) - most} more" if len(numbers) > most else "")
