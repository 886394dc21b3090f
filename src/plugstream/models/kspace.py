"""Fourier transforms of images at k-space samples, their normal operator, and the density of samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.models.ct_geometry import Voxels
from plugstream.models.nufft import FinufftNufft, finufft_is_here
from plugstream.models.nufft_grid import fast_size
from plugstream.models.nufft_points import Points, join_points
from plugstream.models.nufft_spread import Axis, SpreadNufft

Real = NDArray[np.float64]

# Samples are on the grid of an FFT if they are within this part of a step of it, just above single precision.
_ON_GRID = 3e-5
_LONGEST = 4  # times the image's size: a longer grid that contains all samples does not pay
_CACHE_BYTES, _BYTES_A_POINT = 1 << 28, 40  # of where samples of views lie on the grid
_FFT_BYTES = 1 << 22  # of images that are transformed together: what stays near the processor is faster
_GRID_BYTES = 1 << 28  # of finer grids that are worked on together


def centered_voxels(shape: Sequence[int], spacing: float | Sequence[float]) -> Voxels:
    """Voxels of which number N // 2 along each axis lies at zero, as an FFT has them.

    Arguments: shape, (H, W) or (D, H, W); spacing in metres, one number or one along each axis.
    """
    steps = (float(spacing),) * len(shape) if isinstance(spacing, int | float) else tuple(spacing)
    return Voxels(shape, steps, [-(size // 2) * step for size, step in zip(shape, steps, strict=True)])


def encoded_voxels(voxels: Voxels, axes: int) -> Voxels:
    """The voxels along those last axes that gradients encode: of a stack of slices, those of one slice."""
    return Voxels(voxels.shape[-axes:], voxels.spacing[-axes:], voxels.origin[-axes:])


def find_period(cycles: Real, size: int) -> int | None:
    """The least whole number P, from the size to four times it, for which all cycles times P are whole; None for none.

    Arguments: cycles a pixel along one axis, any shape; size of the image along it.
    """
    values: Real = np.unique(np.round(np.abs(cycles).ravel(), 12))
    few: Real = values[np.linspace(0, len(values) - 1, min(len(values), 32)).astype(int)]
    for period in range(size, _LONGEST * size + 1):
        if _is_whole(few * period) and _is_whole(values * period):
            return period
    return None


def find_axes(trajectory: Real, voxels: Voxels) -> list[Axis]:
    """The range or the grid of the frequencies along each axis of the voxels.

    Arguments: trajectory (..., axes), in 1/m along the axes of `voxels.shape`.
    """
    axes = []
    for n, (size, step) in enumerate(zip(voxels.shape, voxels.spacing, strict=True)):
        cycles = trajectory[..., n] * step
        folded = np.abs(np.mod(cycles + 0.5, 1) - 0.5)
        most = float(np.pi) if size == 1 else float(min(np.pi, 1.0001 * 2 * np.pi * folded.max(initial=0.0)))
        period = find_period(cycles, size)
        axes.append(Axis(float(np.pi) if period is not None else most, period))
    return axes


class KSpace:
    r"""The transform F of images at the samples of each view, and its adjoint:

        (F_i x)_j = (1 / sqrt N) sum_n x_n exp(-2 pi i k_ij . r_n),

    r_n being the places of the N pixels and k_ij the samples of view i. Fully sampled on the image's own grid, it is
    unitary. Along axes on which all samples are multiples of 1 / (P d), d being the pixel's size and P a whole number
    from the image's size to four times it, it is a plain FFT of that length; along others it is our non-uniform FFT, or
    finufft's in double precision on the CPU.

    Arguments:
        trajectory: (views, samples, axes), 1/m, along the axes of `voxels.shape`.
        voxels: of the image, whose origin need not be the middle.
        eps: relative accuracy of the non-uniform FFT.
        device, dtype: where, and in which real precision.
        form: "spread", "finufft", or "auto" for which it is.
    """

    def __init__(
        self,
        trajectory: Real,
        voxels: Voxels,
        eps: float,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        form: str = "auto",
    ) -> None:
        if trajectory.ndim != 3 or trajectory.shape[2] != len(voxels.shape):
            raise InputError(
                f"a trajectory must be (views, samples, {len(voxels.shape)}), not {tuple(trajectory.shape)}"
            )
        self.trajectory, self.voxels, self.eps = trajectory, voxels, eps
        self.device, self.dtype = torch.device(device), dtype
        self._complex = dtype.to_complex()
        self.axes = find_axes(trajectory, voxels)
        self.is_exact = all(axis.period is not None for axis in self.axes)
        double = dtype == torch.float64 and self.device.type == "cpu" and finufft_is_here() and not self.is_exact
        self.form = ("finufft" if double else "spread") if form == "auto" else form
        if self.form not in ("spread", "finufft"):
            raise InputError(f"k-space has the forms auto, spread and finufft, not {form!r}")
        # Of how many samples a transform is usually asked: a batch of ten views, or a tenth of all.
        views, samples = trajectory.shape[:2]
        self.nufft = SpreadNufft(
            voxels.shape,
            eps,
            axes=self.axes,
            is_complex=True,
            points=max(min(views, 10), views // 10) * samples,
            box=True,
            device=self.device,
            dtype=dtype,
        )
        self.scale: float = math.prod(voxels.shape) ** -0.5
        self._step = 2 * np.pi * np.array(voxels.spacing)
        # The non-uniform FFT's zero is pixel N // 2.
        self._middle = np.array(voxels.origin) + np.array(voxels.shape) // 2 * np.array(voxels.spacing)
        self._turned = bool(np.any(np.abs(self._middle) > 1e-9 * np.array(voxels.spacing)))
        self._points: dict[int, Points] = {}
        self._cached_bytes = 0
        self._plans: dict[tuple[int, ...], FinufftNufft] = {}

    @property
    def samples(self) -> int:
        """Of a view."""
        return int(self.trajectory.shape[1])

    @property
    def images_at_once(self) -> int:
        """How many images are worth transforming together, by the room that their finer grids take."""
        return max(1, _GRID_BYTES // (2 * math.prod(self.nufft.cells) * self._complex.itemsize))

    @cached_property
    def is_tabled(self) -> bool:
        """Whether all samples are placed on a GPU, so that views may be indices there, as in a CUDA graph."""
        if self.form == "finufft" or self.device.type != "cuda":
            return False
        return _BYTES_A_POINT * len(self.trajectory) * self.samples <= _CACHE_BYTES

    def sample(self, images: Tensor, views: Tensor) -> Tensor:
        """(n, *shape) to (n, B, samples)."""
        if self.form == "finufft":
            values = self._plan(views).sample(images)
        else:
            values = self.nufft.sample(images, self._place(views))
        return self._turn(values.view(len(images), len(views), self.samples), views, 1)

    def adjoint(self, values: Tensor, views: Tensor) -> Tensor:
        """(n, B, samples) to (n, *shape), summed over views."""
        flat = self._turn(values, views, -1).reshape(len(values), len(views) * self.samples)
        if self.form == "finufft":
            return self._plan(views).adjoint(flat)
        return self.nufft.adjoint(flat, self._place(views))

    def frequencies(self, views: Tensor) -> Real:
        """Radians a pixel of all samples of views, (B * samples, axes), with the sign of the transform."""
        return np.asarray(-self._step * self.trajectory[views.numpy()]).reshape(-1, self.trajectory.shape[2])

    def _turn(self, values: Tensor, views: Tensor, sign: int) -> Tensor:
        """Values times the scale and the phases of an image whose middle is not at zero."""
        if not self._turned:
            return values * self.scale
        if self.is_tabled:
            factors = self._all_factors[views.to(self.device)]
            return values * (factors if sign == 1 else factors.conj())
        return values * self._factors(views, sign).to(device=values.device, dtype=values.dtype)

    def _factors(self, views: Tensor, sign: int) -> Tensor:
        phases = self.trajectory[views.numpy()] @ self._middle
        return torch.from_numpy(self.scale * np.exp(-2j * np.pi * sign * phases))

    @cached_property
    def _all_factors(self) -> Tensor:
        return self._factors(torch.arange(len(self.trajectory)), 1).to(device=self.device, dtype=self._complex)

    @cached_property
    def _all_points(self) -> Points:
        return self.nufft.place(self.frequencies(torch.arange(len(self.trajectory))))

    def _place(self, views: Tensor) -> Points:
        if self.is_tabled:
            index, points = views.to(self.device), self._all_points
            first, offset = (x.unflatten(0, (-1, self.samples))[index] for x in (points.first, points.offset))
            return replace(points, first=first.flatten(0, 1), offset=offset.flatten(0, 1))
        return join_points([self._place_once(view) for view in views.tolist()])

    def _place_once(self, view: int) -> Points:
        """The points of a view; cached as far as there is room."""
        if view in self._points:
            return self._points[view]
        points = self.nufft.place(self.frequencies(torch.tensor([view])))
        self._cached_bytes += _BYTES_A_POINT * self.samples
        if self._cached_bytes <= _CACHE_BYTES:
            self._points[view] = points
        return points

    def _plan(self, views: Tensor) -> FinufftNufft:
        """finufft's plan of these views; the last two are cached."""
        key = tuple(views.tolist())
        if key not in self._plans:
            while len(self._plans) >= 2:
                self._plans.pop(next(iter(self._plans)))
            shape, frequencies = self.voxels.shape, self.frequencies(views)
            self._plans[key] = FinufftNufft(
                shape, frequencies, self.eps, device=self.device, dtype=self.dtype, is_complex=True
            )
        return self._plans[key]


