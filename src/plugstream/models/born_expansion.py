"""Waves of distant sources as sums of plane waves: how many are needed, and with which coefficients.

About the origin of the pixel grid, at a distance rho <= a, the wave of a line source at a distance R > a is

    H_0(k |t - r|) = sum_m H_m(k R) J_m(k rho) exp(i m (phi_t - phi_r))                               (Graf)
    i^m J_m(k rho) exp(-i m phi_r) = 1/P sum_p exp(i k s_p . r) exp(-i m theta_p) + aliases J_{m + jP},  j != 0

so cut off at |m| <= M it is a sum of P plane waves with directions s_p = (cos theta_p, sin theta_p),
theta_p = 2 pi p / P. Opposite directions pair up into a cosine and a sine of half of the directions, which are real.
Only NumPy and SciPy are needed here, and everything is in double precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.errors import InputError
from plugstream.scans.geometry import BornGeometry, Grid

__all__ = [
    "Directions",
    "Expansion",
    "choose_directions",
    "coefficients",
    "gain",
    "largest_gain",
    "plan_expansion",
    "smallest_radius",
    "source_distance",
    "support_radius",
]

Real = NDArray[np.float64]
Complex = NDArray[np.complexfloating[Any, Any]]

# Orders are looked at until J_m(ka) is as small as this; beyond it nothing is left at any eps.
_NOTHING = 1e-40
# What the FFT and the products can reach, relative to the data: chosen so that random geometries keep to eps.
_ROUNDING = {True: 2e-7, False: 5e-14}
# The largest gain in double precision: with 10 twice, rounding keeps forward and adjoint transposes to 1e-12.
_MOST_GAIN = 10.0
# eps is shared out: to cutting off the series of sources, of receivers, and the non-uniform FFT with its rounding.
_CUT, _TRANSFORM = 0.1, 0.5


@dataclass(frozen=True)
class Directions:
    """Plane waves that carry every source of a geometry: orders |m| <= `order`, directions 2 pi p / `count`."""

    order: int
    count: int

    @property
    def half(self) -> int:
        return self.count // 2

    def vectors(self) -> Real:
        """The directions of the first half of the circle, (count / 2, 2); the others are their opposites."""
        angle = 2 * np.pi * np.arange(self.half) / self.count
        return np.stack([np.cos(angle), np.sin(angle)], axis=1)


@dataclass(frozen=True)
class Expansion:
    """What the fast method needs for a geometry: its plane waves, and how accurate the non-uniform FFT has to be."""

    directions: Directions
    nufft_eps: float


def plan_expansion(geometry: BornGeometry, eps: float, *, single: bool) -> Expansion:
    """Plan the fast method at accuracy eps, or say in one line why it cannot be had.

    Every transmitter and receiver must be far enough from the grid's centre for its series to end before its
    coefficients have grown so much that rounding, amplified by the `gain` of both, would exceed eps. That smallest
    radius is a little more than that of the corners, by about 3 (k a)^{1/3} / k.

    Arguments: geometry; eps, relative to the scattered field in all directions; single, for single precision.
    """
    if geometry.fields is not None:
        raise InputError("the fast method needs transmitters or plane waves, not given fields; use method='dense'")
    k, a = geometry.wavenumber, support_radius(geometry.grid)
    center = np.asarray(geometry.grid.center, dtype=np.float64)
    most = largest_gain(eps, single=single)
    chosen, gains = Directions(0, 2), 1.0
    nearest: list[float | None] = []
    for what in ("transmitters", "receivers"):
        points: Real | None = getattr(geometry, what)
        if points is None or (what == "receivers" and geometry.far_field):
            nearest.append(None)
            continue
        distance = np.hypot(*(points - center).T)
        place = int(np.argmin(distance))
        found = choose_directions(k * a, k * distance[place], _CUT * eps) if distance[place] > a else None
        if found is None or gain(k * distance[place], found) > most:
            least = smallest_radius(k * a, _CUT * eps, most) / k
            raise InputError(
                f"{what[:-1]} {place} is {distance[place]:.5g} m from the grid's centre, and the fast method needs at "
                f"least {_round_up(least):.5g} m for eps = {eps:g} in {'single' if single else 'double'} precision; "
                "use method='dense', a larger eps, or a smaller image"
            )
        nearest.append(k * float(distance[place]))
    for kr in nearest:
        found = choose_directions(k * a, kr, _CUT * eps)
        assert found is not None
        chosen = Directions(max(chosen.order, found.order), max(chosen.count, found.count))
    for kr in nearest:
        gains *= max(1.0, gain(kr, chosen))
    return Expansion(chosen, _TRANSFORM * eps / gains)


def largest_gain(eps: float, *, single: bool) -> float:
    """The `gain` that a source or a receiver may have, so that both together amplify rounding to eps/4 at most.

    In double precision not more than 10, whatever eps: the adjoint has to stay the transpose to 1e-12.
    """
    most = max(1.05, float(np.sqrt(_TRANSFORM * eps / 2 / _ROUNDING[single])))
    return most if single else min(most, _MOST_GAIN)


def _round_up(value: float) -> float:
    """To five digits upwards, so that a radius that is told is one that is taken."""
    digits = 4 - int(np.floor(np.log10(value)))
    return float(np.ceil(value * 10**digits) / 10**digits)


def support_radius(grid: Grid) -> float:
    """a, the distance from the pixel at the grid's centre to the farthest pixel, in metres.

    The centre is that pixel, and not the middle of the rectangle half a pixel away, so that pixels have integer
    coordinates: what the FFT wants, and circles about the grid's centre then keep one radius. It costs one order.
    """
    return float(grid.pixel * np.hypot(grid.shape[0] // 2, grid.shape[1] // 2))


def source_distance(geometry: BornGeometry) -> float:
    """How far the nearest transmitter is from the grid's centre, in metres; infinity for plane waves."""
    if geometry.transmitters is None:
        return float("inf")
    offset = geometry.transmitters - np.asarray(geometry.grid.center)
    return float(np.hypot(*offset.T).min())


