"""What a gradient step does to its potential, measured at images: whether it is one, and whether it lowers it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plugstream.denoisers.base import Denoiser

_ROUNDINGS = 64.0  # of a potential, which is a sum over all pixels, in units of the precision
_STEP = 1e-3  # of the difference that checks the gradient, in units of sigma


@dataclass(frozen=True)
class Descent:
    r"""What was seen of D(z) = z - grad g(z) with the potential g.

    If grad g is L-Lipschitz, g(D(z)) <= g(z) - (1 - L/2) ||z - D(z)||^2, so `rate` is below 0 everywhere if L < 2.

    Attributes:
        rate: the largest (g(D(z)) - g(z)) / ||z - D(z)||^2, less what rounding may add: above 0, a step raises g.
        where: the image of it. images: how many there were.
        mismatch: the largest difference of <z - D(z), v> and a central difference of g along v = (z - D(z)) / ||.||,
            relative to ||z - D(z)||.
    """

    rate: float
    where: str
    images: int
    mismatch: float

    def join(self, other: Descent) -> Descent:
        """Both together."""
        worst = max(self, other, key=lambda one: one.rate)
        mismatch = max(self.mismatch, other.mismatch)
        return Descent(worst.rate, worst.where, self.images + other.images, mismatch)


@torch.no_grad()
def measure_descent(denoiser: Denoiser, sigma: float, image: Tensor, where: str) -> Descent | None:
    """At one image, None if the denoiser has no potential or leaves the image as it is."""
    potential = denoiser.potential
    if potential is None:
        return None
    out = denoiser.denoise(image, sigma)[0]
    gradient = image - out
    length = float(gradient.norm())
    before, after = (float(potential(one, sigma)) for one in (image, out))
    noise = _ROUNDINGS * torch.finfo(image.dtype).eps * max(before, after)
    if length == 0 or noise > 0.1 * length**2:
        return None
    h = _STEP * sigma * image.numel() ** 0.5
    step = gradient * (h / length)
    slope = float(potential(image + step, sigma) - potential(image - step, sigma)) / (2 * h)
    return Descent((after - before - noise) / length**2, where, 1, abs(slope - length) / length)
