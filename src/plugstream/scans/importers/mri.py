"""Scans of MR scanners: k-space on a grid or along any path, from arrays and from ISMRMRD."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.registry import Field, Options, register
from plugstream.scans.importers.base import ImportResult, switch
from plugstream.scans.importers.mri_recordings import FORMATS, Recording, read_recording
from plugstream.scans.importers.reading import Reading, made_by, write_reading

if TYPE_CHECKING:
    from plugstream.models.ct_geometry import Voxels
    from plugstream.scans.importers.mri_steps import Samples

__all__ = ["MRIImport"]

_SHORT, _LONG = 1e-12, 1e6


class MRIImport(Options):
    """What can be said of a recording; lengths are in metres, and what the file says need not be said."""

    pixel: float | None = Field(None, ge=_SHORT, le=_LONG, description="size of a pixel; 1 mm if unknown")
    size: int | None = Field(None, ge=2, le=1 << 14, description="pixels a side, if the path does not say")
    trajectory: str | None = Field(
        None,
        description="NPY file of the places (views, samples, 2 or 3) of samples (views, coils, samples); the file's "
        "if it has one",
    )
    unit: Literal["auto", "1/m", "pixel", "fov", "radians"] = Field(
        "auto",
        description="unit of a trajectory: 1/m, cycles a pixel, steps of one over the field of view, radians a pixel",
    )
    stack: bool = switch("the first axis of a grid is slices, measured one by one")
    repetition: int = Field(0, ge=0, le=1 << 16, description="which repetition of an ISMRMRD file to take")
    conjugate: bool = switch("data is exp(+2 pi i k r)")
    groups: int | None = Field(
        None, ge=1, le=1 << 24, description="groups of samples of a grid; lines, or 20, if not given"
    )
    leave_out: float = Field(0.0, ge=0, lt=1, description="part of the samples outside the middle to leave out")
    held_out: bool = switch("take the samples that --leave-out leaves out, to test the result on")
    seed: int = Field(0, ge=0, le=2**63 - 1, description="seed of the groups and of --leave-out")
    maps: Literal["espirit", "adaptive"] = Field(
        "espirit", description="how coil maps are estimated if the file has none"
    )
    calibration: int = Field(
        24, ge=4, le=256, description="samples a side of the central region that maps are estimated from"
    )
    kernel: int = Field(6, ge=2, le=16, description="espirit: samples a side of a neighbourhood")
    threshold: float = Field(0.02, gt=0, lt=1, description="espirit: least singular value, as a part of the largest")
    crop: float = Field(0.0, ge=0, lt=1, description="maps are zero where their strength is below this")
    keep_phase: bool = switch("do not move the image's smooth phase into the coil maps")
    keep_noise: bool = switch("do not decorrelate the noise of coils, even if the file has measured it")
    scale: Literal["image", "none"] = Field("image", description="scale data so that the image is about 1, or not")


def _tell(recording: Recording) -> list[str]:
    """What a recording holds, for `plugstream info`."""
    where = "on a grid" if recording.trajectory is None else f"along {len(recording.trajectory)} paths"
    lines = [f"{recording.kind}, {' x '.join(map(str, recording.data.shape))}, {where}"]
    if recording.sampled is not None:
        lines.append(f"{100 * recording.sampled.mean():.3g} % of k-space")
    return lines


@register(
    "importer",
    "mri",
    "k-space of several coils: NPY or NPZ, on a grid or with a trajectory, and ISMRMRD (HDF5)",
    options=MRIImport,
    describe=FORMATS.describer("mri", _tell),
)
def build(options: MRIImport, file: Path, out: Path) -> ImportResult:
    """Write the scan."""
    from plugstream.instruments.mri import MRI
    from plugstream.scans.importers.mri_steps import estimate_maps, first_image

    recording = read_recording(
        file,
        stack=options.stack,
        repetition=options.repetition,
        trajectory=None if options.trajectory is None else Path(options.trajectory),
        pixel=options.pixel,
    )
    if options.conjugate:
        recording = replace(recording, data=recording.data.conj())
    if options.held_out and not options.leave_out:
        raise InputError("--held-out takes what --leave-out leaves; give --leave-out 0.1, say, too")
    remarks = list(recording.remarks)
    steps: dict[str, Any] = {"kind": recording.kind}
    recording = _whiten(recording, options, steps, remarks)
    voxels = _voxels(recording, options, remarks)
    kept, held = _samples(recording, options, voxels)
    stack, coils = kept.data.ndim == 4, kept.data.shape[-2]
    maps = _given_maps(recording, voxels, coils)
    if maps is None and coils > 1:
        maps = estimate_maps(
            kept,
            voxels,
            options.maps,
            width=options.calibration,
            kernel=options.kernel,
            threshold=options.threshold,
            crop=options.crop,
            real_image=not options.keep_phase,
        )
        steps["coil maps"] = options.maps
        remarks.append(f"coil maps were estimated from the middle of k-space ({options.maps})")
        if options.maps == "espirit" and not options.keep_phase:
            steps["smooth phase"] = "in the coil maps"
            remarks.append(
                "the image's smooth phase went into the coil maps, so that the image is nearly real and its phase is "
                "only what is left; --keep-phase keeps it in the image"
            )
    largest, explained = first_image(kept, voxels, maps)
    scale = 1.0
    if options.scale == "image":
        if not largest > 0:
            raise InputError("k-space is all zero")
        scale = 1 / largest
        steps["scale"] = scale
        remarks.append(f"data was multiplied by {scale:.4g}, which makes the image about 1")
    steps["explained by the first image"] = explained
    chosen = held if options.held_out else kept
    instrument = MRI(voxels, coils, chosen.data.shape[-1], stack, maps)
    columns: dict[str, NDArray[Any]] = {"trajectory": chosen.trajectory}
    if chosen.density is not None:
        columns["density"] = chosen.density
    if (mask := chosen.mask) is not None:
        columns["mask"] = mask
    instrument.check_plausible(columns)
    instrument.check_views(columns)
    instrument.warn_if_implausible(columns)

    def read(views: slice) -> dict[str, Any]:
        data = (scale * chosen.data[views]).astype(np.complex64)
        return {"data": data, **{name: column[views] for name, column in columns.items()}}

    truth = None if recording.truth is None else (scale * recording.truth).astype(np.complex64)
    provenance = made_by("mri", file, options, steps=steps, y_axis="down")  # as k-space arrays are drawn
    reading = Reading(instrument, len(chosen.data), read, None, truth, provenance, tuple(remarks), at_once=1)
    return write_reading(reading, out)


def _whiten(recording: Recording, options: MRIImport, steps: dict[str, Any], remarks: list[str]) -> Recording:
    """Data, and maps where there are any, of combinations of coils whose noise is independent and of one size."""
    noise = recording.noise
    if noise is None or options.keep_noise:
        return recording
    from plugstream.scans.importers.mri_steps import whitening_matrix

    axis = 0 if recording.trajectory is None else recording.data.ndim - 2
    if len(noise) != recording.data.shape[axis]:
        raise InputError(f"noise is of {len(noise)} coils, but data of {recording.data.shape[axis]}; --keep-noise")
    try:
        matrix = whitening_matrix(noise)
    except InputError as error:  # a scan without noise of any use is still one
        remarks.append(f"coils stay as they are: {error}")
        return recording

    def combine(values: NDArray[np.complex64], coils: int) -> NDArray[np.complex64]:
        return np.ascontiguousarray(np.moveaxis(np.tensordot(matrix, values, (1, coils)), 0, coils))

    steps["whitened by samples of noise"] = noise.shape[1]
    remarks.append(f"coils were combined so that their noise is independent, by {noise.shape[1]} samples of it")
    maps = None if recording.maps is None else combine(recording.maps, 0)
    return replace(recording, data=combine(recording.data, axis), maps=maps)


def _voxels(recording: Recording, options: MRIImport, remarks: list[str]) -> Voxels:
    """The pixels of the image, number N // 2 of which lies at zero."""
    from plugstream.models.kspace import centered_voxels

    shape = recording.shape
    if recording.trajectory is not None and options.size is not None:
        axes = recording.trajectory.shape[2]
        own = (recording.data.shape[1],) if recording.stack else ()
        shape = (*own, *(options.size,) * axes)
    if shape is None:
        raise InputError("nothing tells how many pixels the image has; give --size")
    spacing = recording.spacing
    if options.pixel is not None:
        spacing = (options.pixel,)
    if spacing is None:
        spacing = (1e-3,)
        remarks.append("the size of a pixel is not known: 1 mm is taken; --pixel says it")
    if len(spacing) == 1:
        spacing = spacing * len(shape)
    return centered_voxels(shape, spacing)


