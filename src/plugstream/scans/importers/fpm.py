"""Recordings of Fourier ptychographic microscopes: MATLAB files, and NPZ files with the same names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.image_size import ImageSize, read_size, size_field
from plugstream.base.registry import Field
from plugstream.models.fpm_geometry import Microscope, fitting_size, light_directions, make_pupil, spiral
from plugstream.scans.importers.base import ImportResult, switch
from plugstream.scans.importers.formats import Format, Formats
from plugstream.scans.importers.reading import ViewOptions, made_by, middle_window, parse_pair, write_each
from plugstream.scans.importers.source import Source, as_numbers, first_line

_SHORT, _LONG, _MILLIMETRE = 1e-12, 1e3, 1e-3
_PICTURES = ("imlow_HDR", "imlow", "frames", "images", "data")
# Names in files by the names of the instrument; lengths are in metres.
_NAMES = {
    "wavelength": ("wlength", "wavelength"),
    "defocus": ("z", "defocus"),
    "pixel": ("pixel", "pixel_size"),
    "aperture": ("NA", "aperture"),
    "pitch": ("pitch",),
    "distance": ("distance",),
    "slide": ("slide",),
    "slide_index": ("slide_index",),
}
# The setup of most public recordings, for what neither the file nor the options tell; lengths are in metres.
_USUAL = {
    "pixel": (1.845e-6, "pixels"),
    "aperture": (0.1, "aperture"),
    "pitch": (4e-3, "pitch of the LEDs"),
    "distance": (90.88e-3, "distance to the LEDs"),
    "slide": (1e-3, "slide"),
    "slide_index": (1.52, "slide's index"),
}
# Pixels by which the image's field is wider than the camera's, so that one border does not show at the other: this part
# of the camera, and not more than waves of a small aperture reach.
_GUARD_SHARE, _GUARD_MOST = 8, 16


class FPMImport(ViewOptions):
    """Options for a recording, each of which wins over the file; lengths are in metres."""

    wavelength: float | None = Field(None, ge=_SHORT, le=_LONG, description="wavelength of the light")
    pixel: float | None = Field(None, ge=_SHORT, le=_LONG, description="size of a pixel at the object")
    aperture: float | None = Field(None, gt=0, le=2, description="numerical aperture of the objective")
    defocus: float | None = Field(
        None, ge=-_LONG, le=_LONG, description="distance from the object to the plane in focus"
    )
    pitch: float | None = Field(None, ge=_SHORT, le=_LONG, description="distance from one LED to the next")
    distance: float | None = Field(None, ge=_SHORT, le=_LONG, description="distance from the LEDs to the object")
    slide: float | None = Field(None, ge=0, le=_LONG, description="thickness of the slide below the object")
    slide_index: float | None = Field(None, ge=1, le=10, description="refractive index of the slide")
    rotation: float | None = Field(None, ge=-360, le=360, description="rotation of the LEDs, in degrees")
    offset: str | None = Field(None, description="x,y of the first LED from the optical axis")
    leds: str | None = Field(None, description="text file of LEDs, x y in metres on each line; a spiral if not given")
    crop: int | None = Field(None, ge=8, description="keep this many rows and columns around the middle")
    guard: int | None = Field(
        None, ge=0, le=4096, description="pixels by which the image's field exceeds the camera's on every side"
    )
    plane_waves: bool = switch("the light of an LED has one direction over the whole field, as from far away")
    size: ImageSize = size_field(8, 32_768, "as few as show all detail if not given")


@dataclass(frozen=True)
class Frames:
    """The content of a file.

    Arguments: views; shape, rows and columns of a picture; read, the intensities of a view; values by the names of the
    instrument, in metres; leds, (views, 2) in metres, None where the file has none; rotation of the LEDs in degrees and
    offset of the first from the axis in metres; pupil (rows, columns), complex, the axis in the middle.
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
    """Whether a file has pictures under a telling name, and their wavelength."""
    try:
        names = set(_list_names(source))
    except InputError:
        return False
    return bool(set(_PICTURES[:-1]) & names) and bool(set(_NAMES["wavelength"]) & names)


