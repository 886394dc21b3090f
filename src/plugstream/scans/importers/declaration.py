"""A file of arrays as a scan of any instrument, by what the instrument declares."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.instruments.base import Attribute, Instrument
from plugstream.scans.importers.reading import Reading
from plugstream.scans.importers.source import UNITS, Lookup, Source, check_array, check_names, read_complex, unit_of

__all__ = ["read_by_declaration"]


def read_by_declaration(
    source: Source, mapping: Mapping[str, Any], cls: type[Instrument], defaults: Mapping[str, Any] | None = None
) -> Reading:
    """A file as a scan of an instrument, by what the instrument declares and nothing else.

    data, columns and fixed arrays are arrays, and so is truth, which may be missing; attributes are values. Complex
    numbers may be stored as such, as records of two or as a last axis of two. An array whose own attribute `units`
    differs from the declared unit is refused, except for lengths, which are converted.

    Arguments: source; mapping from our names to the file's; cls, the instrument; defaults, fixed arrays by name for a
    file that has none.
    """
    path, look = source.path, Lookup(source, mapping)
    parts: list[Any] = [*cls.columns, *cls.arrays, *cls.attributes]
    check_names(mapping, ["data", *(part.name for part in parts), "truth"])
    fixed = {}
    for part in cls.arrays:
        array = look.array(part.name)
        array = (defaults or {}).get(part.name) if array is None else array
        if array is not None:
            numbers = _numeric(path, part.name, array, part.dtype)
            fixed[part.name] = _read_scaled(numbers, _unit_scale(path, part, array), slice(None))
    values = {a.name: value for a in cls.attributes if (value := _attribute(look, a)) is not None}
    try:
        instrument = cls.from_parts(fixed, values)
    except InputError as error:
        raise InputError(f"{path} is not of {cls.name}: {error}; --map says where in it everything is") from None
    stored = look.array("data")
    if stored is None:
        raise InputError(f"{path} has no data; say where it is with --map data=PATH")
    data = _numeric(path, "data", stored, cls.data.dtypes[0])
    _unit_scale(path, cls.data, stored)
    if len(data.shape) == 0 or data.shape[0] == 0 or tuple(data.shape[1:]) != instrument.data_shape:
        raise InputError(
            f"data of {path} has shape {tuple(data.shape)}, but {cls.name} has views of {instrument.view_text}: it "
            f"must be (views, {', '.join(map(str, instrument.data_shape))})"
        )
    columns: dict[str, tuple[Any, float]] = {}
    for column in cls.columns:
        if (array := look.array(column.name)) is None:
            continue
        numbers = _numeric(path, column.name, array, column.dtype)
        if len(numbers.shape) == 0 or numbers.shape[0] != data.shape[0]:
            raise InputError(
                f"{column.name} of {path} has shape {tuple(numbers.shape)}, but data has {data.shape[0]} views"
            )
        columns[column.name] = numbers, _unit_scale(path, column, array)

    def read(views: slice) -> dict[str, Any]:
        return {"data": data[views], **{name: _read_scaled(*column, views) for name, column in columns.items()}}

    dtype = data.dtype.name if data.dtype.name in cls.data.dtypes else None
    return Reading(instrument, data.shape[0], read, dtype, _truth(look, instrument), {})


def _numeric(path: Path, name: str, array: Any, dtype: str) -> Any:
    """An array of numbers; complex numbers, however they are stored, where those are declared."""
    if np.dtype(dtype).kind == "c":
        return read_complex(path, name, array)
    return check_array(path, name, array, "fiub")


def _unit_scale(path: Path, declared: Any, array: Any) -> float:
    """The factor from an array's own unit to the declared one."""
    unit, name = unit_of(array), getattr(declared, "name", "data")
    if unit is None or unit == declared.unit:
        return 1
    if declared.unit == "m" and unit in UNITS:
        return UNITS[unit]
    wanted = declared.unit or "no unit"
    raise InputError(f"{name} of {path} is in {unit!r}, but must be in {wanted!r}; convert it first")


def _read_scaled(array: Any, scale: float, rows: slice) -> Any:
    return array[rows] if scale == 1 else scale * array[rows]


def _attribute(look: Lookup, attribute: Attribute) -> Any:
    """The value of an attribute as in JSON, None where it is nowhere."""
    name, kind = attribute.name, attribute.kind
    value = look.mapping.get(name)
    if value is None or (isinstance(value, str) and not (kind is str and look.source.find(value) is None)):
        value = look.find(name)
    if hasattr(value, "shape"):
        value = np.asarray(value[()]).tolist()
        while isinstance(value, list) and len(value) == 1:
            value = value[0]
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if kind is bool and value in (0, 1):
        return bool(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind not in (float, int, bool, str) and isinstance(value, str):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            raise InputError(
                f"{name} of {look.source.path} is not JSON, which it must be in a file of arrays"
            ) from None
    return value


def _truth(look: Lookup, instrument: Instrument) -> NDArray[Any] | None:
    """The true image, which the writer of the scan checks."""
    array = look.array("truth")
    if array is None:
        return None
    real = getattr(array, "shape", None) == instrument.image.shape and array.dtype.kind in "fiu"
    if instrument.image.is_complex and not real:
        array = read_complex(look.source.path, "truth", array)
    return np.asarray(check_array(look.source.path, "truth", array, "fiubc")[:])
