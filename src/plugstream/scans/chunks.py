"""The bytes of an array that grows view by view: Zarr v3 chunks with crc32c, one view each, gathered in shards.

A shard is a file: chunks one after another, each followed by the crc32c of its bytes, then an index of (offset, length)
for every chunk, then the crc32c of the index. Nothing is compressed, so every chunk has its place for good, and a
shard that is written again with more views has the earlier ones where they were. Zarr reads and writes such arrays as
well; this reads them straight into place, tells missing from damaged, and names the view.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.errors import DamagedError, InputError
from plugstream.scans.places import File, Files

__all__ = ["ChunkReader", "Layout", "crc32c", "encode_shard", "first_of"]

_ABSENT = 2**64 - 1
_CRC = 4
_REMEMBERED = 10_000  # indices of shards, at most 4 KB each as we write them
# Chunks that lie one after another are read together, up to so many bytes and chunks (the system takes 1024 buffers).
_RUN_BYTES, _RUN_CHUNKS = 4 << 20, 256
_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
_CRC32C = {"name": "crc32c"}


@dataclass(frozen=True)
class Layout:
    """How an array (views, *row) lies in files: `chunk` views a chunk, `shard` views a file; no index if `sharded` is
    False, where a file is a chunk."""

    dtype: np.dtype[Any]
    row: tuple[int, ...]
    chunk: int
    shard: int
    sharded: bool = True

    @property
    def chunk_bytes(self) -> int:
        return self.chunk * self.dtype.itemsize * int(np.prod(self.row, dtype=np.int64))

    @property
    def index_bytes(self) -> int:
        return 16 * (self.shard // self.chunk) + _CRC

    def file(self, shard: int) -> str:
        """The name of a shard's file within its array."""
        return "/".join(["c", str(shard), *["0"] * len(self.row)])

    def metadata(self, views: int, fill: Any, attributes: Mapping[str, Any]) -> bytes:
        """zarr.json of the array at this many views."""
        inner = [_BYTES if self.dtype.itemsize > 1 else {"name": "bytes"}, _CRC32C]
        sharding = {
            "chunk_shape": [self.chunk, *self.row],
            "codecs": inner,
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
            "fill_value": fill,
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            "attributes": dict(attributes),
            "storage_transformers": [],
        }
        return json.dumps(content, indent=1).encode()

    @classmethod
    def parse(cls, text: bytes) -> tuple[Layout, int]:
        """The layout that zarr.json tells, and the number of views; an array stored in another way is refused."""
        content = json.loads(text)
        views, *row = (int(n) for n in content["shape"])
        shard, *whole = (int(n) for n in content["chunk_grid"]["configuration"]["chunk_shape"])
        codecs, sharded = content["codecs"], content["codecs"][0]["name"] == "sharding_indexed"
        chunk = shard
        if sharded:
            configuration = content["codecs"][0]["configuration"]
            chunk, *whole = (int(n) for n in configuration["chunk_shape"])
            codecs = configuration["codecs"] if len(codecs) == 1 else []
            if configuration.get("index_location", "end") != "end":
                raise InputError("the index of a shard must be at its end")
        names = [codec["name"] for codec in codecs]
        little = bool(codecs) and codecs[0].get("configuration", {}).get("endian", "little") == "little"
        if names != ["bytes", "crc32c"] or not little:
            raise InputError(f"chunks must be little-endian bytes with crc32c and nothing else, not {names}")
        separator = content["chunk_key_encoding"].get("configuration", {}).get("separator", "/")
        if content["chunk_key_encoding"]["name"] != "default" or separator != "/":
            raise InputError("chunks must be named c/0/0 and so on")
        if whole != row or min(views, *row, 0) < 0 or min(chunk, shard) < 1 or shard % chunk:
            raise InputError(f"chunks of {[chunk, *whole]} in shards of {shard} views do not hold whole views of {row}")
        if content.get("storage_transformers"):
            raise InputError("storage transformers are not supported")
        return cls(np.dtype(content["data_type"]), tuple(row), chunk, shard, sharded), views


def crc32c(content: bytes | NDArray[np.uint8]) -> bytes:
    """The checksum of bytes as it is stored."""
    import google_crc32c

    return int(google_crc32c.value(content)).to_bytes(_CRC, "little")


