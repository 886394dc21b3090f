"""How good an image is without a truth: by held-out views, or by the noise in the data."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.fidelity.least_squares import LeastSquares

_BLOCK_VIEWS = 64  # whose data is in memory at a time


def split_views(views: Tensor, fraction: float = 0.1) -> tuple[Tensor, Tensor]:
    """Views to reconstruct from, and evenly spaced others to judge by: (kept,), (held out,), at least one of each."""
    count = min(max(1, round(fraction * len(views))), len(views) - 1)
    if not 0 < fraction < 1 or count < 1:
        raise InputError(
            f"cannot hold out {fraction:g} of {len(views)} views; at least two are needed, and 0 < part < 1"
        )
    out = torch.zeros(len(views), dtype=torch.bool)
    out[((torch.arange(count) + 0.5) * len(views) / count).long()] = True
    return views[~out], views[out]


def held_out_score(fidelity: LeastSquares, image: Tensor, views: Tensor) -> Tensor:
    """How well an image predicts views that were not used for it, in dB: (..., H, W) to (...), larger is better.

    -10 log10 of sum ||H_i x - y_i||^2 / sum ||y_i||^2 over those views. With independent noise its mean is smallest for
    the image whose predictions are nearest to the noise-free data, so it needs neither a truth nor the noise level.
    """
    wrong = fidelity.value(image, views)
    return -10 * torch.log10(wrong / _data_energy(fidelity, image, views))


def residual_excess(fidelity: LeastSquares, image: Tensor, snr: float) -> Tensor:
    """How much more is left of the data than its noise, in dB: (..., H, W) to (...); below zero, noise is fitted too.

    10 log10 (||Hx - y||^2 / ||e||^2) for noise e at an input SNR of `snr` = 20 log10 (||y - e|| / ||e||) dB, white and
    over all data. On average ||y||^2 = ||y - e||^2 + ||e||^2, so ||e||^2 = ||y||^2 / (1 + 10^(snr/10)). Zero is the
    discrepancy principle, and what the true image has on average. A fitted image absorbs some of the noise, so the best
    one is a little below zero, and zero smooths a little too much.
    Reference: Morozov, Soviet Math. Dokl. 7, 1966.
    """
    ratio = fidelity.value(image) / _data_energy(fidelity, image, None)
    return 10 * torch.log10(ratio * (1 + 10 ** (snr / 10)))


def discrepancy_score(fidelity: LeastSquares, image: Tensor, snr: float) -> Tensor:
    """Whether the data are fitted as well as their noise allows, and no better: (..., H, W) to (...), at most zero.

    -|residual_excess|. It may have two peaks: at small sigma the noise of small batches adds to the residual of an
    image that fits too well. So find sigma by the sign change of `residual_excess`, with `largest_crossing`.
    """
    return -residual_excess(fidelity, image, snr).abs()


def _data_energy(fidelity: LeastSquares, image: Tensor, views: Tensor | None) -> Tensor:
    """The mean over views of ||y_i||^2 / 2, to compare the value with.

    For a linear model that is the value at zero. Other models may predict something of nothing.
    """
    if fidelity.linear:
        return fidelity.value(torch.zeros_like(image), views)
    index = fidelity.available if views is None else views
    axes = tuple(range(-1 - len(fidelity.data_shape), 0))
    energies = (fidelity.data(block).abs().square().sum(axes) for block in index.split(_BLOCK_VIEWS))
    return functools.reduce(torch.add, energies) / (2 * len(index))
