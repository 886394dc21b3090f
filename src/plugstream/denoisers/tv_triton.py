"""The dual iteration of total variation fused into one Triton kernel; `tv.py` is its specification."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from plugstream.denoisers import forms

if TYPE_CHECKING:
    from plugstream.denoisers.tv_problem import Problem, State, Variation


_BLOCK = 512  # pixels of one program


def serves(image: Tensor, ndim: int = 2) -> bool:
    """Whether the kernel takes these images, of less than 2^31 pixels."""
    return forms.triton_serves(image) and math.prod(image.shape[-ndim:]) < 2**31


def advance(tv: Variation, problem: Problem, state: State, momentum: list[float], active: Tensor) -> State:
    """As `tv._advance`, one launch an iteration; the host reads nothing."""
    from plugstream.denoisers.tv_problem import State

    p, s, other = state.p.clone(), state.s.clone(), torch.empty_like(state.s)
    launch = _launch(tv, problem, active)
    for beta in momentum:
        launch(s, p, other, beta)
        s, other = other, s
    x = problem.primal(p)
    gap = tv._gap_at(x, problem.strength, p, problem.coupled)
    moving = active.reshape(-1, *[1] * (x.ndim - 1))
    return State(p, s, torch.where(moving, x, state.x), torch.where(active, gap, state.gap))


def _launch(tv: Variation, problem: Problem, active: Tensor) -> Callable[[Tensor, Tensor, Tensor, float], None]:
    """One iteration from s and p to p, in place, and another s, by the kernel that is for these images."""
    from plugstream.denoisers import tv_triton_kernel as kernels

    z = problem.z
    rate, strength = problem.rate.flatten().contiguous(), problem.strength.flatten().contiguous()
    low, high = (_fill_bound(bound, problem) for bound in (problem.low, problem.high))
    height, width = z.shape[-2:]
    if problem.ndim == 2 and not problem.coupled:
        grid = (forms.cover(height * width, _BLOCK), len(z))

        def plain(s: Tensor, p: Tensor, out: Tensor, beta: float) -> None:
            kernels.iterate[grid](
                z, s, p, out, strength, rate, active, beta, low, high, height, width,
                ISOTROPIC=tv.isotropic, MAPPED=problem.mapped, BLOCK=_BLOCK, enable_fp_fusion=False,
            )  # fmt: skip

        return plain
    components = z.shape[1] if problem.coupled else 1
    depth = z.shape[-3] if problem.ndim == 3 else 1
    parts = 1 << (components - 1).bit_length()
    block = max(32, _BLOCK // parts)
    blocks = (forms.cover(depth * height * width, block), len(z))

    def coupled(s: Tensor, p: Tensor, out: Tensor, beta: float) -> None:
        kernels.iterate_coupled[blocks](
            z, s, p, out, strength, rate, active, beta, low, high, components, depth, height, width,
            AXES=problem.ndim, ISOTROPIC=tv.isotropic, MAPPED=problem.mapped, PARTS=parts, BLOCK=block,
            enable_fp_fusion=False,
        )  # fmt: skip

    return coupled


def _fill_bound(bound: Tensor | float, problem: Problem) -> Tensor:
    """A bound as one number for each image and component, or for each pixel, filled in on the device."""
    z = problem.z
    if problem.mapped:
        return torch.as_tensor(bound, dtype=z.dtype, device=z.device).expand(z.shape).contiguous()
    if isinstance(bound, Tensor):
        return bound.flatten().contiguous()
    count = len(z) * (z.shape[1] if problem.coupled else 1)
    return torch.full((count,), bound, dtype=z.dtype, device=z.device)