def encode_shard(layout: Layout, rows: NDArray[Any], fill: Any) -> list[bytes]:
    """The parts of a shard's file that holds these rows; what is left of the last chunk gets the fill value."""
    parts: list[bytes] = []
    index = np.full((layout.shard // layout.chunk, 2), _ABSENT, dtype="<u8")
    size = layout.chunk_bytes + _CRC
    for number, start in enumerate(range(0, len(rows), layout.chunk)):
        some = rows[start : start + layout.chunk]
        if len(some) < layout.chunk:
            rest = np.full((layout.chunk - len(some), *layout.row), fill, dtype=layout.dtype)
            some = np.concatenate([some, rest])
        content = np.ascontiguousarray(some, dtype=layout.dtype.newbyteorder("<")).tobytes()
        parts += [content, crc32c(content)]
        index[number] = number * size, size
    end = index.tobytes()
    return [*parts, end, crc32c(end)]


class ChunkReader:
    """Reads rows of an array, checking every byte that it reads.

    Arguments: files, name of the array, its layout. Threads may share one.
    """

    def __init__(self, files: Files, name: str, layout: Layout) -> None:
        self.files, self.name, self.layout = files, name, layout
        self._indices: dict[int, NDArray[np.uint64]] = {}

    def read(self, views: NDArray[np.int64]) -> NDArray[Any]:
        """The rows of these views, (B, *row); a `DamagedError` names those that cannot be had."""
        out = np.empty((len(views), *self.layout.row), dtype=self.layout.dtype)
        bad: dict[int, str] = {}
        shards: dict[int, dict[int, list[int]]] = {}  # shard, chunk within it, rows of `out`
        for row, view in enumerate(views.tolist()):
            shard, within = divmod(view, self.layout.shard)
            shards.setdefault(shard, {}).setdefault(within // self.layout.chunk, []).append(row)
        for shard, chunks in shards.items():
            try:
                self._read_shard(shard, chunks, views, out, bad)
            except FileNotFoundError:
                self._blame(bad, views, chunks, f"the file {self.layout.file(shard)} is missing")
            except _Wrong as error:
                self._blame(bad, views, chunks, str(error))
            except Exception as error:  # an I/O error of the disk or of a distant store, of whatever kind
                what = getattr(error, "strerror", None) or str(error).split("\n")[0] or type(error).__name__
                self._blame(bad, views, chunks, what)
        if bad:
            raise DamagedError(self.name, bad)
        return out

    def _read_shard(
        self, shard: int, chunks: dict[int, list[int]], views: NDArray[np.int64], out: NDArray[Any], bad: dict[int, str]
    ) -> None:
        layout = self.layout
        with self.files.open(f"{self.name}/{layout.file(shard)}") as file:
            index = self._index(shard, file)
            places: dict[int, int] = {}
            for number in sorted(chunks):
                offset, size = index[number].tolist()
                if offset == _ABSENT:
                    self._blame(bad, views, {number: chunks[number]}, "it is missing from its shard")
                elif size != layout.chunk_bytes + _CRC:
                    what = f"its chunk has {size} bytes instead of {layout.chunk_bytes + _CRC}"
                    self._blame(bad, views, {number: chunks[number]}, what)
                else:
                    places[number] = offset
            for run in _runs(places, layout.chunk_bytes + _CRC):
                whole = layout.chunk == 1
                shape = (layout.chunk, *layout.row)
                targets = [out[chunks[n][0]] if whole else np.empty(shape, dtype=layout.dtype) for n in run]
                wrong = self._read_run(file, places[run[0]], targets)
                for number, target, what in zip(run, targets, wrong, strict=True):
                    rows = chunks[number]
                    if what:
                        self._blame(bad, views, {number: rows}, what)
                    elif not whole:
                        out[rows] = target[views[rows] % layout.chunk]
                    elif len(rows) > 1:
                        out[rows[1:]] = target

    def _blame(self, bad: dict[int, str], views: NDArray[np.int64], chunks: Mapping[int, list[int]], what: str) -> None:
        for rows in chunks.values():
            bad.update(dict.fromkeys(views[rows].tolist(), what))

    def _index(self, shard: int, file: File) -> NDArray[np.uint64]:
        """Where the chunks of a shard lie; of a full one, which is never written again, it is remembered."""
        layout = self.layout
        if not layout.sharded:
            return np.array([[0, layout.chunk_bytes + _CRC]], dtype=np.uint64)
        known = self._indices.get(shard)
        if known is not None:
            return known
        content = file.last(layout.index_bytes)
        if len(content) != layout.index_bytes or crc32c(content[:-_CRC]) != content[-_CRC:]:
            raise _Wrong("the index of its shard fails its checksum")
        index = np.frombuffer(content, dtype="<u8", count=2 * (layout.shard // layout.chunk)).reshape(-1, 2)
        if len(self._indices) < _REMEMBERED and int(index.max()) < _ABSENT:
            self._indices[shard] = index
        return index

    def _read_run(self, file: File, offset: int, targets: list[NDArray[Any]]) -> list[str]:
        """Read chunks that lie one after another into contiguous arrays, and say of each what is wrong, "" if nothing.

        There is no copy between the file and the arrays, where the file allows it.
        """
        said = bytearray(_CRC * len(targets))
        sums = [memoryview(said)[_CRC * n : _CRC * (n + 1)] for n in range(len(targets))]
        contents = [target.reshape(-1).view(np.uint8) for target in targets]
        got = file.read_into([part for pair in zip(contents, sums, strict=True) for part in pair], offset)
        wrong = []
        for number, (target, content) in enumerate(zip(targets, contents, strict=True)):
            if got < (number + 1) * (self.layout.chunk_bytes + _CRC):
                wrong.append("its chunk is cut short")
            else:
                wrong.append("" if crc32c(content) == sums[number] else "its chunk fails its checksum")
            if sys.byteorder == "big":
                target.byteswap(inplace=True)
        return wrong


def _runs(places: Mapping[int, int], size: int) -> Iterator[list[int]]:
    """Chunks, by number with their offsets, in groups that lie one after another."""
    run: list[int] = []
    most = max(1, min(_RUN_CHUNKS, _RUN_BYTES // size))
    for number, offset in places.items():
        if run and (len(run) == most or offset != places[run[-1]] + size):
            yield run
            run = []
        run.append(number)
    if run:
        yield run


class _Wrong(Exception):
    pass


def first_of(views: Iterable[int], most: int = 10) -> str:
    """Views for a person: the first few of a list."""
    some = list(views)
    return ", ".join(map(str, some[:most])) + (f" and {len(some) - most} more" if len(some) > most else "")
