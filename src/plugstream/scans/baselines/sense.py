"""The usual images of MRI: gridding with density compensation, and conjugate gradients on least squares (CG-SENSE)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.linalg import inner, squared_norm
from plugstream.base.progress import report
from plugstream.models.base import Model
from plugstream.scans.baselines.sirt import Data, read_views, split_views


def cg_sense(
    model: Model,
    data: Data,
    iterations: int = 10,
    *,
    damping: float = 0.0,
    look: Callable[[int, Tensor, float], None] | None = None,
) -> Tensor:
    r"""Conjugate gradients on 1/2 ||H x - y||^2 + damping/2 ||x||^2, from zero: (*image_shape).

    With the model of several coils this is CG-SENSE. Few iterations leave detail out, many fit the noise: held-out data
    tells the best number. Each takes one H^H H (`Model.normal`).

    Holds for linear models. Arguments: model; data, as the model predicts them; iterations; damping >= 0; look, called
    after each iteration with its number, the image, and ||r|| / ||H^H y||, where r is the gradient there.
    Reference: Pruessmann, Weiger, Bornert and Boesiger, Magn. Reson. Med. 46(4), 2001.
    """
    if not model.linear:
        raise InputError("cg-sense is for linear models")
    if iterations < 1 or not damping >= 0:
        raise InputError(f"cg-sense needs iterations >= 1 and damping >= 0, not {iterations} and {damping}")
    ndim = len(model.image_shape)
    target = _adjoint(model, data)
    normal = model.normal()
    image, residual = torch.zeros_like(target), target
    direction, energy = residual, squared_norm(residual, ndim)
    first = float(energy) ** 0.5
    for k in range(iterations):
        report("conjugate gradients", k, iterations)
        if not float(energy) > 0:
            break
        product = normal(direction) + damping * direction
        length = energy / inner(direction, product, ndim)
        image, residual = image + length * direction, residual - length * product
        previous, energy = energy, squared_norm(residual, ndim)
        direction = residual + (energy / previous) * direction
        if look is not None:
            look(k + 1, image, float(energy) ** 0.5 / first)
    return image


def grid_image(model: Model, data: Data) -> Tensor:
    r"""The image by gridding: a H^H y for a model whose samples are weighed by density, with the a that fits best.

    Holds for linear models, and is a good first image where H^H H is nearly a multiple of the identity.

    Arguments: model; data, as the model predicts them.
    """
    image = _adjoint(model, data)
    ndim = len(model.image_shape)
    curvature = inner(image, model.normal()(image), ndim)
    if not float(curvature) > 0:
        raise InputError("the scan's data is all zero, so there is no first image")
    return image * float(squared_norm(image, ndim) / curvature)


def _adjoint(model: Model, data: Data) -> Tensor:
    """H^H y, some views at a time."""
    total = torch.zeros(model.image_shape, device=model.device, dtype=model.dtype)
    for views in split_views(model):
        report("back-projecting", int(views[0]), model.n_views)
        total = total + model.adjoint(read_views(model, data, views), views)
    return total
