"""What scans are made from: an instrument and its columns, or a geometry that has both."""

from __future__ import annotations

from typing import Any

from plugstream.base.errors import InputError
from plugstream.base.rows import Rows
from plugstream.instruments.base import Instrument
from plugstream.instruments.born import Born2D
from plugstream.models.born_geometry import BornGeometry

InstrumentLike = Instrument | BornGeometry
"""What tells the instrument of a scan; a geometry has the columns of its views besides."""


def instrument_parts(value: Any) -> tuple[Instrument, dict[str, Rows]]:
    """The instrument, and the columns of its views, of which an instrument alone has none.

    Arguments: value, an instrument, a geometry, or a model that has one.
    """
    value = getattr(value, "geometry", value) if not isinstance(value, Instrument) else value
    if isinstance(value, Instrument):
        return value, {}
    if not isinstance(value, BornGeometry):
        raise InputError(f"a scan needs an instrument, such as Born2D, or a BornGeometry, not {type(value).__name__}")
    rows = {column.name: getattr(value, column.name, None) for column in Born2D.columns}
    return Born2D.of(value), {name: array for name, array in rows.items() if array is not None}
