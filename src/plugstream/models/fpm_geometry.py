"""Microscopes lit by one LED after another: where the light comes from, and what the objective lets through."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plugstream.base.errors import InputError

_NEWTON = 60  # steps at most, of which four or five are needed


@dataclass(frozen=True)
class Microscope:
    """A microscope whose camera records intensities.

    Arguments: shape, rows and columns of the field, the camera's with a guard about it if there is one; pixel, metres
    from one pixel to the next as the object sees them; wavelength in vacuum, in metres; aperture, the numerical one of
    the objective; image, rows and columns of the image, which spans the field with finer pixels.
    """

    shape: tuple[int, int]
    pixel: float
    wavelength: float
    aperture: float
    image: tuple[int, int]

    def __post_init__(self) -> None:
        if len(self.shape) != 2 or min(self.shape) < 2:
            raise InputError(f"a camera has two or more rows and columns, not {self.shape}")
        if len(self.image) != 2 or any(a < b for a, b in zip(self.image, self.shape, strict=True)):
            raise InputError(f"the image must have at least as many pixels as the field {self.shape}, not {self.image}")
        for name in ("pixel", "wavelength", "aperture"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} must be > 0 and finite, not {value}")

    @property
    def spacing(self) -> tuple[float, float]:
        """Metres from one pixel of the image to the next, along rows and columns."""
        height, width = (n * self.pixel / m for n, m in zip(self.shape, self.image, strict=True))
        return height, width

    @property
    def radius(self) -> tuple[float, float]:
        """The aperture in steps of the spectrum, which are 1 / (n pixel), along rows and columns."""
        rows, columns = (self.aperture / self.wavelength * n * self.pixel for n in self.shape)
        return rows, columns

    @property
    def box(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """First and last step of the spectrum that passes the objective, plus one, of rows and of columns.

        The additional step is for views whose middle lies between two steps. A camera's coarse pixels may limit them.
        """
        ends = []
        for radius, n in zip(self.radius, self.shape, strict=True):
            reach = math.floor(radius * (1 + 1e-12)) + 1
            ends.append((max(-reach, -(n // 2)), min(reach, (n - 1) // 2)))
        return ends[0], ends[1]

    def frequencies(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Sines of the angles at which waves of the box leave, along y, (rows, 1), and along x, (1, columns)."""
        y, x = (
            np.arange(first, last + 1, dtype=np.float64) * (self.wavelength / (n * self.pixel))
            for (first, last), n in zip(self.box, self.shape, strict=True)
        )
        return y[:, None], x[None, :]


