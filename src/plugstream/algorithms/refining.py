"""When what is refined beside the image has arrived, so that it can stay as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from plugstream.algorithms.extrapolation import way_left

__all__ = ["Refinement"]

# Steps between passes over the views, which tell how far it still is, and the fewest steps of a pass.
_STEPS, _FEWEST = 3, 8


@dataclass(frozen=True)
class Refinement:
    """How parameters of a model have moved lately, as a part of the state: a run that goes on ends them where it would.

    Parameters go by their means over passes (as many steps as use all views, or eight), whose noise is small, as the
    vectors that the model compares them by (`ModelBase.comparable`); how far each still has to go is by how the last
    steps of these means shrink (`way_left`). They have arrived when two passes running say so: noise may once look so.

    Arguments: seen, views used and `count`, steps taken in the pass that goes on; total, the sum of its vectors, and
    mean, that of the last whole pass, (n,); steps, between the last means, (up to 3, n); left, how far each parameter
    has to go, by `comparable`'s order, None while nobody can say; ended, the step with which refinement ended, else 0.
    """

    seen: int = 0
    count: int = 0
    total: Tensor | None = None
    mean: Tensor | None = None
    steps: Tensor | None = None
    left: Tensor | None = None
    ended: int = 0

    def follow(self, k: int, vectors: Mapping[str, Tensor], used: int, n_views: int, tolerance: float) -> Refinement:
        """After step k, which left these vectors, and used so many of n_views views; ended where all have arrived."""
        if not vectors:
            return self
        flat = torch.cat([one.reshape(-1) for one in vectors.values()])
        if self.total is not None and self.total.shape != flat.shape:  # of a model that has grown
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
