"""Which views of a model: how they are given, read and spread, and what shape their data has."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.errors import InputError

__all__ = ["Derivative", "Views", "all_views", "as_views", "check_shape", "evenly_spaced", "spread_views"]

Views = Tensor | Sequence[int] | None
"""Which views, wherever that is asked for: indices in any order, repeats allowed, or None for all of them in order.

All of a model are 0 .. n_views - 1; all of a fidelity are those that it says are `available`. What gives views back,
a sampler say, gives a 1-D int64 tensor on the CPU or None. `as_views` and `all_views` are what reads them.
"""

Derivative = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""A loss's derivative in the prediction, of predictions, data and their views, as `plugstream.fidelity.losses.Loss` has
it."""


def as_views(views: Views, n_views: int) -> Tensor | None:
    """Views as a 1-D int64 tensor on the CPU, or None for all; out-of-range views are refused.

    They stay on the CPU because samplers draw them there and reading one back from a GPU would wait for it.
    """
    if views is None:
        return None
    index = torch.as_tensor(views, dtype=torch.int64).cpu()
    if index.ndim != 1 or index.numel() == 0:
        raise InputError(f"views must be a non-empty list of indices, not of shape {tuple(index.shape)}")
    low, high = int(index.min()), int(index.max())
    if low < 0 or high >= n_views:
        raise InputError(f"view {low if low < 0 else high} does not exist: there are views 0 to {n_views - 1}")
    return index


def all_views(views: Views, n_views: int) -> Tensor:
    """Views as `as_views` reads them, with the indices 0 .. n_views - 1 for None."""
    index = as_views(views, n_views)
    return torch.arange(n_views) if index is None else index


def check_shape(what: str, tensor: Tensor, tail: tuple[int, ...]) -> None:
    """Refuse a tensor whose last axes are not `tail`, saying both shapes."""
    if tensor.ndim < len(tail) or tuple(tensor.shape[tensor.ndim - len(tail) :]) != tail:
        raise InputError(f"{what} has shape {tuple(tensor.shape)}, but its last axes must be {tail}")


def spread_views(available: Tensor, most: int) -> Tensor | None:
    """At most this many of the available views, evenly spaced; None if that is all of them, as in `Batch`."""
    count = len(available)
    if count < 1:
        raise InputError("there are no views to draw from")
    return None if count <= most else available[torch.from_numpy(evenly_spaced(most, count))]


def evenly_spaced(batch: int, n: int) -> NDArray[np.int64]:
    """B indices of 0 .. n-1 as far apart as they can be: floor(b n / B)."""
    return np.arange(batch) * n // batch