def spiral(count: int) -> NDArray[np.int64]:
    """Places on a grid of LEDs lit in a square spiral from the middle: (count, 2), steps along x and y.

    It goes +x, +y, twice -x, twice -y, three times +x and so on.
    """
    sides = (turn for turn in itertools.count() for _ in range(turn // 2 + 1))
    steps = [((1, 0), (0, 1), (-1, 0), (0, -1))[turn % 4] for turn in itertools.islice(sides, max(count - 1, 0))]
    return np.cumsum([(0, 0), *steps], axis=0, dtype=np.int64)[: max(count, 0)]


def light_directions(
    places: ArrayLike, distance: float, thickness: float = 0.0, index: float = 1.0
) -> NDArray[np.float64]:
    r"""Sines of the angles under which LEDs are seen from the object, along x and y: (views, 2).

    Without a slide sin = r / sqrt(r^2 + distance^2) for an LED at a distance r from the axis. A slide between them
    bends the light by Snell's law, and the angle in air solves

        r = distance tan(a) + thickness tan(b),    sin(a) = index sin(b),

    the distance being that in air; Newton's method finds it to rounding, since r grows with sin(a) and faster and
    faster.

    Arguments: places (views, 2), x and y of LEDs in metres from the optical axis; distance from LEDs to the slide, or
    the object where there is none, in metres; thickness of the slide in metres and its refractive index.
    """
    xy = np.asarray(places, dtype=np.float64)
    if xy.ndim != 2 or xy.shape[1] != 2 or not np.isfinite(xy).all():
        raise InputError(f"places of LEDs must be (views, 2), finite, not {xy.shape}")
    if not (math.isfinite(distance) and distance > 0):
        raise InputError(f"the distance to the LEDs must be > 0, not {distance}")
    if not (math.isfinite(thickness) and thickness >= 0 and math.isfinite(index) and index >= 1):
        raise InputError(f"a slide is 0 or more thick, of an index of 1 or more, not {thickness} and {index}")
    away = np.hypot(xy[:, 0], xy[:, 1])
    slope = away / distance
    for _ in range(_NEWTON):  # in the slope t = tan(a), of which the way through the slide is a concave function
        sine = slope / np.sqrt(1 + slope**2)
        depth = np.sqrt(index**2 - sine**2)
        off = distance * slope + thickness * sine / depth - away
        rate = distance + thickness * index**2 / depth**3 * (1 + slope**2) ** -1.5
        change = off / rate
        slope = slope - change
        if np.all(np.abs(change) <= 1e-15 * (1 + slope)):
            break
    sine = slope / np.sqrt(1 + slope**2)
    return xy * (sine / np.where(away == 0, 1.0, away))[:, None]


def aim_crops(directions: ArrayLike, microscope: Microscope) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The middle of each view in the image's spectrum: whole steps and the rest, row and column, (views, 2) each.

    The rest is from -1/2 to 1/2. Light of an LED at +x goes towards -x, so what leaves along the axis had the frequency
    +sin / wavelength before. A view that sees beyond the image's spectrum is refused.

    Arguments: directions (views, 2), of `light_directions`; microscope.
    """
    sines = np.asarray(directions, dtype=np.float64)
    if sines.ndim != 2 or sines.shape[1] != 2 or not np.isfinite(sines).all():
        raise InputError(f"directions of light must be (views, 2), finite, not {sines.shape}")
    exact = sines[:, ::-1] * (np.array(microscope.shape) * microscope.pixel / microscope.wavelength)
    steps = np.rint(exact).astype(np.int64)
    ends = zip(("rows", "columns"), microscope.box, microscope.image, strict=True)
    for axis, (word, (first, last), n) in enumerate(ends):
        out = (steps[:, axis] + first < -(n // 2)) | (steps[:, axis] + last > (n - 1) // 2)
        if out.any():
            reach = int(np.abs(steps[:, axis]).max()) + max(-first, last)
            raise InputError(
                f"view {int(out.argmax())} sees finer detail than an image of {n} {word} has; make it of "
                f"{2 * reach + 2} or more"
            )
    return steps, exact - steps


def light_curvature(microscope: Microscope, curvature: float) -> NDArray[np.complex128] | None:
    r"""The factor exp(i pi r^2 / (wavelength z)) that the light of all LEDs at a distance z has in common.

    An LED at p sends the wave exp(i pi |r - p|^2 / (wavelength z)) to a place r of the object that is much nearer to
    the axis than z. Except for a constant phase, that is a plane wave from p's direction times this factor, so plane
    waves see the object times the factor.

    Arguments: microscope; curvature 1/z in 1/m, 0 for plane waves. Returns (*image), with r from pixel N // 2, or None.
    Reference: Zheng, Horstmeyer and Yang, Nature Photonics 7, 2013 (its methods treat the field in small tiles).
    """
    if not math.isfinite(curvature):
        raise InputError(f"the curvature of the light must be finite, in 1/m, not {curvature}")
    if curvature == 0:
        return None
    y, x = ((np.arange(n) - n // 2) * step for n, step in zip(microscope.image, microscope.spacing, strict=True))
    squares = y[:, None] ** 2 + x[None, :] ** 2
    return np.asarray(np.exp(1j * np.pi * curvature / microscope.wavelength * squares))


def make_pupil(
    microscope: Microscope, defocus: float = 0.0, aberrations: ArrayLike | None = None, *, soft: bool = False
) -> NDArray[np.complex128]:
    r"""The objective's factor of each wave within its aperture, on the microscope's `box`; zero outside.

        P = exp(i defocus (k_z - k)) exp(i sum_j c_j Z_j),    k_z = sqrt(k^2 - k_x^2 - k_y^2),  k = 2 pi / wavelength.

    Arguments: defocus, metres from the object to the plane in focus along the light; aberrations c_0, c_1, ... in
    radians (root mean square over the aperture) of the polynomials `zernike`; soft, whether a step of the spectrum on
    the aperture's edge counts by the part of it that is inside, rather than by its middle: this suits an edge that is
    not known to a step, and LEDs, which are not points.
    """
    sy, sx = microscope.frequencies()
    square = sy**2 + sx**2
    inside: NDArray[Any] = square <= microscope.aperture**2 * (1 + 1e-9)
    if soft:
        step = microscope.wavelength / (microscope.pixel * min(microscope.shape))
        inside = np.clip(0.5 + (microscope.aperture - np.sqrt(square)) / step, 0, 1)
    k = 2 * np.pi / microscope.wavelength
    # k_z - k, written so that no digits are lost where both are nearly equal; waves beyond k vanish.
    phase = -defocus * k * square / (1 + np.sqrt(np.clip(1 - square, 0, None)))
    if aberrations is not None:
        rho, theta = np.sqrt(square) / microscope.aperture, np.arctan2(sy + 0 * sx, sx + 0 * sy)
        for j, weight in enumerate(np.asarray(aberrations, dtype=np.float64).reshape(-1)):
            if weight != 0:
                phase = phase + weight * zernike(j, rho, theta)
    return np.where(square < 1, inside * np.exp(1j * phase), 0)


def zernike(j: int, rho: NDArray[np.float64], theta: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Zernike's polynomial with the standard index j = (n (n + 2) + m) / 2, of mean square 1 over the unit disc.

        Z = N R_n^|m|(rho) cos(m theta) for m >= 0 and sin(|m| theta) for m < 0,    N = sqrt((2) (n + 1)),

    j = 0 is piston, 1 and 2 tilt, 3 and 5 astigmatism, 4 defocus, 7 and 8 coma, 12 spherical aberration.

    Arguments: j >= 0; rho, distance from the middle, 1 at the edge; theta, angle from x.
    Reference: Thibos et al., J. Refract. Surg. 18(5), 2002, which is ANSI Z80.28.
    """
    if j < 0:
        raise InputError(f"the index of Zernike's polynomials begins with 0, and {j} is below that")
    n = math.ceil((-3 + math.sqrt(9 + 8 * j)) / 2)
    m = 2 * j - n * (n + 2)
    size = abs(m)
    radial = np.zeros_like(rho)
    for s in range((n - size) // 2 + 1):
        below = math.factorial(s) * math.factorial((n + size) // 2 - s) * math.factorial((n - size) // 2 - s)
        radial = radial + (-1) ** s * math.factorial(n - s) / below * rho ** (n - 2 * s)
    scale = math.sqrt((n + 1) * (1 if m == 0 else 2))
    around = np.cos(size * theta) if m >= 0 else np.sin(size * theta)
    return np.asarray(scale * radial * around)


def fitting_size(microscope: Microscope, directions: NDArray[np.float64]) -> tuple[int, int]:
    """Rows and columns of the smallest image, in whole multiples of the camera's, that has what these views see.

    Arguments: microscope, of which the image does not count; directions (views, 2), of `light_directions`.
    """
    steps = np.rint(
        np.abs(directions[:, ::-1]).max(0) * np.array(microscope.shape) * microscope.pixel / microscope.wavelength
    )
    factor = 1
    for step, (first, last), n in zip(steps, microscope.box, microscope.shape, strict=True):
        reach = int(step) + max(-first, last)
        factor = max(factor, math.ceil((2 * reach + 2) / n))
    return microscope.shape[0] * factor, microscope.shape[1] * factor
