"""F^H W F of k-space samples as a convolution: two FFTs of twice the image's size, whatever the number of samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from plugstream.models.kspace import KSpace
from plugstream.models.nufft_grid import fast_size
from plugstream.models.nufft_spread import SpreadNufft

__all__ = ["ToeplitzNormal"]

_CACHE_BYTES = 1 << 22  # of images that are transformed together: what stays near the processor is faster


class ToeplitzNormal:
    r"""x -> sum_i F_i^H W_i F_i x for the samples of some views, prepared once.

    Its entry for pixels m and n is p(m - n) with p(l) = (1/N) sum_ij w_ij exp(2 pi i k_ij . d l), so it is a part of
    the circular convolution with p on a grid of twice the size: the spectrum of p is real, and its largest value is
    an upper bound of the norm, since a part of a matrix has no larger one. Along axes on which samples lie on the grid
    of an FFT (`plugstream.models.kspace.KSpace.axes`), that grid is enough, and where it is the image's own the bound
    is the norm.

    Arguments: kspace; views (B,); weights (B, samples) of samples, ones if not given, not negative; rough, that a
    relative accuracy of 1e-2 is enough, as for a bound.
    Reference: Fessler et al., IEEE Trans. Signal Process. 53(9), 2005.
    """

    def __init__(self, kspace: KSpace, views: Tensor, weights: Tensor | None = None, *, rough: bool = False) -> None:
        shape = kspace.voxels.shape
        self.shape = shape
        self.sizes = tuple(
            fast_size(2 * size) if axis.period is None else axis.period
            for size, axis in zip(shape, kspace.axes, strict=True)
        )
        count = len(views) * kspace.samples
        plan = SpreadNufft(
            self.sizes,
            1e-2 if rough else min(kspace.eps, 1e-5 if kspace.dtype == torch.float32 else 1e-11),
            axes=kspace.axes,
            is_complex=True,
            points=count,
            box=True,
            device=kspace.device,
            dtype=kspace.dtype,
        )
        kind = kspace.dtype.to_complex()
        values = torch.ones((1, count), dtype=kind, device=kspace.device)
        if weights is not None:
            values = weights.to(device=kspace.device, dtype=kind).reshape(1, count)
        response = plan.adjoint(values * kspace.scale**2, plan.place(kspace.frequencies(views)))[0]
        # Lag zero comes first; the response is that of a Hermitian operator, so its spectrum is real.
        axes = tuple(range(len(shape)))
        rolled = torch.roll(response, [-(size // 2) for size in self.sizes], axes)
        self.spectrum: Tensor = torch.fft.fftn(rolled).real.contiguous()

    @property
    def bound(self) -> float:
        """An upper bound of the norm."""
        return float(self.spectrum.max())

    def __call__(self, images: Tensor) -> Tensor:
        """(n, *shape) to the same."""
        axes = tuple(range(-len(self.shape), 0))
        inside = (slice(None), *(slice(0, size) for size in self.shape))
        out = torch.empty_like(images)
        step = max(1, _CACHE_BYTES // (math.prod(self.sizes) * images.element_size()))
        padded = torch.zeros((min(step, len(images)), *self.sizes), dtype=images.dtype, device=images.device)
        for begin in range(0, len(images), step):
            part = images[begin : begin + step]
            padded[: len(part)][inside] = part
            spectra = torch.fft.fftn(padded[: len(part)], dim=axes).mul_(self.spectrum)
            out[begin : begin + step] = torch.fft.ifftn(spectra, dim=axes)[inside]
        return out
