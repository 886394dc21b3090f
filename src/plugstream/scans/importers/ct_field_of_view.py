"""How much of a sample a tomograph's detector saw: whether views end in air, how wide the sample is, what is shown."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plugstream.base.capacity import free_memory

Numbers = NDArray[np.float64]

# Views do not end in air where their ends, the mean over neighbouring views, are above this part of the largest line
# integrals, in more than this part of views and rows; views that are a mean, at most this part of all.
_HIGH, _OFTEN, _NEIGHBOURS = 0.08, 0.03, 1 / 24
# Line integrals that count when an edge is looked for, as a part of the view's largest.
_BODY = 0.1
# Half widths of a sample, in those that the detector sees: where its views do not tell, the least, and the most. And a
# factor for bodies that end more steeply than ellipses.
_UNTOLD, _LEAST, _MOST, _MORE = 2.0, 1.4, 3.0, 1.15
_COPIES = 3  # of a volume in single precision: the image, its gradient, and the next image
_INSIDE = 0.68  # of the source's distance, half the width of an image at most
_TOLD_BY = 0.9  # of the views; the widest ones may be wrong


def view_ends(integrals: ArrayLike, margin: int) -> NDArray[np.float32]:
    """The median of the outermost columns at the left and at the right of views: (2, views, rows).

    Arguments: integrals (views, rows, columns); margin, columns a side.
    """
    values = np.asarray(integrals, dtype=np.float32)
    return np.stack([np.median(side, -1) for side in (values[..., :margin], values[..., -margin:])])


def ends_in_air(ends: ArrayLike, angles: ArrayLike, largest: float) -> tuple[bool, bool]:
    """Whether the views end in air at the left, and at the right.

    They do not where the ends of views next to each other, which change slowly, are 8 % of the largest line integrals
    or more in the mean, in more than 3 % of views and rows. The lowest end of all is taken for air: a beam brighter or
    darker than the flat fields moves all views.

    Arguments: ends (2, views, rows) by `view_ends`; angles (views,), radians; largest, of the line integrals.
    """
    from scipy.ndimage import uniform_filter1d

    values = np.asarray(ends, dtype=np.float64)[:, np.argsort(np.asarray(angles), kind="stable")]
    smooth = uniform_filter1d(values, max(1, round(_NEIGHBOURS * values.shape[1])), axis=1, mode="nearest")
    often = (smooth > _HIGH * largest).mean((1, 2))
    return bool(often[0] <= _OFTEN), bool(often[1] <= _OFTEN)


def sample_reach(sinogram: ArrayLike, center: float) -> float:
    r"""How far a sample reaches from the rotation axis, in columns, where the detector does not see all of it.

    The square of an ellipse's line integrals is a parabola of the column, c2 s^2 + c1 s + c0, which is 0 at its edges.
    It is fitted to each view, and to the mean of all; the result is the furthest edge of nine tenths of them, 15 %
    more, and from 1.4 to 3 times half of the detector. A view whose parabola has no edges, or further out, counts as
    twice that. An image that is too wide arrives late; one that is too narrow holds what is outside in its rim.

    Arguments: sinogram (views, columns), line integrals of parallel rays; center, the column of the axis.
    """
    values = np.asarray(sinogram, dtype=np.float64)
    seen = values.shape[1] / 2
    place: Numbers = np.arange(values.shape[1], dtype=np.float64) - center
    edges = [_furthest_edge(view, place) for view in (*values, values.mean(0))]
    told = [edge if edge <= _MOST * seen else _UNTOLD * seen for edge in edges]
    reach = max(told[-1], float(np.quantile(told[:-1], _TOLD_BY)))
    return float(np.clip(_MORE * reach, _LEAST * seen, _MOST * seen))


def _furthest_edge(view: Numbers, place: Numbers) -> float:
    """Where the parabola through the squares of a view is 0, furthest from the axis; infinite where nowhere."""
    body = view > _BODY * view.max()
    if body.sum() < 8:
        return math.inf
    c2, c1, c0 = np.polyfit(place[body], view[body] ** 2, 2)
    inner = c1**2 - 4 * c2 * c0
    if c2 >= 0 or inner <= 0:
        return math.inf
    return float(max(abs(-c1 - math.sqrt(inner)), abs(-c1 + math.sqrt(inner))) / -(2 * c2))


def seen_reach(columns: int, center: float, whole_turn: bool) -> float:
    """How far from the axis the detector sees, in columns: every line through a disc of this radius was measured.

    It is the shorter side, and over a whole turn the longer one, since opposite views see the other side.

    Arguments: columns of the detector; center, that of the axis; whole_turn, whether views cover one.
    """
    sides = (center + 0.5, columns - 0.5 - center)
    return max(sides) if whole_turn else max(min(sides), 0.5)


def in_fan(reach: float, fan: float | None) -> float:
    r"""How near to the axis a ray passes that meets the detector `reach` columns from it, in columns at the axis.

    That is sin(atan(b f)) / f, and at most what leaves the source, at 1 / f, outside a square image.

    Arguments: reach, b; fan, f, the width of a column in distances of the detector from the source, None for a parallel
    beam, where it is b.
    """
    return reach if fan is None else min(math.sin(math.atan(reach * fan)), _INSIDE) / fan


def limit_by_memory(width: float, seen: float, rows: int) -> float:
    """The width of an image of so many rows in columns, or less where three of it, which any run needs, do not fit.

    It is never less than the field of view, a disc of the radius `seen`.
    """
    most = math.sqrt(free_memory() / (4 * _COPIES * rows))
    return min(width, max(most, 2 * seen))
