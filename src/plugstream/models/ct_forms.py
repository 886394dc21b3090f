"""Where the rays of flat detectors cross the planes of voxels, as quotients of linear forms of row and column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_maps import map_detector, solid_places, solid_shape

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
OFFSET = 4  # places across count from so many voxels before the first, so that those near cells are at least 2
WHOLE = 1.5 * 2**23  # what is added to rows to read them off as integers


@dataclass(frozen=True)
class Forms:
    """Of rays that advance along each axis z, y, x: what `ct_rays.cu` takes.

    With t the plane from the middle N // 2, r and c row and column likewise, a ray is at z = Z / W and x = X / W along
    the two other axes, from the middle and from `OFFSET` voxels before the first. Z, X and W are linear in r and c, and
    the first two in t; W and the change of z with r are positive. For that, rows may be the detector's columns, or
    counted from the last.

    Arguments: table (axes, views, 28): Z and its change by t at the middle, for a row and for a column; X likewise; W;
    how many columns half the height of a thread's cells takes; column and distance of a place: constant, by t, by x and
    by z; first and last column; nothing. used, turned, backward (axes, views):
    whether any ray advances along the axis, whether rows and columns change places, and whether rows are counted from
    the last. uneven: by how much the number of a thread's rows may be off, if they are taken as equally far apart.
    even: whether places follow from few terms in the row, to half of what rounding them changes.
    """

    table: NDArray[np.float32]
    used: Flags
    turned: Flags
    backward: Flags
    uneven: float
    even: bool


@dataclass(frozen=True)
class _Views:
    """Rays as z, y, x in voxels: their direction at the middle pixel, a row and a column more, a place, all (views, 3);
    the first and last row and column from the middle; the map of `map_detector`, with columns and rows likewise."""

    way: Floats
    row: Floats
    column: Floats
    place: Floats
    parallel: bool
    sizes: tuple[int, int]
    ends: tuple[Floats, Floats]
    shares: Floats


def find_forms(rays: Rays, voxels: Voxels, high: int) -> Forms | None:
    """The forms of a scan of volumes; None for curved detectors, and a source too near to the voxels.

    Arguments: rays; voxels; high, the cells of a thread along z.
    """
    views = _in_voxels(rays, voxels)
    if views is None:
        return None
    count, sizes = len(rays), np.array(solid_shape(voxels))
    table, uneven, error = np.zeros((3, count, 28)), 0.0, 0.0
    used, turned, backward = np.zeros((3, 3, count), bool)
    gap = np.maximum(-views.place, views.place - (sizes - 1)).max(1)  # from the source to the voxels
    for axis in range(3):
        one, two = (1 if axis == 0 else 0), (1 if axis == 2 else 2)
        # The least distance of a place that threads look at.
        margin = np.zeros(3, int)
        margin[one], margin[two] = high, 2
        corners = np.array(np.meshgrid(*np.stack([-margin, sizes - 1 + margin], 1), indexing="ij")).reshape(3, -1)
        nearest = (views.shares[:, 2, :3] @ corners + views.shares[:, 2, 3:]).min(1)
        boxes, sign = _find_boxes(views, axis)
        if boxes is None or (nearest <= 1e-3).any():
            return None
        used[axis] = sign != 0
        middle = sizes // 2
        middle[two] = -OFFSET
        forms = _find_quotients(views, views.place - middle, axis, one, two)
        turn = np.abs(forms[:, 1, 0] * forms[:, 5, 0]) < np.abs(forms[:, 2, 0] * forms[:, 4, 0])
        forms[turn] = forms[turn][:, [0, 2, 1, 3, 5, 4, 6, 8, 7]]
        boxes[turn] = boxes[turn][:, [2, 3, 0, 1]]
        rise = _find_rise(forms, sign, sizes[[one, axis]], high, gap >= 3 * high)
        if (used[axis] & (rise == 0)).any():
            return None
        forms *= np.where(sign == 0, 1, sign)[:, None, None]
        back = rise * sign < 0
        _reverse(forms, boxes, back, np.where(turn, views.sizes[1], views.sizes[0]))
        turned[axis], backward[axis] = turn, back
        column = np.where(turn[:, None], views.shares[:, 1], views.shares[:, 0])
        moved = np.abs(column[:, one, None] - views.shares[:, 2, one, None] * boxes[:, :2]).max(1) / nearest
        table[axis, :, :12] = forms[:, :6].reshape(count, 12)
        table[axis, :, 12:15] = forms[:, 6:, 0]
        table[axis, :, 15] = 0.5 * high * moved + 0.003 + 1e-6 * max(views.sizes)  # and what rounding may move
        for offset, share in ((16, column), (20, views.shares[:, 2])):
            table[axis, :, offset] = share @ np.append(middle, 1)
            table[axis, :, offset + 1 : offset + 4] = share[:, [axis, two, one]]
        table[axis, :, 24:26] = boxes[:, :2]
        least = np.where(used[axis], _least_distance(forms, boxes), np.inf)
        change = np.abs(forms[:, 7, 0]) / least
        t, x = np.array([-1, 1]) * sizes[axis], np.array([0, sizes[two] + 2 * OFFSET])
        slope = (forms[:, 4, :1] + forms[:, 4, 1:] * t)[:, :, None] - forms[:, 7, :1, None] * x
        drift = np.abs(slope).max((1, 2)) / least
        uneven = max(uneven, float(high**2 * change.max()))
        # What is left out if z has three terms, and x two.
        error = max(
            error, float(((1.25 * high) ** 3 * change**2).max()), float((0.25 * high**2 * change * drift).max())
        )
    return Forms(table.astype(np.float32), used, turned, backward, uneven, error <= max(5e-6, 3e-8 * sizes.max()))


def _in_voxels(rays: Rays, voxels: Voxels) -> _Views | None:
    mapped = map_detector(rays, voxels)
    if mapped is None or rays.ndim != 3:
        return None
    spacing, origin = solid_places(voxels)
    halves = np.array(rays.detector) // 2
    first, centre, column, row = (rays.vectors[:, number, ::-1] for number in range(4))
    off = halves - (np.array(rays.detector) - 1) / 2
    centre = (centre + off[0] * row + off[1] * column - origin) / spacing
    place = centre if rays.parallel else (first - origin) / spacing
    shares = mapped[0].copy()
    shares[:, :2] -= shares[:, 2:] * halves[::-1, None]
    rows, columns = (np.array([-half, n - half - 1], float) for half, n in zip(halves, rays.detector, strict=True))
    way = first / spacing if rays.parallel else centre - place
    sizes = rays.detector[0], rays.detector[1]
    return _Views(way, row / spacing, column / spacing, place, rays.parallel, sizes, (rows, columns), shares)


def _find_quotients(views: _Views, place: Floats, axis: int, one: int, two: int) -> Floats:
    """Z, X and W, each at the middle, for a row and for a column, as a constant and its change by t: (views, 9, 2).

    From a source s, z = s_z + (t - s_a) w_z / w_a with w the direction, so that Z = s_z w_a - s_a w_z + t w_z, W = w_a;
    parallel rays through a pixel q have z = q_z + (t - q_a) w_z / w_a.
    """
    forms = np.zeros((len(place), 9, 2))
    for number, vector in enumerate((views.way, views.row, views.column)):
        for offset, other in ((0, one), (3, two)):
            form = forms[:, offset + number]
            if views.parallel:
                slope = views.way[:, other] / np.where(views.way[:, axis] == 0, 1, views.way[:, axis])
                base = place if number == 0 else vector
                form[:, 0] = base[:, other] - base[:, axis] * slope
                form[:, 1] = slope if number == 0 else 0
            else:
                form[:, 0] = place[:, other] * vector[:, axis] - place[:, axis] * vector[:, other]
                form[:, 1] = vector[:, other]
        # W of parallel rays has the sign of their direction, as that of others does.
        forms[:, 6 + number, 0] = (number == 0) if views.parallel else vector[:, axis]
    if views.parallel:
        forms *= np.where(views.way[:, axis] < 0, -1, 1)[:, None, None]
    return forms


def _find_rise(forms: Floats, sign: Floats, sizes: NDArray[np.int64], margin: int, far: Flags) -> Floats:
    """The sign of Z's change along rows less z times that of W: 0 where it is not the same wherever rays may be.

    A ray that advances along an axis is no further from the source across than along it, so that from a source which is
    far the sign is certain if a row's step is twice as large across.
    """
    z, t = (np.array([-margin, size - 1 + margin]) - size // 2 for size in sizes)
    change = (forms[:, 1, :1] + forms[:, 1, 1:] * t)[:, :, None] - forms[:, 7, :1, None] * z
    change = change.reshape(len(forms), 4)
    constant = (change > 0).all(1) | (change < 0).all(1)
    steady = far & (2 * np.abs(forms[:, 7, 0]) < np.abs(forms[:, 1, 1]))
    return np.where(constant, np.sign(change[:, 0]), np.where(steady, sign * np.sign(forms[:, 1, 1]), 0))


def _reverse(forms: Floats, boxes: Floats, back: Flags, sizes: NDArray[np.int64]) -> None:
    """Count the rows of some views from the last: row r from the middle becomes -r, or for an even number -1 - r."""
    last = np.where(sizes % 2, 0.0, -1.0)
    for offset in (0, 3, 6):
        forms[back, offset] += last[back, None] * forms[back, offset + 1]
        forms[back, offset + 1] *= -1
    boxes[back, 2:] = (last[:, None] - boxes[:, [3, 2]])[back]


def _least_distance(forms: Floats, boxes: Floats) -> Floats:
    """The least W in a box that is a row larger on either side."""
    rows = boxes[:, [2, 2, 3, 3]] + np.array([-1, -1, 1, 1])
    nodes = np.stack([np.ones_like(rows), rows, boxes[:, [0, 1, 0, 1]]], 1)
    return np.asarray((forms[:, 6:, :1] * nodes).sum(1).min(1))


def _find_boxes(views: _Views, axis: int) -> tuple[Floats | None, Floats]:
    """The first and last column and row of rays that advance along an axis, (views, 4), and in which direction.

    The direction is 0 where there are none. No boxes where a view has both directions, or rays that run across the axis
    beside those that advance along it.
    """
    way, row, column, (rows, columns) = views.way, views.row, views.column, views.ends
    boxes = np.tile(np.array([*columns, *rows]), (len(way), 1))
    others = [other for other in range(3) if other != axis]
    if views.parallel:
        most = np.abs(way[:, others]).max(1)
        return boxes, np.where(np.abs(way[:, axis]) >= most * (1 - 1e-9), np.sign(way[:, axis]), 0.0)
    corners = np.array([[rows[0], columns[0]], [rows[1], columns[0]], [rows[1], columns[1]], [rows[0], columns[1]]])
    at_corners = way[:, None] + corners[:, :1] * row[:, None] + corners[:, 1:] * column[:, None]
    signs = np.zeros(len(way))
    for sign in (1.0, -1.0):
        ahead = sign * at_corners[..., axis]
        whole = (ahead > 1.001 * np.abs(at_corners[..., others]).max(-1)).all(1)
        signs[whole] = sign
        for view in np.flatnonzero(~whole & (ahead.max(1) > 0)):
            polygon = corners
            for other in others:
                for side in (1.0, -1.0):
                    form = [
                        sign * (1 + 1e-9) * part[view, axis] + side * part[view, other] for part in (way, row, column)
                    ]
                    polygon = _clip(polygon, form[0] + polygon @ np.array(form[1:]))
            if not len(polygon):
                continue
            (low, left), (high, right) = np.floor(polygon.min(0) - 1e-6), np.ceil(polygon.max(0) + 1e-6)
            boxes[view] = [*np.clip([left, right], *columns), *np.clip([low, high], *rows)]
            nodes = np.array([[r, c] for r in np.add(rows, [-1, 1]) for c in np.add(columns, [-1, 1])])
            around = way[view] + nodes @ np.stack([row[view], column[view]])
            if signs[view] or (sign * around[:, axis] < 0.01 * np.abs(around).max(1)).any():
                return None, signs
            signs[view] = sign
    return boxes, signs


def _clip(polygon: Floats, values: Floats) -> Floats:
    """The part of a convex polygon where a linear function, with these values at its corners, is not negative."""
    kept = []
    for number in range(len(polygon)):
        here, before = values[number], values[number - 1]
        if (here >= 0) != (before >= 0):
            kept.append(polygon[number - 1] + (polygon[number] - polygon[number - 1]) * before / (before - here))
        if here >= 0:
            kept.append(polygon[number])
    return np.array(kept).reshape(-1, 2)
