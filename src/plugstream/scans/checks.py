"""Do data and columns agree with what their instrument declares? Whatever does not is refused, naming the view."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plugstream.base.errors import InputError
from plugstream.base.rows import Rows
from plugstream.images.space import ImageSpace
from plugstream.instruments.base import Columns, Instrument


def check_views(
    instrument: Instrument,
    data: ArrayLike,
    rows: Sequence[ArrayLike | None],
    columns: Mapping[str, ArrayLike | None],
    first: int,
    dtype: str | None = None,
) -> dict[str, NDArray[Any]]:
    """The columns of views as a scan has them, data first; views that no scan can have are refused.

    Arguments: instrument; data (B, *data_shape); rows, the first columns that the instrument declares; columns by name;
    first, the number of the first of these views; dtype of the data, the instrument's usual one if not given.
    """
    declared = [column.name for column in instrument.columns]
    if len(rows) > len(declared):
        raise InputError(
            f"{instrument.name} has the columns {', '.join(declared) or '(none)'}, and {len(rows)} were given"
        )
    named = {**dict(zip(declared, rows, strict=False)), **columns}
    checked = check_columns(instrument, {name: np.asarray(v) for name, v in named.items() if v is not None}, None)
    instrument.check_plausible(checked)
    values = np.asarray(data)
    check_data_shape(values.shape, instrument, count_views(checked, values))
    values = convert_numbers("data", values, np.dtype(dtype or instrument.data.dtypes[0]))
    check_finite(values, instrument.find_mask(checked), first)
    return {"data": values, **{name: checked[name] for name in declared if name in checked}}


def count_views(columns: Mapping[str, Any], data: NDArray[Any]) -> int:
    """The views that the columns have, or without columns the data."""
    return len(next(iter(columns.values()))) if columns else len(data) if data.ndim else 0


def fixed_arrays(instrument: Instrument) -> dict[str, NDArray[Any]]:
    """The fixed arrays that an instrument has, by name."""
    values = {array.name: getattr(instrument, array.name) for array in instrument.arrays}
    return {name: value for name, value in values.items() if value is not None}


def data_bytes(instrument: Instrument, dtype: str | np.dtype[Any]) -> int:
    """Bytes of a view's measurements."""
    return math.prod(instrument.data_shape) * np.dtype(dtype).itemsize


def check_continuation(instrument: Instrument, scan: str, before: Iterable[str], columns: Iterable[str]) -> None:
    """Refuse views that a scan cannot go on with: with another column of a choice, or without one that it needs.

    Arguments: scan, for messages; before, the columns of its views so far; columns of the next ones.
    """
    earlier, now = set(before), set(columns)
    for column in instrument.columns:
        name, lost = column.name, column.name in earlier and column.name not in now
        if column.choice is not None and lost:
            rivals = [c.name for c in instrument.columns if c.choice == column.choice and c.name in now]
            raise InputError(f"{scan} has {name}, so {' and '.join(rivals)} cannot be added to it")
        if column.optional and column.default is None and (name in earlier) != (name in now):
            raise InputError(f"{scan} has {'' if lost else 'no '}{name}, and so it must be with all of its views")


def check_columns(instrument: Instrument, columns: Columns, views: int | None) -> dict[str, Any]:
    """The columns as they are stored, each of its declared dtype and shape, and all of the same number of views.

    Arguments: columns in memory or on a disk; views, how many there must be, None for those of the first column.
    """
    declared = {column.name: column for column in instrument.columns}
    if unknown := [name for name in columns if name not in declared]:
        raise InputError(f"{instrument.name} has no column {unknown[0]!r}; it has {', '.join(declared) or 'none'}")
    choices: dict[str, list[str]] = {}
    for column in instrument.columns:
        if column.choice is not None:
            choices.setdefault(column.choice, []).append(column.name)
        elif not column.optional and column.name not in columns:
            raise InputError(f"{column.name} is missing: {column.meaning or f'a column of {instrument.name}'}")
    for names in choices.values():
        if sum(name in columns for name in names) != 1:
            raise InputError(f"views need either {' or '.join(names)}, and only one of them")
    checked: dict[str, Any] = {}
    for name, rows in columns.items():
        want = instrument.row_shape(declared[name])
        count = rows.shape[0] if len(rows.shape) else 0
        views = count if views is None else views
        if tuple(rows.shape) != (views, *want):
            meaning = f": {declared[name].meaning}" if declared[name].meaning else ""
            raise InputError(
                f"{name} has shape {tuple(rows.shape)}, but must be {(views, *want)} for its views{meaning}"
            )
        checked[name] = _convert(name, rows, declared[name].dtype) if isinstance(rows, np.ndarray) else rows
    return dict(instrument.check_views(checked))


