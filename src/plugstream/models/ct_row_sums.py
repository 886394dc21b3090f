"""Upper bounds of every ||A_i||^2 from the geometry of a beam alone, without a product. Without torch."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_lines import cross_planes
from plugstream.models.ct_stack import blend_slices, is_stack, small_part

# Parts of a voxel that places of rays are rounded to, which makes bounds larger by about 1 %.
_PARTS = 512
_CLOSEST = 0.05  # voxels from ray to ray; closer ones would need long sums
_AT_ONCE = 64  # views
_FEWER = 8  # of a fan or cone, whose rays are looked at one by one
_PIECES = 4  # that a ray of those is cut into
_REACH, _FAR = 4, 32  # voxels within which rays share voxels, and that a source must be away
_MOST = 48  # rays on either side within that reach


def row_sum_bounds(rays: Rays, voxels: Voxels) -> NDArray[np.float64] | None:
    r"""The largest sum of a row of A_i A_i', which is at least ||A_i||^2, for each view: (views,).

    All rays of a view advance by the same t voxels from plane to plane and lie d voxels apart, so what a ray at the
    place p of a plane shares with all rays on it depends on the fraction of p alone. With w(p) = max(0, 1 - |p|) of
    Joseph's method, the sum of its row over the N planes of voxels is at most

        step^2 sum_k g(p + k t),    g(p) = sum_n w(p - n) sum_m w(p + m d - n),

    of which the largest over p is taken, g being replaced by an upper bound on each of 512 parts of a voxel. Rays that
    miss the image, and masks, only make rows smaller.

    Holds for a parallel beam on an image, or on a volume whose slice k only row k of the detector sees; those of fans
    and cones are `_divergent_bounds`. None otherwise, and if rays are less than a twentieth of a voxel apart.
    """
    if not rays.parallel:
        parts = [slice(begin, begin + _FEWER) for begin in range(0, len(rays), _FEWER)]
        found = [_divergent_bounds(rays.select(part), voxels) for part in parts]
        bounds = [part for part in found if part is not None]
        return np.concatenate(bounds) if len(bounds) == len(found) > 0 else None
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


def _divergent_bounds(rays: Rays, voxels: Voxels) -> NDArray[np.float64] | None:
    r"""The same of fans, and of cones whose detector columns are parallel to the rotation axis.

    Rays at least d voxels apart on a plane give a voxel at most s H(d, 1), s being the largest of their steps and
    H(d, a) = sum_m max(0, a - |m| d) what rays d apart give to a voxel that one of them meets. So a row sums up to

        step sum_k s H(d_k, 1 + eta) H(e_k, 1)

    at most: e_k are the voxels from row to row of a cone, and eta > 0 where some of the rays nearby advance along the
    other axis, on which the ray m is at most |t_m| - 1 = eta voxels closer. d, e and 1/s are the least of all rays
    within 4 voxels, on each of four pieces of the ray's way through the image, at whose ends they are least.

    Larger than ||A_i||^2 by 6 to 60 % as a rule, since rays do not meet voxels in their middle on every plane. None for
    sources less than 32 voxels away, and rays that advance along the rotation axis or less than a twelfth of a voxel
    apart.
    """
    vectors, flat = rays.vectors, rays
    if rays.ndim == 3:
        if not (small_part(vectors[:, 2, 2:], vectors[:, 2]) and small_part(vectors[:, 3, :2], vectors[:, 3])):
            return None
        level = vectors * [1, 1, 0]
        flat = Rays(level, rays.detector[1:], curvature=rays.curvature)
    spacing, origin, size = (np.asarray(part[-2:]) for part in (voxels.spacing, voxels.origin, voxels.shape))
    source = (vectors[:, 0, 1::-1] - origin) / spacing
    if np.linalg.norm(np.maximum(0, np.maximum(-source, source - size + 1)), axis=1).min() < _FAR:
        return None
    way = flat.lines()[1][..., 1::-1]
    slope, length = way / spacing, np.linalg.norm(way, axis=-1)
    step, high = length / np.abs(slope).max(-1), None
    if rays.ndim == 3:
        rows = np.abs(vectors[:, 3, 2])
        rise = (np.abs(vectors[:, 1, 2] - vectors[:, 0, 2]) + (rays.detector[0] - 1) / 2 * rows)[:, None]
        if (rise / voxels.spacing[0] >= np.abs(slope).max(-1)).any():
            return None
        step, high = step * np.sqrt(1 + (rise / length) ** 2), rows / voxels.spacing[0]
    one, other = (_sums_along(axis, slope, source, step, size, high) for axis in (0, 1))
    return None if one is None or other is None else np.asarray(np.maximum(one, other))


def _sums_along(
    axis: int,
    slope: NDArray[np.float64],
    source: NDArray[np.float64],
    step: NDArray[np.float64],
    size: NDArray[np.int64],
    high: NDArray[np.float64] | None,
) -> NDArray[np.float64] | None:
    """The largest sum of a row of those rays that advance along an axis: (views,).

    Arguments: slope (views, columns, 2) and source (views, 2), in voxels along y and x; step (views, columns); size of
    the image; high (views,), a cone's rows in voxels at the detector.
    """
    ahead, columns = np.where(slope[..., axis] == 0, 1e-300, slope[..., axis]), np.arange(slope.shape[1])
    t = slope[..., 1 - axis] / ahead
    start = source[:, None, 1 - axis] - source[:, None, axis] * t
    still = np.where(t == 0, 1e-300, t)
    enters, leaves = np.sort(np.stack([(-1 - start) / still, (size[1 - axis] - start) / still]), 0)
    first, last = np.maximum(enters, 0), np.minimum(leaves, size[axis] - 1)
    own = (np.abs(t) <= 1) & (last >= first)
    if not own.any():
        return np.zeros(len(slope))
    ends = np.where(own, first, 0)[..., None] + np.where(own, last - first, 0)[..., None] * np.linspace(
        0, 1, _PIECES + 1
    )
    planes = np.diff(np.floor(ends), axis=-1)
    planes[..., 0] += np.floor(ends[..., 0]) - np.ceil(ends[..., 0]) + 1

    def apart(m: int) -> NDArray[np.float64]:
        """From the ray m columns on to the next one."""
        one, other = np.clip([columns + m, columns + m + 1], 0, len(columns) - 1)
        gap = (start[:, other] - start[:, one])[..., None] + (t[:, other] - t[:, one])[..., None] * ends
        return np.where((one == other)[:, None], np.inf, np.abs(gap))

    d = np.minimum(apart(0), apart(-1))
    if d[own].min() < _REACH / _MOST:
        return None
    many = math.ceil(_REACH / d[own].min())
    aside, longest, fastest = np.abs(t), step, np.abs(ahead)
    for m in range(-many, many + 1):
        near = np.clip(columns + m, 0, len(columns) - 1)
        d = np.minimum(d, apart(m)) if m < many else d
        aside, longest = np.maximum(aside, np.abs(t[:, near])), np.maximum(longest, step[:, near])
        fastest = np.maximum(fastest, np.abs(ahead[:, near]))
    eta = np.clip(aside - 1, 0, 1e3)[..., None]
    shares = longest[..., None] * _overlap(np.minimum(d[..., 1:], d[..., :-1]), 1 + eta)
    if high is not None:
        e = high[:, None, None] * np.abs(ends - source[:, None, None, axis]) / fastest[..., None]
        e = np.where(eta > 0, 1 - _REACH / _FAR, 1) * np.minimum(e[..., 1:], e[..., :-1])
        shares = shares * _overlap(e, np.ones(()))
    return np.asarray(np.where(own, step * (planes * shares).sum(-1), 0).max(1))


def _overlap(d: NDArray[np.float64], a: NDArray[np.float64]) -> NDArray[np.float64]:
    """H(d, a) of `_divergent_bounds`."""
    d = np.minimum(d, 1e6)
    m = np.floor(a / d)
    return np.asarray(a * (2 * m + 1) - d * m * (m + 1))
