"""What the forms of total variation share: the problem of a batch of images, and the state of its dual."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from plugstream.denoisers.tv_field import differences_adjoint

Bound = Tensor | float


class Variation(Protocol):
    """What the fast forms ask of a `TV`."""

    @property
    def isotropic(self) -> bool: ...
    def _gap_at(self, x: Tensor, strength: Tensor | float, dual: Tensor, coupled: bool = False) -> Tensor: ...


class Penalty(Protocol):
    """What the forms that iterate by themselves ask of a `TV`."""

    @property
    def isotropic(self) -> bool: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def tol(self) -> float: ...


@dataclass(frozen=True)
class Problem:
    """What stays the same while iterating: the images z, (N, *spatial), and sigma^2 w of each, (N, 1, ...).

    low, high: the box, for all images or one for each, (N, 1, ...); where it is `mapped` one for each pixel, of a
    shape that goes with z. ndim: how many spatial axes there are. coupled: whether components that share their
    edges stand before these, (N, K, *spatial).
    """

    z: Tensor
    strength: Tensor
    low: Bound = -math.inf
    high: Bound = math.inf
    ndim: int = 2
    coupled: bool = False
    mapped: bool = False

    def primal(self, dual: Tensor) -> Tensor:
        """x = clip(z - sigma^2 w D^T p) at a dual p, (N, [K,] ndim, *spatial)."""
        return clip(self.z - self.strength * differences_adjoint(dual, self.ndim), self.low, self.high)

    def centred(self, z: Tensor, mean: Tensor) -> Problem:
        """The problem for images without their mean, z and (N, [K,] 1, ...): its solution is this one's less the mean.

        The box moves along. A bound that is infinite stays a number, so that one of all images is known as such.
        """

        def moved(bound: Bound) -> Bound:
            if isinstance(bound, float) and math.isinf(bound):
                return bound
            return (bound - mean.double()).to(z.dtype)

        return replace(self, z=z, low=moved(self.low), high=moved(self.high))

    @property
    def rate(self) -> Tensor:
        """The step 1 / (4 ndim sigma^2 w), (N, 1, ...). Where it is infinite the dual does not matter, and rests."""
        rate = 1 / (4 * self.ndim * self.strength)
        return torch.where(rate.isfinite(), rate, 0.0)

    @property
    def dual_shape(self) -> tuple[int, ...]:
        """(N, [K,] ndim, *spatial)."""
        axis = self.z.ndim - self.ndim
        return (*self.z.shape[:axis], self.ndim, *self.z.shape[axis:])


@dataclass(frozen=True)
class State:
    """The dual point p and the extrapolated one s, (N, [K,] ndim, *spatial); x at p, as z, and its gap, (N,)."""

    p: Tensor
    s: Tensor
    x: Tensor
    gap: Tensor


def clip(x: Tensor, low: Bound, high: Bound) -> Tensor:
    """x between low and high, each a number, or a tensor that goes with x."""
    x = x.clamp_min(low) if isinstance(low, Tensor) or low > -math.inf else x
    return x.clamp_max(high) if isinstance(high, Tensor) or high < math.inf else x
