"""How far a sequence still has to go, by how its steps shrink."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["way_left"]

LOOK_AHEAD = 9.0
"""How many further steps of the last one's length are looked ahead at most: a decay slower than by a tenth a step
cannot be told from none by a few steps."""


def way_left(steps: Tensor) -> Tensor:
    r"""How far a sequence of vectors still has to go, from its last three steps d_1, d_2, d_3.

    Near its end a sequence that one and the same map makes shrinks along its slowest mode, d_{j+1} = rho d_j, so that
    what is left is ||d_3|| rho / (1 - rho). Steps of few views have noise of their own besides, which makes ||d_j||
    stay while the way ends; products of two steps have little of it, since noise of one is not that of the other:

        rho = sqrt(<d_3, d_2> / <d_2, d_1>),    left = sqrt(<d_3, d_2>) sqrt(rho) rho / (1 - rho),

    the same without noise. Where <d_3, d_2> <= 0 the sequence does not go anywhere any more, it hovers, and 0 is left.
    Ratios above 0.9, or where <d_2, d_1> <= 0, count as 0.9: ten times the last step is as far as three can tell. Other
    modes than the slowest make it too small at first, by a factor of two or three.

    Arguments: steps (3, n), the last one last, real; those of means over as many steps as all views take have little
    noise. Returns a number, in the units of the steps.
    Reference: Aitken's extrapolation (Brezinski and Redivo Zaglia, Extrapolation Methods, 1991), for vectors.
    """
    before, last = ((one * other).sum() for one, other in ((steps[-2], steps[-3]), (steps[-1], steps[-2])))
    most = LOOK_AHEAD / (1 + LOOK_AHEAD)
    tiny = torch.finfo(steps.dtype).tiny
    rho = torch.where(before > 0, (last / before.clamp_min(tiny)).clamp_min(0).sqrt(), most).clamp_max(most)
    left: Tensor = last.clamp_min(0).sqrt() * rho.sqrt() * rho / (1 - rho)
    return left
