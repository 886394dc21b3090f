"""Scans of version 3, which knew one instrument and described it by attributes of the group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plugstream.base.errors import InputError

__all__ = ["KIND", "upgrade_attributes"]

KIND = "born-2d"
"""The one instrument that there was."""

_TIME = "exp(-i w t)"


def upgrade_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The group's attributes as version 4 has them; another kind, other units or conventions are refused.

    What `units` and `conventions` do not mention is as version 3 wrote it.
    """
    time = attributes.get("conventions", {}).get("time", _TIME)
    for name, said, meant in (
        ("kind", attributes.get("kind", KIND), KIND),
        ("the unit of lengths", attributes.get("units", {}).get("length", "m"), "m"),
        ("the convention of time", time[: len(_TIME)] if isinstance(time, str) else time, _TIME),
    ):
        if said != meant:
            raise InputError(f"{name} is {said!r}, and only {meant!r} is understood")
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
    return {**same, "instrument": KIND, "attributes": values, "marks": False}
