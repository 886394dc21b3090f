"""The native kernel of extensions that were built before it took volumes: real images of two axes, one box at a time.

It gives the same bits as the one of today. To be removed once no checkout has such an extension any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from plugstream import _native

if TYPE_CHECKING:
    from plugstream.denoisers.tv import TV, Problem, State

__all__ = ["advance", "start"]


def start(tv: TV, problem: Problem, warm: Tensor | None) -> tuple[State, Tensor]:
    """What `tv._start` does, without waking torch's threads, which would stand in the way of ours for a while."""
    from plugstream.denoisers.tv import State

    z = problem.z
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
    for low, high, those in _boxes(problem, active):
        _native.kernels().tv_advance(
            problem.z.detach().numpy(),
            problem.strength.detach().flatten().contiguous().numpy(),
            problem.rate.detach().flatten().numpy(),
            torch.tensor(momentum, dtype=problem.z.dtype).numpy(),
            those.numpy(),
            state.p.numpy(),
            state.s.numpy(),
            state.x.numpy(),
            gap.numpy(),
            low=low,
            high=high,
            isotropic=tv.isotropic,
            threads=torch.get_num_threads(),
        )
    return type(state)(state.p, state.s, state.x, gap)


def _boxes(problem: Problem, active: Tensor) -> Iterator[tuple[float, float, Tensor]]:
    """Each box of the active images, and which of them have it, (N,): the kernel takes one box at a time."""
    low, high = problem.low, problem.high
    if not isinstance(low, Tensor) and not isinstance(high, Tensor):
        yield low, high, active
        return
    boxes = [torch.as_tensor(bound).expand(len(active), 1, 1).flatten().tolist() for bound in (low, high)]
    together: dict[tuple[float, float], list[int]] = {}
    for index in active.nonzero().flatten().tolist():
        together.setdefault((boxes[0][index], boxes[1][index]), []).append(index)
    for box, members in together.items():
        those = torch.zeros_like(active)
        those[members] = True
        yield *box, those
