"""The dual iteration of total variation fused into one Triton kernel; `tv.py` is its specification."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from plugstream.denoisers import _triton

if TYPE_CHECKING:
    from plugstream.denoisers.tv import TV, Problem, State

__all__ = ["advance", "serves"]

_BLOCK = 512  # pixels of one program


def serves(image: Tensor) -> bool:
    """Whether the kernel takes these images: float32 on CUDA, where Triton is installed."""
    return image.is_cuda and image.dtype == torch.float32 and _triton.available()


def advance(tv: TV, problem: Problem, state: State, momentum: list[float], active: Tensor) -> State:
    """What `tv._advance` does: one launch an iteration, which reads s and p once and writes them once.

    Images that are done rest, as the kernel writes back what it read for them. Nothing is read by the host.
    """
    from plugstream.denoisers.tv import State
    from plugstream.denoisers.tv_triton_kernel import iterate

    z = problem.z
    p, s, other = state.p.clone(), state.s.clone(), torch.empty_like(state.s)
    rate, strength = problem.rate.flatten().contiguous(), problem.strength.flatten().contiguous()
    low, high = (_each(bound, z) for bound in (problem.low, problem.high))
    height, width = z.shape[-2:]
    grid = (-(-height * width // _BLOCK), len(z))
    for beta in momentum:
        iterate[grid](
            z, s, p, other, strength, rate, active, beta, low, high, height, width,
            ISOTROPIC=tv.isotropic, BLOCK=_BLOCK, enable_fp_fusion=False,
        )  # fmt: skip
        s, other = other, s
    x = problem.primal(p)
    gap = tv._gap_at(x, problem.strength, p)
    return State(p, s, torch.where(active[:, None, None], x, state.x), torch.where(active, gap, state.gap))


def _each(bound: Tensor | float, z: Tensor) -> Tensor:
    """A bound as one number for each image, (N,), filled in on the device."""
    if isinstance(bound, Tensor):
        return bound.flatten().contiguous()
    return torch.full((len(z),), bound, dtype=z.dtype, device=z.device)
