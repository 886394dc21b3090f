"""A file of arrays as a scan of any instrument, by what the instrument declares."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.instruments.base import Attribute, Instrument
from plugstream.scans.importers.reading import Reading
from plugstream.scans.importers.source import (
    UNITS,
    Lookup,
    Source,
    check_names,
    kind_of,
    read_complex,
    read_rows,
    unit_of,
)

__all__ = ["read_by_declaration"]


def read_by_declaration(source: Source, mapping: Mapping[str, Any], cls: type[Instrument]) -> Reading:
    """A file as a scan of an instrument, by what the instrument declares and nothing else.

    data, columns and fixed arrays are arrays, and so is truth, which may be missing; attributes are values. Complex
    numbers may be stored as such, as records of two or as a last axis of two. An array whose own attribute `units` says
    another unit than the declaration is refused, but for lengths, which are converted.
    """
    path, look = source.path, Lookup(source, mapping)
    parts: list[Any] = [*cls.columns, *cls.arrays, *cls.attributes]
    check_names(mapping, ["data", *(part.name for part in parts), "truth"])
    fixed = {}
    for array in cls.arrays:
        if (found := look.array(array.name)) is not None:
            whole = _numeric(path, array.name, found, array.dtype)
            fixed[array.name] = _unit_scale(path, array, found)(read_rows(whole, slice(None), array.name, source))
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
    rows = {column: found for column in cls.columns if (found := look.array(column.name)) is not None}
    columns = {column.name: _numeric(path, column.name, found, column.dtype) for column, found in rows.items()}
    scales = {column.name: _unit_scale(path, column, found) for column, found in rows.items()}
    for name, array in columns.items():
        if len(array.shape) == 0 or array.shape[0] != data.shape[0]:
            raise InputError(f"{name} of {path} has shape {tuple(array.shape)}, but data has {data.shape[0]} views")

    def read(views: slice) -> dict[str, Any]:
        some = {name: scales[name](read_rows(array, views, name, source)) for name, array in columns.items()}
        return {"data": read_rows(data, views, "data", source), **some}

    dtype = data.dtype.name if data.dtype.name in cls.data.dtypes else None
    return Reading(instrument, data.shape[0], read, dtype, _truth(look, instrument), {})


def _numeric(path: Path, name: str, array: Any, dtype: str) -> Any:
    """An array of numbers, complex ones however they are stored where that is what is declared."""
    if np.dtype(dtype).kind == "c":
        return read_complex(path, name, array)
    if getattr(array, "shape", None) is None or array.dtype.kind not in "fiub":
        raise InputError(f"{name} of {path} holds {kind_of(array)}, which cannot be {name}")
    return array


def _unit_scale(path: Path, declared: Any, array: Any) -> Callable[[Any], Any]:
    """What turns values in an array's own unit into those of the declared one."""
    own, name = unit_of(array), getattr(declared, "name", "data")
    if own is None or own == declared.unit:
        return lambda values: values
    if declared.unit == "m" and own in UNITS:
        return lambda values: UNITS[own] * values
    raise InputError(f"{name} of {path} is in {own!r}, but must be in {declared.unit or 'no unit'!r}; convert it first")


def _attribute(look: Lookup, attribute: Attribute) -> Any:
    """The value of an attribute as JSON has it, None where it is nowhere."""
    name, kind = attribute.name, attribute.kind
    given = look.mapping.get(name)
    literal = given is not None and (not isinstance(given, str) or (kind is str and look.source.find(given) is None))
    found = given if literal else look.find(name)
    if found is None:
        return None
    if hasattr(found, "shape"):
        found = np.asarray(read_rows(found, (), name, look.source)).tolist()
        while isinstance(found, list) and len(found) == 1:
            found = found[0]
    if isinstance(found, bytes):
        found = found.decode(errors="replace")
    if kind is bool and found in (0, 1):
        return bool(found)
    if kind is int and isinstance(found, float) and found.is_integer():
        return int(found)
    if kind not in (float, int, bool, str) and isinstance(found, str):
        try:
            return json.loads(found)
        except (ValueError, RecursionError):
            raise InputError(
                f"{name} of {look.source.path} is not JSON, which it must be in a file of arrays"
            ) from None
    return found


def _truth(look: Lookup, instrument: Instrument) -> NDArray[Any] | None:
    from plugstream.scans.checks import check_truth, truth_dtype

    found = look.array("truth")
    if found is None:
        return None
    dtype = truth_dtype(instrument.image)
    shape, path = getattr(found, "shape", None), look.source.path
    plain = shape == instrument.image.shape and found.dtype.kind in "fiu"  # a real truth of a complex image
    whole = found if plain else _numeric(path, "truth", found, dtype.name)
    truth = np.asarray(read_rows(whole, slice(None), "truth", look.source))
    check_truth(truth, instrument.image)
    return truth.astype(dtype)
