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
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.images.grid import Grid
from plugstream.models.born_geometry import BornGeometry

Real = NDArray[np.float64]
Complex = NDArray[np.complexfloating[Any, Any]]

_NOTHING = 1e-40  # of J_m(ka), beyond which orders add nothing at any eps
# The accuracy of the FFT and the products, relative to the data: chosen so that random geometries keep to eps.
_ROUNDING = {True: 2e-7, False: 5e-14}
# The largest gain in double precision: with 10 twice, forward and adjoint are transposes to 1e-12.
_MOST_GAIN = 10.0
# Parts of eps for cutting off the series of sources and of receivers each, and for the FFT with its rounding.
_CUT, _TRANSFORM = 0.1, 0.5
_BLOCK_VALUES = 1 << 16  # coefficients that are computed at once
_RADII = 64  # whose series are kept
_POINTS = 1 << 16  # whose distances are computed at once


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
    """Plan the fast method at accuracy eps, or say in one line why it is impossible.

    Every transmitter and receiver must be far enough from the grid's centre for its series to end before its
    coefficients grow so much that rounding, amplified by the `gain` of both, exceeds eps. That smallest radius exceeds
    that of the corners by about 3 (k a)^{1/3} / k.

    Arguments: geometry; eps, relative to the scattered field in all directions; single, for single precision.
    """
    if geometry.fields is not None:
        raise InputError("the fast method needs transmitters or plane waves, not given fields; use method='dense'")
    k, a = geometry.wavenumber, support_radius(geometry.grid)
    most = largest_gain(eps, single=single)
    chosen, gains = Directions(0, 2), 1.0
    nearest: list[float | None] = []
    for antennas in ("transmitters", "receivers"):
        points: Real | None = getattr(geometry, antennas)
        if points is None or (antennas == "receivers" and geometry.far_field):
            nearest.append(None)
            continue
        place, distance = _nearest(points, geometry.grid)
        needed = choose_directions(k * a, k * distance, _CUT * eps) if distance > a else None
        if needed is None or gain(k * distance, needed) > most:
            least = smallest_radius(k * a, _CUT * eps, most) / k
            raise InputError(
                f"{antennas[:-1]} {place} is {distance:.5g} m from the grid's centre, and the fast method needs at "
                f"least {_round_up(least):.5g} m for eps = {eps:g} in {'single' if single else 'double'} precision; "
                "use method='dense', a larger eps, or a smaller image"
            )
        nearest.append(k * distance)
    for kr in nearest:
        needed = choose_directions(k * a, kr, _CUT * eps)
        assert needed is not None
        chosen = Directions(max(chosen.order, needed.order), max(chosen.count, needed.count))
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
    """Upwards to five digits, so that the radius in a message is accepted."""
    digits = 4 - int(np.floor(np.log10(value)))
    return float(np.ceil(value * 10**digits) / 10**digits)


