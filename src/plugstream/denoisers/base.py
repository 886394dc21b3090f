"""What a denoiser is: a pure map D(z, sigma)."""

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

Sigma = float | Tensor
"""The noise level: one number, or one for each image, of the leading axes' shape."""
_SEVERAL, _NUMBERS = (np.ndarray, list, tuple), (int, float, np.number)  # not made anew, as a GPU waits for it


class Denoiser(ABC):
    """A map from noisy to clean images, D(z, sigma); a proximal operator is one, D = prox_{sigma^2 r}.

    Pure: the same z and sigma give the same result, whatever was denoised before. A denoiser that iterates may take a
    `warm` start and returns the next; the algorithm's state holds it, and it changes only how soon the stated accuracy
    is reached. A warm start begins with the leading axes of the images and ends with their spatial axes.

    The last axes of a tensor are one image: `ndim` spatial axes, (H, W) or (D, H, W), after a channel axis if
    `channels` is True. All axes before these are independent images. `adapt` fits a denoiser to other kinds of images.

    Attributes:
        ndim: how many spatial axes an image has, 2 or 3. channels: whether a channel axis comes before them.
        takes_complex: whether images may be complex.
        min_size: the least length of a spatial axis.
        stacked: whether it holds something for each of the leading images, which must then come together.
        averaged: theta, if it is theta-averaged by construction (1/2 for a prox); None if that is not known. Complex
            images are vectors of real and imaginary parts.
        proximal: True if it is the prox of a convex function by construction, so that its Jacobian is symmetric.
        reach: how many pixels away a value still matters, along every spatial axis (of volumes along the first); None
            if that is not known or unlimited. Results do not change if an image is cut beyond it (`Tiles`).
        halo: how many pixels around a tile are enough in practice (docs/scale.md), if that is less than the reach.
        align: tiles begin at multiples of this, since the denoiser works on a grid of this step.
        inside: the denoiser that it wraps or adapts, if any.
        tol: the relative tolerance that it states, 0 if it is exact.
        lift: if it was trained on values from 0, to how many standard deviations the mean of values of both signs is
            moved before it, and back after it; 0 for not at all.
        guide: an image by which it denoises others, if any.
        value: r(x) of a proximal operator, (..., *image) to (...); None if it is not known.
        potential: g_sigma(x) of a gradient step, D(z) = z - grad g_sigma(z), from (..., *image) and sigma to (...).
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
    lift: float = 0.0
    guide: Tensor | None = None
    value: Callable[[Tensor], Tensor] | None = None
    potential: Callable[[Tensor, Sigma], Tensor] | None = None

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        accept_arrays_in(cls, ("denoise", "value"))

    def __call__(self, image: Array, sigma: Sigma | Array | Sequence[float]) -> Tensor:
        """(..., *image) to (..., *image): (..., H, W), with D before H for volumes and C before these for channels."""
        x = as_tensor("the image", image)
        require_axes(x, self)
        if x.is_complex() and not self.takes_complex:
            require_real(x, self.describe())
        level: Any = as_tensor("sigma", sigma) if isinstance(sigma, _SEVERAL) else sigma
        return self.denoise(x, level)[0]

    @abstractmethod
    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The denoised image, of the same shape, and the `warm` start for a similar one."""

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
        """The same prior in a form of its own for another kind of images; None if it has none.

        An InputError says why if the prior has no meaning for them.
        """
        same = self.ndim == ndim and self.channels == channels and (self.takes_complex or not complex)
        return self if same else None

    def orient(self, axis: int) -> Denoiser:
        """The denoiser for slices of a volume along this axis; itself unless it holds a volume."""
        return self

    def window(self, where: tuple[slice, ...]) -> Denoiser:
        """The denoiser for a part of an image, given by slices of its spatial axes; itself unless it holds an image."""
        return self

    def draw(self, step: int) -> Denoiser:
        """The map that step 0, 1, ... of an algorithm applies; itself unless it is a mean of maps, of which it draws.

        The draw depends only on a seed and the step. The fixed points that an algorithm seeks are those of the mean.
        """
        return self

    def level(self, sigma: Sigma) -> Sigma:
        """The noise level for which a call with sigma is: sigma, unless it is scaled first."""
        return sigma

    def describe(self) -> str:
        """A name that fits into a sentence."""
        return type(self).__name__


