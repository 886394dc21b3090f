"""The content of an X-ray tomograph's file: projections, read a few at a time, with angles and lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.models.ct_line_integrals import FlatField
from plugstream.scans.importers.reading import Indices
from plugstream.scans.importers.source import UNITS, as_numbers

_SEVERAL = 8  # the least number of views whose angles tell their unit
_WORDS = {"meter": "m", "meters": "m", "metre": "m", "micron": "um", "microns": "um", "millimeter": "mm"}


@dataclass(frozen=True)
class Projections:
    """The projections of a file.

    Arguments:
        kind: of file, in words. views, shape: their number, and rows and columns of the detector.
        read: projections of some views, in increasing order, and a slice of the rows: (views, rows, columns).
        angles: (views,), radians; None if unknown.
        flat_field: flat and dark fields of all rows, which are alike where the file has no flat fields; None where the
            projections are line integrals already.
        exposure: (views,), how bright the beam is relative to the flat field, by a monitor.
        pixel: height and width of a detector pixel in metres; None if unknown.
        source, detector: distances from the rotation axis in metres; None for a parallel beam.
        center: the column on which the rotation axis is seen, if known.
        flat_image: whether this is a two-dimensional scan rather than a volume of one slice.
        provenance: what the scan keeps of the file's words. remarks on the file for a person.
    """

    kind: str
    views: int
    shape: tuple[int, int]
    read: Callable[[Indices, slice], NDArray[Any]]
    angles: NDArray[np.float64] | None
    flat_field: FlatField | None = None
    exposure: NDArray[np.float64] | None = None
    pixel: tuple[float, float] | None = None
    source: float | None = None
    detector: float | None = None
    center: float | None = None
    flat_image: bool = False
    provenance: Mapping[str, Any] = field(default_factory=dict)
    remarks: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.views < 1 or min(self.shape) < 1:
            raise InputError(f"it has {self.views} projections of {self.shape[0]} x {self.shape[1]} pixels")
        angles = np.zeros(self.views) if self.angles is None else self.angles
        if angles.shape != (self.views,):
            raise InputError(f"it has {angles.size} angles for {self.views} projections")
        if not np.isfinite(angles).all():
            raise InputError("its angles hold NaN or infinity")
        if self.flat_field is not None and self.flat_field.dark.shape != self.shape:
            raise InputError(
                f"its flat and dark fields are {self.flat_field.dark.shape}, but projections are {self.shape}; they "
                "must be alike"
            )


def angles_in_radians(values: Any, unit: str | None) -> NDArray[np.float64]:
    """Angles of a file in radians; without a unit they are degrees.

    Unless that were a scan over 6.4 degrees or less, of eight views or more, which nobody takes: then radians.
    """
    angles: NDArray[np.float64] = as_numbers("angles", values).reshape(-1)
    word = (unit or ("radians" if look_like_radians(angles) else "degrees")).strip().lower()
    if word in ("rad", "radian", "radians"):
        return angles
    if word in ("deg", "degree", "degrees", "°"):
        return np.deg2rad(angles)
    raise InputError(f"its angles are in {unit!r}, which is neither degrees nor radians")


def look_like_radians(angles: NDArray[np.float64]) -> bool:
    """Whether angles without a unit are radians: eight or more, over 1 to 6.4 of it."""
    known = angles[np.isfinite(angles)]
    return len(known) >= _SEVERAL and 1 < float(np.ptp(known)) < 1.02 * 2 * np.pi


def length_in_metres(value: Any, unit: str | None, quantity: str) -> float:
    """A length of a file in metres, which is also the default unit."""
    numbers = as_numbers(quantity, value).reshape(-1)
    word = (unit or "m").strip().replace("µ", "u").replace("μ", "u")
    word = _WORDS.get(word, word)
    if word not in UNITS:
        raise InputError(f"its {quantity} is in {unit!r}; give it by hand, in metres")
    if numbers.size == 0 or not np.isfinite(numbers[0]):
        raise InputError(f"its {quantity} is not a number; give it by hand, in metres")
    return float(numbers[0]) * UNITS[word]
