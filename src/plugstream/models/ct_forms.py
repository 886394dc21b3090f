"""Where the rays of flat detectors cross the planes of voxels, as quotients of linear forms of row and column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_maps import map_detector, solid_places, solid_shape

Floats = NDArray[np.float64]
OFFSET = 2  # places across count from two voxels before the first, so that those of cells are at least 1
_MARGIN = 3  # voxels around the volume that threads look at
_SLACK = 0.01  # of a column, more than rounding moves the edges of a thread's cells


@dataclass(frozen=True)
class Forms:
    """Of rays that advance along each axis z, y, x: what `ct_rays.cu` takes.

    With t the plane from the middle N // 2, r and c row and column likewise, a ray is at z = Z / W and x = X / W along
    the two other axes, from the middle and from `OFFSET` voxels before the first. Z, X and W are linear in r and c, and
    the first two in t. Rows are those of the detector, or its columns where these are closer to z.

    Arguments: table (axes, views, 28): Z and its change by t at the middle, for a row and for a column; X likewise; W;
    how many columns half the height of a thread's cells takes; column and distance of a place: constant, by t, by x and
    by z; first and last column, first and one beyond the last row. used, turned, backward (axes, views): whether any
    ray advances along the axis, whether rows and columns change places, and whether rows are counted from the last.
    uneven: by how much the rows of a thread's cells may be off, if they are counted as equally far apart.
    """

    table: NDArray[np.float32]
    used: NDArray[np.bool_]
    turned: NDArray[np.bool_]
    backward: NDArray[np.bool_]
    uneven: float


def find_forms(rays: Rays, voxels: Voxels, high: int) -> Forms | None:
    """The forms of a scan of volumes; None for curved detectors, and a source too near to the voxels.

    Arguments: rays; voxels; high, the cells of a thread along z.
    """
    mapped = map_detector(rays, voxels)
    if mapped is None or rays.ndim != 3:
        return None
    sizes = np.array(solid_shape(voxels))
    spacing, origin = solid_places(voxels)
    halves = np.array(rays.detector) // 2
    count = len(rays)
    first, centre, u, v = (rays.vectors[:, number, ::-1] for number in range(4))
    off = halves - (np.array(rays.detector) - 1) / 2
    centre = (centre + off[0] * v + off[1] * u - origin) / spacing
    u, v = u / spacing, v / spacing
    way = first / spacing if rays.parallel else centre - (first - origin) / spacing
    shares = mapped[0].copy()
    shares[:, :2] -= shares[:, 2:] * halves[::-1, None]
    table, used = np.zeros((3, count, 28)), np.zeros((3, count), bool)
    turned, backward = np.zeros((3, count), bool), np.zeros((3, count), bool)
    ends = [np.array([-half, size - half - 1]) for half, size in zip(halves, rays.detector, strict=True)]
    uneven = 0.0
    for axis in range(3):
        one, two = (1 if axis == 0 else 0), (1 if axis == 2 else 2)
        middle = sizes // 2
        middle[two] = -OFFSET
        source = (centre if rays.parallel else (first - origin) / spacing) - middle
        # The least distance of a place that a thread looks at.
        corners = np.array(np.meshgrid(*[[-_MARGIN, size + _MARGIN] for size in sizes], indexing="ij")).reshape(3, -1)
        nearest = (shares[:, 2, :3] @ corners + shares[:, 2, 3:]).min(1)
        if (nearest <= 1e-3).any():
            return None
        boxes, sign = _find_boxes(way, u, v, ends, axis, rays.parallel)
        if boxes is None:
            return None
        used[axis] = sign != 0
        forms = np.empty((count, 9, 2))  # Z, X, W at the middle, a row, a column; constant and change by t
        for number, vector in enumerate((way, v, u)):
            for offset, other in ((0, one), (3, two)):
                if rays.parallel:
                    slope = np.divide(way[:, other], way[:, axis], where=used[axis], out=np.zeros(count))
                    base = source if number == 0 else vector
                    forms[:, offset + number, 0] = base[:, other] - base[:, axis] * slope
                    forms[:, offset + number, 1] = slope if number == 0 else 0
                else:
                    forms[:, offset + number, 0] = (
                        source[:, other] * vector[:, axis] - source[:, axis] * vector[:, other]
                    )
                    forms[:, offset + number, 1] = vector[:, other]
            forms[:, 6 + number, 0] = (number == 0) if rays.parallel else vector[:, axis]
        turned[axis] = np.abs(forms[:, 1, 0] * forms[:, 5, 0]) < np.abs(forms[:, 2, 0] * forms[:, 4, 0])
        turn = turned[axis]
        for offset in (0, 3, 6):
            forms[turn, offset + 1], forms[turn, offset + 2] = forms[turn, offset + 2], forms[turn, offset + 1]
        boxes[turn] = boxes[turn][:, [2, 3, 0, 1]]
        # The change of Z - z W along rows has one sign wherever rays may be.
        z = np.array([-_MARGIN, sizes[one] + _MARGIN]) - sizes[one] // 2
        t = np.array([-_MARGIN, sizes[axis] + _MARGIN]) - sizes[axis] // 2
        change = (forms[:, 1, :1] + forms[:, 1, 1:] * t)[:, :, None] - forms[:, 7, :1, None] * z
        change = change.reshape(count, 4)
        constant = (change > 0).all(1) | (change < 0).all(1)
        steady = np.abs(forms[:, 7, 0]) < np.abs(forms[:, 1, 1]) * (1 - 1e-6)
        if not (constant | steady | ~used[axis]).all():
            return None
        rise = np.where(constant, np.sign(change[:, 0]), sign * np.sign(forms[:, 1, 1]))
        # W is positive, and so is that change, for which rows may have to be counted from the other end.
        distance = np.sign((forms[:, 6:, 0] * np.stack([np.ones(count), boxes[:, 2], boxes[:, 0]], 1)).sum(1))
        forms *= distance[:, None, None]
        backward[axis] = rise * distance < 0
        back = backward[axis]
        size = np.where(turn, rays.detector[1], rays.detector[0])
        last = np.where(size % 2, 0.0, -1.0)
        for offset in (0, 3, 6):
            forms[back, offset] += last[back, None] * forms[back, offset + 1]
            forms[back, offset + 1] *= -1
        boxes[back, 2:] = (last[:, None] - boxes[:, [3, 2]])[back]
        column = np.where(turn[:, None], shares[:, 1], shares[:, 0])
        for offset, share in ((16, column), (20, shares[:, 2])):
            table[axis, :, offset] = share @ np.append(middle, 1)
            table[axis, :, offset + 1 : offset + 4] = share[:, [axis, two, one]]
        table[axis, :, :12] = forms[:, :6].reshape(count, 12)
        table[axis, :, 12:15] = forms[:, 6:, 0]
        moved = np.abs(column[:, one, None] - shares[:, 2, one, None] * boxes[:, :2]).max(1) / nearest
        table[axis, :, 15] = 0.5 * high * moved + _SLACK
        nodes = np.stack([np.ones((count, 4)), boxes[:, [2, 2, 3, 3]], boxes[:, [0, 1, 0, 1]]], 1)
        least = (forms[:, 6:, :1] * nodes).sum(1).min(1)
        steps = np.abs(forms[:, 7, 0]) / np.where(used[axis], least, np.inf)
        uneven = max(uneven, float(high**2 * steps.max()) + 0.004)
        table[axis, :, 24:] = boxes + np.array([0, 0, 0, 1])
    return Forms(table.astype(np.float32), used, turned, backward, uneven)


def _find_boxes(
    way: Floats, u: Floats, v: Floats, ends: list[NDArray[np.int64]], axis: int, parallel: bool
) -> tuple[Floats | None, Floats]:
    """The first and last column and row of rays that advance along an axis, (views, 4), and in which direction.

    The direction is 0 where there are none. No boxes where a view has both directions, or where rays in a box may run
    across the axis.
    """
    count = len(way)
    boxes = np.tile(np.array([*ends[1], *ends[0]], float), (count, 1))
    others = [other for other in range(3) if other != axis]
    if parallel:
        most = np.abs(way[:, others]).max(1)
        return boxes, np.where(np.abs(way[:, axis]) >= most * (1 - 1e-9), np.sign(way[:, axis]), 0.0)
    corners = np.array([[r, c] for c in ends[1] for r in (ends[0] if c == ends[1][0] else ends[0][::-1])], float)
    at_corners = way[:, None] + corners[:, :1] * v[:, None] + corners[:, 1:] * u[:, None]
    signs = np.zeros(count)
    for sign in (1.0, -1.0):
        ahead = sign * at_corners[..., axis]
        whole = (ahead > 1.001 * np.abs(at_corners[..., others]).max(-1)).all(1)
        signs[whole] = sign
        for view in np.flatnonzero(~whole & (ahead.max(1) > 0)):
            polygon = corners
            for other in others:
                for side in (1.0, -1.0):
                    form = [sign * (1 + 1e-9) * part[view, axis] + side * part[view, other] for part in (way, v, u)]
                    polygon = _clip(polygon, form[0] + polygon @ np.array(form[1:]))
            if not len(polygon):
                continue
            if signs[view]:
                return None, signs
            signs[view] = sign
            (low, left), (high, right) = np.floor(polygon.min(0) - 1e-6), np.ceil(polygon.max(0) + 1e-6)
            box = np.array([left, right, low, high])
            box[:2], box[2:] = box[:2].clip(*ends[1]), box[2:].clip(*ends[0])
            boxes[view] = box
            around = np.array([[r, c] for r in box[2:] for c in box[:2]]) @ np.stack([v[view], u[view]]) + way[view]
            if (sign * around[:, axis] < 0.1 * np.abs(around).max(1)).any():
                return None, signs
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
