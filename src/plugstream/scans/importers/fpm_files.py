"""Files of pictures under one LED after another: what they hold, by the names that their authors use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.scans.importers.arrays import open_error
from plugstream.scans.importers.hdf5 import open_hdf5
from plugstream.scans.importers.npz import open_npz

__all__ = ["Frames", "is_frames", "read_frames"]

_PICTURES = ("imlow_HDR", "imlow", "frames", "images", "data")
# By the names of the instrument: names in files, and metres of their unit.
_VALUES: dict[str, tuple[tuple[str, float], ...]] = {
    "wavelength": (("wlength", 1.0), ("wavelength", 1.0)),
    "defocus": (("z", 1.0), ("defocus", 1.0)),
    "pixel": (("pixel", 1.0), ("pixel_size", 1.0)),
    "aperture": (("NA", 1.0), ("aperture", 1.0)),
    "pitch": (("pitch", 1.0),),
    "distance": (("distance", 1.0),),
    "slide": (("slide", 1.0),),
    "slide_index": (("slide_index", 1.0),),
}
_MILLIMETRE = 1e-3
_SIGNATURE = b"\x89HDF\r\n\x1a\n"


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


def is_frames(path: Path) -> bool:
    """Whether a file has pictures by a name that says so, and the wavelength that they were taken with."""
    try:
        content = _open(path, names_only=True)
    except InputError:
        return False
    return bool({"imlow_HDR", "imlow", "frames", "images"} & set(content)) and bool(
        {"wlength", "wavelength"} & set(content)
    )


def read_frames(path: Path) -> Frames:
    """The pictures of a MATLAB or NPZ file, with what it says of light and LEDs.

    MATLAB's pictures are (rows, columns, views), NPZ's (views, rows, columns). `wlength` and `z`, the defocus, are in
    metres, `theta` in degrees, `xint` and `yint`, the offset of the first LED, in millimetres; `aberration`, where it
    is no zero, multiplies the pupil of defocus. In NPZ files `leds` (views, 2) may say where LEDs are, in metres.
    """
    content = _open(path)
    name = next((name for name in _PICTURES if name in content), None)
    if name is None:
        known = ", ".join(content) or "nothing"
        raise InputError(f"{path} has {known}, and no pictures: {', '.join(_PICTURES[:-1])} or {_PICTURES[-1]}")
    stack = content[name]
    if stack.ndim != 3 or stack.dtype.kind not in "fiu" or 0 in stack.shape:
        raise InputError(f"{name} of {path} has shape {stack.shape} of {stack.dtype}, but must be a stack of pictures")
    if path.suffix.lower() != ".npz":
        stack = np.moveaxis(stack, -1, 0)
    if not np.isfinite(stack).all() or bool((stack < 0).any()):
        raise InputError(f"{name} of {path} holds values that are negative or not finite, which intensities are not")
    views, shape = stack.shape[0], (stack.shape[1], stack.shape[2])
    values = {}
    for key, names in _VALUES.items():
        for theirs, unit in names:
            if key not in values and theirs in content and content[theirs].size == 1:
                values[key] = _number(path, theirs, content[theirs]) * unit
    one = {key: _number(path, key, content[key]) if key in content else 0.0 for key in ("theta", "xint", "yint")}
    leds = content.get("leds")
    if leds is not None and (leds.ndim != 2 or leds.shape != (views, 2)):
        raise InputError(f"leds of {path} has shape {leds.shape}, but must be ({views}, 2), x and y in metres")
    return Frames(
        views,
        shape,
        lambda view: stack[view],
        values,
        None if leds is None else leds.astype(np.float64),
        one["theta"],
        (one["xint"] * _MILLIMETRE, one["yint"] * _MILLIMETRE),
        _pupil(path, content, shape),
    )


def _pupil(path: Path, content: Mapping[str, NDArray[Any]], shape: tuple[int, int]) -> NDArray[np.complex128] | None:
    found = content.get("aberration")
    if found is None or found.size == 1:
        return None
    if found.shape != shape or found.dtype.kind not in "fiuc" or not np.isfinite(found).all():
        raise InputError(f"aberration of {path} has shape {found.shape}, but must be of the pictures' {shape}, finite")
    return np.asarray(found, dtype=np.complex128)


def _number(path: Path, name: str, value: NDArray[Any]) -> float:
    try:
        number = float(np.asarray(value).reshape(()))
    except (TypeError, ValueError):
        raise InputError(f"{name} of {path} must be one number") from None
    if not np.isfinite(number):
        raise InputError(f"{name} of {path} must be finite")
    return number


def _is_matlab_hdf5(path: Path) -> bool:
    """Whether a file is HDF5, from its beginning or after the 512 bytes that MATLAB writes before it."""
    try:
        with path.open("rb") as file:
            head = file.read(520)
    except OSError:
        return False
    return _SIGNATURE in (head[:8], head[512:])


def _open(path: Path, *, names_only: bool = False) -> dict[str, Any]:
    """The arrays of a file by name; with `names_only` names alone, of which nothing large is read."""
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    if path.suffix.lower() == ".npz":
        with open_npz(path) as source:
            names = [name for name, _, _ in source.names()]
            return {name: None if names_only else np.asarray(source.find(name)) for name in names}
    if _is_matlab_hdf5(path):  # MATLAB 7.3, whose axes are the other way round
        with open_hdf5(path) as source:
            names = [name.lstrip("/") for name, _, _ in source.names()]
            if names_only:
                return dict.fromkeys(names)
            found = ((name, source.find(f"/{name}")) for name in names)
            return {name: np.asarray(value[()]).T for name, value in found if not isinstance(value, str)}  # a text
    try:
        with path.open("rb") as file:
            if file.read(6) != b"MATLAB":
                raise InputError(f"{path} is no MATLAB or NPZ file of pictures")
        from scipy.io import loadmat, whosmat

        if names_only:
            return dict.fromkeys(name for name, _, _ in whosmat(path))
        content = loadmat(path)
    except InputError:
        raise
    except Exception as error:  # a damaged file raises many kinds
        raise open_error(path, error, "a MATLAB file") from error
    return {name: value for name, value in content.items() if isinstance(value, np.ndarray) and name[:2] != "__"}
