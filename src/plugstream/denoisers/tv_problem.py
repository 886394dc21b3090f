"""What the forms of total variation share: the problem of a batch of images, and the state of its dual."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.denoisers.tv_field import differences_adjoint

Bound = Tensor | float


class Variation(Protocol):
    """What the fast forms ask of a `TV`."""

    @property
    def isotropic(self) -> bool: ...
    def _gap_at(self, x: Tensor, strength: Tensor | float, dual: Tensor, coupled: bool = False) -> Tensor: ...


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

    @cached_property
    def native(self) -> tuple[NDArray[Any], ...]:
        """z, strength, rate, low and high as the native kernel takes them."""
        strength, rate = (one.detach().flatten().contiguous().numpy() for one in (self.strength, self.rate))
        return _image(self.z, self), strength, rate, _bound(self.low, self), _bound(self.high, self)

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


def _image(tensor: Tensor, problem: Problem) -> NDArray[Any]:
    """Images as the kernel takes them, (N, K, D, H, W), without a copy; those of two axes are volumes of one plane."""
    components = tensor.shape[1] if problem.coupled else 1
    spatial = tensor.shape[tensor.ndim - problem.ndim :]
    return tensor.detach().numpy().reshape(len(tensor), components, *[1] * (3 - problem.ndim), *spatial)


def _bound(bound: Tensor | float, problem: Problem) -> NDArray[Any]:
    """A bound of the box for each image and component, (N, K, 1) or, of a problem with maps, for each pixel too."""
    count, components = len(problem.z), problem.z.shape[1] if problem.coupled else 1
    pixels = problem.z[0].numel() // components if problem.mapped else 1
    dtype = torch.empty((), dtype=problem.z.dtype).numpy().dtype
    if not isinstance(bound, Tensor):
        return np.full((count, components, pixels), bound, dtype)
    if problem.mapped:
        bound = bound.expand(problem.z.shape)
    each = bound.numpy().reshape(len(bound), -1, pixels)
    return np.ascontiguousarray(np.broadcast_to(each, (count, components, pixels)), dtype)
