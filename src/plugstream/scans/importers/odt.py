"""Scans of diffraction tomographs: fields, or phases and amplitudes, of a cell that turns or is lit from many sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.registry import Field, register
from plugstream.base.text import shell_quote
from plugstream.models.odt_geometry import poses_of_light, poses_of_rotation
from plugstream.scans.importers.base import ImportResult
from plugstream.scans.importers.ct_steps import StepOptions, choose_views
from plugstream.scans.importers.odt_recordings import Recording, is_recording, open_recording, read_angles
from plugstream.scans.importers.odt_steps import FieldOptions, FieldSteps

__all__ = ["ODTImport"]

_SHORT, _LONG = 1e-12, 1e3
_APERTURE = 0.85  # of the medium's, where none is known


class ODTImport(FieldOptions):
    """What can be said of a recording; lengths are in metres, and what the file says need not be said."""

    select: str | None = Field(None, description="views to take: START:STOP:STEP, such as 0:180 or 5::10")
    omit: str | None = Field(None, description="views to leave out, such as 5::10, to judge by them later")
    count: int | None = Field(None, ge=1, description="take so many of the views that are left, evenly spaced")
    wavelength: float | None = Field(None, ge=_SHORT, le=_LONG, description="wavelength in vacuum")
    pixel: float | None = Field(None, ge=_SHORT, le=_LONG, description="size of a pixel, as the object sees it")
    medium: float | None = Field(None, ge=0.1, le=10, description="refractive index around the object")
    aperture: float | None = Field(None, gt=0, le=10, description="numerical aperture; 0.85 of the medium's if unknown")
    distance: float | None = Field(
        None, ge=-_LONG, le=_LONG, description="from the object's middle to the plane in focus; 0 if unknown"
    )
    angles: str | None = Field(None, description="text file of angles; angles.txt beside a series if there is one")
    arc: float | None = Field(None, gt=0, description="degrees that the views cover, where nothing tells angles")
    axis: Literal["y", "x"] = Field("y", description="the object turns about y, along the camera's columns, or x")
    clockwise: bool = Field(False, description="the object turns the other way", json_schema_extra={"switch": True})
    size: int | None = Field(None, ge=2, le=8192, description="voxels a side; as many as there are pixels")
    voxel: float | None = Field(None, ge=_SHORT, le=_LONG, description="size of a voxel; that of a pixel")
    absorbing: bool = Field(
        False, description="the image is complex, as of what absorbs light", json_schema_extra={"switch": True}
    )


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
    names = ("wavelength", "pixel", "medium", "aperture", "distance")
    found |= {name: value for name in names if (value := getattr(options, name)) is not None}
    for name in ("wavelength", "pixel", "medium"):
        if name not in found:
            raise InputError(f"it does not tell the {name}; give --{name}{'' if name == 'medium' else ', in metres'}")
    remarks = []
    if "aperture" not in found:
        found["aperture"] = _APERTURE * found["medium"]
        remarks.append(f"the aperture is not known: waves up to {found['aperture']:.3g} are used; --aperture says it")
    return {"distance": 0.0} | found, remarks


def _describe(path: Path) -> tuple[str, list[str]] | None:
    """What can be made of a recording, for `plugstream info`; None for a file of another kind."""
    if not is_recording(path):
        return None
    with open_recording(path) as found:
        known = ", ".join(f"{name} {value:.6g}" for name, value in found.values.items()) or "no lengths known"
        kinds = (("angles", found.angles), ("directions of light", found.directions), ("poses", found.poses))
        views = next((name for name, value in kinds if value is not None), "no angles")
        lines = [f"{found.kind}, {found.shape[0]} x {found.shape[1]} pixels, {views}", known]
    return f"'plugstream import odt {shell_quote(path)}' makes a scan of it", lines


@register(
    "importer",
    "odt",
    "fields behind a cell, for diffraction tomography: a qpimage series (HDF5), or an NPZ with angles",
    options=ODTImport,
    describe=_describe,
    folders=True,
)
def build(options: ODTImport, file: Path, out: Path) -> ImportResult:
    """Write the scan, view by view."""
    from plugstream.base.progress import report
    from plugstream.instruments.odt import ODT3D
    from plugstream.models.ct_geometry import Voxels
    from plugstream.scans.writer import ScanWriter, whole_scan

    with open_recording(file) as recording:
        poses = _poses(recording, options)
        values, remarks = _values(recording, options)
        chosen = choose_views(
            StepOptions(select=options.select, omit=options.omit, count=options.count), recording.views
        )
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
            **_optics(values),
        )
        instrument.check_plausible()
        instrument.check_views({"poses": poses})
        provenance: dict[str, Any] = {
            "made_by": "plugstream import odt",
            "file": file.name,
            "kind": recording.kind,
            "options": options.model_dump(exclude_defaults=True),
            "steps": steps.steps(),
        }
        with whole_scan(out) as partial, ScanWriter(partial, instrument, provenance=provenance) as writer:
            for n, view in enumerate(chosen.tolist()):
                report("importing views", n, len(chosen))
                data = steps.apply(view, *recording.read(view))
                writer.append(data[None], poses=poses[view : view + 1])
            writer.finish()
    if steps.unwrapped:
        remarks.append(f"the phases of {steps.unwrapped} views were made continuous")
    return ImportResult(len(chosen), tuple(remarks))


def _optics(values: dict[str, float]) -> dict[str, Any]:
    return {name: values[name] for name in ("pixel", "wavelength", "medium", "aperture", "distance")}
