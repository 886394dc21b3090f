"""The transmitters, receivers and pixels of a scattering experiment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from plugstream.base.errors import InputError
from plugstream.base.rows import Rows
from plugstream.images.grid import Grid, Points


def ring(count: int, radius: float, *, start: float = 0.0, arc: float = 360.0) -> Points:
    """Positions evenly spaced on a circle about the origin: (count, 2) of x and y in metres.

    `start` and `arc` are in degrees. A full circle leaves out its end, which is its start; a shorter arc includes both
    ends, as linspace does.

        >>> import plugstream as ps
        >>> ps.ring(3, 2.0, arc=180.0).round(6).tolist()
        [[2.0, 0.0], [0.0, 2.0], [-2.0, 0.0]]
    """
    if count < 1 or radius <= 0:
        raise InputError(f"a ring needs a count >= 1 and a radius > 0, not {count} and {radius}")
    full = arc >= 360.0
    angle = np.deg2rad(start + np.linspace(0.0, arc, count, endpoint=not full))
    return radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)


@dataclass(frozen=True, eq=False)
class BornGeometry:
    """A 2D scalar scattering experiment: illuminations, receivers, wavelength, background and pixel grid.

    View i is the illumination from `transmitters[i]`, a line source, or the plane wave exp(i k s_i . r) with direction
    s_i = `plane_waves[i]`, or `fields[i]`, an incident field on the grid such as a measured beam: one of the three.
    Receivers are positions, and the data the scattered field there; with `far_field` they are directions s, and the
    data the amplitude A(s) of the scattered field, which far away is A(s) exp(i k r) / sqrt(r), r from the origin.
    Directions may have any length and are stored as unit vectors. `mask[i, m]` is False where receiver m did not record
    view i. Lengths are in metres, `wavelength` is that of vacuum, `background` a relative permittivity. `fields` and
    `mask` of a large scan are on disk (`Rows`): index them instead of converting them to arrays.
    """

    receivers: Points
    wavelength: float
    grid: Grid
    transmitters: Points | None = None
    background: float = 1.0
    mask: Rows | None = None
    fields: Rows | None = None
    plane_waves: Points | None = None
    far_field: bool = False

    def __post_init__(self) -> None:
        set_once = object.__setattr__
        set_once(self, "receivers", _points("receivers", self.receivers))
        if self.far_field:
            set_once(self, "receivers", _unit("receivers of the far field", self.receivers))
        if self.transmitters is not None:
            set_once(self, "transmitters", _points("transmitters", self.transmitters))
        if self.plane_waves is not None:
            set_once(self, "plane_waves", _unit("plane_waves", _points("plane_waves", self.plane_waves)))
        if sum(source is not None for source in (self.transmitters, self.fields, self.plane_waves)) != 1:
            raise InputError("a geometry needs either transmitters or fields or plane_waves, and only one of them")
        if self.fields is not None and (len(self.fields.shape) != 3 or self.fields.shape[1:] != self.grid.shape):
            raise InputError(
                f"fields have shape {self.fields.shape}, but must be (views, {self.grid.shape[0]}, "
                f"{self.grid.shape[1]}) to cover the grid"
            )
        if isinstance(self.fields, np.ndarray) and not np.isfinite(self.fields).all():
            view = int(np.argmin(np.isfinite(self.fields).all((1, 2))))
            raise InputError(f"fields hold NaN or infinity at view {view}")
        for name in ("wavelength", "background"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value > 0):
                raise InputError(f"{name} must be a number > 0, not {value}")
        if self.mask is not None:
            want = (self.n_views, self.n_receivers)
            if self.mask.shape != want:
                raise InputError(f"mask has shape {self.mask.shape}, but must be (views, receivers) = {want}")
            if isinstance(self.mask, np.ndarray):
                set_once(self, "mask", np.asarray(self.mask, dtype=bool))

    @property
    def n_views(self) -> int:
        source = next(s for s in (self.transmitters, self.plane_waves, self.fields) if s is not None)
        return len(source)

    @property
    def n_receivers(self) -> int:
        return len(self.receivers)

    @property
    def wavenumber(self) -> float:
        """k = 2 pi sqrt(background) / wavelength, in the background medium."""
        return float(2 * np.pi * np.sqrt(self.background) / self.wavelength)

    @classmethod
    def rings(
        cls,
        grid: Grid,
        wavelength: float,
        *,
        views: int,
        receivers: int,
        radius: float,
        receiver_radius: float | None = None,
        arc: float = 360.0,
        background: float = 1.0,
    ) -> BornGeometry:
        """Transmitters and receivers on circles about the origin."""
        return cls(
            transmitters=ring(views, radius, arc=arc),
            receivers=ring(receivers, receiver_radius or radius, arc=arc),
            wavelength=wavelength,
            grid=grid,
            background=background,
        )

    @classmethod
    def paper(cls, size: int = 256) -> BornGeometry:
        """The experiment of Sun, Wohlberg and Kamilov as their code ran it.

        18 cm of 256 pixels, a wavelength of six of those pixels (0.42 cm; the text says 0.84), 60 transmitters
        and 360 receivers at linspace(0, 359) degrees on a circle of 1.6 m, in air.
        """
        width = 0.18
        return cls.rings(
            Grid((size, size), width / size), 6 * width / 256, views=60, receivers=360, radius=1.6, arc=359.0
        )

    def with_views(self, index: ArrayLike) -> BornGeometry:
        """The same experiment with only the views of `index`; rows on disk stay there."""
        i = np.asarray(index)

        def take(array: Any) -> Any:
            return array.only(i) if hasattr(array, "only") else None if array is None else array[i]

        names = ("transmitters", "plane_waves", "fields", "mask")
        return replace(self, **{name: take(getattr(self, name)) for name in names})


def describe_range(points: Points) -> str:
    """How far points are from the origin."""
    radii = np.hypot(*points.T)
    low, high = radii.min(), radii.max()
    return f"{low:.4g} m" if np.isclose(low, high) else f"{low:.4g} to {high:.4g} m"


def _points(name: str, value: ArrayLike) -> Points:
    points = np.ascontiguousarray(value, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 2 or len(points) == 0:
        raise InputError(f"{name} have shape {points.shape}, but must be (count, 2): x and y of each")
    if not np.isfinite(points).all():
        raise InputError(f"{name} hold NaN or infinity at index {int(np.argwhere(~np.isfinite(points))[0, 0])}")
    return points


def _unit(name: str, vectors: Points) -> Points:
    """The vectors at unit length; refuse a zero vector."""
    length = np.hypot(*vectors.T)
    if not length.min() > 0:
        raise InputError(f"{name} are directions, but number {int(np.argmin(length))} is (0, 0) and points nowhere")
    # Unit vectors keep their bits, so that what is stored is what was given.
    return np.where(np.abs(length - 1)[:, None] < 1e-15, vectors, vectors / length[:, None])
