"""Scans of diffraction tomographs: fields, or phases and amplitudes, of a cell that turns or is lit from many sides."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.registry import Field, register
from plugstream.models.odt_geometry import poses_of_light, poses_of_rotation
from plugstream.scans.importers.base import ImportResult, switch
from plugstream.scans.importers.odt_recordings import FORMATS, Recording, read_angles
from plugstream.scans.importers.odt_steps import FieldOptions, FieldSteps
from plugstream.scans.importers.reading import Reading, ViewOptions, choose_views, made_by, read_each, write_reading

__all__ = ["ODTImport"]

_SHORT, _LONG = 1e-12, 1e3
_APERTURE = 0.85  # of the medium's, where none is known
_OPTICS = ("pixel", "wavelength", "medium", "aperture", "distance")


class ODTImport(ViewOptions, FieldOptions):
    """What can be said of a recording; lengths are in metres, and what the file says need not be said."""

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
    size: int | None = Field(None, ge=2, le=8192, description="voxels a side; as many as pixels if not given")
    voxel: float | None = Field(None, ge=_SHORT, le=_LONG, description="size of a voxel; that of a pixel if not given")
    absorbing: bool = switch("the image is complex, for an object that absorbs light")


def _poses(recording: Recording, options: ODTImport) -> NDArray[np.float64]:
    """Of all views."""
    views, angles = recording.views, recording.angles
    if options.angles is not None:
        angles = read_angles(Path(options.angles))
    elif options.arc is not None:
        angles = np.deg2rad(options.arc) * np.arange(views) / views
    elif recording.poses is not None:
        return recording.poses
    elif recording.directions is not None:
        return poses_of_light(recording.directions)
    if angles is None:
        raise InputError("it does not tell an angle for each view; give --angles FILE, or the --arc that they cover")
    if len(angles) != views:
        raise InputError(f"there are {len(angles)} angles for {views} views; there must be one for each")
    return poses_of_rotation(-angles if options.clockwise else angles, options.axis)


def _values(recording: Recording, options: ODTImport) -> tuple[dict[str, float], list[str]]:
    """Wavelength, pixel, medium, aperture and distance, and remarks on what is not known."""
    found = dict(recording.values)
    found |= {name: value for name in _OPTICS if (value := getattr(options, name)) is not None}
    for name in ("wavelength", "pixel", "medium"):
        if name not in found:
            raise InputError(f"it does not tell the {name}; give --{name}{'' if name == 'medium' else ', in metres'}")
    remarks = []
    if "aperture" not in found:
        found["aperture"] = _APERTURE * found["medium"]
        remarks.append(f"the aperture is not known: waves up to {found['aperture']:.3g} are used; --aperture says it")
    return {"distance": 0.0} | found, remarks


def _tell(recording: Recording) -> list[str]:
    """What a recording holds, for `plugstream info`."""
    known = ", ".join(f"{name} {value:.6g}" for name, value in recording.values.items()) or "no lengths known"
    geometry = {"angles": recording.angles, "directions of light": recording.directions, "poses": recording.poses}
    views = next((name for name, value in geometry.items() if value is not None), "no angles")
    return [f"{recording.kind}, {recording.shape[0]} x {recording.shape[1]} pixels, {views}", known]


@register(
    "importer",
    "odt",
    "fields behind a cell, for diffraction tomography: a qpimage series (HDF5), or an NPZ with angles",
    options=ODTImport,
    describe=FORMATS.describer("odt", _tell),
    folders=True,
)
def build(options: ODTImport, file: Path, out: Path) -> ImportResult:
    """Write the scan."""
    from plugstream.instruments.odt import ODT3D
    from plugstream.models.ct_geometry import Voxels

    with FORMATS.open(file / "series.h5" if file.is_dir() else file) as recording:
        poses = _poses(recording, options)
        values, remarks = _values(recording, options)
        chosen = choose_views(options, recording.views)
        steps = FieldSteps(options, recording.shape)
        voxel = options.voxel or values["pixel"]
        rows, columns = (max(2, round(n * values["pixel"] / voxel)) for n in steps.shape)
        across = {"y": (columns, rows, columns), "x": (rows, rows, columns)}[options.axis]
        shape = across if options.size is None else (options.size,) * 3
        instrument = ODT3D(
            Voxels(shape, voxel),
            steps.shape[0],
            steps.shape[1],
            approximation=options.approximation,
            absorbing=options.absorbing,
            **{name: values[name] for name in _OPTICS},
        )
        instrument.check_plausible()
        instrument.check_views({"poses": poses})
        reading = Reading(
            instrument,
            len(chosen),
            read_each(chosen, lambda view: steps.apply(view, *recording.read(view)), poses=poses),
            provenance=made_by("odt", file, options, kind=recording.kind, steps=steps.steps()),
            at_once=1,
        )
        write_reading(reading, out)
    if steps.unwrapped:
        remarks.append(f"the phases of {steps.unwrapped} views were made continuous")
    return ImportResult(len(chosen), tuple(remarks))