def choose_directions(ka: float, kr: float | None, tol: float) -> Directions | None:
    r"""The fewest plane waves that give the field of every source at k R >= kr to a relative `tol` on the disc.

    With h_m = |H_m(kR) / H_0(kR)|, which falls with R and is 1 for a plane wave (kr = None), cutting off leaves at most
    2 sum_{m > M} h_m |J_m(ka)|, and sampling P directions at most sum_{|m| <= M} h_m |J_{P - |m|}(ka)|, both against
    |H_0(kR)|. The smallest M and then the smallest even P > 2 M are taken for which neither exceeds `tol`, by adding
    up those terms: rules such as M = ka + c (ka)^{1/3} are right for one eps and one radius only.

    Holds for M >= ka, where J_m(k rho) grows with rho. None if no M below the orders of double precision does.

    Arguments: ka, kr without units; tol relative.
    Reference: Coifman, Rokhlin and Wandzura, IEEE Antennas Propag. Mag. 35(3), 1993.
    """
    from scipy.special import jv

    ka = max(ka, 0.1)  # a single pixel has no extent, and would leave nothing to add up
    top = int(ka + 40 * max(ka, 1.0) ** (1 / 3) + 60)
    bessel = np.abs(jv(np.arange(2 * top + 4), ka))
    top = int(np.argmax((bessel < _NOTHING) & (np.arange(len(bessel)) > ka)))
    ratio = np.ones(top) if kr is None else np.abs(_hankel_ratios(np.array([kr]), top - 1)[0])
    terms = 2 * ratio * bessel[:top]
    tail = np.append(np.cumsum(terms[::-1])[::-1], 0.0)  # tail[m] is the sum of the terms from m on
    least = int(np.ceil(ka))
    if kr is not None and terms[-1] > tol * 1e-3:  # the source is so close that the series has not ended by then
        return None
    order = max(least, int(np.argmax(tail <= tol)) - 1)
    if order >= top:
        return None
    count = 2 * order + 2
    while _aliasing(bessel, ratio[: order + 1], count) > tol:
        count += 2
    return Directions(order, count)


def _aliasing(bessel: Real, ratio: Real, count: int) -> float:
    orders = np.arange(len(ratio))
    twice = np.where(orders == 0, 1.0, 2.0)
    return float(np.sum(twice * ratio * bessel[np.minimum(count - orders, len(bessel) - 1)]))


def gain(kr: float | None, directions: Directions) -> float:
    """How much larger the coefficients of a source are than its field: sqrt(sum_m |H_m / H_0|^2 / P).

    About 1 for a distant source. Close to the disc the coefficients grow and cancel in the sum, and every rounding
    error, and the error of the non-uniform FFT, grows by this factor, once for the source and once for the receiver.
    """
    if kr is None:
        return 1.0
    ratio = np.abs(_hankel_ratios(np.array([kr]), directions.order)[0])
    return float(np.sqrt((ratio[0] ** 2 + 2 * np.sum(ratio[1:] ** 2)) / directions.count))