class ToeplitzNormal:
    r"""x -> sum_i F_i^H W_i F_i x for the samples of some views, prepared once.

    Its entry for pixels m and n is p(m - n) with p(l) = (1/N) sum_ij w_ij exp(2 pi i k_ij . d l), so it is a part of
    the circular convolution with p on a grid of twice the size: the spectrum of p is real, and its largest value is an
    upper bound of the norm, since a part of a matrix has no larger norm. Along axes on which samples lie on the grid of
    an FFT (`KSpace.axes`), that grid is enough, and if it is the image's own, the bound is the norm.

    Arguments: kspace; views (B,); weights (B, samples) of samples, ones if not given, not negative; rough, that a
    relative accuracy of 1e-2 is enough, as for a bound.
    Reference: Fessler et al., IEEE Trans. Signal Process. 53(9), 2005.
    """

    def __init__(self, kspace: KSpace, views: Tensor, weights: Tensor | None = None, *, rough: bool = False) -> None:
        shape = kspace.voxels.shape
        sizes = tuple(
            fast_size(2 * size) if axis.period is None else axis.period
            for size, axis in zip(shape, kspace.axes, strict=True)
        )
        count = len(views) * kspace.samples
        plan = SpreadNufft(
            sizes,
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
        rolled = torch.roll(response, [-(size // 2) for size in sizes], axes)
        self.spectrum: Tensor = torch.fft.fftn(rolled).real.contiguous()

    @property
    def bound(self) -> float:
        """An upper bound of the norm."""
        return float(self.spectrum.max())

    def __call__(self, images: Tensor) -> Tensor:
        """(n, *shape) to the same."""
        return convolve(images, self.spectrum)


def convolve(images: Tensor, spectrum: Tensor) -> Tensor:
    """Images (n, *shape), as far as they reach, convolved by the spectrum of a circular convolution of larger size."""
    shape, sizes = images.shape[1:], spectrum.shape
    axes = tuple(range(-len(shape), 0))
    inside = (slice(None), *(slice(0, size) for size in shape))
    out = torch.empty_like(images)
    step = max(1, _FFT_BYTES // (math.prod(sizes) * images.element_size()))
    padded = torch.zeros((min(step, len(images)), *sizes), dtype=images.dtype, device=images.device)
    for begin in range(0, len(images), step):
        part = images[begin : begin + step]
        padded[: len(part)][inside] = part
        spectra = torch.fft.fftn(padded[: len(part)], dim=axes).mul_(spectrum)
        out[begin : begin + step] = torch.fft.ifftn(spectra, dim=axes)[inside]
    return out


def sample_density(kspace: KSpace, iterations: int = 30, weights: Tensor | None = None) -> NDArray[np.float32]:
    r"""Weights of all samples, (views, samples), with which the adjoint of the transform is nearly its inverse.

    They are the fixed point of w <- w / (C w), C being the convolution of samples with the kernel of the non-uniform
    FFT for twice the image's field of view. There, the weights of samples near each other add up to the same
    everywhere, so that each is the part of k-space that its sample stands for, 1 on the image's own grid. Samples too
    far apart for a kernel to reach the next one have equal weights.

    Arguments: kspace; iterations; weights (views, samples), 0 for samples that do not count.
    Reference: Pipe and Menon, Magn. Reson. Med. 41(1), 1999.
    """
    views = torch.arange(len(kspace.trajectory))
    shape = tuple(axis.period or 2 * size for size, axis in zip(kspace.voxels.shape, kspace.axes, strict=True))
    plan = SpreadNufft(
        shape, 1e-3, axes=kspace.axes, is_complex=True, points=1, device=kspace.device, dtype=kspace.dtype
    )
    points = plan.place(kspace.frequencies(views))
    counts = torch.ones(len(points), device=kspace.device, dtype=kspace.dtype)
    if weights is not None:
        counts = (weights.reshape(-1) > 0).to(counts)
    # C w for one sample at each step of the image's own grid: reading and writing are one kernel each, whose integral
    # is in steps of the finer grid.
    integral = float(plan.kernel.transform(np.zeros(1))[0]) ** 2
    even = 1.0
    for size, fine, axis in zip(kspace.voxels.shape, plan.sizes, kspace.axes, strict=True):
        even *= (1.0 if axis.period is not None else integral) * size / fine
    density = counts.clone()
    for _ in range(iterations):
        grid = plan.zeros(1)
        plan.write(density.to(kspace.dtype.to_complex())[None], points, grid)
        near = plan.read(grid, points)[0].real / even
        density = torch.where(counts > 0, density / near.clamp_min(1e-6 * float(near.max())), density)
    return density.view(kspace.trajectory.shape[:2]).cpu().numpy().astype(np.float32)


def _is_whole(values: Real) -> bool:
    return bool(np.abs(values - np.rint(values)).max(initial=0.0) <= _ON_GRID)
