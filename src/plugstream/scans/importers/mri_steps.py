"""The steps from k-space to a scan: views, samples to leave out, coil maps, and a scale."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.progress import report
from plugstream.models.coils import adaptive_maps, espirit_maps, smooth_images
from plugstream.models.ct_geometry import Voxels
from plugstream.models.kspace import KSpace, encoded_voxels, sample_density
from plugstream.models.mri import MRIModel

_CALIBRATION_STEPS = 12  # of conjugate gradients for the middle of k-space
_OUTER, _NOISY = 0.8, 1.5  # the part of k-space inside, and how much more noise than the others' is far more
_WHITEST = 0.999  # of an image's magnitudes, the share below what becomes 1


Complex = NDArray[np.complex64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Samples:
    """K-space as views, in memory.

    Arguments: trajectory (views, samples, axes), 1/m; data (views, *data_shape), coils and samples last; counts (views,
    samples), False where a view has no sample; density (views, samples) if known.
    """

    trajectory: NDArray[np.float64]
    data: Complex
    counts: Mask
    density: NDArray[np.float32] | None = None

    @property
    def mask(self) -> Mask | None:
        """Which data counts, in the data's shape; None where all does."""
        if self.counts.all():
            return None
        middle = (1,) * (self.data.ndim - 2)
        counts = self.counts.reshape(len(self.counts), *middle, -1)
        return np.ascontiguousarray(np.broadcast_to(counts, self.data.shape))

    def take(self, views: NDArray[np.integer]) -> Samples:
        density = None if self.density is None else self.density[views]
        return Samples(self.trajectory[views], self.data[views], self.counts[views], density)


