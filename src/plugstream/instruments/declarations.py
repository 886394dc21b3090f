"""The words of an instrument's declaration, and checks by them: data, columns, fixed arrays, attributes, advice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.rows import Rows

__all__ = [
    "Advice",
    "Attribute",
    "Column",
    "Columns",
    "Data",
    "FixedArray",
    "Size",
    "advise_momentum",
    "as_declared",
    "from_json",
    "resolve_shape",
    "to_json",
]

Size = str | int
"""A size of an array: a number, or the name of an axis whose size the instrument knows."""


Columns = Mapping[str, Rows]
"""The columns of a scan by name; those that it does not have are absent."""


@dataclass(frozen=True)
class Data:
    """The measurements of a view.

    Arguments: dtypes that they may be stored in, the first being the usual one; shape of a view, in named axes; unit;
    meaning, in words.
    """

    dtypes: tuple[str, ...]
    shape: tuple[Size, ...]
    unit: str = ""
    meaning: str = ""


@dataclass(frozen=True)
class Column:
    """An array with a row for each view, besides the data.

    Arguments:
        name, dtype, shape of a row in named axes, unit, meaning.
        choice: of the columns with the same choice a scan has exactly one, such as transmitters or plane waves.
        optional: a scan may lack it. default: what it is for views that were measured before it first came.
        covers: it says with True and False which data counts, in the data's shape; the rest may hold anything.
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
    """A value that is the same for all views, and that JSON can write.

    Arguments: name; kind, float, int, bool or str, or a class with `to_json` and `from_json`; unit; meaning; default,
    where it may be left out.
    """

    name: str
    kind: Any
    unit: str = ""
    meaning: str = ""
    default: Any = None


@dataclass(frozen=True)
class Advice:
    """A default that suits scans of an instrument better than the usual one, for where nobody says otherwise.

    Arguments: section and key of the setting; value, as it would be typed; reason, in words, which are shown; always,
    that it suits scans that are followed, too, of which little is known at first; sigma, what the denoiser's sigma must
    be for it to count, "noise" or "weight" (`plugstream.denoisers.facts`), None for any; unless, sections and keys of
    other settings, any of which makes it pointless where it is given, so that the next advice on the same setting
    counts; search, that it is for runs that search for sigma, which take more steps; spread, of a sigma that is a
    number, how far the best one is from it as a rule, as the standard deviation of log(sigma), None where that is not
    known.
    """

    section: str
    key: str
    value: Any
    reason: str
    always: bool = False
    sigma: str | None = None
    unless: tuple[tuple[str, str], ...] = ()
    search: bool = False
    spread: float | None = None


def advise_momentum(limit: float, batch: int) -> tuple[Advice, ...]:
    """Momentum that grows to a limit and then falls, where a step has `batch` of the views and nobody names another."""
    views = f"{batch} view{'s' * (batch > 1)} a step"
    reason = (
        f"momentum tapered: it grows to {limit:g} and then falls, so that noise of {views} averages out (--momentum)"
    )
    name = ("momentum", "name")
    return Advice(*name, "tapered", reason), Advice("momentum", "momentum_limit", limit, reason, unless=(name,))


def resolve_shape(shape: Iterable[Size], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A shape in named axes as numbers."""
    return tuple(size if isinstance(size, int) else sizes[size] for size in shape)


def as_declared(array: FixedArray, value: NDArray[Any]) -> NDArray[Any]:
    """The value of a fixed array in its dtype; one that is not as declared, or not finite, is refused."""
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
    """The value of an attribute of this kind as JSON has it."""
    if value is None:
        return None
    return value.to_json() if hasattr(value, "to_json") else kind(value)  # NumPy's numbers are none of JSON's


def from_json(attribute: Attribute, value: Any) -> Any:
    """The value of an attribute, of just its kind: True is no number, though a whole number is one."""
    kind = attribute.kind
    if kind is float and type(value) is int:
        value = float(value)
    if kind in (float, int, bool, str):
        if type(value) is not kind:
            names = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}
            raise InputError(f"{attribute.name} must be {names[kind]}, not {value!r}")
        return value
    return kind.from_json(value)
