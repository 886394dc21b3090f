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
    """||H_i x - y_i||^2 / ||y_i||^2 of each view: 1 for an image that is zero, and about the noise for a good one.

    NaN for a view whose data is zero. Holds for data that predictions are compared with as they are (least squares),
    and for intensities of waves, of which the roots are compared: || |H_i x| - sqrt(y_i) ||^2 / || sqrt(y_i) ||^2.

    Arguments: fidelity; image (..., *image_shape); views, all that are available if not given. Returns (..., views).
    """
    index = fidelity.available if views is None else all_views(views, fidelity.n_views)
    read: Any = fidelity  # which of the protocol knows nothing of data
    size = math.prod(fidelity.data_shape) * fidelity.data_dtype.itemsize
    inside, parts = len(fidelity.data_shape), []
    for some in index.split(max(1, _BYTES // max(1, size))):
        data, prediction = read.data(some), fidelity.predict(image, some)
        if read.model.intensities:
            data, prediction = data.sqrt(), magnitudes(prediction, read.model, data, some)
        left = prediction - data
        energies = [
            (part.abs().square().flatten(part.ndim - inside).sum(-1) if inside else part.abs().square())
            for part in (left, data)
        ]
        parts.append(torch.where(energies[1] > 0, energies[0] / energies[1], torch.nan))
    return torch.cat(parts, -1)


@torch.no_grad()
def unexplained_light(fidelity: Fidelity, image: Tensor, views: Views = None) -> float:
    """How far the light of views is from what an image predicts, sum_i |sum |p_i|^2 - sum y_i| / sum y, of intensities.

    1 for an image that is zero. Where a pixel counts less than a photon, roots of counts differ from the root of what
    is expected by more than both are, however right the image is; the light of a whole view does not.

    Arguments: fidelity of a model that predicts waves; image (*image_shape); views, all available ones if not given.
    """
    read: Any = fidelity
    left = whole = 0.0
    index = fidelity.available if views is None else all_views(views, fidelity.n_views)
    for view in index.split(1):
        data = read.data(view)
        light = magnitudes(fidelity.predict(image, view), read.model, data, view).double().square().sum()
        left += abs(float(light) - float(data.double().sum()))
        whole += float(data.double().sum())
    return left / whole if whole > 0 else math.nan


def compares_data(fidelity: Any) -> bool:
    """Whether a fidelity compares predictions with data as they are, or the roots of both.

    Least squares of one process or of several, and what compares intensities of waves.
    """
    whole = as_fidelity(fidelity).whole
    return isinstance(whole, LeastSquares) or (whole.model is not None and whole.model.intensities)
