"""Does an experiment make physical sense? A forgotten unit shows in ratios that no instrument has.

Ratios of lengths show it; lengths themselves do not, since an image may be of a cell or of a tunnel. Impossible
experiments (an antenna inside the image, a pixel of many wavelengths) are refused; unlikely ones (an image finer than a
hundredth of a wavelength) cause a warning. Lengths are compared with the wavelength in the medium,
lambda / sqrt(background).

| ratio | usual | warning | refused |
| --- | --- | --- | --- |
| pixels a wavelength | 4 to 100 | below 2, above 300 | below 0.1 |
| diagonal of the image, in wavelengths | 0.5 to 100 | below 1/4 | below 1/30 |
| distance of antennas, in diagonals of the image | 0.6 to 50 | above 500 | inside the image; above 1e9 wavelengths |
| background permittivity | 1 to 100 | | below 1e-3, above 1e4 |
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.images.grid import Grid, Points
from plugstream.models.born_geometry import BornGeometry

_FEW_PIXELS, _TOO_FEW_PIXELS, _MANY_PIXELS = 2.0, 0.1, 300.0
_SMALL_IMAGE, _TOO_SMALL_IMAGE = 1 / 4, 1 / 30
_FAR, _TOO_FAR = 500.0, 1e9  # in diagonals; in wavelengths, where double precision keeps six digits of a phase
_PERMITTIVITY = (1e-3, 1e4)
_UNITS = "are all lengths in one unit? Scans are in metres, and 'plugstream import' takes --unit mm"


class Experiment(Protocol):
    """What is known of an experiment before its first view, also of a `BornGeometry`."""

    @property
    def receivers(self) -> Points: ...
    @property
    def wavelength(self) -> float: ...
    @property
    def grid(self) -> Grid: ...
    @property
    def background(self) -> float: ...
    @property
    def far_field(self) -> bool: ...


def check_plausible(setup: Experiment) -> None:
    """Refuse an impossible experiment, by its wavelength, pixels, receivers and, for a geometry, transmitters."""
    low, high = _PERMITTIVITY
    if not low <= setup.background <= high:
        raise InputError(
            f"the background's relative permittivity is {setup.background:g}, and must be from {low:g} to {high:g}"
        )
    wavelength, pixel = _wavelength(setup), setup.grid.pixel
    if pixel > wavelength / _TOO_FEW_PIXELS:
        raise InputError(
            f"a pixel of {pixel:.4g} m is {pixel / wavelength:.4g} wavelengths of {wavelength:.4g} m wide, and an "
            f"image needs two pixels a wavelength at least; {_UNITS}"
        )
    if (across := _diagonal(setup.grid) / wavelength) < _TOO_SMALL_IMAGE:
        raise InputError(
            f"the image is {across:.2g} wavelengths of {wavelength:.4g} m across, with {wavelength / pixel:,.0f} "
            f"pixels a wavelength, so nothing in it can be told apart; {_UNITS}"
        )
    for name, points in _antennas(setup):
        check_places(name, points, setup)


def warn_if_implausible(setup: Experiment) -> None:
    """Warn if an experiment is unusual."""
    wavelength, pixel, across = _wavelength(setup), setup.grid.pixel, _diagonal(setup.grid)
    if wavelength / pixel < _FEW_PIXELS:
        _warn(
            f"there are {wavelength / pixel:.2g} pixels a wavelength of {wavelength:.4g} m, and the field needs two at "
            "least, better four; use smaller pixels"
        )
    if across < _SMALL_IMAGE * wavelength or wavelength / pixel > _MANY_PIXELS:
        _warn(
            f"the image is {across / wavelength:.2g} wavelengths of {wavelength:.4g} m across, with "
            f"{wavelength / pixel:,.0f} pixels a wavelength, far finer than the data can tell"
        )
    for name, points in _antennas(setup):
        warn_of_places(name, points, setup)


def _antennas(setup: Experiment) -> Iterator[tuple[str, Points]]:
    if not setup.far_field:
        yield "receiver", setup.receivers
    if isinstance(setup, BornGeometry) and setup.transmitters is not None:
        yield "transmitter", setup.transmitters


def check_places(name: str, points: Points, setup: Experiment) -> None:
    """Refuse antennas (count, 2) inside the image or too far away for their phase; name them as `name`."""
    grid, wavelength = setup.grid, _wavelength(setup)
    (height, width), (x, y) = grid.shape, grid.center
    column = (points[:, 0] - x) / grid.pixel + width // 2
    row = (points[:, 1] - y) / grid.pixel + height // 2
    inside = (column > -0.5) & (column < width - 0.5) & (row > -0.5) & (row < height - 0.5)
    if inside.any():
        number = int(np.argmax(inside))
        x, y = points[number]
        raise InputError(
            f"{name} {number} at ({x:.4g}, {y:.4g}) m is inside the image, which is {width * grid.pixel:.4g} x "
            f"{height * grid.pixel:.4g} m; {_UNITS}"
        )
    if (farthest := _farthest(points, grid)) > _TOO_FAR * wavelength:
        raise InputError(
            f"a {name} is {farthest:.4g} m away, {farthest / wavelength:.2g} wavelengths, beyond what a phase can be "
            f"computed for; {_UNITS}"
        )


def warn_of_places(name: str, points: Points, setup: Experiment) -> None:
    """Warn of antennas (count, 2) that are unusually far away."""
    across = _diagonal(setup.grid)
    if (farthest := _farthest(points, setup.grid)) > _FAR * across:
        _warn(
            f"a {name} is {farthest:.4g} m away, {farthest / across:,.0f} times the image's diagonal of {across:.4g} m"
        )


def _warn(text: str) -> None:
    warnings.warn(f"{text}; are all lengths in metres?", PlugstreamWarning, stacklevel=4)


def _wavelength(setup: Experiment) -> float:
    """In the medium."""
    return setup.wavelength / math.sqrt(setup.background)


def _diagonal(grid: Grid) -> float:
    return math.hypot(*grid.shape) * grid.pixel


def _farthest(points: Points, grid: Grid) -> float:
    """From the image's centre."""
    return float(np.hypot(*(points - np.asarray(grid.center)).T).max())
