"""Which rays of a fan count most for the largest eigenvalue of a view, from the geometry alone. Without torch."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_lines import cross_planes
from plugstream.models.ct_windows import solve_window

__all__ = ["fan_windows"]

Values = NDArray[np.float64]

# A ray is cut into so many pieces, along each of which its distance from a neighbour is taken as constant.
_PIECES = 8
# Frequencies of a ray's overlap with another, and the part of the whole below which one is left out.
_WAVES, _SMALL = 12, 1e-3
# Neighbours that overlaps are found of, and distances from -2 to 2 voxels in the table of them.
_MOST_NEIGHBOURS, _DISTANCES, _SAMPLES = 24, 129, 128


def fan_windows(rays: Rays, voxels: Voxels) -> Values:
    """Positive weights of the rays of fans, near the eigenvector of A A' that has the largest eigenvalue.

    As `plugstream.models.ct_windows.ray_windows`, of which this is the general case: two neighbours are then not
    everywhere equally far from each other, and slopes differ from ray to ray. With each ray cut into pieces, on which
    their distance d is nearly the same, the sum over planes of what they share is, piece by piece, the geometric sum
    over a few frequencies that it is there. Rays of which one advances along x and the other along y are taken as if
    both advanced as the first.

    Holds for any rays over an image: whatever the window is, the bound from it holds.

    Arguments: rays, of some views; voxels that they cross.
    Returns (views, columns), at most 1.
    """
    lines, table = cross_planes(rays, voxels), _overlap_table()
    each = zip(lines.axis, lines.start, lines.slope, lines.step, strict=True)
    return np.stack([solve_window(_bands(*line, voxels.shape, table)) for line in each])


def _bands(
    axis: NDArray[np.int64],
    start: Values,
    slope: Values,
    step: Values,
    shape: tuple[int, ...],
    table: NDArray[np.complex128],
) -> Values:
    """(A A')_{j, j + d} of rays in the order of the detector: (d, rays), d = 0, 1, ...

    Arguments: as of `plugstream.models.ct_lines.Lines`, of one view, and the shape of the image.
    """
    rays = len(axis)
    bands = np.zeros((1, rays))
    for along in np.unique(axis):
        own = np.flatnonzero(axis == along)
        # All rays as places on the planes along this axis, since the neighbours of a ray may advance along another.
        fast = slope[:, along]
        fast = np.where(np.abs(fast) < 1e-3, 1e-3, fast)[:, None]
        turned = slope / fast
        place, size = start - start[:, [along]] * turned, step / np.abs(fast[:, 0])
        across = 1 - int(along)
        first, count = _crossed(place[own, across], turned[own, across], shape[along], shape[across])
        edges = first[:, None] + np.floor(count[:, None] * np.arange(_PIECES + 1) / _PIECES)
        pieces = np.diff(edges)
        middle = edges[:, :-1] + (pieces - 1) / 2
        near = 1
        if rays > 1:
            ends = np.array([0, shape[along] - 1])
            gaps = np.diff(place[:, across])[:, None] + np.diff(turned[:, across])[:, None] * ends
            least = float(np.abs(gaps[np.minimum(own, rays - 2)]).min())
            near = min(rays, max(1, math.ceil(2 / max(least, 2 / _MOST_NEIGHBOURS))))
        if near > len(bands):
            bands = np.concatenate([bands, np.zeros((near - len(bands), rays))])
        for d in range(near):
            here = own + d < rays
            j = own[here]
            at = place[j, across][:, None] + turned[j, across][:, None] * middle[here]
            other = place[j + d, across][:, None] + turned[j + d, across][:, None] * middle[here]
            shared = _shared(other - at, at, turned[j, across], pieces[here], table)
            bands[d, j] = shared.sum(1) * size[j] * size[j + d]
    return np.maximum(bands, 0.0)


def _crossed(place: Values, slope: Values, planes: int, width: int) -> tuple[Values, Values]:
    """The first plane on which each ray comes within reach of a voxel, and on how many it does."""
    still = np.abs(slope) < 1e-12
    ends = np.stack([(edge - place) / np.where(still, 1.0, slope) for edge in (-1.0, float(width))])
    low = np.maximum(0.0, np.where(still, 0.0, ends.min(0)))
    high = np.minimum(planes - 1.0, np.where(still, np.inf, ends.max(0)))
    high = np.where(still & ((place <= -1) | (place >= width)), -1.0, high)
    first = np.ceil(low)
    return first, np.maximum(np.floor(high) - first + 1, 0)


def _shared(apart: Values, at: Values, slope: Values, pieces: Values, table: NDArray[np.complex128]) -> Values:
    """What rays share with others that are `apart`, on each of their pieces: (rays, pieces).

    Arguments: at, where a ray crosses the middle of a piece; slope of the rays; pieces, planes in each.
    """
    place = np.clip((apart + 2) * ((len(table) - 1) / 4), 0, len(table) - 1)
    low = np.minimum(place.astype(np.int64), len(table) - 2)
    part = place - low
    middle, longest = len(table) // 2, np.maximum(pieces.sum(1), 1)
    total = _between(table[:, 0].real, low, part) * pieces
    for m in range(1, _WAVES):
        half = math.pi * m * slope
        turn = np.sin(half)
        whole = np.abs(turn) < 1e-9  # all planes are crossed alike
        reach = np.minimum(longest, 1 / np.maximum(np.abs(turn), 1e-9))
        some = np.flatnonzero(abs(table[middle, m]) * reach > _SMALL * table[middle, 0].real * longest)
        if not len(some):
            continue
        h, n = half[some, None], pieces[some]
        straight = n * np.cos(h * n) / np.cos(h)
        sums = np.where(whole[some, None], straight, np.sin(h * n) / np.where(whole, 1.0, turn)[some, None])
        waves = _between(table[:, m], low[some], part[some])
        total[some] += 2 * (waves * sums * np.exp(2j * math.pi * m * at[some])).real
    return total


def _between(column: NDArray[Any], low: NDArray[np.int64], part: Values) -> NDArray[Any]:
    """Values of a column of the table between its rows `low` and the next."""
    return np.asarray(column[low] + part * (column[low + 1] - column[low]))


@cache
def _overlap_table() -> NDArray[np.complex128]:
    """Fourier coefficients of what two rays at a distance share in a plane, by where the first crosses: (d, m).

    g_d(x) = sum_p tri(p - x) tri(p - x - d) has the period 1.
    """
    x, d = np.arange(_SAMPLES) / _SAMPLES, np.linspace(-2, 2, _DISTANCES)[:, None]
    values = (1 - x) * np.maximum(0, 1 - np.abs(x + d)) + x * np.maximum(0, 1 - np.abs(x + d - 1))
    return np.asarray(np.fft.rfft(values, axis=1)[:, :_WAVES] / _SAMPLES)
