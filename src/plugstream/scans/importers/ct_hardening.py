"""Beam hardening of one material, found from rays that run in it alone, and taken out of line integrals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from plugstream.models.ct_geometry import Rays
from plugstream.models.ct_support import chords, find_tangents, fit_disc, fits

__all__ = ["Hardening", "find_hardening"]

Numbers = NDArray[np.float64]

# Lengths of ways through the disc, as parts of its diameter, by which rays are sorted, and how many of a length tell.
_LENGTHS, _LEAST = np.linspace(0.18, 0.98, 29), 20
# Of rays of one length those that run in material alone show most: this quantile.
_SOLID = 0.95
# Rays up to half of the diameter must show one smooth curve to this part; of longer ones those count that follow it.
_HALF, _FOLLOWS = 0.5, 0.015
# At least this part of all lengths must follow, and this part of rays run through less material than their length.
_KNOWN, _HOLES = 0.5, 0.03
# What is less than this at the diameter is left alone, and more than that is something else.
_LITTLE, _MUCH = 0.05, 0.5


@dataclass(frozen=True)
class Hardening:
    """y = l (a - b l - c l^2) along l of a material, whose value at its surface is a.

    Attributes: a, b, c; diameter, up to which it is known; part, how much less than a l a ray shows there.
    """

    a: float
    b: float
    c: float
    diameter: float

    @property
    def part(self) -> float:
        return (self.b * self.diameter + self.c * self.diameter**2) / self.a

    def correct(self, integrals: NDArray[np.float32]) -> NDArray[np.float32]:
        """Line integrals that are proportional to the material on the way, a l, as those of a single energy are."""
        length = np.linspace(0, 1.05 * self.diameter, 4096)
        shown = length * (self.a - self.b * length - self.c * length**2)
        found = np.interp(integrals, shown, self.a * length)
        slope = (self.a * length[-1] - self.a * length[-2]) / (shown[-1] - shown[-2])
        beyond = self.a * length[-1] + slope * (integrals - shown[-1])
        return np.where(integrals <= 0, integrals, np.where(integrals > shown[-1], beyond, found)).astype(np.float32)


def find_hardening(rays: Rays, integrals: NDArray[np.float32]) -> Hardening | None:
    r"""How much less long ways through a material attenuate than short ones, None where the data does not tell.

    A tube has many energies, of which a material takes the soft ones first, so that the attenuation y / l falls
    with the way l. Where the object is a disc (its tangent rays say so) l is known of every ray, and where it is of
    one material with holes, y / l of the rays that miss the holes is the largest of all rays of that length.
    Lengths up to half of the diameter must show one smooth, falling curve a - b l - c l^2, and longer ones must not
    rise above it; a disc without any holes is left alone, since one that is denser at its rim looks the same. So
    are tubes and layers, whose curve has a corner.

    Arguments: rays, of a detector without rows; integrals, (views, columns), without air.
    Reference: linearization of a polychromatic beam, Herman, Phys. Med. Biol. 24, 1979.
    """
    tangents = find_tangents(rays, integrals)
    if tangents.refusal:
        return None
    (x, y, radius), mean, worst = fit_disc(tangents)
    if not fits(mean, worst) or radius <= 0:
        return None
    way, data = chords(rays, (x, y, radius)), integrals.astype(np.float64)
    lengths, shown = [], []
    for low, high in zip(2 * radius * _LENGTHS[:-1], 2 * radius * _LENGTHS[1:], strict=True):
        here = (way >= low) & (way < high)
        if here.sum() >= _LEAST:
            lengths.append((low + high) / 2)
            shown.append(np.quantile(data[here] / way[here], _SOLID))
    length, largest = np.array(lengths), np.array(shown)
    used = length <= _HALF * 2 * radius
    if used.sum() < 6:
        return None
    a, b, c = _fit(length[used], largest[used])
    if np.abs(_off(length, largest, a, b, c)[used]).max() > _FOLLOWS:
        return None
    for _ in range(8):  # those above it count, too, and raise it
        used = _off(length, largest, a, b, c) >= -_FOLLOWS
        a, b, c = _fit(length[used], largest[used])
    off = _off(length, largest, a, b, c)
    if off.max() > 2 * _FOLLOWS or (np.abs(off) <= _FOLLOWS).mean() < _KNOWN:
        return None
    found = Hardening(a, b, c, 2 * radius)
    slope = a - 2 * b * 2.1 * radius - 3 * c * (2.1 * radius) ** 2
    expected = way * (a - b * way - c * way**2)
    holes = (data < 0.9 * expected)[way > 0.3 * 2 * radius].mean()
    return found if _LITTLE <= found.part <= _MUCH and slope > 0 and holes >= _HOLES else None


def _off(length: Numbers, shown: Numbers, a: float, b: float, c: float) -> Numbers:
    """By which part rays of a length show more than the curve."""
    off: Numbers = shown / np.maximum(a - b * length - c * length**2, 1e-300) - 1
    return off


def _fit(length: Numbers, shown: Numbers) -> tuple[float, float, float]:
    """a - b l - c l^2 with b, c >= 0 by least squares."""
    scale = float(length.max())
    table = np.stack([np.ones_like(length), -length / scale, -((length / scale) ** 2)], 1)
    (a, b, c), _ = nnls(table, shown)
    return float(a), float(b / scale), float(c / scale**2)