def _samples(recording: Recording, options: MRIImport, voxels: Voxels) -> tuple[Samples, Samples]:
    """Views to reconstruct from, and those that are left out."""
    from plugstream.models.coils import find_calibration
    from plugstream.models.kspace import encoded_voxels
    from plugstream.scans.importers.mri_steps import Samples, group_grid, leave_out

    if recording.trajectory is not None:
        path = _in_metres(recording.trajectory, options, recording, voxels)
        density = recording.density
        whole = Samples(path, recording.data, np.ones(path.shape[:2], bool), density)
        count = round(options.leave_out * len(path))
        out = np.sort(np.random.default_rng(options.seed).permutation(len(path))[:count])
        kept = np.setdiff1d(np.arange(len(path)), out)
        if options.held_out and count == 0:
            raise InputError(f"{options.leave_out:g} of {len(path)} views is none; leave out more")
        return whole.take(kept), whole.take(out)
    grid = recording.data
    sampled = recording.sampled
    assert sampled is not None
    encoded = voxels
    if recording.stack:
        if not (sampled == sampled[:1]).all():
            raise InputError("slices of a stack must be sampled alike; import them one by one")
        sampled, encoded = sampled[0], encoded_voxels(voxels, 2)
    if not sampled.any():
        raise InputError("k-space is all zero")
    parts = (options.groups, options.seed)
    if not options.leave_out:
        whole = group_grid(grid, sampled, encoded, *parts)
        return whole, whole
    kept_grid = leave_out(sampled, find_calibration(sampled), options.leave_out, options.seed)
    return (
        group_grid(grid, sampled, encoded, *parts, chosen=kept_grid),
        group_grid(grid, sampled, encoded, *parts, chosen=~kept_grid),
    )