def _read_frames(source: Source) -> Frames:
    """The pictures of a MATLAB or NPZ file, with its light and LEDs.

    MATLAB's pictures are (rows, columns, views), NPZ's (views, rows, columns). `wlength` and `z`, the defocus, are in
    metres, `theta` in degrees, `xint` and `yint`, the offset of the first LED, in millimetres; `aberration`, unless it
    is a zero, multiplies the pupil of defocus. NPZ files may have `leds` (views, 2), in metres.
    """
    path, names = source.path, _list_names(source)
    name = next((name for name in _PICTURES if name in names), None)
    if name is None:
        content = ", ".join(names) or "nothing"
        raise InputError(f"{path} has {content}, and no pictures: {', '.join(_PICTURES[:-1])} or {_PICTURES[-1]}")
    stack = _read_array(source, name)
    if stack.ndim != 3 or stack.dtype.kind not in "fiu" or 0 in stack.shape:
        raise InputError(f"{name} of {path} has shape {stack.shape} of {stack.dtype}, but must be a stack of pictures")
    if source.container != "NPZ":
        stack = np.moveaxis(stack, -1, 0)
    if not np.isfinite(stack).all() or bool((stack < 0).any()):
        raise InputError(f"{name} of {path} holds values that are negative or not finite, which intensities are not")
    views, *shape = stack.shape
    single = {key: [name for name in theirs if np.size(source.read(name)) == 1] for key, theirs in _NAMES.items()}
    theta, x, y = (source.read_number(key) or 0.0 for key in ("theta", "xint", "yint"))
    leds = as_numbers("leds", _read_array(source, "leds")) if "leds" in names else None
    if leds is not None and leds.shape != (views, 2):
        raise InputError(f"leds of {path} has shape {leds.shape}, but must be ({views}, 2), x and y in metres")
    pupil = _read_array(source, "aberration")
    if pupil.size == 1:  # also where there is none
        pupil = None
    elif pupil.shape != (*shape,) or pupil.dtype.kind not in "fiuc" or not np.isfinite(pupil).all():
        raise InputError(
            f"aberration of {path} has shape {pupil.shape}, but must be of the pictures' {(*shape,)}, finite"
        )
    offset = (x * _MILLIMETRE, y * _MILLIMETRE)
    return Frames(views, (*shape,), stack.__getitem__, source.read_values(single), leds, theta, offset, pupil)


def _list_names(source: Source) -> list[str]:
    return [name.lstrip("/") for name, _, _ in source.names() if "@" not in name]


def _read_array(source: Source, name: str) -> Any:
    """An array with its axes in MATLAB's order, which MATLAB's HDF5 reverses."""
    array = np.asarray(source.read(name))
    return array.T if source.container in ("HDF5", "MATLAB 7.3") else array


FORMATS = Formats(
    *(Format(container, is_frames, _read_frames) for container in ("MATLAB", "MATLAB 7.3", "HDF5", "NPZ")),
    unknown="not a MATLAB or NPZ file of pictures",
)


def _tell(frames: Frames) -> list[str]:
    """What a recording holds, for `plugstream info`."""
    values = ", ".join(f"{name} {value:.6g}" for name, value in frames.values.items()) or "no lengths known"
    rows, columns = frames.shape
    return [f"{frames.views} pictures of {rows} x {columns} pixels under one LED each, {values} (metres)"]


