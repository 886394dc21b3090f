"""How much of the data an image leaves unexplained, of all views and of groups of them, such as frequencies."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from plugstream.fidelity.least_squares import Fidelity, LeastSquares, as_fidelity
from plugstream.models.recording import magnitudes
from plugstream.models.views import Views, all_views

__all__ = ["compares_data", "magnitudes", "relative_misfits", "unexplained_light"]

# Predictions of so many bytes at a time.
_BYTES = 32 << 20


@torch.no_grad()
def relative_misfits(fidelity: Fidelity, image: Tensor, views: Views = None) -> Tensor:
    """||H_i x - y_i||^2 / ||y_i||^2 of each view: 1 for a zero image, and about the noise for a good one.

    NaN for a view whose data is zero. Holds for least squares, and for intensities of waves, whose roots are compared:
    || |H_i x| - sqrt(y_i) ||^2 / || sqrt(y_i) ||^2.

    Arguments: fidelity; image (..., *image_shape); views, all available ones if not given. Returns (..., views).
    """
    index = fidelity.available if views is None else all_views(views, fidelity.n_views)
    read: Any = fidelity  # the protocol has no `data`
    size = math.prod(fidelity.data_shape) * fidelity.data_dtype.itemsize
    inside, parts = len(fidelity.data_shape), []

    def energy(part: Tensor) -> Tensor:
        squares = part.abs().square()
        return squares.flatten(part.ndim - inside).sum(-1) if inside else squares

    for block in index.split(max(1, _BYTES // max(1, size))):
        data, prediction = read.data(block), fidelity.predict(image, block)
        if read.model.intensities:
            data, prediction = data.sqrt(), magnitudes(prediction, read.model, data, block)
        residual, most = energy(prediction - data), energy(data)
        parts.append(torch.where(most > 0, residual / most, torch.nan))
    return torch.cat(parts, -1)


@torch.no_grad()
def unexplained_light(fidelity: Fidelity, image: Tensor, views: Views = None) -> float:
    """How far the light of views is from what an image predicts, sum_i |sum |p_i|^2 - sum y_i| / sum y.

    1 for a zero image. If a pixel counts less than a photon, roots of counts are far from the root of their mean
    even for the right image; the light of a whole view is not.

    Arguments: fidelity of a model that predicts waves; image (*image_shape); views, all available ones if not given.
    """
    read: Any = fidelity
    unexplained = total = 0.0
    index = fidelity.available if views is None else all_views(views, fidelity.n_views)
    for view in index.split(1):
        data = read.data(view)
        light = magnitudes(fidelity.predict(image, view), read.model, data, view).double().square().sum()
        unexplained += abs(float(light) - float(data.double().sum()))
        total += float(data.double().sum())
    return unexplained / total if total > 0 else math.nan


def compares_data(fidelity: Any) -> bool:
    """Whether a fidelity compares predictions with data, or the roots of both: least squares, and intensities."""
    whole = as_fidelity(fidelity).whole
    return isinstance(whole, LeastSquares) or (whole.model is not None and whole.model.intensities)
