"""Which rays of a view count most for its largest eigenvalue, from the geometry alone. Without torch."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_lines import Lines, cross_planes
from plugstream.models.ct_overlaps import Crossed, cross_view, has_kernel, ray_overlaps
from plugstream.models.ct_perron import solve_band, solve_bands
from plugstream.models.ct_stack import blend_slices, is_stack, row_slices

Values = NDArray[np.floating]

# Rays that are looked at to see how far neighbours are apart, along each axis of the detector.
_LOOK = 24
# If rays are so close that computing what neighbours share takes more than so many numbers for each ray and plane (a
# product takes four), and so many in all, rays are left out, to the first of these distances, in voxels, that takes
# less.
_WORK, _LITTLE, _DISTANCES = 42.0, 1e8, (0.0, 0.3, 0.4, 0.5, 0.6, 0.8, 1.2, 2.0)
# At most so many neighbours on either side of a ray, and numbers of all rays and neighbours, or part of the voxels.
_MOST_NEIGHBOURS, _MOST_NUMBERS, _PART = 40, 1 << 25, 0.125
_SLOW = 2e7  # numbers that take seconds without the native kernel; windows are then all ones
_LEAST = 1e-5  # the least weight of a ray, since single precision divides by the windows


def ray_windows(
    rays: Rays, voxels: Voxels, *, mask: NDArray[np.bool_] | None = None, threads: int = 1
) -> NDArray[np.floating]:
    r"""Positive weights of the rays of each view, near the eigenvector of A A' that has the largest eigenvalue.

    From such w the bound max (A A' w)_j / w_j of `plugstream.base.eigenvalue_bounds.nonnegative_bound` is near ||A||^2;
    it holds for any w > 0. M = A A' is known from the geometry (`plugstream.models.ct_overlaps`), a few diagonals of
    it, since only neighbours share voxels, and

        w = (s I - M)^-1 1

    with s slightly larger than the largest eigenvalue (`plugstream.models.ct_perron`), from which M w < s w everywhere.

    In a stack of images whose detector rows see one slice each, every row has the window of an image with its own mask,
    so that a slice has the same window in any block. If rows see two slices, M is the product of that of an image and
    that of the rows, and so is the window. If rays are far closer than voxels, some are left out and their weights
    interpolated, since what a ray shares with all others then hardly depends on its place.

    Holds for any rays and voxels; the bound from any window is an upper bound.

    Arguments: rays, of some views; voxels that they cross; mask (views, *detector), pixels that count, all if None;
    threads, of the native kernel.
    Returns (views, *detector), at most 1.
    Reference: Horn and Johnson, Matrix Analysis, 2nd ed., theorem 8.1.26.
    """
    if is_stack(rays) and (mask is None or row_slices(rays, voxels) is not None):
        image = Voxels(voxels.shape[1:], voxels.spacing[1:], voxels.origin[1:])
        vectors = rays.vectors.copy()
        vectors[:, :, 2] = 0
        if mask is not None:
            return _masked_slices(Rays(vectors, rays.detector[1:], parallel=True), image, mask, threads)
        columns = _slice_windows(vectors.tobytes(), rays.detector[1], image, threads)
        return np.maximum(_row_windows(rays, voxels)[:, :, None] * columns[:, None], _LEAST)
    masks = [None] * len(rays) if mask is None else list(mask)
    each = enumerate(zip(_gaps(rays, voxels), masks, strict=True))
    return np.stack([_window(rays.select([view]), voxels, gaps, row, threads) for view, (gaps, row) in each])


@lru_cache(maxsize=256)  # all blocks of slices of a volume ask for the same
def _slice_windows(vectors: bytes, columns: int, image: Voxels, threads: int) -> Values:
    """Of a slice of a stack, (views, columns)."""
    flat = Rays(np.frombuffer(vectors).reshape(-1, 4, 3), (columns,), parallel=True)
    return ray_windows(flat, image, threads=threads)


def _masked_slices(flat: Rays, image: Voxels, mask: NDArray[np.bool_], threads: int) -> Values:
    """Of the slices of a stack, which share no voxels, each with its own mask: (views, rows, columns)."""
    windows = np.empty(mask.shape)
    for view, gaps in enumerate(_gaps(flat, image)):
        rows, same = np.unique(mask[view], axis=0, return_inverse=True)  # most masks have few distinct rows
        distinct = [_window(flat.select([view]), image, gaps, row, threads) for row in rows]
        windows[view] = np.stack(distinct)[same.ravel()]
    return windows


def _row_windows(rays: Rays, voxels: Voxels) -> Values:
    """Weights of the rows of the detector of a stack: (views, rows)."""
    blend = blend_slices(rays, voxels)
    if blend is None:
        return np.ones((len(rays), rays.detector[0]))
    windows: list[Values] = []
    for view, rows in enumerate(blend.astype(np.float64)):
        if view and np.array_equal(blend[view], blend[view - 1]):
            windows.append(windows[-1])
            continue
        shared: list[Values] = []
        while len(shared) < len(rows) and (not shared or shared[-1].any()):
            d = len(shared)
            shared.append(np.pad((rows[: len(rows) - d] * rows[d:]).sum(1), (0, d)))
        windows.append(solve_band(np.stack(shared)))
    return np.stack(windows)


def _window(
    rays: Rays, voxels: Voxels, gaps: list[tuple[float, float]], mask: NDArray[np.bool_] | None, threads: int
) -> Values:
    """Of one view, (*detector)."""
    sizes = (1, *rays.detector)[-2:]
    counts, near = _choose(gaps, sizes, voxels.shape)
    if not has_kernel() and math.prod(counts) * max(voxels.shape) * (near[0] + 1) * (2 * near[1] + 1) > _SLOW:
        return np.ones(rays.detector)
    thinned, places = _thin_out(rays, counts)
    pixels = mask.reshape(sizes) if mask is not None and thinned is rays else None
    window = _solve(cross_view(thinned, voxels), near, pixels, threads)
    for axis, (place, size) in enumerate(zip(places, sizes, strict=True)):
        if len(place) < size:
            window = _interpolate(window, place, size, axis)
    return np.asarray(np.clip(window, _LEAST, 1.0).reshape(rays.detector))


def _choose(
    gaps: list[tuple[float, float]], sizes: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[list[int], list[int]]:
    """How many rows and columns of the detector to look at, and how many neighbours of each on either side.

    Arguments: gaps, of `_gaps`; sizes of the detector; shape of the image.
    """
    rays, planes = math.prod(sizes), max(shape)
    counts, near = list(sizes), [0, 0]
    for distance in _DISTANCES:
        counts = [
            size if gap >= distance else max(2, math.ceil(size * gap / distance))
            for (_, gap), size in zip(gaps, sizes, strict=True)
        ]
        thinned = [
            (max(least, 1e-3) * size / count, max(gap, 1e-3) * size / count)
            for (least, gap), size, count in zip(gaps, sizes, counts, strict=True)
        ]
        near = [min(count - 1, math.ceil(2 / least) - 1) for (least, _), count in zip(thinned, counts, strict=True)]
        numbers = math.prod(counts) * (near[0] + 1) * (2 * near[1] + 1)
        sharing = math.prod(min(1 + 4 / gap, 2 * n + 1) for (_, gap), n in zip(thinned, near, strict=True)) / 2
        fits = max(near) <= _MOST_NEIGHBOURS and numbers <= max(_MOST_NUMBERS, _PART * math.prod(shape))
        if fits and math.prod(counts) * planes * sharing <= max(_LITTLE, _WORK * rays * planes):
            break
    return counts, [min(n, _MOST_NEIGHBOURS) for n in near]


def _gaps(rays: Rays, voxels: Voxels) -> list[list[tuple[float, float]]]:
    """The distances of rows, and of columns, in voxels: the least, and that in the middle, for each view.

    With r and c the ways from a ray to the next in its column and in its row, on a plane of voxels, rays a rows and b
    columns apart are within two voxels along both axes of the plane only if |a| < 2 (|c_1| + |c_2|) / |r_1 c_2 - r_2
    c_1|, which is 2 / |r_1| where columns run along an axis; b likewise.
    """
    sizes = (1, *rays.detector)[-2:]
    counts = [min(size, _LOOK) for size in sizes]
    thinned, _ = _thin_out(rays, counts)
    lines = cross_planes(thinned, voxels)
    pixels = [count / size if size > 1 else 0.0 for count, size in zip(counts, sizes, strict=True)]
    moved = thinned.shift_detector(rows=pixels[0]), thinned.shift_detector(columns=pixels[1])
    neighbours = [cross_planes(next_rays, voxels) for next_rays in moved]
    first, last, usable = _planes_inside(lines, voxels.shape)
    usable &= np.all([lines.axis == other.axis for other in neighbours], 0)
    distances: list[list[Values]] = []
    for plane in (first, (first + last) / 2, last):
        down, across = (
            other.start - lines.start + plane[..., None] * (other.slope - lines.slope) for other in neighbours
        )
        if rays.ndim == 2 or 1 in sizes:
            distances.append([np.abs(way).max(-1) for way in (down, across)])
            continue
        area = np.abs(np.take_along_axis(np.cross(down, across), lines.axis[..., None], -1)[..., 0])
        distances.append([area / np.maximum(np.abs(way).sum(-1), 1e-9) for way in (across, down)])
    gaps: list[list[tuple[float, float]]] = []
    for view in range(len(rays)):
        inside, each = usable[view], []
        for size, near, between, far in zip(sizes, *distances, strict=True):
            if size == 1 or not inside.any():
                each.append((2.0, 2.0) if size == 1 else (1.0, 1.0))
                continue
            # A few rays that cross a corner next to the source are closer than all others, and matter little.
            least = np.quantile(np.minimum(near[view], far[view])[inside], 0.02)
            each.append((float(least), float(np.median(between[view][inside]))))
        gaps.append(each)
    return gaps


def _planes_inside(lines: Lines, shape: tuple[int, ...]) -> tuple[Values, Values, NDArray[np.bool_]]:
    """The first and the last plane, as fractions, between which each ray is within reach of voxels; and which rays are.

    If no ray of a view is, all count as such, on the plane in the middle.
    """
    slope = np.where(np.abs(lines.slope) < 1e-12, 1e-12, lines.slope)
    ends = np.stack([(edge - lines.start) / slope for edge in (-1.0, np.asarray(shape))])
    first, last = ends.min(0).max(-1), ends.max(0).min(-1)
    inside = first <= last
    middle = (np.asarray(shape)[lines.axis] - 1) / 2
    usable = inside | ~inside.any(tuple(range(1, inside.ndim)), keepdims=True)
    return np.where(inside, first, middle), np.where(inside, last, middle), usable


def _thin_out(rays: Rays, counts: list[int]) -> tuple[Rays, list[Values]]:
    """So many rows and columns of a detector, each in the middle of those it stands for, and their places."""
    sizes = (1, *rays.detector)[-2:]
    places: list[Values] = [
        (np.arange(count) + 0.5) * size / count - 0.5 for size, count in zip(sizes, counts, strict=True)
    ]
    if counts == list(sizes):
        return rays, places
    vectors = rays.vectors.copy()
    vectors[:, 2] *= sizes[1] / counts[1]
    vectors[:, 3] *= sizes[0] / counts[0]
    return replace(rays, vectors=vectors, detector=tuple(counts[-len(rays.detector) :])), places


def _interpolate(window: Values, place: Values, size: int, axis: int) -> Values:
    """A window on every ray of an axis of the detector, from that on some."""
    from scipy.interpolate import PchipInterpolator

    if len(place) == 1:
        return np.repeat(window, size, axis)
    return np.asarray(np.exp(PchipInterpolator(place, np.log(window), axis=axis)(np.arange(size))))


def _solve(lines: Crossed, near: list[int], mask: NDArray[np.bool_] | None, threads: int) -> Values:
    """The window (rows, columns) of rays that share voxels with `near` neighbours on either side."""
    rows, columns = lines.axis.shape
    offsets = [(a, b) for a in range(near[0] + 1) for b in range(-near[1], near[1] + 1) if a > 0 or b >= 0]
    bands = ray_overlaps(lines, np.array(offsets, dtype=np.int32), threads=threads).reshape(len(offsets), -1)
    distances = np.array([a * columns + b for a, b in offsets])
    if mask is not None:
        pixels = mask.ravel()
        for band, d in zip(bands, distances, strict=True):
            band *= pixels
            band[: len(band) - d] *= pixels[d:]
    window = solve_band(bands) if rows == 1 else solve_bands(bands, distances)
    return window.reshape(rows, columns)
