"""The global phase of a complex image, removed before images are compared or shown.

If an instrument records intensities, exp(i t) x explains the data as well as x for every angle t, so that images can be
compared only up to a turn c, |c| = 1. The distance to a reference r,

    ||c x - r||^2 = ||x||^2 + ||r||^2 - 2 Re(c <r, x>),  <r, x> = sum conj(r) x,

is least for c = conj(<r, x>) / |<r, x>|. With r = 1 everywhere the mean of c x is real and not negative. Where <r, x>
is zero every turn is as good, and the image stays as it is. Magnitudes never change.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from plugstream.base.arrays import Array, as_tensor
from plugstream.base.errors import InputError
from plugstream.base.linalg import image_axes, per_image

Phase = Literal["free", "measured"]
"""Whether an instrument's data leave the global phase of a complex image free, or measure it."""


def align_phase(image: Array, reference: Array, ndim: int = 2) -> Tensor:
    """The image c x, |c| = 1, that is closest to a reference: the phase of <reference, x> is removed.

    For complex images of instruments that cannot tell x from exp(i t) x, such as ptychography. A real image, or a real
    reference, which says nothing about a phase, leaves the image as it is, to the bit.

    Arguments: image and reference (..., *image_shape), whose last `ndim` axes are an image's. Returns (...,
    *image_shape).
    """
    x, target = as_tensor("the image", image), as_tensor("the reference", reference)
    if x.shape[-ndim:] != target.shape[-ndim:]:
        raise InputError(f"the image is {tuple(x.shape)}, but the reference {tuple(target.shape)}; they must be alike")
    turn = find_turn(x, target.to(x.device), ndim)
    return x if turn is None else x * per_image(turn, ndim)


def find_turn(image: Tensor, reference: Tensor, ndim: int = 2) -> Tensor | None:
    """The number c of `align_phase` of each image, (...), None if the image or the reference is real.

    The sum is in double precision: a large image would lose digits of a small product otherwise.
    """
    if not (image.is_complex() and reference.is_complex()):
        return None
    # conj(<r, x>) = sum r conj(x)
    product = (reference * image.conj()).sum(image_axes(ndim), dtype=torch.complex128)
    return _phasor(product).to(image.dtype)


def turn_of_mean(image: Tensor, ndim: int = 2) -> Tensor | None:
    """The number c of each image, (...), that makes the mean of c x real and non-negative; None for real images."""
    if not image.is_complex():
        return None
    return _phasor(image.sum(image_axes(ndim), dtype=torch.complex128).conj()).to(image.dtype)


def unit_vector(values: Tensor, reference: Tensor) -> Tensor:
    """Values of any shape as one real vector of norm 1, complex ones turned to a reference of the same shape: (n,).

    The difference of two such vectors is that of the values as a part of their size; zeros stay zeros.
    """
    turned = align_phase(values, reference, values.ndim) if values.is_complex() and values.ndim > 0 else values
    flat = (torch.view_as_real(turned.resolve_conj()) if turned.is_complex() else turned).reshape(-1)
    unit: Tensor = flat / torch.linalg.vector_norm(flat).clamp_min(torch.finfo(flat.dtype).tiny)
    return unit


def check_phase(phase: str) -> None:
    """Refuse anything that is not a `Phase`."""
    if phase not in ("free", "measured"):
        raise InputError(f"phase must be free or measured, not {phase!r}")


def _phasor(number: Tensor) -> Tensor:
    """z / |z|, and 1 where z is zero or not finite."""
    turn = torch.sgn(number)
    return torch.where((turn == 0) | ~torch.isfinite(turn), torch.ones_like(turn), turn)
