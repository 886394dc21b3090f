"""What a denoiser is: a pure map D(z, sigma), whose fixed points therefore mean something."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from plugstream.errors import InputError

__all__ = ["Denoiser", "Sigma", "centre", "compose_averaged", "per_image", "total"]

Sigma = float | Tensor
"""The noise level: one number, or one for each image, of the leading axes' shape."""


class Denoiser(ABC):
    """A map from noisy to clean images, D(z, sigma); a proximal operator is one, D = prox_{sigma^2 r}.

    Pure: the same z and sigma give the same result, whatever was denoised before. A denoiser that iterates may
    take a `warm` start and hands back the next; it is kept in the algorithm's state, never inside, and changes only
    how soon the stated accuracy is reached.

    Attributes:
        min_size: the least height and width it takes.
        averaged: theta, where it is theta-averaged by construction (1/2 for a prox); None where that is not known.
        proximal: True where it is the prox of a convex function by construction, so that its Jacobian is symmetric.
    """

    min_size: int = 1
    averaged: float | None = None
    proximal: bool = False

    def __call__(self, image: Tensor, sigma: Sigma) -> Tensor:
        """(..., H, W) to (..., H, W)."""
        return self.denoise(image, sigma)[0]

    @abstractmethod
    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The denoised image, (..., H, W), and what to pass as `warm` for a similar one."""


def per_image(sigma: Sigma, image: Tensor) -> Tensor | float:
    """sigma in a form that multiplies images: a number as it is, a tensor with two axes added at its end."""
    if not isinstance(sigma, Tensor):
        if not sigma >= 0:
            raise InputError(f"sigma must be a number >= 0, not {sigma}")
        return float(sigma)
    if tuple(sigma.shape) not in ((), tuple(image.shape[:-2])):
        raise InputError(
            f"sigma has shape {tuple(sigma.shape)}, but must be a number or one for each image, "
            f"{tuple(image.shape[:-2])}"
        )
    return sigma.to(device=image.device, dtype=image.dtype)[..., None, None]


def compose_averaged(first: float | None, second: float | None) -> float | None:
    """The averagedness of `second` after `first`: (a + b - 2ab) / (1 - ab), where both are known.

    Reference: Sun, Wohlberg and Kamilov, Proposition 6.
    """
    if first is None or second is None:
        return None
    if first == 0 or second == 0:  # the identity is averaged for every constant, so it adds nothing
        return max(first, second)
    return (first + second - 2 * first * second) / (1 - first * second)


def centre(z: Tensor) -> tuple[Tensor, Tensor]:
    """Images without their mean, (N, H, W), and the mean of each, (N, 1, 1), as a number of their precision.

    For denoisers that commute with adding a constant: what varies is then not lost in the digits of what does not.
    The mean is measured from the first pixel, so that a constant image becomes exactly zero in every precision.
    """
    if z.numel() == 0:
        return z, z.new_zeros(len(z), 1, 1)
    first, pixels = z[:, :1, :1].double(), z[0].numel()
    mean = (first + total(z.double() - first)[:, None, None] / pixels).to(z.dtype)
    return z - mean, mean


def total(terms: Tensor) -> Tensor:
    """The sum over the pixels of each image, (..., H, W) to (...): in float64, and by rows first, since the order in
    which torch adds over several axes depends on how many images there are."""
    return terms.sum(-1, dtype=torch.float64).sum(-1)
