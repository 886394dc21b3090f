"""How good an image is where the truth is not known: by views it was not made from, or by the noise in the data."""

from __future__ import annotations

import torch
from torch import Tensor

from plugstream.errors import InputError
from plugstream.fidelity import LeastSquares

__all__ = ["discrepancy_score", "held_out_score", "split_views"]


def split_views(available: int | Tensor, fraction: float = 0.1) -> tuple[Tensor, Tensor]:
    """Views to reconstruct from, and evenly spaced others to judge by: (kept,), (held out,), at least one of each."""
    views = torch.arange(available) if isinstance(available, int) else available
    count = min(max(1, round(fraction * len(views))), len(views) - 1)
    if not 0 < fraction < 1 or count < 1:
        raise InputError(
            f"cannot hold out {fraction:g} of {len(views)} views; at least two are needed, and 0 < part < 1"
        )
    out = torch.zeros(len(views), dtype=torch.bool)
    out[((torch.arange(count) + 0.5) * len(views) / count).long()] = True
    return views[~out], views[out]


def held_out_score(fidelity: LeastSquares, image: Tensor, views: Tensor) -> Tensor:
    """How well an image predicts views that it was not made from, in dB: (..., H, W) to (...), larger being better.

    -10 log10 of sum ||H_i x - y_i||^2 / sum ||y_i||^2 over those views. With independent noise its mean is smallest for
    the image whose predictions are nearest to the noise-free data, so it needs neither a truth nor the noise level.
    """
    wrong = fidelity.value(image, views)
    energy = fidelity.value(torch.zeros_like(image), views)
    return -10 * torch.log10(wrong / energy)


def discrepancy_score(fidelity: LeastSquares, image: Tensor, snr: float) -> Tensor:
    """Whether the data is fitted as well as its noise allows, and not better: (..., H, W) to (...), at most zero.

    -|10 log10 (||Hx - y||^2 / ||e||^2)|, where ||e||^2 = ||y||^2 10^(-snr/10): zero where the discrepancy principle
    holds, for noise at a known input SNR of `snr` dB, white and over all data.
    Reference: Morozov, Soviet Math. Dokl. 7, 1966.
    """
    ratio = fidelity.value(image) / fidelity.value(torch.zeros_like(image))
    return -(10 * torch.log10(ratio) + snr).abs()
