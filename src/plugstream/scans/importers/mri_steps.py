"""What is made of k-space on its way into a scan: views, samples that are left out, coil maps, and a scale."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.progress import report
from plugstream.models.coils import adaptive_maps, espirit_maps, smooth_images
from plugstream.models.ct_geometry import Voxels
from plugstream.models.kspace import KSpace, encoded_voxels, sample_density
from plugstream.models.mri import MRIModel

__all__ = ["Samples", "estimate_maps", "first_image", "group_grid", "leave_out", "whitening_matrix"]

_CALIBRATION_STEPS = 12  # of conjugate gradients for the middle of k-space
_WHITEST = 0.999  # of an image's magnitudes, the share below what becomes 1


@dataclass(frozen=True)
class Samples:
    """K-space as views, in memory.

    Arguments: trajectory (views, samples, axes), 1/m; data (views, *data_shape), coils and samples last; counts (views,
    samples), False where a view has no sample; density (views, samples) if it is known.
    """

    trajectory: NDArray[np.float64]
    data: NDArray[np.complex64]
    counts: NDArray[np.bool_]
    density: NDArray[np.float32] | None = None

    @property
    def mask(self) -> NDArray[np.bool_] | None:
        """Which data counts, in the data's shape; None where all does."""
        if self.counts.all():
            return None
        middle = (1,) * (self.data.ndim - 2)
        whole = np.broadcast_to(self.counts.reshape(len(self.counts), *middle, -1), self.data.shape)
        return np.ascontiguousarray(whole)

    def take(self, views: NDArray[np.integer]) -> Samples:
        """Some of the views."""
        density = None if self.density is None else self.density[views]
        return Samples(self.trajectory[views], self.data[views], self.counts[views], density)


