"""What a scan says of itself: the attributes of its Zarr group, and the record of how much of it counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from plugstream.errors import InputError
from plugstream.scans.bounds import parse_json
from plugstream.scans.chunks import Layout
from plugstream.scans.geometry import Grid, Points, Setup
from plugstream.scans.places import crc32c

__all__ = [
    "FILL",
    "FORMAT",
    "SOURCES",
    "VERSION",
    "Commit",
    "checksum",
    "describe",
    "row_layout",
    "setup_of",
]

FORMAT = "plugstream-scan"
VERSION = 3
_KIND, _TIME = "born-2d", "exp(-i w t)"
SOURCES = ("transmitters", "plane_waves", "fields")
"""The arrays that illuminations may be given by; a scan has one of them."""

# What a chunk that was never written would read as: nothing that could be taken for a measurement.
FILL: dict[str, Any] = {
    "complex64": ["NaN", "NaN"],
    "float64": "NaN",
    "float32": "NaN",
    "bool": False,
}
# Positions are 16 bytes a view: many to a file, which is written again until it is full.
_POSITIONS_A_FILE = 4096


@dataclass(frozen=True)
class Commit:
    """How many views of a scan count, whether there will be more, and the arrays that it has, so that none is missed.

    Scans of the versions before 3 do not tell their arrays.
    """

    views: int
    complete: bool
    arrays: tuple[str, ...] = ()

    def encode(self) -> bytes:
        content = {"views": self.views, "complete": self.complete, "arrays": list(self.arrays)}
        return json.dumps({**content, "crc32c": checksum(content)}).encode()

    @classmethod
    def parse(cls, text: bytes, version: int) -> Commit:
        """Read commit.json; from version 3 on it carries a checksum of its other members."""
        content = parse_json(text, "commit.json")
        if not isinstance(content, dict):
            raise InputError("commit.json is not a JSON object")
        said = content.pop("crc32c", None)
        if version >= 3 and said != checksum(content):
            raise InputError("commit.json fails its checksum")
        views, complete = content.get("views"), content.get("complete")
        arrays: Any = content.get("arrays") if version >= 3 else []
        named = isinstance(arrays, list) and all(isinstance(name, str) for name in arrays)
        if type(views) is not int or views < 0 or type(complete) is not bool or not named:
            raise InputError(f"commit.json must tell views, complete and arrays, but says {str(content)[:200]}")
        return cls(views, complete, tuple(arrays))


def checksum(content: Mapping[str, Any]) -> str:
    """The crc32c of something that JSON can write, in one spelling: keys sorted, no spaces."""
    return crc32c(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hex()


def describe(setup: Setup, provenance: Mapping[str, Any], scan_id: str) -> dict[str, Any]:
    """The attributes of a scan's group: everything that is needed to understand its arrays."""
    field = "far-field amplitude A, u ~ A exp(i k r) / sqrt(r)," if setup.far_field else "scattered field"
    attributes = {
        "format": FORMAT,
        "version": VERSION,
        "kind": _KIND,
        "id": scan_id,
        "far_field": setup.far_field,
        "wavelength": float(setup.wavelength),
        "background_permittivity": float(setup.background),
        "grid": setup.grid.to_json(),
        "units": {
            "length": "m",
            "data": f"{field} where the incident one is (i/4) H0^(1)(k |r - t|) for the transmitter t, exp(i k s . r) "
            "for the plane wave s, or what fields says; k = 2 pi sqrt(background_permittivity) / wavelength",
            "image": "permittivity contrast, eps - background_permittivity",
        },
        "conventions": {
            "time": f"{_TIME}, outgoing waves are H0^(1)",
            "positions": "x, y",
            "pixels": "row i, column j at x = xc + (j - W // 2) pixel, y = yc + (i - H // 2) pixel",
        },
        "provenance": dict(provenance),
    }
    attributes = json.loads(json.dumps(attributes))  # as it will be read: JSON turns a key that is a number into text
    return {**attributes, "crc32c": checksum(attributes)}


def setup_of(attributes: Mapping[str, Any], receivers: Points) -> Setup:
    """The setup that the attributes tell; a scan of another kind, in other units or conventions is refused.

    What `units` and `conventions` do not mention is as `describe` writes it.

    Arguments: attributes of the group; receivers (receivers, 2).
    """
    time = attributes.get("conventions", {}).get("time", _TIME)
    for name, said, meant in (
        ("kind", attributes.get("kind", _KIND), _KIND),
        ("the unit of lengths", attributes.get("units", {}).get("length", "m"), "m"),
        ("the convention of time", time[: len(_TIME)] if isinstance(time, str) else time, _TIME),
    ):
        if said != meant:
            raise InputError(f"{name} is {said!r}, and only {meant!r} is understood")
    far = attributes.get("far_field", False)
    if type(far) is not bool:
        raise InputError(f"far_field must be true or false, not {far!r}")
    (wavelength,), (background,) = (_numbers(attributes, name) for name in ("wavelength", "background_permittivity"))
    return Setup(receivers, wavelength, Grid.from_json(attributes.get("grid")), background, far)


def _numbers(content: Mapping[str, Any], name: str, count: int = 1) -> list[float]:
    value: Any = content.get(name)
    numbers = value if isinstance(value, list) and count > 1 else [value]
    if len(numbers) != count or any(type(number) not in (int, float) for number in numbers):
        raise InputError(f"{name} must be {'a number' if count == 1 else f'{count} numbers'}, not {value!r}")
    return [float(number) for number in numbers]


def row_layout(name: str, row: tuple[int, ...], views_per_shard: int) -> Layout:
    """How an array with a row for each view lies on disk: a chunk a view, so that damage costs one view."""
    if name in ("transmitters", "plane_waves"):
        return Layout(np.dtype(np.float64), row, _POSITIONS_A_FILE, _POSITIONS_A_FILE)
    return Layout(np.dtype(np.bool_ if name == "mask" else np.complex64), row, 1, views_per_shard)
