"""Denoisers of images as denoisers of volumes and of channels, and how the right adapter is found."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor

from plugstream.base.arrays import accept_arrays
from plugstream.base.errors import InputError
from plugstream.denoisers.base import Around, Denoiser, Sigma, Wrapper, repeat_sigma, require_axes
from plugstream.denoisers.parts import MagnitudePhase, RealImaginary
from plugstream.denoisers.wrap import as_denoiser

# Pixels that go through a denoiser in one call, so that a volume does not need the memory of all slices at once.
_PIXELS = 2**22


class Slices(Around):
    """A denoiser of images on each slice of a volume; other slices have no influence.

    Slices along axis a of (D, H, W) have the other two axes: (H, W) for axis 0, (D, W) for axis 1 and (D, H) for axis
    2. If the denoiser takes channels, each slice has the channel axis.

    Averagedness is kept: theta-averaged means ||D(z) - D(z')||^2 <= ||z - z'||^2 - (1 - theta)/theta ||R(z) - R(z')||^2
    with R = I - D, and the sum of this over slices is the same for the volume. The prox of r becomes the prox of the
    sum of r over slices.

    Arguments: denoiser, for images of two axes; axis, 0, 1 or 2 of the three spatial axes.
    Volumes are (..., D, H, W), or (..., C, D, H, W). The warm start is the denoiser's, its slices put together again.
    """

    keeps_averaged = True

    def __init__(self, denoiser: Denoiser | Callable[..., Tensor], axis: Literal[0, 1, 2] = 0) -> None:
        plane = as_denoiser(denoiser)
        _require_plane(plane, "Slices")
        if axis not in (0, 1, 2):
            raise InputError(f"a volume has slices along axis 0, 1 or 2, not {axis}")
        super().__init__(plane.orient(axis))
        self.ndim, self.axis = 3, axis
        if axis == 0:  # a slice does not see its neighbours
            self.reach, self.halo, self.align = 0, None, 1
        if plane.value is not None:
            self.value = self._value

    def orient(self, axis: int) -> Denoiser:
        return self

    @property
    def min_shape(self) -> tuple[int, ...]:
        least = list(self.denoiser.min_shape)
        least.insert(self.axis, 1)
        return tuple(least)

    def window(self, where: tuple[slice, ...]) -> Denoiser:
        inner = self.denoiser.window((where[self.axis], *where[: self.axis], *where[self.axis + 1 :]))
        if inner is self.denoiser:
            return self
        other = copy.copy(self)  # the denoiser is oriented already
        other.denoiser = inner
        return other

    def describe(self) -> str:
        return f"{self.denoiser.describe()} on the slices along axis {self.axis}"

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        lead = image.ndim - self.axes
        stack = self._slices(image)
        _require_warm(warm, image, lead)
        count = stack.shape[lead]
        level = repeat_sigma(sigma, count)
        starts = None if warm is None else warm.movedim(self.axis - 3, lead)
        outs, warms = [], []
        for part in self._portions(stack, lead):
            index = (slice(None),) * lead + (part,)
            out, after = self.denoiser.denoise(
                stack[index].contiguous(),
                level[..., part] if isinstance(level, Tensor) and level.ndim else level,
                None if starts is None else starts[index].contiguous(),
            )
            outs.append(out)
            warms.append(_plain(after, out, self.denoiser.axes))
        clean = outs[0] if len(outs) == 1 else torch.cat(outs, lead)
        parts = [start for start in warms if start is not None]
        after = torch.cat(parts, lead).movedim(lead, self.axis - 3) if len(parts) == len(warms) else None
        return clean.movedim(lead, self.axis - 3), after

    @accept_arrays
    def _value(self, image: Tensor) -> Tensor:
        """The sum of r over slices: (..., D, H, W) to (...)."""
        assert self.denoiser.value is not None
        return self.denoiser.value(self._slices(image)).sum(-1)

    def _slices(self, volume: Tensor) -> Tensor:
        """The slices as leading axis: (..., D, H, W) to (..., N, *slice), channels before the last two axes."""
        require_axes(volume, self)
        return volume.movedim(self.axis - 3, -self.axes)

    def _portions(self, stack: Tensor, lead: int) -> list[slice]:
        """Which slices go through the denoiser together."""
        count = stack.shape[lead]
        each = max(1, stack.numel() // count)
        size = count if self.stacked else max(1, _PIXELS // each)
        return [slice(first, first + size) for first in range(0, count, size)]


class SliceMean(Around):
    r"""The mean of a denoiser on the slices along each of the three axes: M = (D_0 + D_1 + D_2) / 3.

    Slices along one axis leave their own noise along it, as stripes; the mean is smooth in every direction.

    If D is theta-averaged, so is M. Proof: `Slices` keeps theta, so D_a = (1 - theta) I + theta N_a with N_a
    nonexpansive. Hence M = (1 - theta) I + theta N with N = (N_0 + N_1 + N_2) / 3, which is nonexpansive by the
    triangle inequality. If D is the prox of a convex function, so is M, of the proximal average of the three sums over
    slices; it has no simple formula, so there is no `value`.

    Arguments: denoiser, for images of two axes.
    Volumes are (..., D, H, W), or (..., C, D, H, W). The warm start is that of the three `Slices`, (..., 3, ...).

    References: Bauschke and Combettes, Convex Analysis and Monotone Operator Theory in Hilbert Spaces, Proposition
    4.42; for the proximal average, Bauschke, Goebel, Lucet and Wang, SIAM J. Optim. 19(2), 2008.
    """

    keeps_averaged = True

    def __init__(self, denoiser: Denoiser | Callable[..., Tensor]) -> None:
        super().__init__(as_denoiser(denoiser))
        _require_plane(self.denoiser, "SliceMean")
        self.ndim = 3
        self.directions = (Slices(self.denoiser, 0), Slices(self.denoiser, 1), Slices(self.denoiser, 2))

    @property
    def min_shape(self) -> tuple[int, ...]:
        return tuple(map(max, *(direction.min_shape for direction in self.directions)))

    def orient(self, axis: int) -> Denoiser:
        return self

    def window(self, where: tuple[slice, ...]) -> Denoiser:
        first, second, third = self.directions
        parts = (first.window(where), second.window(where), third.window(where))
        if parts == self.directions:
            return self
        other = copy.copy(self)
        other.directions = cast(Any, parts)
        return other

    def describe(self) -> str:
        return f"the mean of {self.denoiser.describe()} on the slices along the three axes"

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        require_axes(image, self)
        lead = image.ndim - self.axes
        if warm is not None and (warm.ndim <= lead or warm.shape[lead] != len(self.directions)):
            raise InputError(f"the warm start has shape {tuple(warm.shape)}, but is one of each direction")
        total: Tensor | None = None
        starts: Tensor | None = None  # filled one by one, since a stack would need their memory twice
        filled = 0
        for number, direction in enumerate(self.directions):
            out, after = direction.denoise(image, sigma, None if warm is None else warm.select(lead, number))
            total = out if total is None else total + out
            if after is not None:
                if starts is None:
                    starts = after.new_empty((*after.shape[:lead], len(self.directions), *after.shape[lead:]))
                starts.select(lead, number).copy_(after)
                filled += 1
            del out, after  # before the next direction has its own
        assert total is not None
        return total / len(self.directions), starts if filled == len(self.directions) else None


class Channels(Around):
    """A denoiser of images without channels on each channel on its own: channels share nothing.

    As for `Slices`, averagedness is kept, and the prox of r becomes the prox of the sum of r over channels. TV has a
    form of its own for channels, `TV(channels=True)`, in which they share their edges.

    Arguments: denoiser, without a channel axis. Images are (..., C, H, W) or (..., C, D, H, W).
    """

    keeps_averaged = True

    def __init__(self, denoiser: Denoiser | Callable[..., Tensor]) -> None:
        super().__init__(as_denoiser(denoiser))
        if self.channels:
            raise InputError(f"{self.denoiser.describe()} takes channels already; leave Channels out")
        self.channels = True
        if self.denoiser.value is not None:
            self.value = self._value

    def describe(self) -> str:
        return f"{self.denoiser.describe()}, channel by channel"

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        require_axes(image, self)
        return self.denoiser.denoise(image, repeat_sigma(sigma, image.shape[-self.axes]), warm)

    @accept_arrays
    def _value(self, image: Tensor) -> Tensor:
        """The sum of r over channels: (..., C, H, W) to (...)."""
        assert self.denoiser.value is not None
        return self.denoiser.value(image).sum(-1)


def adapt(
    denoiser: Denoiser | Callable[..., Tensor],
    shape: tuple[int, ...],
    *,
    complex: bool = False,
    channels: bool = False,
    volume: Literal["mean", 0, 1, 2] | None = None,
    parts: Literal["real-imaginary", "magnitude-phase"] | None = None,
    phase: Literal["keep", "mean"] = "keep",
) -> Denoiser:
    """The denoiser for images of this kind: as it is where it takes them, and with adapters where it does not.

    A denoiser that has a form of its own for these images (TV, the soft threshold, the identity) is rebuilt for them.
    Any other gets `SliceMean` for volumes (or `Slices` along the short axis if slices along the others are too small),
    `Channels` for channels and `RealImaginary` for complex images. `Clip`, `Damping` and the like stay outermost.
    `describe` says what was done, and what that does to averagedness.

    Arguments:
        denoiser: any. shape: of one image: (H, W), (D, H, W), or one of these after the number of channels.
        complex: whether values are complex. channels: whether the first of `shape` is the number of channels.
        volume: for volumes, "mean" asks for `SliceMean` and a number for `Slices` along that axis.
        parts: for complex images, "real-imaginary" or "magnitude-phase" asks for that adapter.
        phase: of `RealImaginary`, "mean" to take the mean phase out first.
    """
    spatial = shape[1:] if channels else shape
    if len(spatial) not in (2, 3) or any(length < 1 for length in shape):
        raise InputError(f"an image has two or three axes, and channels before them if any, not the shape {shape}")
    if volume not in (None, "mean", 0, 1, 2) or isinstance(volume, bool):
        raise InputError(f"volume must be mean or an axis, 0, 1 or 2, not {volume!r}")
    if parts not in (None, "real-imaginary", "magnitude-phase"):
        raise InputError(f"parts must be real-imaginary or magnitude-phase, not {parts!r}")
    if phase not in ("keep", "mean"):
        raise InputError(f"phase must be keep or mean, not {phase!r}")
    adapted = _adapt(as_denoiser(denoiser), spatial, complex, channels, volume, parts, phase)
    if not _large_enough(adapted, spatial):
        sides, least = (" x ".join(map(str, lengths)) for lengths in (spatial, adapted.min_shape))
        raise InputError(f"the image is {sides}, but the denoiser needs at least {least}: {adapted.describe()}")
    return adapted


def _adapt(
    denoiser: Denoiser,
    spatial: tuple[int, ...],
    complex: bool,
    channels: bool,
    volume: Literal["mean", 0, 1, 2] | None,
    parts: str | None,
    phase: Literal["keep", "mean"],
) -> Denoiser:
    """`adapt` one thing at a time, the outermost first."""

    def rest(complex: bool = complex, channels: bool = channels, ndim: int = len(spatial)) -> Denoiser:
        by = volume if ndim == 3 else None
        return _adapt(denoiser, spatial[-ndim:], complex, channels, by, parts if complex else None, phase)

    if isinstance(denoiser, Wrapper) and not (denoiser.ordered and complex and parts is not None):
        denoiser.variant(len(spatial), channels=channels, complex=complex)  # refuses what has no meaning
        inner = _adapt(denoiser.denoiser, spatial, complex, channels, volume, parts, phase)
        return denoiser if inner is denoiser.denoiser else denoiser.rewrap(inner)
    if complex and parts is not None and not isinstance(denoiser, RealImaginary | MagnitudePhase):
        return (
            MagnitudePhase(rest(complex=False))
            if parts == "magnitude-phase"
            else RealImaginary(rest(complex=False), phase=phase)
        )
    sliced = len(spatial) == 3 and volume is not None and not isinstance(denoiser, Slices | SliceMean)
    if sliced and denoiser.ndim == 3 and (plane := denoiser.variant(2)) is not None:  # BM3D, say, in place of BM4D
        return _adapt(plane, spatial, complex, channels, volume, parts, phase)
    variant = None if sliced else denoiser.variant(len(spatial), channels=channels, complex=complex)
    if variant is not None:
        return variant
    if complex and not denoiser.takes_complex:
        return RealImaginary(rest(complex=False), phase=phase)
    if channels and not denoiser.channels:
        return Channels(rest(channels=False))
    if len(spatial) == 3 and denoiser.ndim == 2:
        inner = rest(ndim=2)
        mean = SliceMean(inner)
        if volume == "mean" or (volume is None and _large_enough(mean, spatial)):
            return mean
        if volume is not None:
            return Slices(inner, volume)
        along = [direction for direction in mean.directions if _large_enough(direction, spatial)]
        return along[0] if along else mean  # which `adapt` refuses
    kind = f"{'volumes' if denoiser.ndim == 3 else 'images'} {'with' if denoiser.channels else 'without'} channels"
    raise InputError(f"{denoiser.describe()} is for {kind}, and there is no adapter to images of shape {spatial}")


def describe(denoiser: Denoiser) -> str:
    """A denoiser with its adapters and averagedness, as one line for a log."""
    theta = denoiser.averaged
    constant = "1/2" if theta == 0.5 else f"{theta:.3g}" if theta is not None else ""
    return f"{denoiser.describe()}; {f'{constant}-averaged' if constant else 'not known to be averaged'}"


def _large_enough(denoiser: Denoiser, spatial: tuple[int, ...]) -> bool:
    return all(length >= least for length, least in zip(spatial, denoiser.min_shape, strict=True))


def _require_plane(denoiser: Denoiser, name: str) -> None:
    if denoiser.ndim != 2:
        raise InputError(f"{name} needs a denoiser of images with two axes, but {denoiser.describe()} is for volumes")


def _require_warm(warm: Tensor | None, image: Tensor, lead: int) -> None:
    if warm is not None and (warm.shape[:lead] != image.shape[:lead] or warm.shape[-3:] != image.shape[-3:]):
        raise InputError(
            f"the warm start has shape {tuple(warm.shape)}, but must begin with {tuple(image.shape[:lead])} and end "
            f"with {tuple(image.shape[-3:])}"
        )


def _plain(warm: Tensor | None, image: Tensor, axes: int) -> Tensor | None:
    """A warm start that can be cut and put together: one with the leading axes of the images, and their last two.

    Any other is dropped, which only costs time.
    """
    if warm is None or warm.ndim < image.ndim - axes + 2 or warm.shape[-2:] != image.shape[-2:]:
        return None
    lead = image.ndim - axes
    return warm if warm.shape[:lead] == image.shape[:lead] else None
