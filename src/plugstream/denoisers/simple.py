"""Denoisers with a closed form: the identity, non-negativity and other boxes, and the soft threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from plugstream.denoisers.base import AnyShape, Sigma, check_bounds, per_image, refuse_complex_box


@dataclass(frozen=True)
class Identity(AnyShape):
    """No prior at all: D(z) = z, the prox of r = 0. With it, PnP-SGD is stochastic gradient descent."""

    averaged = 0.0
    proximal = True
    reach = 0

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, None]:
        return image, None

    def value(self, image: Tensor) -> Tensor:
        """r(x) = 0: (..., *image) to (...)."""
        return image.real.new_zeros(image.shape[: image.ndim - self.axes])


@dataclass(frozen=True)
class Box(AnyShape):
    """The nearest image whose values lie in [low, high]: a projection, the prox of the box's indicator.

    None is no bound. Complex images have no such box and are refused, unless both bounds are infinite.
    """

    low: float = -math.inf
    high: float = math.inf
    averaged = 0.5
    proximal = True
    reach = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in zip(("low", "high"), check_bounds(self.low, self.high, point=True), strict=True):
            object.__setattr__(self, name, value)

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, None]:
        if image.is_complex():
            refuse_complex_box(self.low, self.high)
            return image, None
        return image.clamp(self.low, self.high), None

    def value(self, image: Tensor) -> Tensor:
        """r(x) = 0 inside the box and infinity outside: (..., *image) to (...)."""
        if image.is_complex():
            refuse_complex_box(self.low, self.high)
            return image.real.new_zeros(image.shape[: image.ndim - self.axes])
        outside = ((image < self.low) | (image > self.high)).flatten(-self.axes).any(-1)
        return torch.where(outside, torch.inf, 0.0).to(image.dtype)


def NonNegative() -> Box:
    """The nearest image without negative values."""
    return Box(low=0.0)


@dataclass(frozen=True)
class SoftThreshold(AnyShape):
    """The prior of sparse images: D(z, sigma) = sign(z) max(|z| - sigma^2 w, 0), the prox of sigma^2 w ||x||_1.

    For complex z, sign(z) = z / |z| and ||x||_1 sums the magnitudes, so that real and imaginary part vanish together.

    Reference: Donoho, IEEE Trans. Inf. Theory 41(3), 1995.
    """

    weight: float = 1.0
    averaged = 0.5
    proximal = True
    reach = 0

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, None]:
        threshold = self.weight * per_image(sigma, image, self.axes) ** 2
        return torch.sgn(image) * (image.abs() - threshold).clamp_min(0), None

    def value(self, image: Tensor) -> Tensor:
        """r(x) = w ||x||_1: (..., *image) to (...)."""
        return self.weight * image.abs().sum(tuple(range(-self.axes, 0)))
