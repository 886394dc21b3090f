"""Denoise a picture, grey or colour, or a volume with any denoiser of grey images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.progress import report
from plugstream.denoisers.base import Around, Denoiser, Sigma, Wrapper
from plugstream.denoisers.bm4d import BM4D
from plugstream.denoisers.rotated import rotate_channels
from plugstream.denoisers.shapes import SliceMean, Slices, adapt
from plugstream.denoisers.stabilized import Anscombe
from plugstream.denoisers.wrap import Clip, Damping

# Slices of a volume between two reports of progress have about this many pixels.
_REPORTED = 1 << 20


def check_sigma(sigma: float, pixels: NDArray[Any], stored: np.dtype[Any], text: str) -> str | None:
    """Refuse a noise level that is too large for an 8 or 16-bit picture, and return a doubt about others in words.

    Integers are read as values from 0 to 1, where no noise has a standard deviation above 1: who writes 25 means
    25/255. For floating point values a sigma above their range is doubtful.

    Arguments: sigma; pixels, as read; stored, the type in the file; text, sigma as it was written.
    """
    if np.issubdtype(stored, np.integer):
        if sigma <= 1:
            return None
        most = np.iinfo(stored).max
        advice = f"did you mean {text}/{most}" if sigma <= most else f"write it as a fraction such as 25/{most}"
        raise InputError(
            f"sigma {text} is too large: values of {8 * stored.itemsize}-bit pictures are taken as 0 to 1; {advice}? "
            "--large-sigma uses it as it is"
        )
    finite = np.abs(pixels[np.isfinite(pixels)]) if np.iscomplexobj(pixels) else pixels[np.isfinite(pixels)]
    if not finite.size or not sigma > float(np.ptp(finite)) > 0:
        return None
    return f"sigma {text} is more than all values of the picture span, from {finite.min():.4g} to {finite.max():.4g}"


def denoise_picture(
    pixels: NDArray[Any],
    denoiser: Denoiser,
    sigma: float,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> NDArray[Any]:
    """Remove white noise of standard deviation sigma from a picture, colour in an opponent space (`RotatedChannels`).

    Arguments: pixels, (H, W), (H, W, 3), or with a last channel of transparency, (H, W, 2) or (H, W, 4), which is kept;
    or complex, (H, W), for a denoiser of complex images, with a noise of sigma in each part.
    """
    waves = np.iscomplexobj(pixels)
    if waves and pixels.ndim != 2:
        raise InputError(f"the complex picture is of shape {pixels.shape}; (H, W) is needed")
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (1, 2, 3, 4)):
        raise InputError(f"the picture is of shape {pixels.shape}; grey (H, W) or colour (H, W, 3) is needed")
    if not np.isfinite(pixels).all():
        raise InputError("the picture holds NaN or infinity; replace these values first")
    if denoiser.ndim != 2:
        raise InputError(f"{denoiser.describe()} is for volumes, and a picture has two axes; use another denoiser")
    if any(length < least for length, least in zip(pixels.shape[:2], denoiser.min_shape, strict=True)):
        raise InputError(
            f"the picture is {pixels.shape[0]} x {pixels.shape[1]}, but the denoiser needs at least "
            f"{max(denoiser.min_shape)} pixels a side"
        )
    planes = pixels[..., None] if pixels.ndim == 2 else pixels
    alpha = planes[..., planes.shape[2] - 1 :] if planes.shape[2] in (2, 4) else planes[..., :0]
    colour = planes[..., : planes.shape[2] - alpha.shape[2]]
    kind, exact = (dtype.to_complex(), torch.complex128) if waves else (dtype, torch.float64)
    if colour.shape[2] == 3:  # rotated before they are rounded
        denoiser, kind = rotate_channels(denoiser, "opp", dtype), exact
    stack = torch.from_numpy(np.ascontiguousarray(np.moveaxis(colour, -1, 0))).to(device=device, dtype=kind)
    clean = np.moveaxis(denoiser(stack, sigma).to(exact).cpu().resolve_conj().numpy(), 0, -1)
    return np.concatenate([clean, alpha], axis=-1).reshape(pixels.shape)


def denoise_volume(
    values: NDArray[Any],
    denoiser: Denoiser,
    sigma: float,
    *,
    ndim: int = 3,
    rotation: Literal["opp", "principal"] | None = None,
    tiles: Callable[[Denoiser], Denoiser] | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    **how: Any,
) -> tuple[NDArray[Any], Denoiser]:
    """Remove white noise of standard deviation sigma from a volume, or each of several, and report the progress.

    Arguments: values, (..., D, H, W), real or complex; ndim, 2 for a series of pictures, (..., H, W); rotation, if
    pictures are channels of one, (..., C, H, W), as of `RotatedChannels`; tiles, puts the adapted denoiser on tiles;
    how, `volume`, `parts` and `phase` of `adapt`.
    Returns the result, and the denoiser as it was adapted to volumes.
    """
    if not np.isfinite(values).all():
        raise InputError("the volume holds NaN or infinity; replace these values first")
    shape = values.shape[-ndim if rotation is None else -3 :]
    stack, waves = values.reshape(-1, *shape), np.iscomplexobj(values)
    adapted = denoiser if rotation is None else rotate_channels(denoiser, rotation)
    adapted = adapt(adapted, shape, channels=rotation is not None, complex=waves, **how)
    adapted = adapted if tiles is None else tiles(adapted)
    inner, once = adapted, True
    while isinstance(inner, Wrapper):
        once = once and isinstance(inner, Clip | Damping | Anscombe)  # which call the inner one once
        inner = inner.denoiser
    count = shape[inner.axis] if isinstance(inner, Slices) else sum(shape) if isinstance(inner, SliceMean) else 1
    count = shape[0] if isinstance(inner, BM4D) and once else count
    working = _report_slices(adapted, len(stack) * count, count)
    kind = dtype.to_complex() if waves else dtype
    out = np.empty(stack.shape, torch.empty(0, dtype=kind).numpy().dtype)
    report("denoising", 0, len(stack) * count)
    for number, each in enumerate(stack):
        image = torch.from_numpy(np.ascontiguousarray(each, dtype=out.dtype)).to(device=device, dtype=kind)
        out[number] = working(image, sigma).cpu().resolve_conj().numpy()
        report("denoising", (number + 1) * count, len(stack) * count)
    return out.reshape(values.shape), adapted


def _report_slices(denoiser: Denoiser, total: int, each: int) -> Denoiser:
    """The same denoiser, which reports every few slices of a volume; BM4D as many of `each` volume's as it is worth."""
    if isinstance(denoiser, Wrapper):
        return denoiser.rewrap(_report_slices(denoiser.denoiser, total, each))
    if isinstance(denoiser, SliceMean):
        return SliceMean(_Reporting(denoiser.denoiser, total))
    if isinstance(denoiser, Slices):
        return Slices(_Reporting(denoiser.denoiser, total), denoiser.axis)
    if isinstance(denoiser, BM4D) and each > 1:
        return _ReportingBM4D(denoiser.profile, denoiser.stages, total, each)
    return denoiser


@dataclass(frozen=True)
class _ReportingBM4D(BM4D):
    """BM4D, one volume of `each` slices after the other, that reports its work as slices of `total`."""

    total: int = 1
    each: int = 1
    volumes: list[int] = field(default_factory=lambda: [0])

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, None]:
        out = super().denoise(image, sigma, warm)
        self.volumes[0] += 1
        return out

    def on_progress(self, part: float) -> None:
        report("denoising", self.volumes[0] * self.each + int(part * self.each), self.total)


class _Reporting(Around):
    """A denoiser of slices, a few at a time, that reports how many of `total` are done."""

    keeps_averaged = True

    def __init__(self, denoiser: Denoiser, total: int, done: list[int] | None = None) -> None:
        super().__init__(denoiser, total=total, done=[0] if done is None else done)
        self.total, self.done = total, self.options["done"]  # shared by the three directions

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, None]:
        out = []
        for part in image.split(len(image) if self.stacked else max(1, _REPORTED // image[0].numel())):
            out.append(self.denoiser.denoise(part.contiguous(), sigma)[0])
            self.done[0] += len(part)
            report("denoising", self.done[0], self.total)
        return torch.cat(out), None
