"""The operator of the theory, P = D_sigma(I - gamma grad d), and how far an image is from its fixed points."""

from __future__ import annotations

import torch
from torch import Tensor

from plugstream.denoisers.base import Denoiser
from plugstream.fidelity import Fidelity

__all__ = ["fixed_point_distance", "fixed_point_map"]


@torch.no_grad()
def fixed_point_map(
    image: Tensor,
    fidelity: Fidelity,
    denoiser: Denoiser,
    gamma: float,
    sigma: float,
    warm: Tensor | None = None,
) -> Tensor:
    """The operator whose fixed points the algorithms seek, on all views: P(x) = D_sigma(x - gamma grad d(x)).

    Arguments: image (..., H, W). `warm` only spares an iterative denoiser work; its accuracy stays as it states.
    Reference: Sun, Wohlberg and Kamilov, eq. (12).
    """
    return denoiser.denoise(image - gamma * fidelity.gradient(image), sigma, warm)[0]


def fixed_point_distance(
    image: Tensor,
    fidelity: Fidelity,
    denoiser: Denoiser,
    gamma: float,
    sigma: float,
    warm: Tensor | None = None,
) -> Tensor:
    """How far an image is from being reconstructed: dist(x) = ||x - P(x)||_2^2, zero exactly at fixed points.

    Arguments: as `fixed_point_map`. Returns one number for each image, (...).
    Reference: Sun, Wohlberg and Kamilov, eq. (24).
    """
    return (image - fixed_point_map(image, fidelity, denoiser, gamma, sigma, warm)).square().sum((-2, -1))
