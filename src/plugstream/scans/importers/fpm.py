"""Recordings of Fourier ptychographic microscopes: MATLAB files, and NPZ files with the same names."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.registry import Field, register
from plugstream.models.fpm_geometry import Microscope, fitting_size, light_directions, make_pupil, spiral
from plugstream.scans.importers.base import ImportResult, switch
from plugstream.scans.importers.fpm_files import FORMATS, Frames
from plugstream.scans.importers.reading import Reading, ViewOptions, choose_views, made_by, read_each, write_reading
from plugstream.scans.importers.source import first_line

__all__ = ["FPMImport"]

_SHORT, _LONG = 1e-12, 1e3
# What the recordings that go round are of, where a file does not tell and nobody else does: in metres.
_USUAL = {
    "pixel": (1.845e-6, "pixels"),
    "aperture": (0.1, "aperture"),
    "pitch": (4e-3, "pitch of the LEDs"),
    "distance": (90.88e-3, "distance to the LEDs"),
    "slide": (1e-3, "slide"),
    "slide_index": (1.52, "slide's index"),
}
# Pixels by which the image's field is wider than the camera's, so that one border is not seen at the other: this part
# of the camera, and not more than waves of a small aperture reach.
_GUARD_SHARE, _GUARD_MOST = 8, 16


class FPMImport(ViewOptions):
    """What can be said of a recording; lengths are in metres, and what the file says need not be said."""

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
    size: int | None = Field(
        None, ge=8, le=32768, description="pixels of the image a side; as few as show all detail if not given"
    )


@dataclass(frozen=True)
class _Geometry:
    """Where LEDs are, (views, 2) in metres, the values of the instrument, and remarks on what is assumed."""

    leds: NDArray[np.float64]
    values: dict[str, float]
    remarks: list[str] = field(default_factory=list)


def _arrange(frames: Frames, options: FPMImport) -> _Geometry:
    """The geometry from what was typed, from the file, and from what such recordings usually are."""
    found, assumed = dict(frames.values), []
    names = (*_USUAL, "wavelength", "defocus")
    found |= {name: value for name in names if (value := getattr(options, name)) is not None}
    if "wavelength" not in found:
        raise InputError("it does not tell the wavelength; give --wavelength, in metres")
    said = _read_places(Path(options.leds)) if options.leds is not None else frames.leds
    for name, (value, word) in _USUAL.items():
        if name not in found and (name != "pitch" or said is None):
            found[name] = value
            assumed.append(f"{word} {value:g}")
    remarks = []
    if assumed:
        remarks.append(f"the file does not tell everything; assumed are, in metres: {', '.join(assumed)}")
    places = spiral(frames.views).astype(np.float64) * found.get("pitch", 0.0) if said is None else said
    if said is None:
        remarks.append(f"{frames.views} LEDs in a square spiral from the middle, {found['pitch']:g} m apart")
    if len(places) != frames.views:
        raise InputError(f"there are {len(places)} LEDs for {frames.views} views; there must be one for each")
    turn = np.deg2rad(frames.rotation if options.rotation is None else options.rotation)
    cosine, sine = np.cos(turn), np.sin(turn)
    turned = places @ np.array([[cosine, sine], [-sine, cosine]])
    offset = frames.offset if options.offset is None else _read_pair(options.offset)
    return _Geometry(turned + np.asarray(offset), {"defocus": 0.0} | found, remarks)


def _read_places(path: Path) -> NDArray[np.float64]:
    try:
        values = np.loadtxt(path, ndmin=2)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the LEDs {path}: {first_line(error)}") from None
    if values.shape[1] != 2 or not np.isfinite(values).all():
        raise InputError(f"{path} must have x and y of an LED in each line, in metres, not {values.shape[1]} numbers")
    return values


def _read_pair(text: str) -> tuple[float, float]:
    try:
        x, y = (float(word) for word in text.split(","))
    except ValueError:
        raise InputError(f"cannot read the offset {text!r}; write x,y in metres, such as 0.0005,-0.001") from None
    return x, y


def _tell(frames: Frames) -> list[str]:
    """What a recording holds, for `plugstream info`."""
    known = ", ".join(f"{name} {value:.6g}" for name, value in frames.values.items()) or "no lengths known"
    rows, columns = frames.shape
    return [f"{frames.views} pictures of {rows} x {columns} pixels under one LED each, {known} (metres)"]


@register(
    "importer",
    "fpm",
    "pictures of a microscope lit by one LED after another, for Fourier ptychography: MATLAB or NPZ",
    options=FPMImport,
    describe=FORMATS.describer("fpm", _tell),
)
def build(options: FPMImport, file: Path, out: Path) -> ImportResult:
    """Write the scan."""
    with FORMATS.open(file) as frames:
        return write_reading(_plan(options, file, frames), out)


def _plan(options: FPMImport, file: Path, frames: Frames) -> Reading:
    from plugstream.instruments.fpm import FPM

    geometry = _arrange(frames, options)
    chosen = choose_views(options, frames.views)
    window = _window(frames.shape, options.crop)
    shape = (window[0].stop - window[0].start, window[1].stop - window[1].start)
    v = geometry.values
    guard = min(min(shape) // _GUARD_SHARE, _GUARD_MOST) if options.guard is None else options.guard
    room = (shape[0] + 2 * guard, shape[1] + 2 * guard)
    camera = Microscope(room, v["pixel"], v["wavelength"], v["aperture"], room)
    directions = light_directions(geometry.leds, v["distance"], v["slide"], v["slide_index"])
    image = fitting_size(camera, directions) if options.size is None else (options.size, options.size)
    bright = np.hypot(*directions.T) < v["aperture"]
    if not bright.any():
        raise InputError(
            f"no LED is within the aperture of {v['aperture']:g}, so that all views are in dark field; are pitch, "
            "distance and aperture right? Give --pitch and --distance in metres"
        )
    middle = np.flatnonzero(np.hypot(*directions.T) <= v["aperture"] / 2)
    lit = middle if len(middle) else np.flatnonzero(bright)
    light = float(np.mean([frames.read(int(view))[window].mean(dtype=np.float64) for view in lit]))
    if not light > 0:
        raise InputError("its pictures in bright field are dark; the data must be intensities")
    pupil = None if frames.pupil is None else _fit_pupil(frames.pupil, camera, v["defocus"])
    instrument = FPM(
        *shape,
        *image,
        light=light,
        pupil=pupil,
        pixel=v["pixel"],
        wavelength=v["wavelength"],
        aperture=v["aperture"],
        defocus=v["defocus"],
        distance=v["distance"],
        slide=v["slide"],
        slide_index=v["slide_index"],
        spherical=not options.plane_waves,
        guard=guard,
    )
    instrument.check_plausible({"leds": geometry.leds})
    instrument.check_views({"leds": geometry.leds})

    def read(view: int) -> NDArray[np.float32]:
        return np.ascontiguousarray(frames.read(view)[window], dtype=np.float32)

    return Reading(
        instrument,
        len(chosen),
        read_each(chosen, read, leds=geometry.leds),
        provenance=made_by("fpm", file, options, y_axis="down"),
        remarks=tuple(geometry.remarks),
        at_once=1,
    )


def _window(shape: tuple[int, int], crop: int | None) -> tuple[slice, slice]:
    """Rows and columns that are kept."""
    if crop is None:
        return slice(0, shape[0]), slice(0, shape[1])
    if crop > min(shape):
        raise InputError(f"--crop {crop} is larger than the pictures, which are {shape[0]} x {shape[1]}")
    first = [(n - crop) // 2 for n in shape]
    return slice(first[0], first[0] + crop), slice(first[1], first[1] + crop)


def _fit_pupil(pupil: NDArray[np.complex128], camera: Microscope, defocus: float) -> NDArray[np.complex64]:
    """What the aperture lets through of aberrations at all frequencies of the pictures, at those of the field.

    Frequencies of both go as far; those of a field with a guard are closer together, and of a crop farther apart, so
    that aberrations, which are smooth within the aperture, are interpolated: amplitude and phase go together, as
    complex numbers, by cubic splines, or linearly where they have an edge of their own, beyond which they are zero.
    """
    from scipy.ndimage import map_coordinates

    (top, bottom), (left, right) = camera.box
    places = [
        n // 2 + np.arange(first, last + 1) * (n / m)
        for n, m, (first, last) in zip(pupil.shape, camera.shape, ((top, bottom), (left, right)), strict=True)
    ]
    grid = np.meshgrid(*places, indexing="ij")
    order = 3 if (pupil != 0).all() else 1
    parts = [map_coordinates(part, grid, order=order, mode="nearest") for part in (pupil.real, pupil.imag)]
    found = parts[0] + 1j * parts[1]
    return np.asarray(found * make_pupil(camera, defocus, soft=True), dtype=np.complex64)
