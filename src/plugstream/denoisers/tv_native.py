"""Total variation by the native CPU kernel; `tv.py` is its specification."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream import _native
from plugstream.denoisers.forms import native_serves
from plugstream.denoisers.tv_problem import Penalty, Problem


class Variation(Penalty, Protocol):
    """What the kernel asks of a `TV`; it can be hashed."""

    @property
    def check(self) -> int: ...
    def _schedule(self) -> Iterator[list[float]]: ...
    def __hash__(self) -> int: ...


def serves(*tensors: Tensor | None) -> bool:
    """Whether the kernel takes these tensors, of either precision."""
    return native_serves(*tensors, double=True)


def solve(tv: Variation, problem: Problem, warm: Tensor | None, *, level: str = "") -> tuple[Tensor, Tensor, bool]:
    """x and the dual of each image, and whether all are within the tolerance; threads and `level` change no bit.

    It wakes no threads of torch, which would get in the way of those of the kernel.
    """
    z = problem.z.detach()
    x, dual = torch.empty_like(z), torch.empty(problem.dual_shape, dtype=z.dtype)
    strength, rate = (one.detach().flatten().contiguous().numpy() for one in (problem.strength, problem.rate))
    maps = [_map(bound, problem) if problem.mapped else None for bound in (problem.low, problem.high)]
    within = _native.kernels().tv_solve(
        _image(z, problem),
        strength,
        rate,
        _momenta(tv, z.dtype),
        *maps,
        None if warm is None else _field(warm, problem),
        _image(x, problem),
        _field(dual, problem),
        np.empty(len(z)),
        low=tv.low,
        high=tv.high,
        tol=tv.tol,
        check=tv.check,
        isotropic=tv.isotropic,
        threads=torch.get_num_threads(),
        level=level,
    )
    return x, dual, bool(within)


@lru_cache(maxsize=16)
def _momenta(tv: Variation, dtype: torch.dtype) -> NDArray[Any]:
    """The momentum of every iteration that there may be."""
    return torch.tensor(list(itertools.chain.from_iterable(tv._schedule())), dtype=torch.float64).to(dtype).numpy()


def _map(bound: Tensor | float, problem: Problem) -> NDArray[Any]:
    """A bound for each pixel, the same of all images, (D, H, W)."""
    assert isinstance(bound, Tensor)
    spatial = problem.z.shape[problem.z.ndim - problem.ndim :]
    return bound.expand(*[1] * (bound.ndim - problem.ndim), *spatial).reshape(-1, *spatial[-2:]).contiguous().numpy()


def _image(tensor: Tensor, problem: Problem) -> NDArray[Any]:
    """Images as the kernel takes them, (N, K, D, H, W), without a copy; those of two axes are volumes of one plane."""
    components = tensor.shape[1] if problem.coupled else 1
    spatial = tensor.shape[tensor.ndim - problem.ndim :]
    return tensor.detach().numpy().reshape(len(tensor), components, *[1] * (3 - problem.ndim), *spatial)


def _field(tensor: Tensor, problem: Problem) -> NDArray[Any]:
    """Duals as the kernel takes them, (N, K, ndim, D, H, W), without a copy."""
    components = tensor.shape[1] if problem.coupled else 1
    spatial = tensor.shape[tensor.ndim - problem.ndim :]
    shape = (len(tensor), components, problem.ndim, *[1] * (3 - problem.ndim), *spatial)
    return tensor.detach().numpy().reshape(shape)
