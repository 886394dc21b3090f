"""The vector fields of total variation: differences along each axis, their lengths, and duals of length at most 1.

A field has the shape (..., ndim, *spatial), or (..., K, ndim, *spatial) where K components are coupled: they share
their edges, so that lengths are taken over all of them. Channels are components, and so are real and imaginary part.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def differences(image: Tensor, ndim: int = 2) -> Tensor:
    """Forward differences along the last `ndim` axes, zero at their ends: (..., *spatial) to (..., ndim, *spatial).

    In two dimensions these are down and across.
    """
    out = image.new_zeros((*image.shape[: image.ndim - ndim], ndim, *image.shape[image.ndim - ndim :]))
    for number, along in enumerate(out.unbind(-ndim - 1)):
        axis, size = number - ndim, image.shape[number - ndim]
        if size > 1:
            torch.sub(
                _slice_axis(image, axis, 1, size), _slice_axis(image, axis, 0, -1), out=_slice_axis(along, axis, 0, -1)
            )
    return out


def differences_adjoint(field: Tensor, ndim: int = 2) -> Tensor:
    """The adjoint of `differences` (minus the divergence): (..., ndim, *spatial) to (..., *spatial)."""
    parts = field.unbind(-ndim - 1)
    out = torch.zeros_like(parts[0])
    for number, part in enumerate(parts):
        axis = number - ndim
        inside = _slice_axis(part, axis, 0, -1)
        _slice_axis(out, axis, 0, -1).sub_(inside)
        _slice_axis(out, axis, 1, part.shape[axis]).add_(inside)
    return out


def lengths(field: Tensor, ndim: int, isotropic: bool, coupled: bool) -> Tensor:
    """The length of the field at every pixel, (..., *spatial).

    Isotropic: the Euclidean one over axes and components; anisotropic: the sum over axes of that over components.
    """
    if isotropic:
        return _squares(_parts(field, ndim, coupled)).sqrt()
    axes = _axes(field, ndim, coupled)
    sizes = [components[0].abs() if len(components) == 1 else _squares(components).sqrt() for components in axes]
    return functools.reduce(torch.add, sizes)


def inner_products(first: Tensor, second: Tensor, ndim: int, coupled: bool) -> Tensor:
    """The inner product of two fields at every pixel, (..., *spatial)."""
    return functools.reduce(torch.add, _parts(first * second, ndim, coupled))


def project(field: Tensor, ndim: int, isotropic: bool, coupled: bool) -> Tensor:
    """The nearest field whose length is at most 1 at every pixel (anisotropic: along every axis)."""
    if isotropic:
        shrink = _squares(_parts(field, ndim, coupled)).clamp_min(1).rsqrt().unsqueeze(-ndim - 1)
        return field * (shrink.unsqueeze(-ndim - 2) if coupled else shrink)
    if not coupled:
        return field.clamp(-1, 1)
    axes = _axes(field, ndim, coupled)
    shrinks = torch.stack([_squares(components).clamp_min(1).rsqrt() for components in axes], -ndim - 1)
    return field * shrinks.unsqueeze(-ndim - 2)


def feasible(field: Tensor, ndim: int, isotropic: bool, coupled: bool) -> Tensor:
    """The nearest feasible dual, in new memory: zero across the border, length at most 1."""
    field = field.clone()
    for number, along in enumerate(field.unbind(-ndim - 1)):
        if along.shape[number - ndim]:
            along.select(number - ndim, -1).zero_()
    return project(field, ndim, isotropic, coupled)


def _axes(field: Tensor, ndim: int, coupled: bool) -> list[list[Tensor]]:
    """For each axis, the field along it, one tensor for each component."""
    return [list(along.unbind(-ndim - 1)) if coupled else [along] for along in field.unbind(-ndim - 1)]


def _parts(field: Tensor, ndim: int, coupled: bool) -> list[Tensor]:
    """The field along all axes of the first component, then of the next."""
    return [part for components in zip(*_axes(field, ndim, coupled), strict=True) for part in components]


def _squares(parts: list[Tensor]) -> Tensor:
    """The sum of squares, added one by one: the order of the native kernel, and the same for every batch."""
    return functools.reduce(torch.add, (part * part for part in parts))


def _slice_axis(tensor: Tensor, axis: int, first: int, end: int) -> Tensor:
    """tensor[first:end] along an axis; an end below 0 counts from the back."""
    size = tensor.shape[axis]
    end = size + end if end < 0 else end
    return tensor.narrow(axis, min(first, size), max(0, end - first))
