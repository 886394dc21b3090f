"""What a denoiser is: a pure map D(z, sigma), whose fixed points therefore mean something."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from plugstream.base.arrays import Array, accept_arrays_in, as_tensor
from plugstream.base.errors import InputError

__all__ = [
    "AnyShape",
    "Denoiser",
    "Sigma",
    "Wrapper",
    "centre",
    "check_bounds",
    "check_support",
    "compose_averaged",
    "per_image",
    "refuse_complex_box",
    "require_axes",
    "require_real",
    "total",
]

Sigma = float | Tensor
"""The noise level: one number, or one for each image, of the leading axes' shape."""


class Denoiser(ABC):
    """A map from noisy to clean images, D(z, sigma); a proximal operator is one, D = prox_{sigma^2 r}.

    Pure: the same z and sigma give the same result, whatever was denoised before. A denoiser that iterates may
    take a `warm` start and hands back the next; it is kept in the algorithm's state, never inside, and changes only
    how soon the stated accuracy is reached. A warm start begins with the leading axes of the images and ends with
    their spatial axes; between the two it may have others.

    The last axes of a tensor are one image: `ndim` spatial axes, (H, W) or (D, H, W), and a channel axis before them
    where `channels` is True. All axes before these are independent images. `adapt` makes a denoiser of one kind of
    images one of another kind.

    Attributes:
        ndim: how many spatial axes an image has, 2 or 3. channels: whether a channel axis stands before them.
        takes_complex: whether images may be complex.
        min_size: the least length of a spatial axis.
        stacked: whether it holds something for each of the leading images, which must then come together.
        averaged: theta, where it is theta-averaged by construction (1/2 for a prox); None where that is not known.
            Complex images are vectors of real and imaginary parts.
        proximal: True where it is the prox of a convex function by construction, so that its Jacobian is symmetric.
        reach: how many pixels away a value still matters, along every spatial axis (of volumes along the first); None
            where that is not known or has no end. Results do not change if an image is cut beyond it (`Tiles`).
        halo: how many pixels around a tile are enough in practice (docs/scale.md), where that is less than the reach or
            there is none.
        align: the pixels' grid of this step matters, from the image's corner on: tiles begin on it.
        inside: the denoiser that it stands around, where it wraps or adapts one.
        tol: the relative tolerance that it states, 0 where it is exact.
        guide: an image by which it denoises others, where there is one.
        value: r(x) of a proximal operator, (..., *image) to (...); None where it is not known.
    """

    ndim: int = 2
    channels: bool = False
    takes_complex: bool = False
    min_size: int = 1
    stacked: bool = False
    averaged: float | None = None
    proximal: bool = False
    reach: int | None = None
    halo: int | None = None
    align: int = 1
    inside: Denoiser | None = None
    tol: float = 0.0
    guide: Tensor | None = None
    value: Callable[[Tensor], Tensor] | None = None

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        accept_arrays_in(cls, ("denoise", "value"))

    def __call__(self, image: Array, sigma: Sigma | Array | Sequence[float]) -> Tensor:
        """(..., *image) to (..., *image): (..., H, W), with D before H for volumes and C before these for channels."""
        x = as_tensor("the image", image)
        require_axes(x, self)
        if x.is_complex() and not self.takes_complex:
            require_real(x, self.describe())
        several = isinstance(sigma, np.ndarray | list | tuple)
        level: Any = as_tensor("sigma", sigma) if several else sigma
        return self.denoise(x, level)[0]

    @abstractmethod
    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The denoised image, of the same shape, and what to pass as `warm` for a similar one."""

    @property
    def axes(self) -> int:
        """How many trailing axes are one image: the spatial ones and that of the channels."""
        return self.ndim + self.channels

    @property
    def min_shape(self) -> tuple[int, ...]:
        """The least length of each spatial axis."""
        return (self.min_size,) * self.ndim

    @property
    def opening_steps(self) -> int:
        """How many steps of an algorithm another denoiser takes first."""
        return 0

    def variant(self, ndim: int, *, channels: bool = False, complex: bool = False) -> Denoiser | None:
        """The same prior for another kind of images, where it has a form of its own for them; None where it has none.

        An InputError says why where the prior has no meaning for such images.
        """
        own = self.ndim == ndim and self.channels == channels and (self.takes_complex or not complex)
        return self if own else None

    def orient(self, axis: int) -> Denoiser:
        """The denoiser for slices of a volume along one of its axes: itself, unless it holds a volume of its own."""
        return self

    def window(self, where: tuple[slice, ...]) -> Denoiser:
        """The denoiser for a part of an image, given along its spatial axes: itself, unless it holds an image."""
        return self

    def draw(self, step: int) -> Denoiser:
        """The map that step 0, 1, ... of an algorithm applies: itself, unless it is a mean of maps, of which it draws.

        What is drawn depends on a seed and the step only, and is itself a denoiser, so that nothing random is hidden in
        one. The fixed points that an algorithm seeks, and its distance to them, are those of the mean.
        """
        return self

    def level(self, sigma: Sigma) -> Sigma:
        """The noise level that a call with sigma is for: sigma, unless it is scaled first, as image by image."""
        return sigma

    def describe(self) -> str:
        """What it is, in words that fit into a sentence."""
        return type(self).__name__


@dataclass(frozen=True)
class AnyShape(Denoiser):
    """A denoiser whose formula is the same for images of every kind, so that it needs no adapter.

    Arguments: ndim, 2 or 3; channels, whether a channel axis stands before the spatial ones.
    """

    ndim: int = field(default=2, kw_only=True)
    channels: bool = field(default=False, kw_only=True)
    takes_complex = True

    def __post_init__(self) -> None:
        if self.ndim not in (2, 3):
            raise InputError(f"an image has 2 or 3 spatial axes, not {self.ndim}")

    def variant(self, ndim: int, *, channels: bool = False, complex: bool = False) -> Self:
        if complex:
            refuse_complex_box(getattr(self, "low", -math.inf), getattr(self, "high", math.inf))
        same = self.ndim == ndim and self.channels == channels
        return self if same else replace(self, ndim=ndim, channels=channels)


class Wrapper(Denoiser):
    """A denoiser around another, for the same kind of images; what it adds does not depend on their shape.

    Attributes: denoiser, the one inside; ordered, whether it compares values, which complex ones do not allow.
    """

    ordered: bool = False

    def __init__(self, denoiser: Denoiser) -> None:
        self.inside = self.denoiser = denoiser
        self.ndim, self.channels, self.min_size = denoiser.ndim, denoiser.channels, denoiser.min_size
        self.takes_complex = denoiser.takes_complex and not self.ordered
        self.stacked = denoiser.stacked
        self.reach, self.halo, self.align = denoiser.reach, denoiser.halo, denoiser.align

    @abstractmethod
    def rewrap(self, denoiser: Denoiser) -> Denoiser:
        """The same around another denoiser."""

    @property
    def min_shape(self) -> tuple[int, ...]:
        return self.denoiser.min_shape

    @property
    def opening_steps(self) -> int:
        return self.denoiser.opening_steps

    def orient(self, axis: int) -> Denoiser:
        inner = self.denoiser.orient(axis)
        return self if inner is self.denoiser else self.rewrap(inner)

    def window(self, where: tuple[slice, ...]) -> Denoiser:
        inner = self.denoiser.window(where)
        return self if inner is self.denoiser else self.rewrap(inner)

    def draw(self, step: int) -> Denoiser:
        inner = self.denoiser.draw(step)
        return self if inner is self.denoiser else self.rewrap(inner)

    def level(self, sigma: Sigma) -> Sigma:
        return self.denoiser.level(sigma)

    def describe(self) -> str:
        return self.denoiser.describe()


def per_image(sigma: Sigma, image: Tensor, ndim: int = 2) -> Tensor | float:
    """sigma in a form that multiplies images of `ndim` axes: a number as it is, a tensor with `ndim` axes added."""
    if not isinstance(sigma, Tensor):
        if not isinstance(sigma, int | float | np.number) or not sigma >= 0:
            raise InputError(f"sigma must be a number >= 0, not {sigma!r}")
        return float(sigma)
    leading = tuple(image.shape[: image.ndim - ndim])
    if tuple(sigma.shape) not in ((), leading):
        raise InputError(f"sigma has shape {tuple(sigma.shape)}, but must be a number or one for each image, {leading}")
    dtype = image.dtype.to_real() if image.is_complex() else image.dtype
    return sigma.to(device=image.device, dtype=dtype)[(..., *[None] * ndim)]


def require_real(image: Tensor, name: str) -> None:
    """An error where the image is complex and the denoiser of this name is for real ones."""
    if image.is_complex():
        raise InputError(f"{name} takes real images; for complex ones use RealImaginary or MagnitudePhase around it")


def require_axes(image: Tensor, denoiser: Denoiser) -> None:
    """An error where a tensor has fewer axes than one image of this denoiser, or an image without pixels."""
    axes = denoiser.axes
    if image.ndim < axes or 0 in image.shape[image.ndim - axes :]:
        kind = " x ".join([*(["channels"] if denoiser.channels else []), *"DHW"[-denoiser.ndim :]])
        raise InputError(
            f"the image has shape {tuple(image.shape)}, but {denoiser.describe()} needs {axes} axes, {kind}, none of "
            "them empty"
        )


def refuse_complex_box(low: float, high: float) -> None:
    """An error where values are to be kept in a box that complex ones cannot be kept in."""
    if math.isfinite(low) or math.isfinite(high):
        raise InputError(
            f"complex values have no order and cannot be kept in [{low:g}, {high:g}]; leave low and high out, or "
            "denoise real and imaginary part, or magnitude and phase, on their own (RealImaginary, MagnitudePhase)"
        )


def check_bounds(low: float | None, high: float | None, *, point: bool = False) -> tuple[float, float]:
    """The interval [low, high] of an image's values as numbers, None for no bound; an empty one is refused.

    With `point` it may be a single value.
    """
    ends = []
    for name, value, none in (("low", low, -math.inf), ("high", high, math.inf)):
        try:
            ends.append(none if value is None else float(value))
        except (TypeError, ValueError):
            raise InputError(f"{name} must be a number, or None for no bound, not {value!r}") from None
    if not (ends[0] < ends[1] or (point and ends[0] == ends[1])):
        raise InputError(f"the interval [{ends[0]}, {ends[1]}] is empty; give low {'<=' if point else '<'} high")
    return ends[0], ends[1]


def check_support(support: Array) -> Tensor:
    """Where an image may be other than 0, as a tensor of bool, (H, W) or (D, H, W); an empty one is refused."""
    mask = as_tensor("the support", support).detach()
    if mask.ndim not in (2, 3):
        raise InputError(f"a support has 2 or 3 axes, as an image, not {mask.ndim}")
    mask = mask != 0
    if not bool(mask.any()):
        raise InputError("the support is empty: no pixel is inside")
    return mask.clone()  # later changes must not reach it


def compose_averaged(first: float | None, second: float | None) -> float | None:
    """The averagedness of `second` after `first`: (a + b - 2ab) / (1 - ab), where both are known.

    Reference: Sun, Wohlberg and Kamilov, Proposition 6.
    """
    if first is None or second is None:
        return None
    if first == 0 or second == 0:  # the identity is averaged for every constant, so it adds nothing
        return max(first, second)
    return (first + second - 2 * first * second) / (1 - first * second)


def centre(z: Tensor, ndim: int = 2) -> tuple[Tensor, Tensor]:
    """Images without their mean, (..., *spatial), and the mean of each, (..., 1, 1), as a number of their precision.

    For denoisers that commute with adding a constant: what varies is then not lost in the digits of what does not.
    The mean is measured from the first pixel, so that a constant image becomes exactly zero in every precision.

    Arguments: ndim, how many axes an image has, all of which the mean is over.
    """
    ones = (..., *[None] * ndim)
    if z.numel() == 0:
        return z, z.new_zeros(z.shape[: z.ndim - ndim])[ones]
    first = (z[..., :1, :1] if ndim == 2 else z[..., :1, :1, :1]).double()
    pixels = math.prod(z.shape[z.ndim - ndim :])
    mean = (first + total(z.double() - first, ndim)[ones] / pixels).to(z.dtype)
    return z - mean, mean


def total(terms: Tensor, ndim: int = 2) -> Tensor:
    """The sum over the pixels of each image, (..., *spatial) to (...): in float64, and by rows first, since the order
    in which torch adds over several axes depends on how many images there are."""
    out = terms.sum(-1, dtype=torch.float64)
    for _ in range(ndim - 1):
        out = out.sum(-1)
    return out
