"""Recordings of fields behind a cell, amplitude and phase view by view: qpimage series and NPZ files."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.files import read_small
from plugstream.scans.importers.formats import Format, Formats
from plugstream.scans.importers.source import Source, read_complex

__all__ = ["FORMATS", "Recording", "read_angles"]

Real = NDArray[np.float64]

_VALUES = {
    "wavelength": ("wavelength",),
    "pixel": ("pixel", "pixel size", "pixel_size"),
    "medium": ("medium", "medium index", "medium_index"),
    "aperture": ("aperture", "numerical aperture", "na"),
    "distance": ("distance",),
}
_SERIES = re.compile(r"^/qpi_(\d+)/phase/raw$")


@dataclass(frozen=True)
class Recording:
    """What a file tells.

    Arguments: kind, in words; views; shape, rows and columns; read, which gives amplitude and phase of a view, divided
    by the light without an object and less its phase; angles of rotation (views,) in radians, directions of light
    (views, 3) or poses (views, 4, 3), whichever the file has; values by the names of `plugstream.models.odt_geometry
    .Optics`, in metres; complex_fields, whether phases are those of complex numbers and so between -pi and pi.
    """

    kind: str
    views: int
    shape: tuple[int, int]
    read: Callable[[int], tuple[Real, Real]]
    angles: Real | None = None
    directions: Real | None = None
    poses: Real | None = None
    values: dict[str, float] = field(default_factory=dict)
    complex_fields: bool = False


def read_angles(path: Path) -> Real:
    """Angles of a text file, one a line, in radians.

    Comments begin with #. They are degrees where a comment has [deg], radians where it has [rad]; where no comment
    says, degrees if any is beyond a turn in radians and a half.
    """
    try:
        text = read_small(path, 1 << 24)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the angles {path}: {error}") from None
    lines = [line.partition("#") for line in text.splitlines()]
    said = " ".join(comment for _, _, comment in lines).lower()
    try:
        numbers = np.array([float(word) for words, _, _ in lines for word in words.replace(",", " ").split()])
    except ValueError as error:
        raise InputError(f"{path} is no list of angles: {error}") from None
    if numbers.size == 0 or not np.isfinite(numbers).all():
        raise InputError(f"{path} holds no angles, or some that are not finite")
    if "[deg" in said or (not re.search(r"\[rad", said) and np.ptp(numbers) > 3 * np.pi):
        numbers = np.deg2rad(numbers)
    return numbers


def _read_series(source: Source) -> Recording:
    """A qpimage series: groups qpi_0, qpi_1, ... with raw data and backgrounds of amplitude and phase."""
    path = source.path
    listed = list(source.names())
    found = sorted(int(match[1]) for name, _, _ in listed if (match := _SERIES.match(name)))
    if not found:
        raise InputError(f"{path} has no qpi_0/phase/raw, and so is no qpimage series")
    backgrounds = {
        part: sorted(
            {m[1] for name, _, _ in listed if (m := re.match(rf"^/qpi_{found[0]}/{part}/bg_data/(\w+)$", name))}
        )
        for part in ("amplitude", "phase")
    }

    def array(name: str, shape: tuple[int, ...] | None) -> Real:
        stored = source.read(name)
        if stored is None:
            raise InputError(f"{path} has no {name}")
        values = np.asarray(stored, dtype=np.float64)
        if values.ndim != 2 or (shape is not None and values.shape != shape):
            raise InputError(f"{name} of {path} has shape {values.shape}, but must be {shape or '(rows, columns)'}")
        return values

    first = array(f"/qpi_{found[0]}/phase/raw", None)
    shape = (first.shape[0], first.shape[1])

    def read(view: int) -> tuple[Real, Real]:
        group = f"/qpi_{found[view]}"
        phase, amplitude = array(f"{group}/phase/raw", shape), np.ones(shape)
        if source.find(f"{group}/amplitude/raw") is not None:
            amplitude = array(f"{group}/amplitude/raw", shape)
        for name in backgrounds["phase"]:
            phase = phase - array(f"{group}/phase/bg_data/{name}", shape)
        for name in backgrounds["amplitude"]:
            amplitude = amplitude / array(f"{group}/amplitude/bg_data/{name}", shape)
        return amplitude, phase

    values = source.read_values(_VALUES, f"/qpi_{found[0]}@")
    angles = [source.read_number(f"/qpi_{n}@angle") for n in found]
    turned = None if None in angles else np.array(angles)
    beside = path.parent / "angles.txt"
    if turned is None and beside.is_file():
        turned = read_angles(beside)
    return Recording(f"qpimage series of {len(found)} views", len(found), shape, read, turned, values=values)


def _read_npz(source: Source) -> Recording:
    """An NPZ with `fields`, complex, or `phase` and, if it varies, `amplitude`; `background` fields divide them."""
    path = source.path

    def array(name: str, axes: tuple[int, ...]) -> Any:
        found = source.find(name)
        if found is None:
            return None
        if found.dtype.kind not in "fiuc" or found.ndim not in axes:
            raise InputError(f"{name} of {path} has shape {found.shape} of {found.dtype}, which cannot be {name}")
        if not np.isfinite(found).all():
            raise InputError(f"{name} of {path} holds NaN or infinity")
        return found

    fields, phase, amplitude = (array(name, (3, 4)) for name in ("fields", "phase", "amplitude"))
    if fields is not None:
        fields = read_complex(path, "fields", fields)[:]
    whole = fields if fields is not None else phase
    if whole is None or len(whole.shape) != 3 or 0 in whole.shape:
        raise InputError(f"{path} must have fields, or phase and amplitude, of the shape (views, rows, columns)")
    background = array("background", (2, 3))
    for name, part in (("amplitude", amplitude), ("background", background)):
        if part is not None and part.shape not in (whole.shape, whole.shape[1:]):
            raise InputError(f"{name} of {path} has shape {part.shape}, but the views are {whole.shape}")
    if background is not None and (np.abs(background) == 0).any():
        raise InputError(f"background of {path} is zero somewhere, and fields are divided by it")

    def read(view: int) -> tuple[Real, Real]:
        light = background if background is None or background.ndim == 2 else background[view]
        if fields is not None:
            field = fields[view] if light is None else fields[view] / light
            return np.abs(field).astype(np.float64), np.angle(field).astype(np.float64)
        size = np.ones(whole.shape[1:]) if amplitude is None else np.asarray(amplitude[view], np.float64)
        turned = np.asarray(phase[view], np.float64)
        return (size, turned) if light is None else (size / np.abs(light), turned - np.angle(light))

    geometry = {name: array(name, axes) for name, axes in (("angles", (1,)), ("directions", (2,)), ("poses", (3,)))}
    for name, part in geometry.items():
        if part is not None and len(part) != len(whole):
            raise InputError(f"{name} of {path} has {len(part)} rows, but there are {len(whole)} views")
    return Recording(
        f"NPZ of {len(whole)} {'fields' if fields is not None else 'phases'}",
        len(whole),
        (whole.shape[1], whole.shape[2]),
        read,
        values=source.read_values(_VALUES),
        complex_fields=fields is not None,
        **{name: None if part is None else np.asarray(part, np.float64) for name, part in geometry.items()},
    )


def _has_fields(source: Source) -> bool:
    names = source.name_set()
    return bool(names & {"fields", "phase"}) and bool(names & {"angles", "directions", "poses"})


FORMATS = Formats(
    Format("HDF5", lambda source: any(map(_SERIES.match, source.name_set())), _read_series),
    Format("NPZ", _has_fields, _read_npz),
    unknown="no recording of fields that is known: a qpimage series is HDF5 with qpi_0/phase/raw and so on, and NPZ "
    "files have fields, or phase and amplitude, with angles",
)
