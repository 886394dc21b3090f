"""Scans of diffraction tomographs: fields, or phases and amplitudes, of a cell that turns or is lit from many sides.

The files are qpimage series (HDF5), and NPZ files.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.files import read_small
from plugstream.base.image_size import ImageSize, read_size, size_field
from plugstream.base.registry import Field
from plugstream.models.odt_geometry import poses_of_light, poses_of_rotation
from plugstream.scans.importers.base import ImportResult, switch
from plugstream.scans.importers.formats import Format, Formats
from plugstream.scans.importers.odt_steps import FieldOptions, FieldSteps
from plugstream.scans.importers.reading import ViewOptions, made_by, spread_angles, write_each
from plugstream.scans.importers.source import Source, as_numbers, read_complex

Real = NDArray[np.float64]

_SHORT, _LONG = 1e-12, 1e3
_APERTURE = 0.85  # of the medium's, where none is known
# The optics and their names in files.
_NAMES = {
    "wavelength": ("wavelength",),
    "pixel": ("pixel", "pixel size", "pixel_size"),
    "medium": ("medium", "medium index", "medium_index"),
    "aperture": ("aperture", "numerical aperture", "na"),
    "distance": ("distance",),
}
_SERIES = re.compile(r"^/qpi_(\d+)/phase/raw$")


class ODTImport(ViewOptions, FieldOptions):
    """Options for a recording, each of which wins over the file; lengths are in metres."""

    wavelength: float | None = Field(None, ge=_SHORT, le=_LONG, description="wavelength in vacuum")
    pixel: float | None = Field(None, ge=_SHORT, le=_LONG, description="size of a pixel at the object")
    medium: float | None = Field(None, ge=0.1, le=10, description="refractive index around the object")
    aperture: float | None = Field(None, gt=0, le=10, description="numerical aperture; 0.85 of the medium's if unknown")
    distance: float | None = Field(
        None, ge=-_LONG, le=_LONG, description="distance from the object's middle to the plane in focus; 0 if unknown"
    )
    angles: str | None = Field(None, description="text file of angles; angles.txt beside a series if there is one")
    arc: float | None = Field(None, gt=0, description="degrees that the views cover, if there are no angles")
    axis: Literal["y", "x"] = Field("y", description="the object turns about y, along the camera's columns, or x")
    clockwise: bool = switch("the object turns the other way")
    size: ImageSize = size_field(2, 8192, "as many as the camera's if not given")
    voxel: float | None = Field(None, ge=_SHORT, le=_LONG, description="size of a voxel; that of a pixel if not given")
    absorbing: bool = switch("the image is complex, for an object that absorbs light")


@dataclass(frozen=True)
class Recording:
    """The content of a file.

    Arguments: kind, in words; views; shape, rows and columns; read, amplitude and phase of a view, divided by the light
    without an object and less its phase; values by the names of `plugstream.models.odt_geometry.Optics`, in metres; and
    what the file has of angles of rotation (views,) in radians, directions of light (views, 3) and poses (views, 4, 3).
    """

    kind: str
    views: int
    shape: tuple[int, int]
    read: Callable[[int], tuple[Real, Real]]
    values: dict[str, float] = field(default_factory=dict)
    angles: Real | None = None
    directions: Real | None = None
    poses: Real | None = None


def read_angles(path: Path) -> Real:
    """Angles of a text file, one a line, in radians.

    Comments begin with #. The angles are degrees where a comment has [deg], radians where it has [rad]; otherwise
    degrees if they span more than a turn and a half in radians.
    """
    try:
        text = read_small(path, 1 << 24)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the angles {path}: {error}") from None
    lines = [line.partition("#") for line in text.splitlines()]
    comments = " ".join(comment for _, _, comment in lines).lower()
    try:
        numbers = np.array([float(word) for words, _, _ in lines for word in words.replace(",", " ").split()])
    except ValueError as error:
        raise InputError(f"{path} is not a list of angles: {error}") from None
    if numbers.size == 0 or not np.isfinite(numbers).all():
        raise InputError(f"{path} holds no angles, or some that are not finite")
    if "[deg" in comments or ("[rad" not in comments and np.ptp(numbers) > 3 * np.pi):
        numbers = np.deg2rad(numbers)
    return numbers


def _read_series(source: Source) -> Recording:
    """A qpimage series: groups qpi_0, qpi_1, ... with raw data and backgrounds of amplitude and phase."""
    path, names = source.path, sorted(source.name_set())
    numbers = sorted(int(match[1]) for name in names if (match := _SERIES.match(name)))
    if not numbers:
        raise InputError(f"{path} has no qpi_0/phase/raw, and so is no qpimage series")
    first = f"/qpi_{numbers[0]}"

    def list_backgrounds(part: str) -> list[str]:
        prefix = f"{first}/{part}/bg_data/"
        return [name.removeprefix(prefix) for name in names if re.fullmatch(rf"{prefix}\w+", name)]

    def array(name: str, shape: tuple[int, ...] | None) -> Real:
        stored = source.read(name)
        if stored is None:
            raise InputError(f"{path} has no {name}")
        values = as_numbers(name, stored)
        if values.ndim != 2 or (shape is not None and values.shape != shape):
            raise InputError(f"{name} of {path} has shape {values.shape}, but must be {shape or '(rows, columns)'}")
        return values

    rows, columns = shape = array(f"{first}/phase/raw", None).shape
    backgrounds = {part: list_backgrounds(part) for part in ("amplitude", "phase")}

    def read(view: int) -> tuple[Real, Real]:
        group = f"/qpi_{numbers[view]}"
        phase, amplitude = array(f"{group}/phase/raw", shape), np.ones(shape)
        if source.find(f"{group}/amplitude/raw") is not None:
            amplitude = array(f"{group}/amplitude/raw", shape)
        for name in backgrounds["phase"]:
            phase = phase - array(f"{group}/phase/bg_data/{name}", shape)
        for name in backgrounds["amplitude"]:
            amplitude = amplitude / array(f"{group}/amplitude/bg_data/{name}", shape)
        return amplitude, phase

    values = source.read_values(_NAMES, f"{first}@")
    listed = [source.read_number(f"/qpi_{n}@angle") for n in numbers]
    angles = None if None in listed else np.array(listed)
    angle_file = path.parent / "angles.txt"
    if angles is None and angle_file.is_file():
        angles = read_angles(angle_file)
    return Recording(f"qpimage series of {len(numbers)} views", len(numbers), (rows, columns), read, values, angles)


def _read_npz(source: Source) -> Recording:
    """An NPZ with `fields`, complex, or `phase` and, if it varies, `amplitude`; `background` fields divide them."""
    path = source.path

    def array(name: str, *axes: int) -> Any:
        values = source.find(name)
        if values is None:
            return None
        if values.dtype.kind not in "fiuc" or values.ndim not in axes:
            raise InputError(f"{name} of {path} has shape {values.shape} of {values.dtype}, which cannot be {name}")
        if not np.isfinite(values).all():
            raise InputError(f"{name} of {path} holds NaN or infinity")
        return values

    fields, phase, amplitude = (array(name, 3, 4) for name in ("fields", "phase", "amplitude"))
    if fields is not None:
        fields = read_complex(path, "fields", fields)[:]
    stack = fields if fields is not None else phase
    if stack is None or stack.ndim != 3 or 0 in stack.shape:
        raise InputError(f"{path} must have fields, or phase and amplitude, of the shape (views, rows, columns)")
    background = array("background", 2, 3)
    for name, part in (("amplitude", amplitude), ("background", background)):
        if part is not None and part.shape not in (stack.shape, stack.shape[1:]):
            raise InputError(f"{name} of {path} has shape {part.shape}, but the views are {stack.shape}")
    if background is not None and (np.abs(background) == 0).any():
        raise InputError(f"background of {path} is zero somewhere, and fields are divided by it")

    def read(view: int) -> tuple[Real, Real]:
        light = background if background is None or background.ndim == 2 else background[view]
        if fields is not None:
            wave = fields[view] if light is None else fields[view] / light
            return np.abs(wave).astype(np.float64), np.angle(wave).astype(np.float64)
        size = np.ones(stack.shape[1:]) if amplitude is None else np.asarray(amplitude[view], np.float64)
        turn = np.asarray(phase[view], np.float64)
        return (size, turn) if light is None else (size / np.abs(light), turn - np.angle(light))

    geometry = {name: array(name, axes) for name, axes in (("angles", 1), ("directions", 2), ("poses", 3))}
    for name, part in geometry.items():
        if part is not None and len(part) != len(stack):
            raise InputError(f"{name} of {path} has {len(part)} rows, but there are {len(stack)} views")
        geometry[name] = None if part is None else as_numbers(name, part)
    kind = f"NPZ of {len(stack)} {'fields' if fields is not None else 'phases'}"
    return Recording(kind, len(stack), stack.shape[1:], read, source.read_values(_NAMES), **geometry)


def _has_fields(source: Source) -> bool:
    names = source.name_set()
    return bool(names & {"fields", "phase"}) and bool(names & {"angles", "directions", "poses"})


FORMATS = Formats(
    Format("HDF5", lambda source: any(map(_SERIES.match, source.name_set())), _read_series),
    Format("NPZ", _has_fields, _read_npz),
    unknown="not a recording of fields that we know: a qpimage series is HDF5 with qpi_0/phase/raw and so on, and NPZ "
    "files have fields, or phase and amplitude, with angles",
)


def _tell(recording: Recording) -> list[str]:
    """What a recording holds, for `plugstream info`."""
    values = ", ".join(f"{name} {value:.6g}" for name, value in recording.values.items()) or "no lengths known"
    geometry = {"angles": recording.angles, "directions of light": recording.directions, "poses": recording.poses}
    views = next((name for name, value in geometry.items() if value is not None), "no angles")
    return [f"{recording.kind}, {recording.shape[0]} x {recording.shape[1]} pixels, {views}", values]


@FORMATS.importer(
    "odt",
    "fields behind a cell, for diffraction tomography: a qpimage series (HDF5), or an NPZ with angles",
    ODTImport,
    _tell,
    folders=True,
)
def build(options: ODTImport, file: Path, out: Path) -> ImportResult:
    """Write the scan."""
    from plugstream.instruments.odt import ODT3D
    from plugstream.models.ct_geometry import Voxels

    with FORMATS.open(file / "series.h5" if file.is_dir() else file) as recording:
        poses = _poses(recording, options)
        values, remarks = _values(recording, options)
        steps = FieldSteps(options, recording.shape)
        voxel = options.voxel or values["pixel"]
        rows, columns = (max(2, round(n * values["pixel"] / voxel)) for n in steps.shape)
        shape = {"y": (columns, rows, columns), "x": (rows, rows, columns)}[options.axis]
        instrument = ODT3D(
            Voxels(read_size(options, 3) or shape, voxel),
            steps.shape[0],
            steps.shape[1],
            approximation=options.approximation,
            absorbing=options.absorbing,
            **values,
        )
        instrument.check_plausible()
        instrument.check_views({"poses": poses})
        provenance = made_by("odt", file, options, kind=recording.kind, steps=steps.steps())

        def read(view: int) -> NDArray[np.complex64]:
            return steps.apply(view, *recording.read(view))

        result = write_each(out, instrument, options, read, {"poses": poses}, provenance=provenance, remarks=remarks)
    unwrapped = [f"the phases of {steps.unwrapped} views were made continuous"] if steps.unwrapped else []
    return replace(result, remarks=(*result.remarks, *unwrapped))


def _poses(recording: Recording, options: ODTImport) -> Real:
    """The poses of all views."""
    views, angles = recording.views, recording.angles
    if options.angles is not None:
        angles = read_angles(Path(options.angles))
    elif options.arc is not None:
        angles = spread_angles(options.arc, views)
    elif recording.poses is not None:
        return recording.poses
    elif recording.directions is not None:
        return poses_of_light(recording.directions)
    if angles is None:
        raise InputError("it does not have an angle for each view; give --angles FILE, or the --arc that they cover")
    if len(angles) != views:
        raise InputError(f"there are {len(angles)} angles for {views} views; there must be one for each")
    return poses_of_rotation(-angles if options.clockwise else angles, options.axis)


def _values(recording: Recording, options: ODTImport) -> tuple[dict[str, Any], list[str]]:
    """The optics, and remarks on what is not known."""
    values: dict[str, Any] = {"distance": 0.0} | recording.values
    remarks = []
    values |= {name: value for name in _NAMES if (value := getattr(options, name)) is not None}
    for name in ("wavelength", "pixel", "medium"):
        if name not in values:
            raise InputError(f"it has no {name}; give --{name}{'' if name == 'medium' else ', in metres'}")
    if "aperture" not in values:
        values["aperture"] = _APERTURE * values["medium"]
        remarks.append(f"the aperture is not known: waves up to {values['aperture']:.3g} are used (--aperture)")
    return values, remarks
