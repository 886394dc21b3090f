"""Files of pictures under one LED after another: what they hold, by the names that their authors use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.scans.importers.formats import Format, Formats
from plugstream.scans.importers.source import Source

__all__ = ["FORMATS", "Frames", "is_frames"]

_PICTURES = ("imlow_HDR", "imlow", "frames", "images", "data")
# By the names of the instrument: names in files, in metres where they are lengths.
_VALUES = {
    "wavelength": ("wlength", "wavelength"),
    "defocus": ("z", "defocus"),
    "pixel": ("pixel", "pixel_size"),
    "aperture": ("NA", "aperture"),
    "pitch": ("pitch",),
    "distance": ("distance",),
    "slide": ("slide",),
    "slide_index": ("slide_index",),
}
_MILLIMETRE = 1e-3


@dataclass(frozen=True)
class Frames:
    """What a file tells.

    Arguments: views; shape, rows and columns of a picture; read, which gives the intensities of a view; values by the
    names of the instrument, in metres; leds, (views, 2) in metres, None where the file has none; rotation of the LEDs
    in degrees and offset of the first from the axis in metres; pupil (rows, columns), complex, the axis in the middle.
    """

    views: int
    shape: tuple[int, int]
    read: Callable[[int], NDArray[Any]]
    values: dict[str, float] = field(default_factory=dict)
    leds: NDArray[np.float64] | None = None
    rotation: float = 0.0
    offset: tuple[float, float] = (0.0, 0.0)
    pupil: NDArray[np.complex128] | None = None


def is_frames(source: Source) -> bool:
    """Whether a file has pictures by a name that says so, and the wavelength that they were taken with."""
    try:
        names = set(_names(source))
    except InputError:
        return False
    return bool(set(_PICTURES[:-1]) & names) and bool(set(_VALUES["wavelength"]) & names)


def read_frames(source: Source) -> Frames:
    """The pictures of a MATLAB or NPZ file, with what it says of light and LEDs.

    MATLAB's pictures are (rows, columns, views), NPZ's (views, rows, columns). `wlength` and `z`, the defocus, are in
    metres, `theta` in degrees, `xint` and `yint`, the offset of the first LED, in millimetres; `aberration`, where it
    is no zero, multiplies the pupil of defocus. In NPZ files `leds` (views, 2) may say where LEDs are, in metres.
    """
    path, names = source.path, _names(source)
    name = next((name for name in _PICTURES if name in names), None)
    if name is None:
        known = ", ".join(names) or "nothing"
        raise InputError(f"{path} has {known}, and no pictures: {', '.join(_PICTURES[:-1])} or {_PICTURES[-1]}")
    stack = _read(source, name)
    if stack.ndim != 3 or stack.dtype.kind not in "fiu" or 0 in stack.shape:
        raise InputError(f"{name} of {path} has shape {stack.shape} of {stack.dtype}, but must be a stack of pictures")
    if source.container != "NPZ":
        stack = np.moveaxis(stack, -1, 0)
    if not np.isfinite(stack).all() or bool((stack < 0).any()):
        raise InputError(f"{name} of {path} holds values that are negative or not finite, which intensities are not")
    views, shape = stack.shape[0], (stack.shape[1], stack.shape[2])
    single = {key: [name for name in theirs if np.size(source.read(name)) == 1] for key, theirs in _VALUES.items()}
    theta, x, y = (source.read_number(key) or 0.0 for key in ("theta", "xint", "yint"))
    leds = _read(source, "leds") if "leds" in names else None
    if leds is not None and leds.shape != (views, 2):
        raise InputError(f"leds of {path} has shape {leds.shape}, but must be ({views}, 2), x and y in metres")
    return Frames(
        views,
        shape,
        lambda view: stack[view],
        source.read_values(single),
        None if leds is None else leds.astype(np.float64),
        theta,
        (x * _MILLIMETRE, y * _MILLIMETRE),
        _pupil(source, shape),
    )


def _pupil(source: Source, shape: tuple[int, int]) -> NDArray[np.complex128] | None:
    found = _read(source, "aberration")
    if found.size == 1:  # also where there is none
        return None
    if found.shape != shape or found.dtype.kind not in "fiuc" or not np.isfinite(found).all():
        raise InputError(
            f"aberration of {source.path} has shape {found.shape}, but must be of the pictures' {shape}, finite"
        )
    return np.asarray(found, dtype=np.complex128)


def _names(source: Source) -> list[str]:
    return [name.lstrip("/") for name, _, _ in source.names() if "@" not in name]


def _read(source: Source, name: str) -> NDArray[Any]:
    """An array with its axes as MATLAB has them, which are the other way round in its HDF5."""
    array = np.asarray(source.read(name))
    return array.T if source.container in ("HDF5", "MATLAB 7.3") else array


FORMATS = Formats(
    *(Format(container, is_frames, read_frames) for container in ("MATLAB", "MATLAB 7.3", "HDF5", "NPZ")),
    unknown="no MATLAB or NPZ file of pictures",
)
