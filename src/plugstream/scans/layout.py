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
from plugstream.scans.peek import VERSION_3_INSTRUMENT
from plugstream.scans.places import crc32c, parse_json

__all__ = [
    "FORMAT",
    "VERSION",
    "VERSIONS",
    "Commit",
    "array_attributes",
    "checksum",
    "describe",
    "find_instrument",
    "is_packed",
    "upgrade_attributes",
]

FORMAT = "plugstream-scan"
VERSION = 4
VERSIONS = (3, 4)  # that are read

_FEW_BYTES = 96  # of a row of a few numbers, such as positions or the four vectors of a view's X-rays
_TIME_3 = "exp(-i w t)"  # the convention of version 3


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
    """What an array says of itself to whoever finds it."""
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


def upgrade_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a group of version 3, which knew one instrument, as version 4 has them.

    Another kind, other units or conventions are refused; what is not mentioned is as version 3 wrote it.
    """
    kind, time = VERSION_3_INSTRUMENT, attributes.get("conventions", {}).get("time", _TIME_3)
    for name, stored, expected in (
        ("kind", attributes.get("kind", kind), kind),
        ("the unit of lengths", attributes.get("units", {}).get("length", "m"), "m"),
        ("the convention of time", time[: len(_TIME_3)] if isinstance(time, str) else time, _TIME_3),
    ):
        if stored != expected:
            raise InputError(f"{name} is {stored!r}, and only {expected!r} is understood")
    for name in ("wavelength", "background_permittivity"):
        if type(attributes.get(name)) not in (int, float):
            raise InputError(f"{name} must be a number, not {attributes.get(name)!r}")
    values = {
        "wavelength": attributes["wavelength"],
        "background": attributes["background_permittivity"],
        "grid": attributes.get("grid"),
        "far_field": attributes.get("far_field", False),
    }
    same = {name: attributes[name] for name in ("format", "version", "id", "provenance") if name in attributes}
    return {**same, "instrument": kind, "attributes": values, "marks": False}
