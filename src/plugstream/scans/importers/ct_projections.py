"""What the files of X-ray tomographs have in common: projections, read a few at a time, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.models.ct_line_integrals import FlatField
from plugstream.scans.importers.reading import Indices
from plugstream.scans.importers.source import UNITS

__all__ = ["Projections", "angles_in_radians", "length_in_metres", "pick_views"]

_SEVERAL = 8  # views from which on their angles tell what unit they are in


@dataclass(frozen=True)
class Projections:
    """The projections of a file, as it has them.

    Arguments:
        kind: of file, in words. angles: (views,), radians; None where the file does not tell.
        views, shape: how many there are, and rows and columns of the detector.
        read: the projections of some views, in increasing order, and of a slice of the detector's rows, as
            (views, rows, columns).
        flat_field: flat and dark fields of all rows; None where the projections are line integrals already.
        pixel: height and width of a detector pixel in metres, None where the file does not tell.
        source, detector: distances from the rotation axis in metres; None for a parallel beam.
        center: the column on which the rotation axis is seen, where the file tells.
        flat_image: whether this is a two-dimensional scan rather than a volume of one slice.
        provenance: what the scan keeps of what the file says.
    """

    kind: str
    views: int
    shape: tuple[int, int]
    read: Callable[[Indices, slice], NDArray[Any]]
    angles: NDArray[np.float64] | None
    flat_field: FlatField | None = None
    pixel: tuple[float, float] | None = None
    source: float | None = None
    detector: float | None = None
    center: float | None = None
    flat_image: bool = False
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.views < 1 or min(self.shape) < 1:
            raise InputError(f"it has {self.views} projections of {self.shape[0]} x {self.shape[1]} pixels")
        if self.angles is not None and self.angles.shape != (self.views,):
            raise InputError(f"it has {self.angles.size} angles for {self.views} projections")
        if self.angles is not None and not np.isfinite(self.angles).all():
            raise InputError("its angles hold NaN or infinity")
        if self.flat_field is not None and self.flat_field.dark.shape != self.shape:
            raise InputError(
                f"its flat and dark fields are {self.flat_field.dark.shape}, but projections are {self.shape}; they "
                "must be alike"
            )


def pick_views(array: Any, views: Indices, rows: slice) -> NDArray[Any]:
    """Projections (views, rows, columns) of a dataset that is read by slicing: evenly spaced ones in one piece."""
    if len(views) == 0:
        return np.asarray(array[0:0, rows])
    steps = np.diff(views)
    step = int(steps[0]) if len(steps) else 1
    if (steps == step).all() and step > 0:
        return np.asarray(array[int(views[0]) : int(views[-1]) + 1 : step, rows])
    return np.stack([np.asarray(array[int(view), rows]) for view in views])


def angles_in_radians(values: Any, unit: str | None) -> NDArray[np.float64]:
    """Angles of a file in radians; where it does not say, degrees, as these files usually have.

    Unless that would be a scan over 6.4 degrees or less, by eight views or more, which nobody takes: then radians.
    """
    angles = np.asarray(values, dtype=np.float64).reshape(-1)
    narrow = len(angles) >= _SEVERAL and 1 < float(np.ptp(angles)) < 1.02 * 2 * np.pi
    word = (unit or ("radians" if narrow else "degrees")).strip().lower()
    if word in ("rad", "radian", "radians"):
        return angles
    if word in ("deg", "degree", "degrees", "°"):
        return np.deg2rad(angles)
    raise InputError(f"its angles are in {unit!r}, which is neither degrees nor radians")


def length_in_metres(value: Any, unit: str | None, what: str) -> float:
    """A length of a file in metres; of one without a unit, it is metres."""
    numbers = np.asarray(value, dtype=np.float64).reshape(-1)
    word = (unit or "m").strip().replace("µ", "u").replace("μ", "u")
    word = {"meter": "m", "meters": "m", "metre": "m", "micron": "um", "microns": "um", "millimeter": "mm"}.get(
        word, word
    )
    if word not in UNITS:
        raise InputError(f"its {what} is in {unit!r}; give it by hand, in metres")
    if numbers.size == 0 or not np.isfinite(numbers[0]):
        raise InputError(f"its {what} is not a number; give it by hand, in metres")
    return float(numbers[0]) * UNITS[word]