def support_radius(grid: Grid) -> float:
    """a, the distance from the pixel at the grid's centre to the farthest pixel, in metres.

    The centre is that pixel, not the middle of the rectangle half a pixel away, so that pixels have integer
    coordinates, as the FFT needs, and circles about the grid's centre have one radius. It costs one order.
    """
    return float(grid.pixel * np.hypot(grid.shape[0] // 2, grid.shape[1] // 2))


def source_distance(geometry: BornGeometry, start: int = 0) -> float:
    """Metres from the grid's centre to the nearest transmitter of views from `start` on; infinity for plane waves."""
    if geometry.transmitters is None or start >= geometry.n_views:
        return float("inf")
    return _nearest(geometry.transmitters[start:], geometry.grid)[1]


def _nearest(points: Real, grid: Grid) -> tuple[int, float]:
    """The number of the point nearest to the grid's centre and its distance, in blocks, for millions of points."""
    best, least = 0, float("inf")
    for start in range(0, len(points), _POINTS):
        distance = np.hypot(*(points[start : start + _POINTS] - np.asarray(grid.center, dtype=np.float64)).T)
        place = int(np.argmin(distance))
        if distance[place] < least:
            best, least = start + place, float(distance[place])
    return best, least


@lru_cache(maxsize=256)  # models are built again for parts of the same views: a twentieth of a small run
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
    ratio = np.ones(top) if kr is None else np.hypot(*_hankel_ratios(np.array([kr]), top - 1)[..., 0])
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
    ratio = np.hypot(*_hankel_ratios(np.array([kr]), directions.order)[..., 0])
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


class Coefficients:
    r"""Each source's coefficients of cos(k s_p . r) and sin(k s_p . r), p = 0 .. P/2 - 1: points (n, 2) to (n, P).

    With W[t, p] = 1/P sum_{|m| <= M} a_m exp(i m (phi_t - theta_p)) the waves +-s_p give the cosine W[t, p] +
    W[t, p + P/2] and the sine i (W[t, p] - W[t, p + P/2]). Here a_m = (i/4) H_m(k R_t) i^{-m} for a line source; for a
    plane wave of direction phi it is a phase for the grid's place, whatever m. Receivers are sources too, by
    reciprocity, with k_0^2 dA in front; those of the far field are plane waves from where they lie, times
    exp(i pi/4) / sqrt(8 pi k), the limit of (i/4) H_0(k r) sqrt(r) exp(-i k r). As a_{-m} = a_m, the real and the
    imaginary part of W are real Fourier series, and a real FFT each.

    A row has the same bits whatever rows are asked for with it, so it may be kept or computed again. Sources on circles
    have few radii, and the series of the last few are kept.

    Holds for sources farther than the radius given to `choose_directions`.

    Arguments: geometry, of which no point is kept; kind, "transmitters", "plane_waves" or "receivers"; directions.
    """

    def __init__(self, geometry: BornGeometry, kind: str, directions: Directions) -> None:
        self.directions, self.wavenumber = directions, geometry.wavenumber
        self.center = np.asarray(geometry.grid.center, dtype=np.float64)
        receivers = kind == "receivers"
        self.plane = kind == "plane_waves" or (receivers and geometry.far_field)
        self.scale: complex = (2 * np.pi / geometry.wavelength) ** 2 * geometry.grid.pixel**2 if receivers else 1.0
        if receivers and self.plane:
            self.scale *= np.exp(0.25j * np.pi) / np.sqrt(8 * np.pi * self.wavenumber)
        self._sign = -1.0 if receivers else 1.0
        # Radii, in order and with infinity at the end, and their series: one attribute, so that threads see both.
        self._cache: tuple[Real, Real] = np.array([np.inf]), np.zeros((1, 2, directions.order + 1))

    @property
    def held(self) -> int:
        """Bytes kept."""
        return sum(array.nbytes for array in self._cache)

    def __call__(self, points: Real) -> Complex:
        """A block at a time, since it is done in double precision with several arrays of this size."""
        out = np.empty((len(points), self.directions.count), dtype=np.complex128)
        step = max(1, _BLOCK_VALUES // self.directions.count)
        for start in range(0, len(points), step):
            self._fill(out[start : start + step], points[start : start + step])
        return out

    def _fill(self, out: Complex, points: Real) -> None:
        # All in real numbers: how NumPy multiplies complex ones may depend on their place in the array.
        half, count = self.directions.half, self.directions.count
        if self.plane:
            x, y = np.ascontiguousarray(self._sign * points.T)
            phase = self.wavenumber * (x * self.center[0] + y * self.center[1])
            cos, sin, scale = np.cos(phase), np.sin(phase), complex(self.scale)
            series = np.stack([scale.real * cos - scale.imag * sin, scale.real * sin + scale.imag * cos], 1)[:, :, None]
        else:
            x, y = np.ascontiguousarray((points - self.center).T)
            series = self._series(self.wavenumber * np.hypot(x, y))
        turn = np.multiply.outer(np.arctan2(y, x), np.arange(self.directions.order + 1.0))[:, None]
        spectrum = np.empty((len(points), 2, self.directions.order + 1), dtype=np.complex128)
        np.multiply(series, np.cos(turn), out=spectrum.real)
        np.multiply(series, -np.sin(turn), out=spectrum.imag)  # irfft has exp(+i m theta): so this is the mirror image
        waves = np.fft.irfft(spectrum, n=count, axis=2)
        real, imag = waves[:, 0], waves[:, 1]
        np.add(real[:, :half], real[:, half:], out=out[:, :half].real)
        np.add(imag[:, :half], imag[:, half:], out=out[:, :half].imag)
        np.subtract(imag[:, half:], imag[:, :half], out=out[:, half:].real)
        np.subtract(real[:, :half], real[:, half:], out=out[:, half:].imag)

    def _series(self, x: Real) -> Real:
        """a_m of line sources at x = k R, m = 0 .. M: (n, 2, M + 1), real and imaginary parts."""
        radii, series = self._cache
        place = np.searchsorted(radii, x)
        cached = radii[place] == x
        if not cached.all():
            new = np.unique(x[~cached])
            radii, series = np.concatenate([new, radii]), np.concatenate([self._line_sources(new), series])
            order = np.argsort(radii)
            radii, series = radii[order], series[order]
            place = np.searchsorted(radii, x)
            last = slice(None) if len(radii) <= _RADII else np.append(np.searchsorted(radii, new[: _RADII - 1]), -1)
            self._cache = radii[last], series[last]
        return series[place]

    def _line_sources(self, x: Real) -> Real:
        from scipy.special import hankel1

        order, first = self.directions.order, hankel1(0, x) * (0.25 * self.scale)
        j, y = _hankel_ratios(x, order)
        j, y = first.real * j - first.imag * y, first.real * y + first.imag * j  # of H_m / 4, (M + 1, n)
        out = np.empty((len(x), 2, order + 1))
        # i^{1 - m} (J + i Y) is i J - Y, J + i Y, Y - i J, -J - i Y, and so on
        for m, (real, imag) in enumerate([(-y, j), (j, y), (y, -j), (-j, -y)]):
            out[:, 0, m::4], out[:, 1, m::4] = real[m::4].T, imag[m::4].T
        return out


def _hankel_ratios(x: Real, order: int) -> Real:
    """H_m(x) / H_0(x), m = 0 .. order, by H_{m+1} = (2m / x) H_m - H_{m-1}, which is stable upwards since Y_m grows.

    Returns real and imaginary parts, (2, order + 1, len(x)).
    """
    from scipy.special import hankel1e

    count = len(x)
    out = np.zeros((order + 1, 2 * count))  # rows are short and many, so that each step has to cost little
    out[0, :count] = 1.0
    if order > 0:
        ratio = hankel1e(1, x) / hankel1e(0, x)
        out[1] = np.concatenate([ratio.real, ratio.imag])
    factors = np.multiply.outer(2 * np.arange(1.0, order), 1 / np.concatenate([x, x]))
    rows = list(out)
    for before, last, after, factor in zip(rows, rows[1:], rows[2:], factors, strict=False):
        np.multiply(factor, last, after)
        np.subtract(after, before, after)
    return out.reshape(order + 1, 2, count).transpose(1, 0, 2)
