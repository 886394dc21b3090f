"""The dual iteration of total variation by the native CPU kernel; `tv.py` is its specification."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from plugstream import _native

if TYPE_CHECKING:
    from plugstream.denoisers.tv import TV, Problem, State

__all__ = ["advance", "serves"]


def serves(*tensors: Tensor | None) -> bool:
    """Whether the kernel is there and these tensors are for it: on the CPU, of its precisions, not differentiated."""
    return _native.load() is not None and all(
        t is None
        or (
            t.device.type == "cpu"
            and t.dtype in (torch.float32, torch.float64)
            and not (t.requires_grad and torch.is_grad_enabled())
        )
        for t in tensors
    )


def start(tv: TV, z: Tensor, warm: Tensor | None) -> tuple[State, Tensor]:
    """What `tv._start` does, without waking torch's threads, which would stand in the way of ours for a while."""
    from plugstream.denoisers.tv import State

    p = torch.empty((len(z), 2, *z.shape[-2:]), dtype=z.dtype)
    s, energy = torch.empty_like(p), torch.empty(len(z), dtype=torch.float64)
    given = None if warm is None else warm.detach().numpy()
    _native.kernels().tv_start(z.detach().numpy(), given, p.numpy(), s.numpy(), energy.numpy(), isotropic=tv.isotropic)
    return State(p, s, torch.empty_like(z), torch.full_like(energy, torch.inf)), energy


def advance(tv: TV, problem: Problem, state: State, momentum: list[float], active: Tensor) -> State:
    """What `tv._advance` does, but in place in the p, s and x of the state.

    The number of threads is torch's, and changes no bit of the result.
    """
    gap = state.gap.clone()
    _native.kernels().tv_advance(
        problem.z.detach().numpy(),
        problem.strength.detach().flatten().contiguous().numpy(),
        problem.rate.detach().flatten().numpy(),
        torch.tensor(momentum, dtype=problem.z.dtype).numpy(),
        active.numpy(),
        state.p.numpy(),
        state.s.numpy(),
        state.x.numpy(),
        gap.numpy(),
        low=tv.low,
        high=tv.high,
        isotropic=tv.isotropic,
        threads=torch.get_num_threads(),
    )
    return type(state)(state.p, state.s, state.x, gap)
