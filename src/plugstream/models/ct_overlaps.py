"""How much of their voxels the rays of a view share with their neighbours. Without torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plugstream import _native
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_lines import cross_planes

Values = NDArray[np.float64]
_PADDING = 16  # numbers that the native kernel may read beyond the last ray
_AT_ONCE = 1 << 15  # places of rays on planes that the other form works on together: what a cache holds


@dataclass(frozen=True)
class Crossed:
    """The rays of one view among voxels, as `plugstream.models.ct_lines.Lines`; those of an image as of one slice.

    Arguments: axis (rows, columns), 0 to 2; start and slope (3, rows, columns); step (rows, columns); size, of the
    volume.
    """

    axis: NDArray[np.int64]
    start: Values
    slope: Values
    step: Values
    size: tuple[int, ...]


def cross_view(rays: Rays, voxels: Voxels) -> Crossed:
    """Where the rays of a single view cross the planes of voxels."""
    lines = cross_planes(rays, voxels)
    axis, step = lines.axis[0], lines.step[0]
    start, slope = (np.moveaxis(part[0], -1, 0) for part in (lines.start, lines.slope))
    if rays.ndim == 2:  # a slice that all rays stay in
        level = np.zeros((1, 1, axis.shape[0]))
        start, slope = (np.concatenate([level, part[:, None]]) for part in (start, slope))
        return Crossed(axis[None] + 1, start, slope, step[None], (1, *voxels.shape))
    return Crossed(axis, start, slope, step, voxels.shape)


def has_kernel() -> bool:
    """Whether the native kernel, which takes a hundredth of the time, is installed."""
    return hasattr(_native.load(), "joseph_overlaps")  # an extension that was built before has none


def ray_overlaps(
    lines: Crossed, offsets: NDArray[np.int32], *, threads: int = 1, level: str = ""
) -> NDArray[np.floating]:
    r"""(A A')_{j, j + d} of the rays j of a view, for some offsets d on the detector.

    A ray has the weight w_n(p) = prod_b tri(p_b - n_b) times its step at voxel n of a plane that it crosses at p
    (`plugstream.models.ct_joseph`), so that two rays which advance along the same axis, at p(k) and q(k) on plane k,
    share

        sum_k prod_b sum_n tri(p_b(k) - n) tri(q_b(k) - n)

    times both steps. Of two that advance along different axes, the second is on a plane n of its own for each n that
    the first is next to. All of it is exact up to rounding: in single precision by the native kernel, in double
    precision without.

    Arguments: offsets (offsets, 2), rows and columns. threads, level: of the native kernel.
    Returns (offsets, rows, columns), 0 where there is no ray j + d.
    """
    if not has_kernel():
        return share_voxels(lines, offsets)
    bands = np.empty((len(offsets), *lines.axis.shape), np.float32)

    def pad(values: Values) -> NDArray[np.float32]:
        out = np.zeros((len(values), lines.axis.size + _PADDING), np.float32)
        out[:, : lines.axis.size] = values.reshape(len(values), -1)
        return out

    _native.kernels().joseph_overlaps(
        lines.axis.astype(np.int32), pad(lines.start), pad(lines.slope), pad(lines.step[None])[0],
        np.array(lines.size, dtype=np.int64), np.ascontiguousarray(offsets, dtype=np.int32), bands,
        threads=threads, level=level,
    )  # fmt: skip
    return bands


def share_voxels(lines: Crossed, offsets: NDArray[np.int32]) -> Values:
    """What `ray_overlaps` returns, by NumPy in double precision: the specification of the kernel."""
    rows, columns = lines.axis.shape
    bands = np.zeros((len(offsets), rows, columns))
    axis, step = lines.axis.ravel(), lines.step.ravel()
    start, slope = (part.reshape(3, -1) for part in (lines.start, lines.slope))
    ray = np.arange(rows * columns)
    # All rays of an image stay in its slice, and share all of it.
    flat = {b for b in range(3) if lines.size[b] == 1 and not (start[b].any() or slope[b].any())}

    def place(b: int, which: NDArray[np.int64], plane: Values) -> Values:
        return np.asarray(start[b, which] + plane * slope[b, which])

    for band, (down, across) in zip(bands.reshape(len(offsets), -1), offsets, strict=True):
        exists = (ray // columns + down < rows) & (ray // columns + down >= 0)
        exists &= (ray % columns + across < columns) & (ray % columns + across >= 0)
        other = np.where(exists, ray + down * columns + across, 0)
        for along in range(3):
            for turned in range(3):
                chosen = np.flatnonzero(exists & (axis == along) & (axis[other] == turned))
                plane = np.arange(lines.size[along], dtype=np.float64)[:, None]
                for j in np.array_split(chosen, -(-len(chosen) * len(plane) // _AT_ONCE) or 1):
                    k = other[j]
                    total = np.ones((len(plane), len(j)))
                    if turned == along:
                        for b in {0, 1, 2} - {along, *flat}:
                            total = total * _share_axis(place(b, j, plane), place(b, k, plane), lines.size[b])
                    else:
                        rest, crossing = 3 - along - turned, place(turned, j, plane)
                        total = total * 0
                        for n in (np.floor(crossing), np.floor(crossing) + 1):
                            weight = _triangle(crossing - n) * _triangle(place(along, k, n) - plane)
                            weight *= (n >= 0) & (n < lines.size[turned])
                            total += weight * _share_axis(place(rest, j, plane), place(rest, k, n), lines.size[rest])
                    band[j] = total.sum(0) * step[j] * step[k]
    return bands


def _share_axis(p: Values, q: Values, size: int) -> Values:
    """sum_n tri(p - n) tri(q - n) over voxels 0 to size - 1."""
    below = np.floor(p)
    part, away = p - below, q - below
    low = (1 - part) * _triangle(away)
    low *= (below >= 0) & (below < size)
    high = part * _triangle(away - 1)
    high *= (below >= -1) & (below < size - 1)
    low += high
    return low


def _triangle(x: Values) -> Values:
    return np.asarray(np.maximum(0.0, 1 - np.abs(x)))
