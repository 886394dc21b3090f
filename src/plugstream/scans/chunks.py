"""The bytes of an array that grows view by view: Zarr v3 chunks with crc32c, one view each, gathered in shards.

A shard is a file: chunks one after another, each followed by the crc32c of its bytes, then an index of (offset, length)
for every chunk, then the crc32c of the index. Before each chunk may stand a mark (`plugstream.scans.marks`). Nothing is
compressed, so every chunk has its place for good, and a shard that is written again with more views has the earlier
ones where they were. Zarr reads and writes such arrays as well; this reads them straight into place, tells missing from
damaged, and names the view.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import DamagedError, InputError
from plugstream.scans.marks import MARK, Marks
from plugstream.scans.places import CHUNK_FAULTS, CRC, Files, LocalFiles, Piece, crc32c, parse_json, read_bytes

__all__ = ["ChunkReader", "Layout", "encode_shard", "first_of"]

_ABSENT = 2**64 - 1
_REMEMBERED = 4_000_000  # chunks whose places in their shards are remembered, 16 bytes each
_FARTHEST = 2**62  # no file is as long
_MOST_CHUNK, _MOST_VIEW = 1 << 28, 1 << 31  # bytes of a chunk of several views, and of one
_MOST_CHUNKS = 1 << 16  # of a shard, whose index is read whole
_TYPES = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float16")
_TYPES += ("float32", "float64", "complex64", "complex128")
_AT_ONCE = 1 << 16  # views, for each of which there are a few Python objects while they are read
_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
_CRC32C = {"name": "crc32c"}
# What may be in an array's zarr.json; another name is of a Zarr that we do not know, or was damaged.
_MEMBERS = {
    *("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs"),
    *("attributes", "dimension_names", "storage_transformers"),
}


_Index = tuple[NDArray[np.uint64] | None, str]
"""Offset and size of each chunk of a shard, (chunks, 2), or None and what is wrong with it."""


@dataclass(frozen=True)
class Layout:
    """How an array (views, *row) lies in files: `chunk` views a chunk, `shard` views a file; no index if `sharded` is
    False, where a file is a chunk."""

    dtype: np.dtype[Any]
    row: tuple[int, ...]
    chunk: int
    shard: int
    sharded: bool = True

    @cached_property
    def chunk_bytes(self) -> int:
        return self.chunk * self.dtype.itemsize * math.prod(self.row)

    @property
    def view_bytes(self) -> int:
        return self.chunk_bytes // self.chunk

    @cached_property
    def index_bytes(self) -> int:
        return 16 * (self.shard // self.chunk) + CRC

    @property
    def fill(self) -> Any:
        """What a chunk that was never written reads as: nothing that could be taken for data, if the dtype has that."""
        return np.nan if self.dtype.kind in "fc" else False if self.dtype.kind == "b" else 0

    def file(self, shard: int) -> str:
        """The name of a shard's file within its array."""
        return "/".join(["c", str(shard), *["0"] * len(self.row)])

    def metadata(self, views: int, attributes: Mapping[str, Any]) -> bytes:
        """zarr.json of the array at this many views."""
        codecs = [_BYTES if self.dtype.itemsize > 1 else {"name": "bytes"}, _CRC32C]
        sharding = {
            "chunk_shape": [self.chunk, *self.row],
            "codecs": codecs,
            "index_codecs": [_BYTES, _CRC32C],
            "index_location": "end",
        }
        content = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [views, *self.row],
            "data_type": self.dtype.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [self.shard, *self.row]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": {"f": "NaN", "c": ["NaN", "NaN"]}.get(self.dtype.kind, self.fill),
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            "attributes": dict(attributes),
            "storage_transformers": [],
        }
        return json.dumps(content, indent=1).encode()

    @classmethod
    def parse(cls, text: bytes) -> tuple[Layout, int]:
        """The layout that zarr.json describes, and the number of views; an array stored in another way is refused."""
        content = parse_json(text, "zarr.json")
        views, *row = map(_size, content["shape"])
        shard, *rest = map(_size, content["chunk_grid"]["configuration"]["chunk_shape"])
        if content["data_type"] not in _TYPES:
            raise InputError(f"numbers of the type {str(content['data_type'])[:40]!r} are not known")
        dtype, codecs = np.dtype(content["data_type"]), content["codecs"]
        chunk, sharded = shard, codecs[0]["name"] == "sharding_indexed"
        if sharded:
            configuration = codecs[0]["configuration"]
            chunk, *inner = map(_size, configuration["chunk_shape"])
            rest = inner if rest == row else rest
            codecs = configuration["codecs"] if len(codecs) == 1 else []
            members = {"chunk_shape", "codecs", "index_codecs", "index_location"}
            if _plain(configuration["index_codecs"]) != [_BYTES, _CRC32C] or not members >= set(configuration):
                raise InputError("the index of a shard must be little-endian bytes with crc32c and nothing else")
            if configuration.get("index_location", "end") != "end":
                raise InputError("the index of a shard must be at its end")
        allowed = [[_BYTES, _CRC32C], *([[{"name": "bytes"}, _CRC32C]] if dtype.itemsize == 1 else [])]
        if _plain(codecs) not in allowed:
            names = [codec["name"] for codec in codecs]
            raise InputError(f"chunks must be little-endian bytes with crc32c and nothing else, not {names}")
        (keys,) = _plain([content["chunk_key_encoding"]])
        if keys not in ({"name": "default"}, {"name": "default", "configuration": {"separator": "/"}}):
            raise InputError("chunks must be named c/0/0 and so on")
        usual = content["zarr_format"] == 3 and content["node_type"] == "array" and "fill_value" in content
        if not usual or content["chunk_grid"]["name"] != "regular" or set(content) - _MEMBERS:
            raise InputError("zarr.json is not that of a Zarr v3 array")
        if rest != row or min(views, *row, 0) < 0 or min(chunk, shard) < 1 or shard % chunk:
            raise InputError(f"chunks of {[chunk, *rest]} in shards of {shard} views do not hold whole views of {row}")
        if content.get("storage_transformers"):
            raise InputError("storage transformers are not supported")
        layout = cls(dtype, tuple(row), chunk, shard, sharded)
        if layout.chunk_bytes > (_MOST_CHUNK if chunk > 1 else _MOST_VIEW) or shard // chunk > _MOST_CHUNKS:
            size = f"{layout.chunk_bytes / 1e9:.3g} GB"
            raise InputError(f"chunks of {size}, {shard // chunk} of them a shard, are larger than any of a scan")
        return layout, views


