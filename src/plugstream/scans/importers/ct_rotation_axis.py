"""Where the rotation axis of a tomograph falls on its detector, from the views themselves."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plugstream.base.errors import InputError

Sinogram = NDArray[np.float64]

# The least arc, in radians, over which the path of the centre of mass tells an axis from an amplitude.
_LEAST_ARC = np.pi / 3
# By how much of their mean the sums of views that see the whole object may scatter: noise, beam hardening.
_MASS_SPREAD = 0.05
# The largest gap between uneven views of a whole turn, in their mean step and in radians, and the part of a step by
# which views may be off even steps without being interpolated.
_GAP, _LARGEST_GAP, _NEAR = 5.0, 0.4, 0.1
# Of a short fan's data, the least part that must be measured twice to tell its axis.
_PAIRS = 0.1
_PAIRS_FOUND = "by opposite views of a whole turn"
NOT_FOUND = "the middle of the detector"
"""How the axis of a fan was found where it could not be."""

# The fewest views in which an axis is looked for while more come.
_LEAST_VIEWS = 16
# Columns to which a sinogram is binned for the coarse part of the search, and views whose opposite is looked at.
_COARSE = 256
_OPPOSITE = 360
# Columns that two opposite views must have in common, by what factor they must agree better at another axis, and the
# columns over which they are smoothed first.
_OVERLAP, _BETTER, _SMOOTH = 6, 1.2, 1.5


def center_of_mass(sinogram: ArrayLike, angles: ArrayLike) -> tuple[float, float]:
    """The axis by the path of the centre of mass of parallel projections: its column, and the misfit in columns.

    sum_s s p(t, s) / sum_s p(t, s) = c + a cos t + b sin t for every angle t, since the mass of a slice stands still,
    solved for c, a and b by least squares; the misfit is the root mean square of the residual.

    Holds for parallel beams, views that see the whole object, and air that is 0 (`ct_line_integrals.air_level`).

    Arguments: sinogram (views, columns), line integrals; angles (views,), radians, over an arc of 60 degrees or more.
    Reference: Azevedo et al., IEEE Trans. Nucl. Sci. 37(4), 1990.
    """
    values, turn = _check(sinogram, angles)
    mass = values.sum(1)
    if np.ptp(turn) < _LEAST_ARC or not (mass > 0).all():
        raise InputError("the path of the centre of mass needs views over 60 degrees or more that all see an object")
    path = (values @ np.arange(values.shape[1])) / mass
    basis = np.stack([np.ones_like(turn), np.cos(turn), np.sin(turn)], axis=1)
    solution = np.linalg.lstsq(basis, path, rcond=None)[0]
    return float(solution[0]), float(np.sqrt(np.mean((path - basis @ solution) ** 2)))


def mirror_mismatch(sinogram: ArrayLike, center: float) -> float:
    """How badly half a turn and its mirror image about a column make up a whole turn.

    A parallel projection half a turn later is the mirror image about the axis. With the right axis the sinogram of half
    a turn, followed by its mirror image, is one of a whole turn, whose Fourier transform is next to nothing where
    |m| > 2 pi |f| r: m periods a turn, f periods a column, r the radius of the object. This is the mean modulus there.

    Arguments: sinogram (views, columns) of half a turn, evenly spaced, line integrals; center, a column.
    Reference: Vo et al., Optics Express 22(16), 2014.
    """
    values = np.asarray(sinogram, dtype=np.float64)
    views, columns = values.shape
    frequency = np.fft.rfftfreq(2 * columns)
    # The mirror image about `center` is the reversed array, which mirrors about (columns - 1) / 2, moved by twice the
    # distance; zeros behind it absorb the wrap-around.
    turn = np.exp(-2j * np.pi * frequency * (2 * center - (columns - 1)))
    mirrored = np.fft.irfft(np.fft.rfft(values[:, ::-1], n=2 * columns) * turn, n=2 * columns)[:, :columns]
    spectrum = np.abs(np.fft.rfft2(np.concatenate([values, mirrored])))
    periods = np.abs(np.fft.fftfreq(2 * views) * 2 * views)[:, None]
    outside = periods > np.pi * columns * np.fft.rfftfreq(columns)[None] + 2
    return float(spectrum[outside].mean())


def find_center(sinogram: ArrayLike, angles: ArrayLike, *, opposite: bool = True) -> tuple[float, str]:
    """The column of the rotation axis, as a fraction, and how it was found, in words.

    Over half a turn of evenly spaced views it is where `mirror_mismatch` is least: first every four columns of a binned
    sinogram within a quarter of the detector from its middle, then about the best, and last the vertex of a parabola.
    Over a whole turn it is that of opposite views (`find_opposite_center`) where they agree better there, as with an
    axis at the side, or where such half turns are missing: an odd number of views, or uneven angles. Over what is left,
    such as a shorter arc, it is that of `center_of_mass`.

    Holds for parallel beams, and for the central row of a cone beam so narrow that it is nearly parallel.

    Arguments: sinogram (views, columns), line integrals; angles (views,), radians; opposite, whether opposite views of
    a whole turn are compared, and not the first half turn alone.
    """
    values, turn = _check(sinogram, angles)
    half, known = _half_turn(turn), None
    if half is not None:
        rows, columns = values[half], values.shape[1]
        step = max(1, -(-columns // _COARSE))
        binned = rows[:, : columns // step * step].reshape(len(rows), -1, step).mean(2)
        middle, reach = (binned.shape[1] - 1) / 2, binned.shape[1] / 4
        coarse = np.arange(middle - reach, middle + reach, 2.0)
        first = coarse[np.argmin([mirror_mismatch(binned, c) for c in coarse])]
        start = step * first + (step - 1) / 2
        known = _search(lambda c: mirror_mismatch(rows, c), start, 2.0 * step, count=9, last=1.0)
    if opposite and (other := find_opposite_center(values, turn, known=known)) is not None:
        return other, _PAIRS_FOUND
    if known is not None:
        return known, "by half a turn and its mirror image"
    center, spread = center_of_mass(values, turn)
    mass = values.sum(1)
    if spread > 0.02 * values.shape[1] or np.std(mass) > _MASS_SPREAD * np.mean(mass):
        raise InputError(
            "the rotation axis cannot be found: the sums of the views differ, as they do where not all of them see the "
            "whole object; give --center"
        )
    return center, "by the path of the centre of mass"


def covers_turn(angles: ArrayLike) -> bool:
    """Whether eight views or more, evenly spaced once sorted, cover a whole turn; or uneven ones without a large gap.

    Arguments: angles (views,), radians.
    """
    turn = np.sort(np.asarray(angles, dtype=np.float64))
    if (step := _even_step(turn)) is not None:
        return bool(turn[-1] - turn[0] + 1.5 * step >= 2 * np.pi)
    turn = np.sort(turn % (2 * np.pi))
    gaps = np.diff(turn, append=turn[:1] + 2 * np.pi)
    return len(turn) > 0 and bool(gaps.max() <= min(_GAP * 2 * np.pi / len(turn), _LARGEST_GAP))


def find_opposite_center(
    sinogram: ArrayLike, angles: ArrayLike, pixel: float = 0.0, *, known: float | None = None
) -> float | None:
    r"""The column of the axis by the opposite views of a whole turn, wherever it is on the detector.

    About the axis c, column b of the view at t and column 2 c - b of the view half a turn later (for fans with the turn
    that `fan_mismatch` states) are one line, measured twice. Over the w columns that such views have in common, with D
    half of their mean squared difference and V the variance of their means, c is where

        w log(V / D)

    is largest, which compares the likelihood of "the same lines" with that of "others of the same spread": a few
    columns of flat data agree by chance, but then V is no larger than D. The place is refined by `fan_mismatch`.
    Where no view is half a turn later, it is interpolated between the nearest.

    Holds where the views have six columns or more in common. None where views do not cover a turn, where nothing agrees
    (V < 2 D), or where the views agree as well at the `known` axis.

    Arguments: sinogram (views, columns), line integrals; angles (views,), radians, in any order; pixel, the width of a
    detector pixel in distances of the detector from the source, 0 for a parallel beam; known, a column.
    """
    from scipy.ndimage import gaussian_filter1d

    values, turn = _check(sinogram, angles)
    if not covers_turn(turn):
        return None
    values, turn = _even_turn(values, turn)
    values = gaussian_filter1d(values, _SMOOTH, axis=1, mode="nearest")  # else places between columns have less noise
    bins = max(1, -(-values.shape[1] // _COARSE))
    small = values[:, : values.shape[1] // bins * bins].reshape(len(values), -1, bins).mean(2)

    def rate(center: float) -> float:
        one, other = _opposite(small, turn, center, pixel * bins, 1)
        if one.shape[1] < _OVERLAP:
            return -np.inf
        apart = float(np.mean((one - other) ** 2)) / 2
        spread = float(np.var((one + other) / 2))
        return float(one.shape[1] * math.log(max(spread, 1e-300) / max(apart, 1e-9 * spread, 1e-300)))

    places = np.arange(_OVERLAP // 2, small.shape[1] - _OVERLAP // 2, 1.0)
    ratings = np.array([rate(c) for c in places])
    best = float(places[ratings.argmax()])
    if ratings.max() < np.log(2) * (small.shape[1] - abs(2 * best - small.shape[1] + 1)):
        return None

    start = bins * best + (bins - 1) / 2
    common = max(min(start, values.shape[1] - 1 - start) - 2 * bins, 1.0)

    def cost(center: float, reach: float = np.inf) -> float:
        one, other = _opposite(values, turn, center, pixel, 3, (start - reach, start + reach))
        return float(np.mean((one - other) ** 2))

    # Over the same columns for all places near the start: others have other noise.
    found: float = _search(lambda center: cost(center, common), start, float(bins), count=9, last=1.0)
    return None if known is not None and cost(known) <= _BETTER * cost(found) else found


def covers_half_turn(angles: ArrayLike) -> bool:
    """Whether views that are there so far make up half a turn, with which the axis can be looked for.

    Arguments: angles (views,), radians, in any order and not evenly spaced where need be.
    """
    turn = np.sort(np.asarray(angles, dtype=np.float64))
    if len(turn) < _LEAST_VIEWS:
        return False
    step = float(np.median(np.diff(turn)))
    return bool(turn[-1] - turn[0] + 1.2 * step >= np.pi)


def fan_mismatch(sinogram: ArrayLike, angles: ArrayLike, center: float, pixel: float) -> float:
    """How much the two rays along each line of a fan differ: the root of their mean squared difference.

    With the axis at column c, the ray to column b is at the angle g = atan((b - c) pixel) of the fan, and the view at
    t + pi - 2 g has one along the same line, the other way, to column 2 c - b. Only lines that were measured both ways
    count: over less than half a turn there are none but at the detector's ends, and it is NaN.

    Arguments: sinogram (views, columns), evenly spaced, in the order of increasing angles, over a turn or less; angles
    (views,), radians; center, a column; pixel, the width of a detector pixel in distances of the detector.
    """
    from scipy.ndimage import map_coordinates

    values, turn = _check(sinogram, angles)
    views, columns = values.shape
    place = np.arange(columns)
    opposite = 2 * center - place
    inside = (opposite >= 0) & (opposite <= columns - 1)
    later = np.pi - 2 * np.arctan((place - center) * pixel)
    step = float(turn[-1] - turn[0]) / max(1, views - 1)
    full_turn = abs(views * abs(step) - 2 * np.pi) < 0.5 * abs(step)
    around = views if full_turn else 2 * np.pi / abs(step)
    step = 2 * np.pi / views * (1 if step > 0 else -1) if full_turn else step
    row = (np.arange(views)[:, None] + (later / step)[None, inside]) % around
    measured = np.ones(row.shape, dtype=bool) if full_turn else row <= views - 1
    if measured.mean() < _PAIRS * columns / max(1, inside.sum()):
        return float("nan")
    circle, places = np.concatenate([values, values[:1]]), np.broadcast_to(opposite[inside], row.shape)
    other = map_coordinates(circle, np.stack([row, places]), order=1)
    return float(np.sqrt(np.mean((values[:, inside] - other)[measured] ** 2)))


def _opposite(
    values: Sinogram,
    turn: NDArray[np.float64],
    center: float,
    pixel: float,
    order: int,
    among: tuple[float, float] = (-np.inf, np.inf),
) -> tuple[Sinogram, Sinogram]:
    """Lines of some views of a whole turn, and the same by splines through opposite views: (views, columns)."""
    from scipy.ndimage import map_coordinates

    views, columns = values.shape
    place = np.arange(columns)
    opposite = 2 * center - place
    inside = (opposite >= 0) & (opposite <= columns - 1) & (place >= among[0]) & (place <= among[1])
    later = (np.pi - 2 * np.arctan((place[inside] - center) * pixel)) * views / (2 * np.pi)
    chosen = np.unique(np.linspace(0, views - 1, min(views, _OPPOSITE)).round().astype(int))
    row = (chosen[:, None] + later) % views
    circle, places = np.concatenate([values, values[:1]]), np.broadcast_to(opposite[inside], row.shape)
    return values[np.ix_(chosen, inside)], map_coordinates(circle, np.stack([row, places]), order=order)


def find_fan_center(sinogram: ArrayLike, angles: ArrayLike, pixel: float) -> tuple[float, str]:
    """The column of the rotation axis of a fan, or of a cone's middle row, and how it was found.

    Where `fan_mismatch` is least: within a tenth of the detector from its middle, then about the best, and last the
    vertex of a parabola. Holds where the source, the axis and that column are in one plane across the detector, and
    from half a turn on, which measures enough lines twice. Over shorter arcs the axis cannot be found, and it is the
    middle of the detector. Over a whole turn all of the detector is searched, as `find_opposite_center` does.

    Arguments: as of `fan_mismatch`, in any order of views.
    """
    values, turn = _check(sinogram, angles)
    values, turn = _even_turn(values, turn) if covers_turn(turn) else _first_turn(values, turn)
    middle = (values.shape[1] - 1) / 2
    reach = values.shape[1] / 10
    ends = (middle - reach, middle, middle + reach)
    if _even_step(turn) is None or any(np.isnan(fan_mismatch(values, turn, c, pixel)) for c in ends):
        return middle, NOT_FOUND
    center = _search(lambda c: fan_mismatch(values, turn, c, pixel) ** 2, middle, reach, count=17, last=2.0)
    other = find_opposite_center(values, turn, pixel, known=center)
    return (center, "by the two rays along each line") if other is None else (other, _PAIRS_FOUND)


def _first_turn(values: Sinogram, turn: NDArray[np.float64]) -> tuple[Sinogram, NDArray[np.float64]]:
    """Views in the order of their angles, without later ones, which repeat those of the first turn."""
    order = np.argsort(turn, kind="stable")
    values, turn = values[order], turn[order]
    step = float(np.median(np.diff(turn))) if len(turn) > 1 else 0.0
    once = turn < turn[0] + 2 * np.pi - step / 2
    return values[once], turn[once]


def _even_turn(values: Sinogram, turn: NDArray[np.float64]) -> tuple[Sinogram, NDArray[np.float64]]:
    """The first turn in even steps: views as they are, or interpolated linearly where their angles are uneven."""
    from scipy.ndimage import map_coordinates

    even = _even_step(np.sort(turn)) is not None
    values, turn = _first_turn(values, turn if even else turn % (2 * np.pi))
    places = turn[0] + 2 * np.pi * np.arange(len(turn)) / len(turn)
    if np.abs(turn - places).max() <= _NEAR * (places[1] - places[0]):
        return values, turn
    row = np.interp(places, np.append(turn, turn[0] + 2 * np.pi), np.arange(len(turn) + 1))
    grid = np.stack(np.meshgrid(row, np.arange(values.shape[1]), indexing="ij"))
    return map_coordinates(np.concatenate([values, values[:1]]), grid, order=1), places


def _search(cost: Callable[[float], float], start: float, reach: float, *, count: int, last: float) -> float:
    """Where a cost is least, on ever finer grids of `count` places until they reach `last` columns to either side.

    In the end it is the vertex of the parabola through the least value and its neighbours.
    """
    best = start
    while True:
        places = best + reach * np.linspace(-1, 1, count)
        costs = np.nan_to_num([cost(c) for c in places], nan=np.inf)
        best = float(places[costs.argmin()])
        if reach <= last:
            break
        reach /= 4
    k = int(np.clip(costs.argmin(), 1, count - 2))
    left, least, right = costs[k - 1 : k + 2]
    bend = left - 2 * least + right
    move = 0.5 * (left - right) / bend if bend > 0 else 0.0
    return float(places[k] + np.clip(move, -1, 1) * (places[1] - places[0]))


def _half_turn(angles: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """The views of one half turn, its end left out; None where it is incomplete or not evenly spaced."""
    order = np.argsort(angles, kind="stable")
    step = _even_step(angles[order])
    if step is None:
        return None
    count = round(np.pi / step)
    complete = abs(count * step - np.pi) <= 0.2 * step and len(order) >= count
    return order[:count] if complete else None


def _even_step(angles: NDArray[np.float64]) -> float | None:
    """The step of eight or more evenly spaced angles, None for others."""
    steps = np.diff(angles)
    step = float(np.median(steps)) if len(steps) >= 7 else 0.0
    return step if 0 < step < 1 and np.allclose(steps, step, rtol=0.05, atol=1e-6) else None


def _check(sinogram: ArrayLike, angles: ArrayLike) -> tuple[Sinogram, NDArray[np.float64]]:
    values, turn = np.asarray(sinogram, dtype=np.float64), np.asarray(angles, dtype=np.float64)
    if values.ndim != 2 or turn.shape != values.shape[:1] or values.shape[1] < 8:
        raise InputError(
            f"a sinogram is (views, columns) of at least 8 columns with an angle a view, not {values.shape} and "
            f"{turn.shape}"
        )
    if not (np.isfinite(values).all() and np.isfinite(turn).all()):
        raise InputError("the sinogram, or its angles, hold NaN or infinity")
    return values, turn
