"""SIRT: gradient steps of weighted least squares, with a step of its own for every voxel."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.progress import report
from plugstream.models.base import Model, as_model

Data = Tensor | Callable[[Tensor], Tensor]
"""Data (views, *data_shape), or a function that gives the data of some views."""

# Bytes of measurements that are projected at once.
_BLOCK_BYTES = 64 << 20


def split_views(model: Model, views: Tensor | None = None) -> tuple[Tensor, ...]:
    """The views, by default all, in blocks whose data fits in 64 MB."""
    views = torch.arange(model.n_views) if views is None else views
    size = model.data_dtype.itemsize * max(1, math.prod(model.data_shape))
    blocks: tuple[Tensor, ...] = views.split(max(1, _BLOCK_BYTES // size))
    return blocks


def read_views(model: Model, data: Data, views: Tensor) -> Tensor:
    """The data of some views, zero where it is masked."""
    rows = data[views] if isinstance(data, Tensor) else data(views)
    return model.restrict(rows.to(device=model.device, dtype=model.data_dtype), views)


def sirt(
    model: Model,
    data: Data,
    iterations: int = 100,
    *,
    start: Tensor | None = None,
    low: float | None = None,
    look: Callable[[int, Tensor, float], None] | None = None,
) -> Tensor:
    r"""Simultaneous iterative reconstruction: x <- x + C A^T R (y - A x), kept above `low` if that is given.

    With R = 1 / (A 1), one over the length of each ray in the image, and C = 1 / (A^T 1), one over the length of all
    rays in each voxel, these are gradient steps of 1/2 ||R^{1/2} (y - A x)||^2, preconditioned by C. They need no step
    size: C^{1/2} A^T R A C^{1/2} has no eigenvalue above 1, since A 1 and A^T 1 are the row and column sums of A, and
    so they converge, to a weighted least-squares solution. Few of them smooth, many fit the noise.

    Holds for linear models without negative entries, such as `plugstream.models.ct.CTModel`. Rays that miss the image,
    masked pixels, and voxels that no ray meets are left alone.

    Arguments: model; data, see `Data`; iterations; start, the first image, by default zero; low, the least value, None
    for no limit; look, called after each iteration with its number, the image and the relative residual
    ||R^{1/2}(y - A x)|| / ||R^{1/2} y|| before it.
    References: Gilbert, J. Theor. Biol. 36, 1972; Gregor and Benson, IEEE Trans. Med. Imaging 27(7), 2008.
    """
    model = as_model(model)
    if not (model.linear and model.nonnegative):
        raise InputError("sirt is for linear models without negative entries, such as that of ct")
    if iterations < 1:
        raise InputError(f"sirt needs at least one iteration, not {iterations}")
    zero = torch.zeros(model.image_shape, device=model.device, dtype=model.dtype)
    ones, sums, lengths = torch.ones_like(zero), zero.clone(), []
    blocks = split_views(model)
    for views in blocks:
        rows = model.forward(ones, views)
        lengths.append(_inverse(rows))
        sums += model.adjoint((rows > 0).to(model.dtype), views)
    steps = _inverse(sums)
    image: Tensor = zero if start is None else start.to(device=model.device, dtype=model.dtype)
    for k in range(iterations):
        report("sirt", k, iterations)
        change, misfit, energy = torch.zeros_like(image), 0.0, 0.0
        for views, length in zip(blocks, lengths, strict=True):
            rows = read_views(model, data, views)
            residual = rows - model.forward(image, views)
            change += model.adjoint(length * residual, views)
            misfit += float((length * residual * residual).double().sum())
            energy += float((length * rows.square()).double().sum())
        image = image + steps * change
        if low is not None:
            image = image.clamp_min(low)
        if look is not None:
            look(k + 1, image, (misfit / energy) ** 0.5 if energy > 0 else 0.0)
    return image


def _inverse(values: Tensor) -> Tensor:
    """One over each value, 0 where it is negligible beside the largest, as for rays along the image's edge."""
    least = 1e-6 * float(values.max()) if values.numel() else 0.0
    return torch.where(values > least, 1 / values.clamp_min(torch.finfo(values.dtype).tiny), torch.zeros_like(values))
