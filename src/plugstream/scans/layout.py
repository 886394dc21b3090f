"""What a scan says of itself: the attributes of its Zarr group, the layout of its arrays, and how much of it counts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from plugstream.base.errors import InputError
from plugstream.base.text import printable
from plugstream.instruments.base import Column, Data, FixedArray, Instrument, instrument_of
from plugstream.scans.places import CRC, crc32c, parse_json

FORMAT = "plugstream-scan"
VERSION = 4

_FEW_BYTES = 96  # of a row of a few numbers, such as positions or the four vectors of a view's X-rays
FARTHEST = 2**62  # no file is as long
_MOST_CHUNK, _MOST_VIEW = 1 << 28, 1 << 31  # bytes of a chunk of several views, and of one
_MOST_CHUNKS = 1 << 16  # in a shard, whose index is read at once
_TYPES = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float16")
_TYPES += ("float32", "float64", "complex64", "complex128")
_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
_CRC32C = {"name": "crc32c"}
# What may be in an array's zarr.json; another name is of a Zarr that we do not know, or was damaged.
_MEMBERS = {
    *("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs"),
    *("attributes", "dimension_names", "storage_transformers"),
}


@dataclass(frozen=True)
class Commit:
    """How many views of a scan count, whether there will be more, and which arrays it has, so that none is missed."""

    views: int
    complete: bool
    arrays: tuple[str, ...] = ()

    def encode(self) -> bytes:
        content = {"views": self.views, "complete": self.complete, "arrays": list(self.arrays)}
        return json.dumps({**content, "crc32c": checksum(content)}).encode()

    @classmethod
    def parse(cls, text: bytes) -> Commit:
        """Read commit.json, which carries a checksum of its other members."""
        content = parse_json(text, "commit.json")
        if not isinstance(content, dict):
            raise InputError("commit.json is not a JSON object")
        if content.pop("crc32c", None) != checksum(content):
            raise InputError("commit.json fails its checksum")
        views, complete, arrays = (content.get(name) for name in ("views", "complete", "arrays"))
        listed = isinstance(arrays, list) and all(isinstance(name, str) for name in arrays)
        if type(views) is not int or views < 0 or type(complete) is not bool or arrays is None or not listed:
            raise InputError(f"commit.json must tell views, complete and arrays, but says {str(content)[:200]}")
        return cls(views, complete, tuple(arrays))


def checksum(content: Mapping[str, Any]) -> str:
    """The crc32c of what JSON can write, in one spelling: keys sorted, no spaces."""
    return crc32c(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hex()


def describe(instrument: Instrument, provenance: Mapping[str, Any], scan_id: str, dtype: str) -> dict[str, Any]:
    """The attributes of a scan's group: everything that is needed to understand its arrays."""
    image = instrument.image
    attributes = {
        "format": FORMAT,
        "version": VERSION,
        "instrument": instrument.name,
        "id": scan_id,
        "marks": True,
        "attributes": instrument.values(),
        "declarations": {
            "data": {"dtype": dtype, **array_attributes(instrument.data, "view")},
            "columns": {c.name: {"dtype": c.dtype, **array_attributes(c, "view")} for c in instrument.columns},
            "arrays": {a.name: {"dtype": a.dtype, **array_attributes(a)} for a in instrument.arrays},
            "attributes": {a.name: {"unit": a.unit, "meaning": a.meaning} for a in instrument.attributes},
            "image": {
                "shape": [int(size) for size in image.shape],
                "complex": image.is_complex,
                "axes": list(image.axes),
                "quantity": image.quantity,
                "unit": image.value_unit,
            },
        },
        "conventions": dict(instrument.conventions),
        "provenance": _make_writable(provenance),
    }
    attributes = json.loads(json.dumps(attributes))  # as it will be read: JSON turns a key that is a number into text
    return {**attributes, "crc32c": checksum(attributes)}


def array_attributes(declared: Data | Column | FixedArray, *axes: str) -> dict[str, Any]:
    """What an array says of itself, with more axes in front."""
    return {"axes": [*axes, *declared.shape], "unit": declared.unit, "meaning": declared.meaning}


def _make_writable(value: Any) -> Any:
    """The value with texts that UTF-8 cannot write, as names of files may be, spelt so that it can."""
    if isinstance(value, Mapping):
        return {_make_writable(key): _make_writable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_make_writable(item) for item in value]
    if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
        return printable(value)
    return value


def find_instrument(attributes: Mapping[str, Any]) -> type[Instrument]:
    """The instrument that the attributes name; an unknown one, and other units or conventions, are refused.

    What `declarations` and `conventions` do not mention is as the instrument declares it.
    """
    name = attributes.get("instrument")
    if not isinstance(name, str):
        raise InputError(f"instrument must be a name, not {str(name)[:40]!r}")
    cls = instrument_of(name)
    declarations = attributes.get("declarations", {})
    declared: list[tuple[str, str, dict[str, Any]]] = [("data", cls.data.unit, declarations.get("data", {}))]
    for section in ("columns", "arrays", "attributes"):
        stored = declarations.get(section, {})
        declared += [(entry.name, entry.unit, stored.get(entry.name, {})) for entry in getattr(cls, section)]
    for label, unit, entry in declared:
        if entry.get("unit", unit) != unit:
            raise InputError(f"the unit of {label} is {entry['unit']!r}, and only {unit!r} is understood")
    for subject, convention in cls.conventions.items():
        stored = attributes.get("conventions", {}).get(subject, convention)
        if stored != convention:
            raise InputError(
                f"the convention of {subject} is {str(stored)[:80]!r}, and only {convention!r} is understood"
            )
    return cls


def is_packed(column: Column) -> bool:
    """Whether rows of a column are a few numbers, which lie many to a chunk and stay in memory."""
    fixed = [size for size in column.shape if isinstance(size, int)]
    return len(fixed) == len(column.shape) and math.prod(fixed) * np.dtype(column.dtype).itemsize <= _FEW_BYTES


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
    if type(value) is not int or not 0 <= value < FARTHEST:
        raise InputError(f"an axis has the size {str(value)[:40]}")
    return value


def _plain(codecs: list[Any]) -> list[dict[str, Any]]:
    """The codecs in one spelling: an empty configuration is left out."""
    return [{key: value for key, value in codec.items() if (key, value) != ("configuration", {})} for codec in codecs]
