"""Beam hardening of one material, found from rays that run in it alone, and its correction."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from plugstream.models.ct_geometry import Rays
from plugstream.models.ct_support import chords, find_tangents, fit_disc, fits

Numbers = NDArray[np.float64]

# Bins of path lengths through the disc, as parts of its diameter, and the least number of rays in a bin.
_LENGTHS, _LEAST = np.linspace(0.18, 0.98, 29), 20
# The rays of one length that run in material alone show most: this quantile.
_SOLID = 0.95
# Rays up to half of the diameter must follow one smooth curve to this part; longer ones count if they follow it.
_HALF, _FOLLOWS = 0.5, 0.015
# At least this part of all lengths must follow, and this part of rays must meet holes.
_KNOWN, _HOLES = 0.5, 0.03
# Less than this at the diameter is left alone, and more than that is something else.
_LITTLE, _MUCH = 0.05, 0.5


@dataclass(frozen=True)
class Hardening:
    """y = l (a - b l - c l^2) for a path of length l in a material, whose value at its surface is a.

    Attributes: a, b, c; diameter, up to which it holds; part, by how much less than a l a ray shows there.
    """

    a: float
    b: float
    c: float
    diameter: float

    @property
    def part(self) -> float:
        return (self.b * self.diameter + self.c * self.diameter**2) / self.a

    def correct(self, integrals: NDArray[np.float32]) -> NDArray[np.float32]:
        """Line integrals that are proportional to the length in the material, a l, as those of a single energy."""
        length = np.linspace(0, 1.05 * self.diameter, 4096)
        hard, ideal = length * (self.a - self.b * length - self.c * length**2), self.a * length
        slope = (ideal[-1] - ideal[-2]) / (hard[-1] - hard[-2])
        beyond = ideal[-1] + slope * (integrals - hard[-1])
        corrected = np.where(integrals > hard[-1], beyond, np.interp(integrals, hard, ideal))
        return np.where(integrals <= 0, integrals, corrected).astype(np.float32)


def find_hardening(rays: Rays, integrals: NDArray[np.float32]) -> Hardening | None:
    r"""How much less long paths through a material attenuate than short ones, None where the data does not tell.

    A tube has many energies, and a material absorbs the soft ones first, so that the attenuation y / l falls with the
    length l. In a disc, which tangent rays reveal, l is known for every ray, and in one material with holes, y / l is
    largest for the rays that miss the holes. Lengths up to half of the diameter must show one smooth, falling curve
    a - b l - c l^2, and longer ones must not rise above it. A disc without holes is left alone, since one that is
    denser at its rim looks the same, and so are tubes and layers, whose curve has a corner.

    Arguments: rays, of a detector without rows; integrals, (views, columns), without air.
    Reference: linearization of a polychromatic beam, Herman, Phys. Med. Biol. 24, 1979.
    """
    tangents = find_tangents(rays, integrals)
    if tangents.refusal:
        return None
    (x, y, radius), mean, worst = fit_disc(tangents)
    if not fits(mean, worst) or radius <= 0:
        return None
    path, data = chords(rays, (x, y, radius)), integrals.astype(np.float64)
    points = []
    for low, high in pairwise(2 * radius * _LENGTHS):
        inside = (path >= low) & (path < high)
        if inside.sum() >= _LEAST:
            points.append(((low + high) / 2, np.quantile(data[inside] / path[inside], _SOLID)))
    length, largest = np.array(points).reshape(-1, 2).T
    used = length <= _HALF * 2 * radius
    if used.sum() < 6:
        return None
    a, b, c = _fit(length[used], largest[used])
    if np.abs(_off(length, largest, a, b, c)[used]).max() > _FOLLOWS:
        return None
    for _ in range(8):  # values above the curve count, too, and raise it
        used = _off(length, largest, a, b, c) >= -_FOLLOWS
        a, b, c = _fit(length[used], largest[used])
    off = _off(length, largest, a, b, c)
    if off.max() > 2 * _FOLLOWS or (np.abs(off) <= _FOLLOWS).mean() < _KNOWN:
        return None
    hardening = Hardening(a, b, c, 2 * radius)
    slope = a - 2 * b * 2.1 * radius - 3 * c * (2.1 * radius) ** 2
    expected = path * (a - b * path - c * path**2)
    holes = (data < 0.9 * expected)[path > 0.3 * 2 * radius].mean()
    return hardening if _LITTLE <= hardening.part <= _MUCH and slope > 0 and holes >= _HOLES else None


def _off(length: Numbers, values: Numbers, a: float, b: float, c: float) -> Numbers:
    """By which part values lie above the curve."""
    off: Numbers = values / np.maximum(a - b * length - c * length**2, 1e-300) - 1
    return off


def _fit(length: Numbers, values: Numbers) -> tuple[float, float, float]:
    """a - b l - c l^2 with b, c >= 0 by least squares."""
    from scipy.optimize import nnls  # which takes a second

    scale = float(length.max())
    table = np.stack([np.ones_like(length), -length / scale, -((length / scale) ** 2)], 1)
    (a, b, c), _ = nnls(table, values)
    return float(a), float(b / scale), float(c / scale**2)
