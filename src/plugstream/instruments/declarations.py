"""The words of an instrument's declaration, and checks by them: data, columns, fixed arrays, attributes, advice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.rows import Rows

Size = str | int
"""A size of an array: a number, or the name of an axis whose size the instrument knows."""

Columns = Mapping[str, Rows]
"""The columns of a scan by name; columns that it lacks are absent."""


@dataclass(frozen=True)
class Data:
    """The measurements of a view: dtypes to store them in, the usual one first, shape in named axes, unit, meaning."""

    dtypes: tuple[str, ...]
    shape: tuple[Size, ...]
    unit: str = ""
    meaning: str = ""


@dataclass(frozen=True)
class Column:
    """An array with a row for each view, besides the data.

    Arguments:
        name, dtype, shape of a row in named axes, unit, meaning.
        choice: a scan has exactly one of the columns with the same choice, such as transmitters or plane waves.
        optional: a scan may lack it. default: its value for views measured before it first appeared.
        covers: it is a mask of the data's shape, False where data does not count and may hold anything.
    """

    name: str
    dtype: str
    shape: tuple[Size, ...] = ()
    unit: str = ""
    meaning: str = ""
    choice: str | None = None
    optional: bool = False
    default: Any = None
    covers: bool = False


def mask_column(shape: tuple[Size, ...], meaning: str = "False where a pixel does not count") -> Column:
    """The optional column that says which data counts."""
    return Column("mask", "bool", shape, "", meaning, optional=True, default=True, covers=True)


@dataclass(frozen=True)
class FixedArray:
    """An array that is the same for all views: receivers, coil maps, a probe. It has at least one axis."""

    name: str
    dtype: str
    shape: tuple[Size, ...]
    unit: str = ""
    meaning: str = ""
    optional: bool = False


@dataclass(frozen=True)
class Attribute:
    """A value that is the same for all views and that JSON can write.

    Arguments: name; kind, which is float, int, bool, str or a class with `to_json` and `from_json`; unit; meaning;
    default, where it may be left out.
    """

    name: str
    kind: Any
    unit: str = ""
    meaning: str = ""
    default: Any = None


@dataclass(frozen=True)
class Advice:
    """A default that suits scans of an instrument better than the usual one.

    Arguments: section and key of the setting; value, as it would be typed; reason, shown to the user; always, whether
    it also suits live scans, whose first views say little; sigma, the kind of sigma the denoiser must have, "noise" or
    "weight" (`plugstream.denoisers.facts`), None for any; unless, sections and keys of other settings: if one of them
    is given, the next advice on the same setting counts instead; search, whether it is for runs that search for sigma,
    which take more steps; falling, whether it is for those of them in which sigma and the step fall together; spread,
    how far the best sigma usually is from this one, as the standard deviation of log(sigma), None if unknown.
    """

    section: str
    key: str
    value: Any
    reason: str
    always: bool = False
    sigma: str | None = None
    unless: tuple[tuple[str, str], ...] = ()
    search: bool = False
    falling: bool = False
    spread: float | None = None


def select_rows(columns: Columns, views: NDArray[np.int64]) -> dict[str, Any]:
    """The columns of some views; columns on disk stay there."""
    picked: dict[str, Any] = dict(columns)
    return {name: rows.only(views) if hasattr(rows, "only") else rows[views] for name, rows in picked.items()}


def resolve_shape(shape: Iterable[Size], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A shape in named axes as numbers."""
    return tuple(size if isinstance(size, int) else sizes[size] for size in shape)


def as_declared(array: FixedArray, value: NDArray[Any]) -> NDArray[Any]:
    """The value of a fixed array in its dtype; refuse one that is not as declared or not finite."""
    if not np.can_cast(value.dtype, array.dtype, "same_kind"):
        raise InputError(f"{array.name} is {value.dtype}, but must be {array.dtype}")
    if value.ndim != len(array.shape):
        raise InputError(f"{array.name} has shape {value.shape}, but must have the axes {array.shape}")
    for axis, size in enumerate(array.shape):
        if isinstance(size, int) and value.shape[axis] != size:
            raise InputError(f"{array.name} has shape {value.shape}, but axis {axis} must have {size} entries")
    if value.size == 0:
        raise InputError(f"{array.name} has shape {value.shape}, and so has no entries")
    if value.dtype.kind in "fc" and not np.isfinite(value).all():
        raise InputError(f"{array.name} holds NaN or infinity")
    return np.ascontiguousarray(value, dtype=array.dtype)


def to_json(kind: Any, value: Any) -> Any:
    """The value of an attribute as JSON writes it."""
    if value is None:
        return None
    return value.to_json() if hasattr(value, "to_json") else kind(value)  # JSON cannot write NumPy's numbers


def from_json(attribute: Attribute, value: Any) -> Any:
    """The value of an attribute, of exactly its kind: True is not a number, but a whole number is a float."""
    kind = attribute.kind
    if kind is float and type(value) is int:
        value = float(value)
    if kind in (float, int, bool, str):
        if type(value) is not kind:
            names = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}
            raise InputError(f"{attribute.name} must be {names[kind]}, not {value!r}")
        return value
    return kind.from_json(value)