def smallest_radius(ka: float, tol: float, most: float) -> float:
    """The smallest k R at which `choose_directions` succeeds at `tol` with a `gain` of at most `most`, by bisection."""

    def fits(kr: float) -> bool:
        directions = choose_directions(ka, kr, tol)
        return directions is not None and gain(kr, directions) <= most

    low, high = float(ka), float(ka) + 2 * max(ka, 1.0) ** (1 / 3) + 1
    while not fits(high):
        low, high = high, high + 2 * (high - ka)
    while high - low > 1e-3 * (high - ka):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return float(high)


def coefficients(geometry: BornGeometry, what: str, directions: Directions) -> Complex:
    r"""Each source's coefficients of cos(k s_p . r) and sin(k s_p . r), p = 0 .. P/2 - 1: (sources, P).

    With W[t, p] = 1/P sum_{|m| <= M} c_m i^{-m} exp(i m (phi_t - theta_p)), an FFT over m, the waves +-s_p give the
    cosine W[t, p] + W[t, p + P/2] and the sine i (W[t, p] - W[t, p + P/2]). Here c_m = (i/4) H_m(k R_t) for a line
    source; a plane wave of direction phi has c_m i^{-m} = 1 and a phase for the grid's place. Receivers are sources
    too, by reciprocity, with k_0^2 dA in front; those of the far field are plane waves from where they lie, times
    exp(i pi/4) / sqrt(8 pi k), the limit of (i/4) H_0(k r) sqrt(r) exp(-i k r).

    Holds for sources farther than the radius that `choose_directions` was asked for.

    Arguments: geometry; what, "transmitters", "plane_waves" or "receivers"; directions.
    """
    k, orders = geometry.wavenumber, np.arange(-directions.order, directions.order + 1)
    points: Real = getattr(geometry, what)
    center = np.asarray(geometry.grid.center, dtype=np.float64)
    receivers = what == "receivers"
    scale = (2 * np.pi / geometry.wavelength) ** 2 * geometry.grid.pixel**2 if receivers else 1.0
    if what == "plane_waves" or (receivers and geometry.far_field):
        heading = -points if receivers else points
        angle = np.arctan2(heading[:, 1], heading[:, 0])
        phase = np.exp(1j * k * heading @ center)
        series = phase[:, None] * np.exp(1j * np.outer(angle, orders))
        scale = scale * np.exp(0.25j * np.pi) / np.sqrt(8 * np.pi * k) if receivers else scale
    else:
        offset = points - center
        distance, angle = np.hypot(*offset.T), np.arctan2(offset[:, 1], offset[:, 0])
        rounded, place = np.unique(np.round(k * distance, 9), return_inverse=True)  # circles have one radius
        distinct = k * distance[np.unique(place, return_index=True)[1]] if len(rounded) < len(points) else k * distance
        place = place if len(rounded) < len(points) else np.arange(len(points))
        positive = _hankel(distinct, directions.order)[place]
        series = positive[:, np.abs(orders)] * np.where((orders < 0) & (orders % 2 != 0), -1.0, 1.0)  # H_-m
        series *= 0.25j * np.exp(1j * np.outer(angle, orders)) * np.array([1, -1j, -1, 1j])[orders % 4]
    spread = np.zeros((len(points), directions.count), dtype=np.complex128)
    spread[:, orders % directions.count] = series
    waves = np.fft.fft(spread, axis=1) * (scale / directions.count)
    one, other = waves[:, : directions.half], waves[:, directions.half :]
    return np.concatenate([one + other, 1j * (one - other)], axis=1)


def _hankel(x: Real, order: int) -> Complex:
    """H_m(x) for m = 0 .. order: (len(x), order + 1)."""
    from scipy.special import hankel1

    return np.asarray(hankel1(0, x))[:, None] * _hankel_ratios(x, order)


def _hankel_ratios(x: Real, order: int) -> Complex:
    """H_m(x) / H_0(x) by H_{m+1} = (2m / x) H_m - H_{m-1}, which is stable upwards since Y_m grows."""
    from scipy.special import hankel1e

    out = np.ones((len(x), order + 1), dtype=np.complex128)
    if order > 0:
        out[:, 1] = hankel1e(1, x) / hankel1e(0, x)
    for m in range(1, order):
        out[:, m + 1] = (2 * m / x) * out[:, m] - out[:, m - 1]
    return out
