"""Upper bounds of every ||A_i||^2 of a parallel beam from its geometry alone, without a product. Without torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_lines import cross_planes
from plugstream.models.ct_stack import blend_slices, is_stack

# Parts of a voxel that places of rays are rounded to, which makes bounds larger by about 1 %.
_PARTS = 512
_CLOSEST = 0.05  # voxels from ray to ray; closer ones would need long sums
_AT_ONCE = 64  # views


def row_sum_bounds(rays: Rays, voxels: Voxels) -> NDArray[np.float64] | None:
    r"""The largest sum of a row of A_i A_i', which is at least ||A_i||^2, for each view: (views,).

    All rays of a view advance by the same t voxels from plane to plane and lie d voxels apart, so what a ray at the
    place p of a plane shares with all rays on it depends on the fraction of p alone. With w(p) = max(0, 1 - |p|) of
    Joseph's method, the sum of its row over the N planes of voxels is at most

        step^2 sum_k g(p + k t),    g(p) = sum_n w(p - n) sum_m w(p + m d - n),

    of which the largest over p is taken, g being replaced by an upper bound on each of 512 parts of a voxel. Rays that
    miss the image, and masks, only make rows smaller.

    Holds for a parallel beam on an image, or on a volume whose slice k only row k of the detector sees; None otherwise,
    and if rays are less than a twentieth of a voxel apart.
    """
    if not rays.parallel:
        return None
    if rays.ndim == 3:
        if not is_stack(rays) or blend_slices(rays, voxels) is not None:
            return None
        voxels = Voxels(voxels.shape[1:], voxels.spacing[1:], voxels.origin[1:])
    vectors = rays.vectors.copy()
    vectors[:, :, 2] = 0
    lines = cross_planes(Rays(vectors, (2,), parallel=True), voxels)
    axis = lines.axis[:, 0]
    across, views = 1 - axis, np.arange(len(rays))
    t = lines.slope[views, 0, across]
    d = np.abs(lines.start[views, 1, across] - lines.start[views, 0, across])
    if not len(d) or d.min() < _CLOSEST:
        return None
    planes, squares = np.asarray(voxels.shape)[axis], lines.step[:, 0] ** 2
    blocks = [slice(begin, begin + _AT_ONCE) for begin in range(0, len(d), _AT_ONCE)]
    sums = [_largest_sums(t[block], planes[block], _shared(d[block])) for block in blocks]
    return np.asarray(squares * np.concatenate(sums))


def _shared(d: NDArray[np.float64]) -> NDArray[np.float64]:
    """An upper bound of g on each two neighbouring parts of a voxel: (views, parts)."""
    most = int(np.ceil(2 / d.min()))
    apart = np.arange(-most, most + 1) * d[:, None]
    place = np.arange(_PARTS) / _PARTS
    g = np.zeros((len(d), _PARTS))
    for column in apart.T:  # |place + apart - n| of n = 0 and n = 1
        there = place + column[:, None]
        g += (1 - place) * np.maximum(0, 1 - np.abs(there)) + place * np.maximum(0, 1 - np.abs(there - 1))
    # Each m with -1 < p + m d < 2 adds at most 2 to the slope of g: a value is this close to one at an end of its part.
    g += ((3 / d + 1) / _PARTS)[:, None]
    ends = np.maximum(g, np.roll(g, -1, 1))
    return np.asarray(np.maximum(ends, np.roll(ends, -1, 1)))


def _largest_sums(
    t: NDArray[np.float64], planes: NDArray[np.int64], shared: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The largest of sum_k g(p + k t) over p: (views,)."""
    k = np.arange(planes.max())
    parts = (_PARTS * np.mod(k * t[:, None], 1.0)).astype(np.int64) % _PARTS + _PARTS * np.arange(len(t))[:, None]
    inside = k < planes[:, None]
    counts = np.bincount(parts[inside], minlength=_PARTS * len(t)).reshape(len(t), _PARTS)
    sums = np.fft.irfft(np.fft.rfft(shared) * np.conj(np.fft.rfft(counts)), _PARTS)
    return np.asarray(sums.max(1) * (1 + 1e-9))
