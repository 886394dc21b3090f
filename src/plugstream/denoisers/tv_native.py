"""The dual iteration of total variation by the native CPU kernel; `tv.py` is its specification."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream import _native
from plugstream.denoisers.forms import native_serves
from plugstream.denoisers.tv_problem import _image

if TYPE_CHECKING:
    from plugstream.denoisers.tv_problem import Problem, State, Variation


def serves(*tensors: Tensor | None) -> bool:
    """Whether the kernel takes these tensors, of either precision."""
    return native_serves(*tensors, double=True)


def centre(z: Tensor, ndim: int = 2) -> tuple[Tensor, Tensor]:
    """As `base.centre`, without waking torch's threads."""
    images = z.detach().numpy()
    ones = (..., *[None] * ndim)
    if images.size == 0:
        return z, z.new_zeros(z.shape[: z.ndim - ndim])[ones]
    first = (images[..., :1, :1] if ndim == 2 else images[..., :1, :1, :1]).astype(np.float64)
    # By rows first, so that the sum of one image is the same in every batch; volumes plane by plane, for less memory.
    if ndim == 2:
        total = (images - first).sum(-1).sum(-1)
    else:
        planes = np.moveaxis(images, -3, 0)
        total = np.stack([(plane - first[..., 0, :, :]).sum(-1).sum(-1) for plane in planes], -1).sum(-1)
    mean = (first + total[ones] / math.prod(images.shape[images.ndim - ndim :])).astype(images.dtype)
    with np.errstate(invalid="ignore", over="ignore"):  # NaN and infinity come out as they went in
        return torch.from_numpy(images - mean), torch.from_numpy(mean)


def start(tv: Variation, problem: Problem, warm: Tensor | None) -> tuple[State, Tensor]:
    """As `tv._start`, without waking torch's threads, which would get in the way of ours."""
    from plugstream.denoisers.tv_problem import State

    z = problem.z
    p = torch.empty(problem.dual_shape, dtype=z.dtype)
    s, energy = torch.empty_like(p), torch.empty(len(z), dtype=torch.float64)
    begin = None if warm is None else _field(warm, problem)
    _native.kernels().tv_start(
        _image(z, problem), begin, _field(p, problem), _field(s, problem), energy.numpy(), isotropic=tv.isotropic
    )
    return State(p, s, torch.empty_like(z), torch.full_like(energy, torch.inf)), energy


def advance(tv: Variation, problem: Problem, state: State, momentum: list[float], active: Tensor) -> State:
    """As `tv._advance`, in place in the p, s and x of the state; the number of threads changes no bit."""
    gap = state.gap.clone()
    z, strength, rate, low, high = problem.native
    _native.kernels().tv_advance(
        z,
        strength,
        rate,
        np.array(momentum, dtype=z.dtype),
        active.numpy(),
        low,
        high,
        _field(state.p, problem),
        _field(state.s, problem),
        _image(state.x, problem),
        gap.numpy(),
        isotropic=tv.isotropic,
        threads=torch.get_num_threads(),
    )
    return type(state)(state.p, state.s, state.x, gap)


def _field(tensor: Tensor, problem: Problem) -> NDArray[Any]:
    """Duals as the kernel takes them, (N, K, ndim, D, H, W), without a copy."""
    components = tensor.shape[1] if problem.coupled else 1
    spatial = tensor.shape[tensor.ndim - problem.ndim :]
    shape = (len(tensor), components, problem.ndim, *[1] * (3 - problem.ndim), *spatial)
    return tensor.detach().numpy().reshape(shape)
