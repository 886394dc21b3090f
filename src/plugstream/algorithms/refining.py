"""When the parameters refined along with the image have arrived, so that they can stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

# Moves between passes over the views by which the way left is estimated, and the fewest steps of a pass.
_STEPS, _FEWEST = 3, 8
# A decay slower than by a tenth a step cannot be distinguished from none by a few steps.
_SLOWEST = 0.9


def way_left(steps: Tensor) -> Tensor:
    r"""How far a sequence of vectors still has to go, from its last three steps d_1, d_2, d_3.

    Near its end the sequence shrinks along its slowest mode, d_{j+1} = rho d_j, so that ||d_3|| rho / (1 - rho) is
    left. Steps of few views have noise besides, which keeps ||d_j|| up; products of two steps have little of it, since
    their noise is independent:

        rho = sqrt(<d_3, d_2> / <d_2, d_1>),    left = sqrt(<d_3, d_2>) sqrt(rho) rho / (1 - rho),

    the same without noise. If <d_3, d_2> <= 0 the sequence hovers, and 0 is left. Ratios above 0.9, or with
    <d_2, d_1> <= 0, count as 0.9. Other modes than the slowest make it too small at first, by a factor of two or three.

    Arguments: steps (3, n), the last one last, real. Means over as many steps as all views take have little noise.
    Returns a number, in the units of the steps.
    Reference: Aitken's extrapolation (Brezinski and Redivo Zaglia, Extrapolation Methods, 1991), for vectors.
    """
    before, last = (steps[-2] * steps[-3]).sum(), (steps[-1] * steps[-2]).sum()
    tiny = torch.finfo(steps.dtype).tiny
    rho = torch.where(before > 0, (last / before.clamp_min(tiny)).clamp_min(0).sqrt(), _SLOWEST).clamp_max(_SLOWEST)
    rest: Tensor = last.clamp_min(0).sqrt() * rho.sqrt() * rho / (1 - rho)
    return rest


@dataclass(frozen=True)
class Refinement:
    """How parameters of a model have moved lately; part of the state, so that a resumed run ends at the same step.

    Parameters are compared as vectors (`ModelBase.comparable`) by their means over passes (as many steps as use all
    views, at least eight), whose noise is small; `way_left` says how far they still have to go. They have arrived when
    two passes in a row say so.

    Arguments: seen and count, views used and steps taken in the present pass; total, the sum of its vectors, and mean,
    that of the last full pass, (n,); steps, between the last means, (up to 3, n); left, how far each parameter has to
    go, in the order of `comparable`, None if not known yet; ended, the step that ended refinement, else 0.
    """

    seen: int = 0
    count: int = 0
    total: Tensor | None = None
    mean: Tensor | None = None
    steps: Tensor | None = None
    left: Tensor | None = None
    ended: int = 0

    def follow(self, k: int, vectors: Mapping[str, Tensor], used: int, n_views: int, tolerance: float) -> Refinement:
        """After step k, which gave these vectors and used `used` of n_views views; ended if all have arrived."""
        if not vectors:
            return self
        flat = torch.cat([one.reshape(-1) for one in vectors.values()])
        if self.total is not None and self.total.shape != flat.shape:  # the model has grown
            return Refinement().follow(k, vectors, used, n_views, tolerance)
        total = flat if self.total is None else self.total + flat
        seen, count = self.seen + used, self.count + 1
        if seen < n_views or count < _FEWEST:
            return replace(self, seen=seen, count=count, total=total)
        mean = total / count
        steps, left, ended = self.steps, None, 0
        if self.mean is not None:
            step = (mean - self.mean)[None]
            steps = step if steps is None else torch.cat([steps, step])[-_STEPS:]
        if steps is not None and len(steps) == _STEPS:
            parts = steps.split([one.numel() for one in vectors.values()], dim=1)
            left = torch.stack([way_left(part) for part in parts])
            both = left if self.left is None else torch.maximum(left, self.left)
            ended = k if self.left is not None and bool((both <= tolerance).all()) else 0
        return Refinement(mean=mean, steps=steps, left=left, ended=ended)
