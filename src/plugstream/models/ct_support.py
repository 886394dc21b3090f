"""Where the object of a tomographic scan is: the disc, or the convex hull, inside the data's tangent rays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plugstream.models.ct_geometry import Rays, Voxels

Numbers = NDArray[np.float64]

# A ray meets the object if it and the next two exceed this part of the largest datum, and so many times the noise.
_PART, _SIGMAS, _ROW = 0.02, 6.0, 3
# With fewer columns of air beside the object, or noise above this part of the largest datum, edges are unreliable.
_AIR, _MOST_NOISE = 4, 0.01
# Near the edge of a smooth object y^2 grows linearly with the distance from its tangent; where it lies between these
# parts of the view's largest value (y, not y^2), a line through it gives the tangent to a fraction of a column.
_FIT = (0.1, 0.4)
# A disc fits where its tangents are met to this part of a column in the mean square, and to this at the most.
_MEAN, _WORST = 0.35, 1.0
_CORNER_VIEWS = 24  # views whose tangents cut the hull out; fewer leave it larger, never smaller
_OUT = 2.0  # columns by which they are moved outwards: the blur of a detector, and what is below the threshold


@dataclass(frozen=True)
class Tangents:
    """The rays of each view that touch the object: half-planes n . x <= d that hold it.

    Attributes: normals, (2, views, 2), x and y, pointing outwards; offsets, (2, views), of the tangent itself; safe,
    those of a ray that certainly misses the object; column, (views,), how wide one is there; refusal, why there are
    none, "" where there are.
    """

    normals: Numbers
    offsets: Numbers
    safe: Numbers
    column: Numbers
    refusal: str = ""


def find_tangents(rays: Rays, data: NDArray[np.floating], counts: NDArray[np.bool_] | None = None) -> Tangents:
    r"""The first and the last ray of each view that meet the object.

    A ray that misses the object measures 0, so the object lies between the two outermost rays that do not. Near a
    smooth edge, y^2 is linear in the distance from the tangent (a chord at depth s of a circle is sqrt(8 r s) long), so
    a line through y^2 locates it between columns. Holds if every view sees the whole object: data that is not zero at
    both ends of the detector, or noise above 1 % of the largest datum, are refused.

    Arguments: rays, of a detector without rows; data, (views, columns), line integrals; counts, of the same shape,
    False where a pixel does not count.
    """
    views, columns = data.shape
    nothing = np.zeros((2, 0))

    def refuse(why: str) -> Tangents:
        return Tangents(np.zeros((2, 0, 2)), nothing, nothing, np.zeros(0), why)

    y = np.asarray(data, np.float64)
    if not np.isfinite(y).all() or columns < 4 * _AIR or (counts is not None and not counts.all()):
        return refuse("some of its pixels do not count")
    top = float(y.max())
    air = np.concatenate([y[:, :_AIR], y[:, -_AIR:]], 1)
    noise = 1.4826 * float(np.median(np.abs(np.diff(air, axis=1)))) / np.sqrt(2)
    level = max(_PART * top, _SIGMAS * noise)
    sides = np.median(np.stack([air[:, :_AIR], air[:, _AIR:]]), -1)
    if top > 0 and float(np.abs(sides).max()) > level:
        return refuse("the object reaches beyond the detector")
    if top <= 0 or noise > _MOST_NOISE * top or float(np.abs(air).max()) > level:
        return refuse("its noise hides where the object begins")
    above = y > level
    runs = above.copy()
    for shift in range(1, _ROW):
        runs[:, :-shift] &= above[:, shift:]
    if not runs.any(1).all():
        return refuse("some views show no object")
    first = runs.argmax(1)
    last = columns - 1 - runs[:, ::-1].argmax(1) + _ROW - 1
    edges = np.stack([_extrapolate(y, first), columns - 1 - _extrapolate(y[:, ::-1], columns - 1 - last)])
    # A sharp or dull edge is not that of a circle: the tangent is never inside the first ray that is not air.
    edges[0], edges[1] = np.minimum(edges[0], first), np.maximum(edges[1], last)
    normals, offsets = np.zeros((2, views, 2)), np.zeros((2, views))
    safe, column = np.zeros((2, views)), np.zeros(views)
    for side, outwards in enumerate((-1.0, 1.0)):
        normal, offset, width = _lines(rays, edges[side])
        normals[side], offsets[side] = outwards * normal, outwards * offset
        safe[side] = offsets[side] + _OUT * width
        column = width
    return Tangents(normals, offsets, safe, column)


def fit_disc(tangents: Tangents) -> tuple[tuple[float, float, float], float, float]:
    """The disc whose tangents are these: (x, y, radius), and the mean square and largest misfit in columns.

    n . c + r = d for each tangent is linear in the centre c and the radius r, and solved by least squares. Tangents of
    limited angles say nothing about other directions.
    """
    normals, offsets = tangents.normals.reshape(-1, 2), tangents.offsets.reshape(-1)
    table = np.concatenate([normals, np.ones((len(normals), 1))], 1)
    (x, y, radius), *_ = np.linalg.lstsq(table, offsets, rcond=None)
    misfit = (table @ [x, y, radius] - offsets) / np.tile(tangents.column, 2)
    return (float(x), float(y), float(radius)), float(np.sqrt(np.mean(misfit**2))), float(np.abs(misfit).max())


def fits(mean: float, worst: float) -> bool:
    """Whether an object is a disc that misses its tangents by so many columns."""
    return mean <= _MEAN and worst <= _WORST


def chords(rays: Rays, disc: tuple[float, float, float]) -> Numbers:
    """How far each ray of a detector without rows runs within a disc (x, y, radius): (views, columns)."""
    lengths = np.zeros((len(rays), rays.detector[-1]))
    for column in range(rays.detector[-1]):
        normal, offset, _ = _lines(rays, np.full(len(rays), float(column)))
        distance = normal @ np.array(disc[:2]) - offset
        lengths[:, column] = 2 * np.sqrt(np.maximum(disc[2] ** 2 - distance**2, 0))
    return lengths


def hull(tangents: Tangents, voxels: Voxels) -> Numbers:
    """The convex polygon, (n, 2) of x and y, of the image's points inside the tangents of some views.

    It contains any object that is seen whole.
    """
    (y0, x0), (y1, x1), (dy, dx) = voxels.origin[-2:], voxels.ends[-2:], voxels.spacing[-2:]
    corners = np.array([(x0 - dx, y0 - dy), (x1 + dx, y0 - dy), (x1 + dx, y1 + dy), (x0 - dx, y1 + dy)])
    views = np.unique(np.linspace(0, tangents.offsets.shape[1] - 1, _CORNER_VIEWS).round().astype(int))
    for side in range(2):
        for view in views:
            corners = _cut(corners, tangents.normals[side, view], tangents.safe[side, view])
    return corners


def _extrapolate(y: Numbers, first: NDArray[np.int64]) -> Numbers:
    """Where y^2 of each view comes to zero, coming from the left, as a column."""
    edges = first.astype(np.float64)
    for view, row in enumerate(y):
        low, high = (part * row.max() for part in _FIT)
        start = first[view] + int(np.argmax(row[first[view] :] > low))
        end = max(start + 2, start + int(np.argmax(row[start:] > high)))
        place = np.arange(start, min(end + 1, len(row)))
        slope, constant = np.polyfit(place, row[place] ** 2, 1)
        if slope > 0:
            edges[view] = np.clip(-constant / slope, first[view] - 3, first[view] + 3)
    return edges


def _lines(rays: Rays, columns: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """The rays at these columns as lines n . x = d, n towards the next column, and their distances at the axis."""
    first, centre, u, _ = np.moveaxis(rays.vectors[:, :, :2], 1, 0)
    step = (columns - (rays.detector[-1] - 1) / 2)[:, None]
    if np.isfinite(rays.curvature):
        angle = step * np.linalg.norm(u, axis=1, keepdims=True) / rays.curvature
        towards = first - centre
        towards = towards / np.linalg.norm(towards, axis=1, keepdims=True)
        along = u / np.linalg.norm(u, axis=1, keepdims=True)
        pixel = centre + rays.curvature * (np.sin(angle) * along + (1 - np.cos(angle)) * towards)
    else:
        pixel = centre + step * u
    direction = np.broadcast_to(first, pixel.shape) if rays.parallel else pixel - first
    length = np.linalg.norm(direction, axis=1)
    normal = np.stack([-direction[:, 1], direction[:, 0]], 1) / length[:, None]
    normal *= np.where((normal * u).sum(1) < 0, -1.0, 1.0)[:, None]
    # Rays are this far apart where they pass the axis: on the detector, or in the ratio of distances from the source.
    near = 1.0 if rays.parallel else np.linalg.norm(first, axis=1) / length
    return normal, (normal * pixel).sum(1), np.abs((normal * u).sum(1)) * near


def _cut(corners: Numbers, normal: Numbers, offset: float) -> Numbers:
    """The part of a convex polygon where n . x <= d (Sutherland and Hodgman)."""
    heights = corners @ normal - offset
    polygon = []
    for k in range(len(corners)):
        before, height = heights[k - 1], heights[k]
        if (before > 0) != (height > 0):
            polygon.append(corners[k - 1] + before / (before - height) * (corners[k] - corners[k - 1]))
        if height <= 0:
            polygon.append(corners[k])
    return np.array(polygon).reshape(-1, 2)