@dataclass(frozen=True)
class AnyShape(Denoiser):
    """A denoiser whose formula is the same for images of every kind, so that it needs no adapter.

    Arguments: ndim, 2 or 3; channels, whether a channel axis comes before the spatial ones.
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


class Around(Denoiser):
    """A denoiser around another one; what is known of images and sizes is that of the inner one.

    Arguments: denoiser, the inner one; options, the other arguments of the subclass, for `rewrap`.
    Attributes: keeps_averaged, whether it is averaged, and proximal, if the inner one is.
    """

    keeps_averaged: bool = False

    def __init__(self, denoiser: Denoiser, **options: Any) -> None:
        self.inside = self.denoiser = denoiser
        self.options = options
        self.ndim, self.channels, self.min_size = denoiser.ndim, denoiser.channels, denoiser.min_size
        self.takes_complex, self.stacked = denoiser.takes_complex, denoiser.stacked
        self.reach, self.halo, self.align, self.lift = denoiser.reach, denoiser.halo, denoiser.align, denoiser.lift
        if self.keeps_averaged:
            self.averaged, self.proximal = denoiser.averaged, denoiser.proximal

    def rewrap(self, denoiser: Denoiser) -> Denoiser:
        """The same around another denoiser."""
        return type(self)(denoiser, **self.options)

    def _around(self, inner: Denoiser) -> Denoiser:
        return self if inner is self.denoiser else self.rewrap(inner)

    @property
    def min_shape(self) -> tuple[int, ...]:
        return self.denoiser.min_shape

    def orient(self, axis: int) -> Denoiser:
        return self._around(self.denoiser.orient(axis))

    def window(self, where: tuple[slice, ...]) -> Denoiser:
        return self._around(self.denoiser.window(where))


class Wrapper(Around):
    """A denoiser around another one, for the same kind of images; `adapt` goes inside it.

    Attributes: ordered, whether it compares values, which complex numbers do not allow.
    """

    ordered: bool = False

    def __init__(self, denoiser: Denoiser, **options: Any) -> None:
        super().__init__(denoiser, **options)
        self.takes_complex = denoiser.takes_complex and not self.ordered

    @property
    def opening_steps(self) -> int:
        return self.denoiser.opening_steps

    def draw(self, step: int) -> Denoiser:
        return self._around(self.denoiser.draw(step))

    def level(self, sigma: Sigma) -> Sigma:
        return self.denoiser.level(sigma)

    def describe(self) -> str:
        return self.denoiser.describe()


def per_image(sigma: Sigma, image: Tensor, ndim: int = 2) -> Tensor | float:
    """sigma as a factor of images with `ndim` axes: a number, or a tensor with `ndim` axes added."""
    if not isinstance(sigma, Tensor):
        if not isinstance(sigma, _NUMBERS) or not sigma >= 0:
            raise InputError(f"sigma must be a number >= 0, not {sigma!r}")
        return float(sigma)
    leading = tuple(image.shape[: image.ndim - ndim])
    if tuple(sigma.shape) not in ((), leading):
        raise InputError(f"sigma has shape {tuple(sigma.shape)}, but must be a number or one for each image, {leading}")
    dtype = image.dtype.to_real() if image.is_complex() else image.dtype
    return sigma.to(device=image.device, dtype=dtype)[(..., *[None] * ndim)]


def levels(sigma: Sigma, image: Tensor, axes: int = 2, dtype: torch.dtype | None = None) -> Tensor:
    """sigma of each image as a flat stack, (N,), on its device; numbers are filled in there, as CUDA graphs need."""
    lead = image.shape[: image.ndim - axes]
    level = per_image(sigma, image, axes)
    if isinstance(level, Tensor):
        return level.to(dtype or level.dtype).expand(*lead, *[1] * axes).reshape(-1)
    return torch.full((math.prod(lead),), level, dtype=dtype or image.dtype, device=image.device)


def repeat_sigma(sigma: Sigma, count: int) -> Sigma:
    """One sigma for each image as one for each of its `count` parts."""
    return sigma[..., None].expand(*sigma.shape, count) if isinstance(sigma, Tensor) and sigma.ndim else sigma


def require_real(image: Tensor, name: str) -> None:
    """Refuse a complex image for the denoiser of this name."""
    if image.is_complex():
        raise InputError(f"{name} takes real images; for complex ones use RealImaginary or MagnitudePhase around it")


def require_axes(image: Tensor, denoiser: Denoiser) -> None:
    """Refuse a tensor with fewer axes than an image of this denoiser, or without pixels."""
    axes = denoiser.axes
    if image.ndim < axes or (image.numel() == 0 and 0 in image.shape[image.ndim - axes :]):
        kind = " x ".join([*(["channels"] if denoiser.channels else []), *"DHW"[-denoiser.ndim :]])
        raise InputError(
            f"the image has shape {tuple(image.shape)}, but {denoiser.describe()} needs {axes} axes, {kind}, none of "
            "them empty"
        )


def refuse_complex_box(low: float, high: float) -> None:
    """Refuse a box for complex values."""
    if math.isfinite(low) or math.isfinite(high):
        raise InputError(
            f"complex values have no order and cannot be kept in [{low:g}, {high:g}]; leave low and high out, or "
            "denoise real and imaginary part, or magnitude and phase, on their own (RealImaginary, MagnitudePhase)"
        )


def check_bounds(low: float | None, high: float | None, *, point: bool = False) -> tuple[float, float]:
    """The interval [low, high] as numbers, None for no bound; an empty one is refused. With `point` low may be high."""
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
    """Where an image may differ from 0, as a tensor of bool, (H, W) or (D, H, W); an empty one is refused."""
    mask = as_tensor("the support", support).detach()
    if mask.ndim not in (2, 3):
        raise InputError(f"a support has 2 or 3 axes, as an image, not {mask.ndim}")
    mask = mask != 0
    if not bool(mask.any()):
        raise InputError("the support is empty: no pixel is inside")
    return mask.clone()  # later changes must not reach it


def compose_averaged(first: float | None, second: float | None) -> float | None:
    """The averagedness of `second` after `first`: (a + b - 2ab) / (1 - ab), if both are known.

    Reference: Sun, Wohlberg and Kamilov, Proposition 6.
    """
    if first is None or second is None:
        return None
    if first == 0 or second == 0:  # the identity is averaged for every constant, so it adds nothing
        return max(first, second)
    return (first + second - 2 * first * second) / (1 - first * second)


def centre(z: Tensor, ndim: int = 2) -> tuple[Tensor, Tensor]:
    """Images without their mean, (..., *spatial), and the mean of each, (..., 1, 1), in their precision.

    For denoisers that commute with adding a constant, so that little contrast loses no digits. The mean is measured
    from the first pixel, so that a constant image becomes exactly zero.

    Arguments: ndim, the axes of an image.
    """
    ones = (..., *[None] * ndim)
    if z.numel() == 0:
        return z, z.new_zeros(z.shape[: z.ndim - ndim])[ones]
    first = (z[..., :1, :1] if ndim == 2 else z[..., :1, :1, :1]).double()
    pixels = math.prod(z.shape[z.ndim - ndim :])
    mean = (first + total(z.double() - first, ndim)[ones] / pixels).to(z.dtype)
    return z - mean, mean


def total(terms: Tensor, ndim: int = 2) -> Tensor:
    """The sum over the pixels of each image, (..., *spatial) to (...), in float64; by rows first, since torch's order
    over several axes depends on the number of images."""
    out = terms.sum(-1, dtype=torch.float64)
    for _ in range(ndim - 1):
        out = out.sum(-1)
    return out
