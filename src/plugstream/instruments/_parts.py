"""What scans are made from: an instrument and its columns, or a geometry that has both."""

from __future__ import annotations

from typing import Any

from plugstream.errors import InputError
from plugstream.instruments.base import Instrument
from plugstream.instruments.born import Born2D
from plugstream.models.born_geometry import BornGeometry
from plugstream.rows import Rows

__all__ = ["geometry_of", "instrument_parts"]


def instrument_parts(value: Any) -> tuple[Instrument, dict[str, Rows]]:
    """The instrument, and the columns of its views, of which an instrument alone has none.

    Arguments: value, an instrument, a geometry, or a model that has one.
    """
    value = getattr(value, "geometry", value) if not isinstance(value, Instrument) else value
    if isinstance(value, Instrument):
        return value, {}
    if not isinstance(value, BornGeometry):
        raise InputError(f"a scan needs an instrument, such as Born2D, or a BornGeometry, not {type(value).__name__}")
    rows = {column.name: getattr(value, column.name) for column in Born2D.columns}
    return Born2D.of(value), {name: array for name, array in rows.items() if array is not None}


def geometry_of(instrument: Instrument, columns: Any) -> BornGeometry:
    """The geometry of a Born scan's views; scans of other instruments have none."""
    if not isinstance(instrument, Born2D):
        raise InputError(f"a scan of {instrument.name} has no geometry of transmitters and receivers; use its columns")
    return instrument.geometry(**columns)
