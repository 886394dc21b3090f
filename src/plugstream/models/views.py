"""Which views of a model: how they are given, read and spread, and how their data are masked and checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.rows import Rows

Views = Tensor | Sequence[int] | None
"""Which views: indices in any order, repeats allowed, or None for all of them in order.

All views of a model are 0 .. n_views - 1; all of a fidelity are its `available` ones. Functions that return views, such
as samplers, return a 1-D int64 tensor on the CPU or None. `as_views` and `all_views` read them.
"""

Derivative = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""A loss's derivative in the prediction: a function of predictions, data and views, as
`plugstream.fidelity.losses.Loss` has it."""


def as_views(views: Views, n_views: int) -> Tensor | None:
    """Views as a 1-D int64 tensor on the CPU, or None for all; refuse views out of range.

    They stay on the CPU because samplers draw them there, and reading one back from a GPU would wait for it.
    """
    if views is None:
        return None
    index = whole_numbers(views)
    if index.ndim != 1 or index.numel() == 0:
        raise InputError(f"views must be a non-empty list of indices, not of shape {tuple(index.shape)}")
    low, high = int(index.min()), int(index.max())
    if low < 0 or high >= n_views:
        raise InputError(f"view {low if low < 0 else high} does not exist: there are views 0 to {n_views - 1}")
    return index


def whole_numbers(views: Tensor | Sequence[int]) -> Tensor:
    """Views as int64 on the CPU; refuse what is no list of whole numbers."""
    with suppress(TypeError, ValueError):  # of text, or of rows of different lengths
        index = views if isinstance(views, Tensor) else torch.as_tensor(np.asarray(views))
        if not (index.is_floating_point() or index.dtype == torch.bool) or not index.numel():
            return index.to("cpu", torch.int64)
    raise InputError(f"views must be a list of whole numbers, not {views!r}".splitlines()[0])


def all_views(views: Views, n_views: int) -> Tensor:
    """Views as `as_views` reads them, with the indices 0 .. n_views - 1 for None."""
    index = as_views(views, n_views)
    return torch.arange(n_views) if index is None else index


def check_shape(name: str, tensor: Tensor, tail: tuple[int, ...]) -> None:
    """Refuse a tensor whose last axes are not `tail`."""
    if tensor.ndim < len(tail) or tuple(tensor.shape[tensor.ndim - len(tail) :]) != tail:
        raise InputError(f"{name} has shape {tuple(tensor.shape)}, but its last axes must be {tail}")


def mask_data(data: Tensor, mask: Rows | None, views: Views, n_views: int) -> Tensor:
    """The data of views, (..., B, *data_shape), with zeros where the mask (n_views, *data_shape) is False, even for
    NaN."""
    if mask is None:
        return data
    rows = torch.from_numpy(np.ascontiguousarray(mask[all_views(views, n_views).numpy()])).to(data.device)
    return torch.where(rows, data, torch.zeros((), dtype=data.dtype, device=data.device))


def spread_views(available: Tensor, most: int) -> Tensor | None:
    """At most `most` of the available views, evenly spaced; None for all of them, as in `Batch`."""
    count = len(available)
    if count < 1:
        raise InputError("there are no views to draw from")
    return None if count <= most else available[torch.from_numpy(evenly_spaced(most, count))]


def evenly_spaced(batch: int, n: int) -> NDArray[np.int64]:
    """B indices of 0 .. n-1 that are as far apart as possible: floor(b n / B)."""
    return np.arange(batch) * n // batch
