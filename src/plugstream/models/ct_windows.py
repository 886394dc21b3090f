"""Which rays of a view count most for its largest eigenvalue, from the geometry alone. Without torch."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_lines import cross_planes

__all__ = ["ray_windows", "solve_window"]

Values = NDArray[np.float64]

# Windows solve (s I - M) w = 1 with s so far above the largest eigenvalue of M, by so many corrections of s at most.
_ABOVE, _CORRECTIONS = 1e-3, 12
# Rays are never weighted less than this: single precision has to divide by the windows.
_LEAST = 1e-5
# Of a ray's overlap with another, by where it crosses between two voxels: frequencies at most, and the part of the sum
# below which one is left out.
_WAVES, _SAMPLES, _SMALL = 20, 128, 1e-4
_MOST_NEIGHBOURS = 32


def ray_windows(rays: Rays, voxels: Voxels) -> Values:
    r"""Positive weights of a parallel beam's rays, near the eigenvector of A A' that has the largest eigenvalue.

    From such w the bound max (A A' w)_j / w_j of `plugstream.eigenvalue_bounds.nonnegative_bound` is near ||A||^2; it
    holds for any w > 0. (A A')_jk is how much of their voxels rays j and k share: in each plane of voxels that they
    cross at x and x + d, the products of two triangles on whole numbers, g_d(x) = sum_p tri(p - x) tri(p - x - d),
    times their steps. x grows by a slope from plane to plane and g_d has the period 1, so that the sum over planes is
    one over a few frequencies m,

        sum_k g_d(x_0 + k a) = sum_m g^_d(m) exp(2 pi i m x_0) sum_k exp(2 pi i m k a),

    the last of them geometric: rays need not be followed. That is a matrix M with a few diagonals, one for each view.
    Its largest eigenvalue t is found from above by Noda's iteration, and w = (s I - M)^-1 1 with s slightly larger than
    t; w is positive, since s I - M has no positive entries off its diagonal, and M w < s w everywhere.

    Holds for parallel rays over an image, and over a stack of images, whose rows all have the window of one.

    Arguments: rays, of some views, perpendicular to the z axis; voxels that they cross.
    Returns (views, columns), at most 1.
    Reference: Noda, Numer. Math. 17, 1971; Horn and Johnson, Matrix Analysis, 2nd ed., theorem 8.1.26.
    """
    flat = rays.vectors.copy()
    flat[:, :, 2] = 0
    lines = cross_planes(Rays(flat, rays.detector[-1:], parallel=True), Voxels(voxels.shape[-2:], voxels.spacing[-2:],
                                                                            voxels.origin[-2:]))  # fmt: skip
    windows = []
    for axis, start, slope, step in zip(
        lines.axis[:, 0], lines.start, lines.slope[:, 0], lines.step[:, 0], strict=True
    ):
        across = 1 - int(axis)
        sizes = voxels.shape[-2:][axis], voxels.shape[-2:][across]
        windows.append(solve_window(step**2 * _overlaps(start[:, across], float(slope[across]), *sizes)))
    return np.stack(windows)


def _overlaps(start: Values, slope: float, planes: int, width: int) -> Values:
    """(A A')_{j, j + d} of a view's rays, for a step of 1 from plane to plane: (d, rays), d = 0, 1, ...

    Arguments: start, where each crosses the first plane, in voxels; slope, the way to the next; planes and their width.
    """
    low, high = np.zeros(len(start)), np.full(len(start), planes - 1.0)
    if abs(slope) > 1e-12:  # between the planes on which a ray comes within reach of a voxel, and leaves it
        ends = np.stack([(edge - start) / slope for edge in (-1.0, float(width))])
        low, high = np.maximum(low, ends.min(0)), np.minimum(high, ends.max(0))
    else:
        high = np.where((start <= -1) | (start >= width), -1.0, high)
    first = np.ceil(low)
    count = np.maximum(np.floor(high) - first + 1, 0)
    gap = abs(float(start[1] - start[0])) if len(start) > 1 else 2.0
    near = np.arange(min(len(start), max(1, math.ceil(2 / max(gap, 2 / _MOST_NEIGHBOURS)))))
    waves = _transforms(np.asarray(gap * near, dtype=np.float64))
    out = waves[:, :1].real * count
    half = math.pi * slope * np.arange(_WAVES)
    turns = np.sin(half)
    middle = start + slope * (first + (count - 1) / 2)
    for m in range(1, _WAVES):
        whole = abs(turns[m]) < 1e-9  # all planes are crossed alike
        if not whole and abs(waves[0, m]) < _SMALL * planes * abs(turns[m]) * waves[0, 0].real:
            continue
        sums = count * np.cos(half[m] * count) / np.cos(half[m]) if whole else np.sin(half[m] * count) / turns[m]
        out += 2 * (waves[:, m : m + 1] * (sums * np.exp(2j * math.pi * m * middle))).real
    return np.asarray(np.maximum(out, 0.0))


def _transforms(distances: Values) -> NDArray[np.complex128]:
    """g^_d(m) for these distances d and m = 0, 1, ...: (distances, waves)."""
    x, d = np.arange(_SAMPLES) / _SAMPLES, distances[:, None]
    values = (1 - x) * np.maximum(0, 1 - np.abs(x + d)) + x * np.maximum(0, 1 - np.abs(x + d - 1))
    return np.asarray(np.fft.rfft(values, axis=1)[:, :_WAVES] / _SAMPLES)


def solve_window(bands: Values) -> Values:
    """w of a symmetric matrix without negative entries, by its diagonals (d, rays)."""
    from scipy.linalg import solveh_banded

    rays = bands.shape[1]
    for d in range(1, len(bands)):
        bands[d, rays - d :] = 0.0
    scale = float(bands[0].max())
    if not scale > 0:
        return np.ones(rays)
    lower = bands / scale
    sums = lower.sum(0)
    for d in range(1, len(lower)):
        sums[d:] += lower[d, : rays - d]
    shift, w = (1 + _ABOVE) * float(sums.max()), np.ones(rays)

    def solve(shift: float, right: Values) -> Values:
        matrix = -lower
        matrix[0] += shift
        return np.asarray(solveh_banded(matrix, right, lower=True, check_finite=False))

    for _ in range(_CORRECTIONS):
        found = solve(shift, w)
        top = shift - float((w / found).min())  # the largest of (M found) / found
        w = found / found.max()
        if shift <= (1 + 2 * _ABOVE) * top:
            break
        shift = (1 + _ABOVE) * top
    w = solve(shift, np.ones(rays))
    return np.asarray(np.maximum(w / w.max(), _LEAST))