@FORMATS.importer(
    "fpm",
    "pictures of a microscope lit by one LED after another, for Fourier ptychography: MATLAB or NPZ",
    FPMImport,
    _tell,
)
def build(options: FPMImport, file: Path, out: Path) -> ImportResult:
    """Write the scan."""
    from plugstream.instruments.fpm import FPM

    with FORMATS.open(file) as frames:
        leds, values, remarks = _arrange(frames, options)
        aperture, pixel, wavelength = (values[name] for name in ("aperture", "pixel", "wavelength"))
        rows, columns = frames.shape
        if options.crop is not None and options.crop > min(frames.shape):
            raise InputError(f"--crop {options.crop} is larger than the pictures, which are {rows} x {columns}")
        window = middle_window(frames.shape, options.crop)

        def read(view: int) -> NDArray[np.float32]:
            return np.ascontiguousarray(frames.read(view)[window], dtype=np.float32)

        height, width = read(0).shape
        guard = min(min(height, width) // _GUARD_SHARE, _GUARD_MOST) if options.guard is None else options.guard
        room = (height + 2 * guard, width + 2 * guard)
        camera = Microscope(room, pixel, wavelength, aperture, room)
        directions = light_directions(leds, values["distance"], values["slide"], values["slide_index"])
        sine = np.hypot(*directions.T)
        if not (sine < aperture).any():
            raise InputError(
                f"no LED is within the aperture of {aperture:g}, so all views are in dark field; are pitch, "
                "distance and aperture right? Give --pitch and --distance in metres"
            )
        middle = sine <= aperture / 2
        bright = np.flatnonzero(middle if middle.any() else sine < aperture)
        light = float(np.mean([frames.read(int(view))[window].mean(dtype=np.float64) for view in bright]))
        if not light > 0:
            raise InputError("its pictures in bright field are dark; the data must be intensities")
        rows, columns = read_size(options, 2) or fitting_size(camera, directions)
        instrument = FPM(
            height,
            width,
            rows,
            columns,
            light=light,
            pupil=None if frames.pupil is None else _fit_pupil(frames.pupil, camera, values["defocus"]),
            spherical=not options.plane_waves,
            guard=guard,
            **{name: values[name] for name in _NAMES if name != "pitch"},
        )
        instrument.check_plausible({"leds": leds})
        instrument.check_views({"leds": leds})
        provenance = made_by("fpm", file, options, y_axis="down")
        return write_each(out, instrument, options, read, {"leds": leds}, provenance=provenance, remarks=remarks)


def _arrange(frames: Frames, options: FPMImport) -> tuple[NDArray[np.float64], dict[str, Any], list[str]]:
    """LEDs (views, 2) in metres, the values of the instrument, and remarks on what is assumed.

    The options win over the file, and the file over the usual setup.
    """
    values: dict[str, Any] = {"defocus": 0.0} | frames.values
    assumed, remarks = [], []
    values |= {name: value for name in _NAMES if (value := getattr(options, name)) is not None}
    if "wavelength" not in values:
        raise InputError("it has no wavelength; give --wavelength, in metres")
    places = _read_places(Path(options.leds)) if options.leds is not None else frames.leds
    for name, (value, word) in _USUAL.items():
        if name not in values and (name != "pitch" or places is None):
            values[name] = value
            assumed.append(f"{word} {value:g}")
    if assumed:
        remarks.append(f"the file does not say everything; assumed, in metres: {', '.join(assumed)}")
    if places is None:
        places = spiral(frames.views).astype(np.float64) * values["pitch"]
        remarks.append(f"{frames.views} LEDs in a square spiral from the middle, {values['pitch']:g} m apart")
    if len(places) != frames.views:
        raise InputError(f"there are {len(places)} LEDs for {frames.views} views; there must be one for each")
    turn = np.deg2rad(frames.rotation if options.rotation is None else options.rotation)
    cosine, sine = np.cos(turn), np.sin(turn)
    offset: tuple[float, float] = frames.offset
    if options.offset is not None:
        advice = f"cannot read the offset {options.offset!r}; write x,y in metres, such as 0.0005,-0.001"
        offset = parse_pair(options.offset, float, advice)
    return places @ np.array([[cosine, sine], [-sine, cosine]]) + np.asarray(offset), values, remarks


def _read_places(path: Path) -> NDArray[np.float64]:
    try:
        places = np.loadtxt(path, ndmin=2)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the LEDs {path}: {first_line(error)}") from None
    if places.shape[1] != 2 or not np.isfinite(places).all():
        raise InputError(f"{path} must have x and y of an LED in each line, in metres, not {places.shape[1]} numbers")
    return places


def _fit_pupil(pupil: NDArray[np.complex128], camera: Microscope, defocus: float) -> NDArray[np.complex64]:
    """The aberrations of the pictures' frequencies at those of the field, within the aperture.

    Both have the same highest frequency; those of a field with a guard are closer together, and of a crop farther
    apart. Aberrations are smooth within the aperture, so they are interpolated as complex numbers: by cubic splines, or
    linearly where they have an edge, beyond which they are zero.
    """
    from scipy.ndimage import map_coordinates

    places = [
        n // 2 + np.arange(first, last + 1) * (n / m)
        for n, m, (first, last) in zip(pupil.shape, camera.shape, camera.box, strict=True)
    ]
    grid = np.meshgrid(*places, indexing="ij")
    order = 3 if (pupil != 0).all() else 1
    real, imag = (map_coordinates(part, grid, order=order, mode="nearest") for part in (pupil.real, pupil.imag))
    return np.asarray((real + 1j * imag) * make_pupil(camera, defocus, soft=True), dtype=np.complex64)