def _convert(name: str, rows: NDArray[Any], dtype: str) -> NDArray[Any]:
    target = np.dtype(dtype)
    if target.kind == "b" and rows.dtype.kind in "iuf" and np.isin(rows, (0, 1)).all():
        rows = rows.astype(bool)
    values = convert_numbers(name, rows, target)
    if target.kind in "fc" and not np.isfinite(values).all():
        view = int(np.argmin(np.isfinite(values).reshape(len(values), -1).all(1)))
        raise InputError(f"{name} hold NaN or infinity at view {view}")
    return values


def convert_numbers(name: str, values: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any]:
    """Numbers as another dtype, which may be less precise, but must be of no lesser kind and hold them."""
    if values.dtype == target:
        return np.ascontiguousarray(values)
    order = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}
    if values.dtype.kind not in order or order[values.dtype.kind] > order[target.kind]:
        raise InputError(f"{name} is {values.dtype}, which cannot be stored as {target}; convert it first")
    if target.kind in "iu" and values.size and values.dtype.kind in "iu":
        span, low, high = np.iinfo(target), int(values.min()), int(values.max())
        if low < span.min or high > span.max:
            raise InputError(f"{name} has values from {low} to {high}, which {target} cannot hold")
    with np.errstate(over="ignore"):  # what it cannot hold becomes infinite, which the caller refuses
        return np.ascontiguousarray(values, dtype=target)


def check_data_shape(shape: tuple[int, ...], instrument: Instrument, views: int) -> None:
    """Refuse data of another shape than the instrument's views have."""
    want = instrument.data_shape
    if shape != (views, *want):
        raise InputError(
            f"the scan's data has shape {shape}, but its geometry has {views} views of {instrument.view_text}; "
            f"it must be {(views, *want)}"
        )


def check_truth(truth: NDArray[Any], image: ImageSpace) -> NDArray[Any]:
    """The true image as it is stored; what cannot be one is refused."""
    if truth.shape != image.shape:
        raise InputError(f"the scan's true image is {truth.shape}, but its images are {image.shape}")
    if truth.dtype.kind not in ("fiuc" if image.is_complex else "fiu") or not np.isfinite(truth).all():
        raise InputError(f"the scan's true image must be of {'' if image.is_complex else 'real, '}finite numbers")
    return np.asarray(truth, dtype=np.complex64 if image.is_complex else np.float32)


def not_finite(data: NDArray[Any], mask: NDArray[Any] | None) -> list[int]:
    """The views of data (views, *shape) that hold NaN or infinity where the mask says that they count."""
    if data.dtype.kind not in "fc" or data.size == 0:
        return []
    wrong = ~np.isfinite(data)
    if mask is not None:
        wrong &= mask
    return np.flatnonzero(wrong.reshape(len(data), -1).any(1)).tolist()


def check_finite(data: NDArray[Any], mask: Rows | None = None, first: int = 0) -> None:
    """Refuse NaN and infinity in (views, *shape), except where the mask is False, naming the view from `first` on."""
    if bad := not_finite(data, None if mask is None else mask[:]):
        raise InputError(
            f"view {first + bad[0]} of the scan holds NaN or infinity; mask those data or leave the view out"
        )