def _size(value: Any) -> int:
    """A whole number that can be the size of an axis."""
    if type(value) is not int or not 0 <= value < _FARTHEST:
        raise InputError(f"an axis has the size {str(value)[:40]}")
    return value


def _plain(codecs: list[Any]) -> list[dict[str, Any]]:
    """The codecs in one spelling: an empty configuration is left out."""
    return [{key: value for key, value in codec.items() if (key, value) != ("configuration", {})} for codec in codecs]


def encode_shard(layout: Layout, rows: NDArray[Any], marks: Marks | None = None, first: int = 0) -> list[bytes]:
    """The parts of a shard's file that holds these rows; the rest of the last chunk gets the fill value.

    Arguments: marks of the chunks; first, the number of the first row.
    """
    parts: list[bytes] = []
    index = np.full((layout.shard // layout.chunk, 2), _ABSENT, dtype="<u8")
    size, before = layout.chunk_bytes + CRC, 0 if marks is None else MARK
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
    """Reads rows of an array, checking every byte that it reads.

    Arguments: files, name of the array, its layout, and its marks if its chunks have them. Threads may share one.
    """

    def __init__(self, files: Files, name: str, layout: Layout, marks: Marks | None = None) -> None:
        self.files, self.name, self.layout = files, name, layout
        self.marks = marks if layout.sharded else None
        self.unmarked: set[int] = set()  # shards without marks
        self._indices: dict[int, NDArray[np.uint64]] = {}
        self._at_once: tuple[str, str, int, bytes] | None = None  # what `LocalFiles.read_views` needs
        if isinstance(files, LocalFiles) and self.marks is not None and layout.chunk == 1:
            self._at_once = name, layout.file(0).removeprefix("c/0"), layout.shard, self.marks.scan

    def read_batch(self, views: NDArray[np.int64]) -> NDArray[Any]:
        """The rows of a few views, as `read` returns them, from where our shards have them, without their indices.

        Of a scan of millions of views a batch has each from another shard, and reading its index would cost several
        times what the view does. The view's mark says that it is the right one. If one is not there, `read` looks for
        all of them, and says what is wrong.
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
            raise DamagedError(self.name, bad)
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
            index, _ = indices[shard]
            marked = index is not None and self._has_marks(shard, index)
            for number, rows in sorted(chunks.items()):
                offset, fault = self._locate(indices[shard], number)
                if fault:
                    bad.update(dict.fromkeys(views[rows].tolist(), fault))
                    continue
                # A chunk of one view is read into its place in the result; one of several has a row of its own.
                row = rows[0] if layout.chunk == 1 else len(pieces)
                pieces.append(Piece(self._file(shard), offset - MARK * marked, row))
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
            raise DamagedError(self.name, bad)
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
            raise DamagedError(self.name, bad)
        return out.astype(layout.dtype, copy=False)

    def _has_marks(self, shard: int, index: NDArray[np.uint64]) -> bool:
        """Whether chunks of a shard carry marks: then it begins with one, not with a chunk."""
        marked = self.marks is not None and int(index[:, 0].min()) >= MARK
        if not marked:
            self.unmarked.add(shard)
        return marked

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
        edges = np.empty((len(pieces), MARK + CRC), dtype=np.uint8)
        faults = self.files.read(pieces, out, edges)
        wrong_marks = self.marks.faults(edges, firsts)
        return [fault or wrong_marks.get(number, "") for number, fault in enumerate(faults)] if wrong_marks else faults

    def _file(self, shard: int) -> str:
        return f"{self.name}/{self.layout.file(shard)}"

    def _find(self, shards: Iterable[int]) -> dict[int, _Index]:
        """The indices of shards, or what is wrong; full ones, which are never written again, are remembered.

        An index is like a chunk, some bytes with their checksum, at the end of its file.
        """
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
        return offset, "" if offset < _FARTHEST else "its chunk is cut short"


def first_of(views: Iterable[int], most: int = 10) -> str:
    """Views for a person: the first few of a list."""
    numbers = list(views)
    return ", ".join(map(str, numbers[:most])) + (f" and {len(numbers) - most} more" if len(numbers) > most else "")
