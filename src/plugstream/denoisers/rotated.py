"""Channels that show the same thing: rotated before they are denoised, so that they share what is known of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.denoisers.base import Around, Denoiser, Sigma, Wrapper, levels, require_axes
from plugstream.denoisers.bm3d import BM3D
from plugstream.denoisers.bm3d.transforms import dct, principal_axes
from plugstream.denoisers.shapes import Channels
from plugstream.denoisers.wrap import as_denoiser


class RotatedChannels(Around):
    r"""A denoiser of images on rotated channels: R^H D(R z), for colour, coils, energies or times.

    White noise that is the same and independent in all channels stays so under a unitary R, while most of what the
    channels show is in the first of the new ones. BM3D finds its groups there and filters each channel with them, as
    `plugstream.bm3d_rgb` does; on a GPU, and with any other denoiser, channels are denoised each on its own.

    "opp" is the orthonormal DCT along channels: for three the opponent space of colour, and the mean first, for times
    or energies that lie close together. "principal" are the principal components of the image, the strongest first,
    for what has no order. With "opp" averagedness is kept, as R does not depend on z and keeps distances.

    Arguments: denoiser, of real images with two axes; rotation, "opp" or "principal"; precision, real, in which the
    denoiser computes, if it is not that of the image.
    Images are (..., C, H, W), real or complex, whose parts are channels; sigma is that of each part.
    Reference: Dabov, Foi, Katkovnik and Egiazarian, ICIP 2007 (colour image denoising by BM3D).
    """

    def __init__(
        self,
        denoiser: Denoiser | Callable[..., Tensor],
        rotation: Literal["opp", "principal"] = "opp",
        *,
        precision: torch.dtype | None = None,
    ) -> None:
        inner = as_denoiser(denoiser)
        if rotation not in ("opp", "principal"):
            raise InputError(f"the rotation of channels is opp or principal, not {rotation!r}")
        if inner.ndim != 2:
            raise InputError(f"RotatedChannels needs a denoiser of images, but {inner.describe()} is for volumes")
        if isinstance(inner, BM3D):
            inner = replace(inner, channels=True)
        super().__init__(inner if inner.channels else Channels(inner), rotation=rotation, precision=precision)
        self.rotation, self.precision, self.takes_complex = rotation, precision, True
        if rotation == "opp":
            self.averaged, self.proximal = self.denoiser.averaged, self.denoiser.proximal
        else:  # the components depend on the whole image; in practice the denoiser's halo is enough
            self.reach, self.halo = None, self.denoiser.reach if self.denoiser.halo is None else self.denoiser.halo

    def describe(self) -> str:
        inner = self.denoiser.denoiser if isinstance(self.denoiser, Channels) else self.denoiser
        how = "the DCT along channels" if self.rotation == "opp" else "the principal components of channels"
        return f"{inner.describe()} on {how}{', with the groups of the first' if isinstance(inner, BM3D) else ''}"

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, None]:
        require_axes(image, self)
        stack = image.reshape(-1, *image.shape[-3:])
        out = [self._one(z, s) for z, s in zip(stack, levels(sigma, image, 3, torch.float64), strict=True)]
        return torch.stack(out).reshape(image.shape), None

    def _one(self, z: Tensor, sigma: Tensor) -> Tensor:
        kind = torch.complex128 if z.is_complex() else torch.float64
        pixels = z.movedim(0, -1).to(kind)
        count = len(z)
        matrix = dct(count) if self.rotation == "opp" else principal_axes(pixels.cpu().numpy())
        turn = torch.from_numpy(matrix.copy()).to(pixels)
        turned = (pixels @ turn.mT).movedim(-1, 0)
        parts = torch.cat([turned.real, turned.imag]) if z.is_complex() else turned
        parts = parts.to(self.precision or (z.dtype.to_real() if z.is_complex() else z.dtype)).contiguous()
        inner = self.denoiser
        if isinstance(inner, BM3D) and z.device.type != "cpu":
            inner = Channels(replace(inner, channels=False))
        clean = inner.denoise(parts, float(sigma))[0].double()
        clean = torch.complex(clean[:count], clean[count:]) if z.is_complex() else clean
        return (clean.movedim(0, -1) @ turn.conj()).movedim(-1, 0).to(z.dtype)


def rotate_channels(
    denoiser: Denoiser, rotation: Literal["opp", "principal"], precision: torch.dtype | None = None
) -> Denoiser:
    """The denoiser for channels, by `RotatedChannels` within `Clip`, `Damping` and the like, which see the image."""
    if isinstance(denoiser, Wrapper):
        return denoiser.rewrap(rotate_channels(denoiser.denoiser, rotation, precision))
    return RotatedChannels(denoiser, rotation, precision=precision)