def group_grid(
    data: Complex, sampled: Mask, voxels: Voxels, views: int | None, seed: int, chosen: Mask | None = None
) -> Samples:
    """K-space on a grid as views: phase-encode lines where whole lines were measured, and else samples at random.

    Random groups are alike, so that any few of them cover all of k-space. Samples keep their group whichever of them
    are chosen.

    Arguments: data (coils, *grid), or (coils, slices, *grid) of a stack; sampled (*grid), True where it was measured;
    voxels of the image, or of a slice; views, how many groups, 20 if not given; seed; chosen (*grid), which of the
    measured samples to take.
    """
    shape = sampled.shape
    chosen = sampled if chosen is None else sampled & chosen
    axis = _line_axis(sampled, chosen)
    if axis is not None and (views is None or len(shape) == 2):
        lines = np.argwhere(np.moveaxis(chosen, axis, -1).all(-1))
        places = np.repeat(lines[:, None], shape[axis], 1)
        groups = list(np.insert(places, axis, np.arange(shape[axis]), axis=2))
        if views is not None and views < len(lines):
            groups = [np.concatenate(groups[n::views]) for n in range(views)]  # of alternate lines
    else:
        places, views = np.argwhere(sampled), 20 if views is None else views
        order = np.random.default_rng(seed).permutation(len(places))
        if views > len(places):
            raise InputError(f"{len(places)} samples make no {views} views")
        parts = (places[order[n::views]] for n in range(views))
        groups = [group for part in parts if len(group := part[chosen[tuple(part.T)]])]
    if not groups:
        raise InputError("nothing is left of k-space")
    longest = max(map(len, groups))
    counts = np.array([np.arange(longest) < len(group) for group in groups])
    places = np.stack([np.pad(group, ((0, longest - len(group)), (0, 0)), mode="edge") for group in groups])
    path = (places - np.array(shape) // 2) / (np.array(shape) * np.array(voxels.spacing))
    rows = np.moveaxis(data[(..., *np.moveaxis(places, -1, 0))] * counts, -2, 0)  # (views, coils, [slices,] samples)
    return Samples(path, np.ascontiguousarray(rows.swapaxes(1, 2) if rows.ndim == 4 else rows), counts)


def leave_out(sampled: Mask, middle: tuple[slice, ...], part: float, seed: int) -> Mask:
    """Which samples of a grid to keep, at random, and all of those in the middle: (*grid).

    Where whole lines were measured, whole lines are left out.

    Arguments: sampled (*grid); middle, the box that is kept; part of the samples outside of it to leave out.
    """
    inside = np.zeros_like(sampled)
    inside[middle] = True
    axis = _line_axis(sampled)
    candidates = sampled & ~inside
    if axis is not None:
        candidates = np.asarray(sampled.any(axis, keepdims=True) & ~inside.any(axis, keepdims=True))
    places = np.argwhere(candidates)
    out = np.random.default_rng(seed).permutation(len(places))[: round(part * len(places))]
    keep = np.ones_like(candidates)
    keep[tuple(places[out].T)] = False
    return np.broadcast_to(keep, sampled.shape).copy()


def whitening_matrix(noise: NDArray[np.complexfloating]) -> Complex:
    r"""The combinations of coils whose noise is independent and of one size: W, (coils, coils).

    With the covariance C = (1/n) N N^H of noise N, divided by its mean variance, and C = L L^H, it is W = L^{-1}. The
    noise W N has the covariance 1, so that least squares weighs all combinations correctly. Sensitivities become W S,
    and the image does not change.

    Holds for noise that does not change with time. Fewer than four samples a coil are refused.
    Arguments: noise (coils, n), received without an object.
    Reference: Pruessmann, Weiger, Scheidegger and Boesiger, Magn. Reson. Med. 42(5), 1999.
    """
    coils, count = noise.shape
    if count < 4 * coils or not np.isfinite(noise).all():
        raise InputError(f"{count} samples of noise are too few, or not finite, for the covariance of {coils} coils")
    values = noise.astype(np.complex128)
    covariance = values @ values.conj().T / count
    size = float(np.trace(covariance).real) / coils
    try:
        factor = np.linalg.cholesky(covariance / size if size > 0 else covariance)
    except np.linalg.LinAlgError:
        raise InputError("some coils have no noise of their own, so it cannot be evened out") from None
    return np.asarray(np.linalg.inv(factor), np.complex64)


def noisy_coils(samples: Samples) -> dict[int, float]:
    r"""Coils with far more noise than the others, and how many times more.

    With the level l_c, the median of |y_c| in the outer fifth of k-space, where noise is most of what a coil receives,
    and its part l_c / rms(y_c), a coil is noisy if both are more than 1.5 times the median of all coils': a larger gain
    raises the first alone, and a larger distance from the object the second. It is noisy by l_c / median(l).

    Holds for coils with independent noise, most of them alike; noise that was measured says more (`whitening_matrix`).
    Arguments: samples.
    Reference: Pruessmann, Weiger, Scheidegger and Boesiger, Magn. Reson. Med. 42(5), 1999 (why least squares needs it).
    """
    away = np.linalg.norm(samples.trajectory / np.maximum(np.abs(samples.trajectory).max((0, 1)), 1e-30), axis=-1)
    size = np.abs(samples.data.reshape(len(away), -1, *samples.data.shape[-2:]))
    size = size.transpose(2, 1, 0, 3)[..., samples.counts]  # coils, slices, samples
    outer = away[samples.counts] >= np.quantile(away[samples.counts], _OUTER)
    level = np.median(size[..., outer], (1, 2))
    part = level / np.maximum(np.sqrt(np.square(size, dtype=np.float64).mean((1, 2))), 1e-30)
    noisy = (level > _NOISY * np.median(level)) & (part > _NOISY * np.median(part))
    return {int(coil): float(level[coil] / max(np.median(level), 1e-30)) for coil in np.flatnonzero(noisy)}


def estimate_maps(samples: Samples, voxels: Voxels, options: Any) -> Complex:
    """Coil maps (coils, slices, H, W) from the middle of k-space, of any path.

    The middle, `calibration` samples along each axis, comes from least squares on the samples in it, slice by slice.

    Arguments: samples; voxels of the image; options, those of `plugstream.scans.importers.mri.MRIImport`.
    """
    slices = samples.data.swapaxes(0, 1) if samples.data.ndim == 4 else samples.data[None]
    encoded = encoded_voxels(voxels, samples.trajectory.shape[2])
    maps = []
    for plane, data in enumerate(slices):
        report("estimating coil maps", plane, len(slices))
        middle = _calibrate(replace(samples, data=data), encoded, options.calibration)
        if options.maps == "espirit":
            sizes: dict[str, Any] = {name: getattr(options, name) for name in ("kernel", "threshold", "crop")}
            maps.append(espirit_maps(middle, encoded.shape, real_image=not options.keep_phase, **sizes))
        else:
            images = smooth_images(torch.from_numpy(middle), encoded.shape).numpy()
            maps.append(adaptive_maps(images, crop=options.crop))
    return np.ascontiguousarray(np.stack(maps, 1).reshape(len(maps[0]), -1, *voxels.shape[-2:]))


def first_image(samples: Samples, voxels: Voxels, maps: Complex | None) -> tuple[float, float]:
    """The 99.9 % quantile of the magnitudes in the gridded image, and the share of data that it explains."""
    kspace = KSpace(samples.trajectory, encoded_voxels(voxels, samples.trajectory.shape[2]), 1e-3)
    density = samples.density
    if density is None:
        density = sample_density(kspace, weights=torch.from_numpy(samples.counts))
    weights = np.where(samples.counts, density, 0).astype(np.float64)
    coils = None if maps is None else maps.reshape(len(maps), *voxels.shape)
    model = MRIModel(samples.trajectory, voxels, coils, density=weights, eps=1e-3)
    data = model.convert(torch.from_numpy(samples.data))
    image = model.adjoint(data)
    predicted = model.forward(image)
    scale = float((predicted.conj() * data).real.sum() / predicted.abs().square().sum().clamp_min(1e-30))
    sizes = (scale * image.abs()).flatten()
    largest = float(sizes.kthvalue(max(1, math.ceil(_WHITEST * len(sizes)))).values)
    return largest, float(1 - (data - scale * predicted).abs().square().sum() / data.abs().square().sum())


def _line_axis(*grids: Mask) -> int | None:
    """The last axis along which all of these grids have whole lines or none; None where there is none."""

    def has_lines(grid: Mask, axis: int) -> bool:
        return bool((grid.any(axis) == grid.all(axis)).all()) and grid.shape[axis] > 1

    axes = range(grids[0].ndim - 1, -1, -1)
    return next((axis for axis in axes if all(has_lines(grid, axis) for grid in grids)), None)


def _calibrate(samples: Samples, voxels: Voxels, width: int) -> Complex:
    """The middle of k-space on its grid, (coils, *sizes), by least squares on the samples in it."""
    shape, spacing = np.array(voxels.shape), np.array(voxels.spacing)
    sizes = np.minimum(width, shape)
    steps = shape * spacing / sizes
    middle = np.array(voxels.origin) + shape // 2 * spacing
    coarse = Voxels(tuple(sizes.tolist()), tuple(steps), tuple(middle - sizes // 2 * steps))
    places = samples.trajectory * (shape * spacing)  # in steps of k-space
    low, high = -(sizes // 2) - 1e-6, (sizes - 1) // 2 + 1e-6
    inside = ((places >= low) & (places <= high)).all(-1) & samples.counts
    views = np.flatnonzero(inside.any(1))
    if inside.sum() < math.prod(sizes) / 2:
        raise InputError(
            f"{inside.sum()} samples in the middle of k-space, {' x '.join(map(str, sizes.tolist()))}, are too few to "
            "estimate coil maps from; give coil_maps, or a smaller --calibration"
        )
    path = np.where(inside[views, :, None], samples.trajectory[views], 0)
    weights = sample_density(KSpace(path, coarse, 1e-4), weights=torch.from_numpy(inside[views])) * inside[views]
    model = MRIModel(path, coarse, density=weights.astype(np.float64))
    data = np.where(inside[views, None], samples.data[views], 0).swapaxes(0, 1)[:, :, None]
    target = model.adjoint(model.convert(torch.from_numpy(np.ascontiguousarray(data))))
    normal = model.normal()
    image, residual = torch.zeros_like(target), target
    direction, energy = residual, residual.abs().square().sum()
    for _ in range(_CALIBRATION_STEPS):
        product = normal(direction)
        length = energy / (direction.conj() * product).real.sum()
        image, residual = image + length * direction, residual - length * product
        new = residual.abs().square().sum()
        if not float(new) > 1e-12 * float(energy):
            break
        direction, energy = residual + new / energy * direction, new
    axes = tuple(range(1, image.ndim))
    kspace = torch.fft.fftshift(torch.fft.fftn(torch.fft.ifftshift(image, axes), dim=axes, norm="ortho"), axes)
    return np.asarray(kspace.numpy())
