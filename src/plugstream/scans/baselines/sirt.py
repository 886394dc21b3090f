"""SIRT: gradient steps of weighted least squares, with a step of its own for every voxel."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.progress import report
from plugstream.models.base import Model, as_model

__all__ = ["sirt"]

# Bytes of measurements that are projected at once.
_BLOCK_BYTES = 64 << 20


def sirt(
    model: Model,
    data: Tensor | Callable[[Tensor], Tensor],
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

    Arguments: model; data (views, *data_shape), or a function that gives that of some views; iterations; start, the
    image to begin with, zero if not given; low, the least value, None for no limit; look, called after each iteration
    with its number, the image and the relative residual ||R^{1/2}(y - A x)|| / ||R^{1/2} y|| before it.
    References: Gilbert, J. Theor. Biol. 36, 1972; Gregor and Benson, IEEE Trans. Med. Imaging 27(7), 2008.
    """
    model = as_model(model)
    if not (model.linear and model.nonnegative):
        raise InputError("sirt is for linear models without negative entries, such as that of ct")
    if iterations < 1:
        raise InputError(f"sirt needs at least one iteration, not {iterations}")
    zero = torch.zeros(model.image_shape, device=model.device, dtype=model.dtype)
    ones, sums, lengths = torch.ones_like(zero), zero.clone(), []
    for some, _ in _blocks(model, None):
        rows = model.forward(ones, some)
        lengths.append(_inverse(rows))
        sums += model.adjoint((rows > 0).to(model.dtype), some)
    steps = _inverse(sums)
    image: Tensor = zero if start is None else start.to(device=model.device, dtype=model.dtype)
    for k in range(iterations):
        report("sirt", k, iterations)
        change, left, whole = torch.zeros_like(image), 0.0, 0.0
        for number, (some, rows) in enumerate(_blocks(model, data)):
            residual = rows - model.forward(image, some)
            weighted = lengths[number] * residual
            change += model.adjoint(weighted, some)
            left += float((weighted * residual).double().sum())
            whole += float((lengths[number] * rows.square()).double().sum())
        image = image + steps * change
        if low is not None:
            image = image.clamp_min(low)
        if look is not None:
            look(k + 1, image, (left / whole) ** 0.5 if whole > 0 else 0.0)
    return image


def _blocks(model: Model, data: Tensor | Callable[[Tensor], Tensor] | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Views some at a time, with their data, masked pixels at zero; an empty tensor where there is none."""
    size = model.dtype.itemsize * max(1, int(torch.tensor(model.data_shape).prod()))
    for some in torch.arange(model.n_views).split(max(1, _BLOCK_BYTES // size)):
        if data is None:
            yield some, torch.empty(0)
            continue
        rows = data[some] if isinstance(data, Tensor) else data(some)
        yield some, model.restrict(rows.to(device=model.device, dtype=model.data_dtype), some)


def _inverse(values: Tensor) -> Tensor:
    """One over each, 0 where it is nothing beside the largest: rays along the image's edge tell nothing."""
    least = 1e-6 * float(values.max()) if values.numel() else 0.0
    return torch.where(values > least, 1 / values.clamp_min(torch.finfo(values.dtype).tiny), torch.zeros_like(values))
