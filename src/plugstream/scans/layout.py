"""What a scan says of itself: the attributes of its Zarr group, and the record of how much of it counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from plugstream.errors import InputError
from plugstream.scans.chunks import Layout, crc32c
from plugstream.scans.geometry import Grid, Setup

__all__ = ["FILL", "FORMAT", "SOURCES", "VERSION", "Commit", "checksum", "describe", "grid_of", "row_layout"]

FORMAT = "plugstream-scan"
VERSION = 3
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
        """Read commit.json; from version 3 on it carries a checksum of itself."""
        content = json.loads(text)
        views, complete = content["views"], content["complete"]
        if type(views) is not int or views < 0 or type(complete) is not bool:
            raise InputError(f"commit.json says {content}, which is no number of views")
        arrays = content.get("arrays", []) if version >= 3 else []
        if version >= 3 and content.get("crc32c") != checksum({"views": views, "complete": complete, "arrays": arrays}):
            raise InputError("commit.json fails its checksum")
        return cls(views, complete, tuple(arrays))


def checksum(content: Mapping[str, Any]) -> str:
    """The crc32c of something that JSON can write, in one spelling: keys sorted, no spaces."""
    return crc32c(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hex()


def describe(setup: Setup, provenance: Mapping[str, Any], scan_id: str) -> dict[str, Any]:
    """The attributes of a scan's group: everything that is needed to understand its arrays."""
    grid = setup.grid
    field = "far-field amplitude A, u ~ A exp(i k r) / sqrt(r)," if setup.far_field else "scattered field"
    attributes = {
        "format": FORMAT,
        "version": VERSION,
        "kind": "born-2d",
        "id": scan_id,
        "far_field": setup.far_field,
        "wavelength": setup.wavelength,
        "background_permittivity": setup.background,
        "grid": {"shape": list(grid.shape), "pixel": grid.pixel, "center": list(grid.center)},
        "units": {
            "length": "m",
            "data": f"{field} of a unit line source, of a plane wave of amplitude 1, or of the fields that are given",
            "image": "permittivity contrast",
        },
        "conventions": {
            "time": "exp(-i w t), outgoing waves are H0^(1)",
            "positions": "x, y",
            "pixels": "row i, column j at x = xc + (j - W // 2) pixel, y = yc + (i - H // 2) pixel",
        },
        "provenance": dict(provenance),
    }
    return {**attributes, "crc32c": checksum(attributes)}


def grid_of(attributes: Mapping[str, Any]) -> Grid:
    """The pixel grid that the attributes tell."""
    grid = attributes["grid"]
    height, width = (int(n) for n in grid["shape"])
    x, y = (float(n) for n in grid["center"])
    return Grid((height, width), float(grid["pixel"]), (x, y))


def row_layout(name: str, row: tuple[int, ...], views_per_shard: int) -> Layout:
    """How an array with a row for each view lies on disk: a chunk a view, so that damage costs one view."""
    if name in ("transmitters", "plane_waves"):
        return Layout(np.dtype(np.float64), row, _POSITIONS_A_FILE, _POSITIONS_A_FILE)
    return Layout(np.dtype(np.bool_ if name == "mask" else np.complex64), row, 1, views_per_shard)