def group_grid(
    data: NDArray[np.complex64],
    sampled: NDArray[np.bool_],
    voxels: Voxels,
    views: int | None,
    seed: int,
    chosen: NDArray[np.bool_] | None = None,
) -> Samples:
    """K-space on a grid as views: phase-encode lines where whole lines were measured, and else samples at random.

    Groups of samples at random are alike, so that any few of them tell of all of k-space. Samples keep their group
    whichever of them are chosen.

    Arguments: data (coils, *grid), or (coils, slices, *grid) of a stack; sampled (*grid), True where it was measured;
    voxels of the image, or of a slice; views, how many groups, 20 if not given; seed; chosen (*grid), which of those
    that were measured are taken.
    """
    shape = sampled.shape
    taken = sampled if chosen is None else sampled & chosen
    axis = next((n for n in range(len(shape) - 1, -1, -1) if _runs_along(sampled, n) and _runs_along(taken, n)), None)
    if axis is not None and (views is None or len(shape) == 2):
        lines = np.argwhere(np.moveaxis(taken, axis, -1).all(-1))
        places = np.repeat(lines[:, None], shape[axis], 1)
        places = np.insert(places, axis, np.arange(shape[axis]), axis=2)
        counts = np.ones(places.shape[:2], bool)
        if views is not None and views < len(lines):
            places, counts = _join(places, counts, views)
    else:
        places, counts = _scatter(np.argwhere(sampled), 20 if views is None else views, seed, taken)
    if len(places) == 0:
        raise InputError("nothing is left of k-space")
    steps = np.array(shape) * np.array(voxels.spacing)
    path = (places - np.array(shape) // 2) / steps
    whole = data[(..., *np.moveaxis(places, -1, 0))] * counts  # (coils, [slices,] views, samples)
    whole = np.moveaxis(whole, -2, 0)
    if whole.ndim == 4:
        whole = whole.swapaxes(1, 2)
    return Samples(path, np.ascontiguousarray(whole), counts)


def leave_out(sampled: NDArray[np.bool_], middle: tuple[slice, ...], part: float, seed: int) -> NDArray[np.bool_]:
    """Which of the samples of a grid are kept, at random, those in the middle always: (*grid).

    Where whole lines were measured, whole lines are left out.

    Arguments: sampled (*grid); middle, the box that is never left out; part of those outside of it that is.
    """
    inside = np.zeros_like(sampled)
    inside[middle] = True
    draw = np.random.default_rng(seed)
    axis = next((n for n in range(sampled.ndim - 1, -1, -1) if _runs_along(sampled, n)), None)
    if axis is None:
        places = np.argwhere(sampled & ~inside)
        out = draw.permutation(len(places))[: round(part * len(places))]
        kept = np.ones_like(sampled)
        kept[tuple(places[out].T)] = False
        return kept
    lines = np.moveaxis(sampled, axis, -1).any(-1) & ~np.moveaxis(inside, axis, -1).any(-1)
    places = np.argwhere(lines)
    out = draw.permutation(len(places))[: round(part * len(places))]
    kept_lines = np.ones_like(lines)
    kept_lines[tuple(places[out].T)] = False
    return np.moveaxis(np.broadcast_to(kept_lines[..., None], np.moveaxis(sampled, axis, -1).shape), -1, axis).copy()


def whitening_matrix(noise: NDArray[np.complexfloating]) -> NDArray[np.complex64]:
    r"""The combinations of coils whose noise is independent and of one size: W, (coils, coils).

    With the covariance C = (1/n) N N^H of noise N, divided by its mean variance, and C = L L^H, it is W = L^{-1}. The
    noise W N has the covariance 1, so that least squares may trust all combinations alike; of coils as they are a noisy
    one counts too much. Sensitivities become W S, and the image stays as it is.

    Holds for noise that does not change with time. With fewer than four samples a coil C is not known well enough, and
    it is refused. Arguments: noise (coils, n), received without an object.
    Reference: Pruessmann, Weiger, Scheidegger and Boesiger, Magn. Reson. Med. 42(5), 1999.
    """
    coils, count = noise.shape
    if count < 4 * coils or not np.isfinite(noise).all():
        raise InputError(f"{count} samples of noise do not tell how that of {coils} coils goes together")
    values = noise.astype(np.complex128)
    covariance = values @ values.conj().T / count
    size = float(np.trace(covariance).real) / coils
    try:
        factor = np.linalg.cholesky(covariance / size if size > 0 else covariance)
    except np.linalg.LinAlgError:
        raise InputError("some coils have no noise of their own, so that it cannot be evened out") from None
    return np.asarray(np.linalg.inv(factor), np.complex64)


def estimate_maps(
    samples: Samples,
    voxels: Voxels,
    method: Literal["espirit", "adaptive"],
    *,
    width: int,
    kernel: int,
    threshold: float,
    crop: float,
    real_image: bool,
) -> NDArray[np.complex64]:
    """Coil maps (coils, slices, H, W) from the middle of k-space, of any path.

    The middle, `width` samples along each axis, comes from least squares on those samples that lie in it; of a stack
    each slice has its own.

    Arguments: samples; voxels of the image; others of `plugstream.models.coils`.
    """
    stack = samples.data.ndim == 4
    encoded = encoded_voxels(voxels, samples.trajectory.shape[2])
    found = []
    for plane in range(samples.data.shape[1] if stack else 1):
        report("estimating coil maps", plane, samples.data.shape[1] if stack else 1)
        data = samples.data[:, plane] if stack else samples.data
        middle = _calibrate(replace(samples, data=data), encoded, width)
        if method == "espirit":
            maps = espirit_maps(
                middle, encoded.shape, kernel=kernel, threshold=threshold, crop=crop, real_image=real_image
            )
        else:
            maps = adaptive_maps(smooth_images(torch.from_numpy(middle), encoded.shape).numpy(), crop=crop)
        found.append(maps)
    whole = np.stack(found, 1) if stack or encoded.shape != voxels.shape else found[0]
    return np.ascontiguousarray(whole.reshape(len(whole), -1, *voxels.shape[-2:]))


def first_image(samples: Samples, voxels: Voxels, maps: NDArray[np.complex64] | None) -> tuple[float, float]:
    """The magnitude in the image by gridding that all but 0.1 % are below, and the share of data it explains."""
    kspace = KSpace(samples.trajectory, encoded_voxels(voxels, samples.trajectory.shape[2]), 1e-3)
    density = samples.density
    if density is None:
        density = sample_density(kspace, weights=torch.from_numpy(samples.counts))
    weights = np.where(samples.counts, density, 0).astype(np.float64)
    own = None if maps is None else maps.reshape(len(maps), *voxels.shape)
    model = MRIModel(samples.trajectory, voxels, own, density=weights, eps=1e-3)
    data = model.convert(torch.from_numpy(samples.data))
    image = model.adjoint(data)
    bent = model.forward(image)
    scale = float((bent.conj() * data).real.sum() / bent.abs().square().sum().clamp_min(1e-30))
    sizes = (scale * image.abs()).flatten()
    largest = float(sizes.kthvalue(max(1, math.ceil(_WHITEST * len(sizes)))).values)
    return largest, float(1 - (data - scale * bent).abs().square().sum() / data.abs().square().sum())


def _runs_along(sampled: NDArray[np.bool_], axis: int) -> bool:
    """Whether lines along an axis were measured as a whole or not at all."""
    return bool((sampled.any(axis) == sampled.all(axis)).all()) and sampled.shape[axis] > 1


def _join(
    places: NDArray[np.int64], counts: NDArray[np.bool_], views: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Lines (lines, samples, axes) in `views` groups of alternate lines."""
    groups = [np.arange(n, len(places), views) for n in range(views)]
    longest = max(map(len, groups)) * places.shape[1]
    out = np.zeros((views, longest, places.shape[2]), places.dtype)
    there = np.zeros((views, longest), bool)
    for n, group in enumerate(groups):
        some = places[group].reshape(-1, places.shape[2])
        out[n, : len(some)], there[n, : len(some)] = some, True
        out[n, len(some) :] = some[-1]
    return out, there


def _scatter(
    places: NDArray[np.int64], views: int, seed: int, taken: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Samples (n, axes) at random in groups, of which those are taken that `taken` says."""
    order = np.random.default_rng(seed).permutation(len(places))
    if views > len(places):
        raise InputError(f"{len(places)} samples make no {views} views")
    groups = [places[order[n::views]] for n in range(views)]
    groups = [some for group in groups if len(some := group[taken[tuple(group.T)]])]
    longest = max((len(group) for group in groups), default=0)
    out = np.zeros((len(groups), longest, places.shape[1]), places.dtype)
    counts = np.zeros((len(groups), longest), bool)
    for n, group in enumerate(groups):
        out[n, : len(group)], counts[n, : len(group)] = group, True
        out[n, len(group) :] = group[-1]
    return out, counts


def _calibrate(samples: Samples, voxels: Voxels, width: int) -> NDArray[np.complex64]:
    """The middle of k-space on its grid, (coils, *sizes), by least squares on the samples in it."""
    sizes = tuple(min(width, size) for size in voxels.shape)
    wide = np.array(voxels.shape) * np.array(voxels.spacing)
    steps = wide / np.array(sizes)
    middle = np.array(voxels.origin) + np.array(voxels.shape) // 2 * np.array(voxels.spacing)
    coarse = Voxels(sizes, tuple(steps), tuple(middle - np.array(sizes) // 2 * steps))
    places = samples.trajectory * wide  # in steps of k-space
    low, high = -(np.array(sizes) // 2) - 1e-6, np.array([(n - 1) // 2 for n in sizes]) + 1e-6
    inside = ((places >= low) & (places <= high)).all(-1) & samples.counts
    views = np.flatnonzero(inside.any(1))
    if inside.sum() < math.prod(sizes) / 2:
        raise InputError(
            f"{inside.sum()} samples in the middle of k-space, {' x '.join(map(str, sizes))}, are too few to estimate "
            "coil maps from; give coil_maps, or a smaller --calibration"
        )
    path = np.where(inside[views, :, None], samples.trajectory[views], 0)
    kspace = KSpace(path, coarse, 1e-4)
    weights = sample_density(kspace, weights=torch.from_numpy(inside[views])) * inside[views]
    model = MRIModel(path, coarse, density=weights.astype(np.float64))
    data = np.where(inside[views, None], samples.data[views], 0).swapaxes(0, 1)[:, :, None]
    target = model.adjoint(model.convert(torch.from_numpy(np.ascontiguousarray(data))))
    normal = model.normal()
    image, left = torch.zeros_like(target), target
    direction, energy = left, left.abs().square().sum()
    for _ in range(_CALIBRATION_STEPS):
        product = normal(direction)
        length = energy / (direction.conj() * product).real.sum()
        image, left = image + length * direction, left - length * product
        new = left.abs().square().sum()
        if not float(new) > 1e-12 * float(energy):
            break
        direction, energy = left + new / energy * direction, new
    axes = tuple(range(1, image.ndim))
    whole = torch.fft.fftshift(torch.fft.fftn(torch.fft.ifftshift(image, axes), dim=axes, norm="ortho"), axes)
    return np.asarray(whole.numpy())