def _in_metres(
    path: NDArray[np.float64], options: MRIImport, recording: Recording, voxels: Voxels
) -> NDArray[np.float64]:
    """A trajectory in 1/m; its unit is guessed by how far it goes out where nobody says it."""
    axes = path.shape[2]
    steps = np.array(voxels.spacing[-axes:])
    wide = steps * np.array(voxels.shape[-axes:])
    unit = options.unit if options.unit != "auto" else recording.unit
    if unit == "auto":
        most = float(np.abs(path).max())
        near = {"pixel": 0.5, "radians": np.pi, "fov": max(voxels.shape[-axes:]) / 2, "1/m": float(0.5 / steps.min())}
        off = {name: abs(np.log(max(most, 1e-30) / value)) for name, value in near.items()}
        if min(off.values()) > 0.35:
            raise InputError(f"the trajectory goes out to {most:.4g}, which fits no unit; say it with --unit")
        name = min(off, key=lambda name: off[name])
    else:
        name = unit
    factors = {"1/m": np.ones(axes), "pixel": 1 / steps, "radians": 1 / (2 * np.pi * steps), "fov": 1 / wide}
    return np.asarray(path * factors[name])


def _given_maps(recording: Recording, voxels: Voxels, coils: int) -> NDArray[np.complex64] | None:
    maps = recording.maps
    if maps is None:
        return None
    if maps.shape[0] != coils or int(np.prod(maps.shape[1:])) != int(np.prod(voxels.shape)):
        raise InputError(f"coil_maps are {maps.shape}, but must be {(coils, *voxels.shape)}")
    planes = voxels.shape[0] if len(voxels.shape) == 3 else 1
    return np.ascontiguousarray(maps.reshape(coils, planes, *voxels.shape[-2:]))
