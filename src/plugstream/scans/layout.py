"""What a scan says of itself: the attributes of its Zarr group, and the record of how much of it counts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from plugstream.base.errors import InputError
from plugstream.base.text import printable
from plugstream.instruments.base import Column, Instrument, instrument_of
from plugstream.instruments.declarations import Size
from plugstream.scans.chunks import Layout
from plugstream.scans.places import crc32c, parse_json

__all__ = [
    "FORMAT",
    "VERSION",
    "VERSIONS",
    "Commit",
    "array_attributes",
    "checksum",
    "describe",
    "fill_text",
    "fill_value",
    "find_instrument",
    "is_packed",
    "row_layout",
]

FORMAT = "plugstream-scan"
VERSION = 4
VERSIONS = (3, 4)
"""Those that are read."""

# Rows of a few numbers, such as positions or the four vectors of a view's X-rays: many to a file, which is written
# again until it is full.
_ROWS_A_FILE = 4096
_FEW_BYTES = 96


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
        said = content.pop("crc32c", None)
        if said != checksum(content):
            raise InputError("commit.json fails its checksum")
        views, complete = content.get("views"), content.get("complete")
        arrays: Any = content.get("arrays")
        named = isinstance(arrays, list) and all(isinstance(name, str) for name in arrays)
        if type(views) is not int or views < 0 or type(complete) is not bool or not named:
            raise InputError(f"commit.json must tell views, complete and arrays, but says {str(content)[:200]}")
        return cls(views, complete, tuple(arrays))


def checksum(content: Mapping[str, Any]) -> str:
    """The crc32c of something that JSON can write, in one spelling: keys sorted, no spaces."""
    return crc32c(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hex()


def describe(instrument: Instrument, provenance: Mapping[str, Any], scan_id: str, dtype: str) -> dict[str, Any]:
    """The attributes of a scan's group: everything that is needed to understand its arrays.

    Arguments: instrument; provenance; scan_id, 32 hexadecimal digits; dtype of the data.
    """
    data, image = instrument.data, instrument.image
    attributes = {
        "format": FORMAT,
        "version": VERSION,
        "instrument": instrument.name,
        "id": scan_id,
        "marks": True,
        "attributes": instrument.values(),
        "declarations": {
            "data": {"dtype": dtype, **array_attributes(("view", *data.shape), data.unit, data.meaning)},
            "columns": {
                c.name: {"dtype": c.dtype, **array_attributes(("view", *c.shape), c.unit, c.meaning)}
                for c in instrument.columns
            },
            "arrays": {
                a.name: {"dtype": a.dtype, **array_attributes(a.shape, a.unit, a.meaning)} for a in instrument.arrays
            },
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


def array_attributes(axes: tuple[Size, ...], unit: str, meaning: str) -> dict[str, Any]:
    """What an array tells of itself to whoever finds it."""
    return {"axes": list(axes), "unit": unit, "meaning": meaning}


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
    """The instrument that the attributes name; one that is not known, or other units or conventions, are refused.

    What `declarations` and `conventions` do not mention is as the instrument declares it.
    """
    name = attributes.get("instrument")
    if not isinstance(name, str):
        raise InputError(f"instrument must be a name, not {str(name)[:40]!r}")
    cls = instrument_of(name)
    told = attributes.get("declarations", {})
    for declared, section in (
        ([cls.data], {"data": told.get("data", {})}),
        (cls.columns, told.get("columns", {})),
        (cls.arrays, told.get("arrays", {})),
        (cls.attributes, told.get("attributes", {})),
    ):
        for one in declared:
            label = getattr(one, "name", "data")
            said = section.get(label, {}).get("unit", one.unit)
            if said != one.unit:
                raise InputError(f"the unit of {label} is {said!r}, and only {one.unit!r} is understood")
    for subject, meant in cls.conventions.items():
        said = attributes.get("conventions", {}).get(subject, meant)
        if said != meant:
            raise InputError(f"the convention of {subject} is {str(said)[:80]!r}, and only {meant!r} is understood")
    return cls


def is_packed(column: Column) -> bool:
    """Whether rows of a column are a few numbers, which lie many to a chunk and stay in memory."""
    fixed = [size for size in column.shape if isinstance(size, int)]
    return len(fixed) == len(column.shape) and math.prod(fixed) * np.dtype(column.dtype).itemsize <= _FEW_BYTES


def row_layout(dtype: str, row: tuple[int, ...], views_per_shard: int, *, packed: bool = False) -> Layout:
    """How an array with a row for each view lies on disk: a chunk a view, so that damage costs one view."""
    if packed:
        return Layout(np.dtype(dtype), row, _ROWS_A_FILE, _ROWS_A_FILE)
    return Layout(np.dtype(dtype), row, 1, views_per_shard)


def fill_value(dtype: np.dtype[Any]) -> Any:
    """What a chunk that was never written would read as: nothing that could be taken for data, where there is such."""
    return np.nan if dtype.kind in "fc" else False if dtype.kind == "b" else 0


def fill_text(dtype: np.dtype[Any]) -> Any:
    """The fill value as JSON of Zarr has it."""
    return {"f": "NaN", "c": ["NaN", "NaN"], "b": False}.get(dtype.kind, 0)
