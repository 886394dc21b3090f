"""Scans of MR scanners: k-space on a grid or along any path, from arrays and from ISMRMRD."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.image_size import ImageSize, read_size, size_field
from plugstream.base.registry import Field, Options
from plugstream.scans.importers.base import ImportResult, switch
from plugstream.scans.importers.mri_recordings import FORMATS, Recording, Unit, read_recording
from plugstream.scans.importers.reading import Reading, made_by, write_reading

if TYPE_CHECKING:
    from plugstream.models.ct_geometry import Voxels
    from plugstream.scans.importers.mri_steps import Samples


_SHORT, _LONG = 1e-12, 1e6


class MRIImport(Options):
    """Options for a recording, each of which wins over the file; lengths are in metres."""

    pixel: float | None = Field(None, ge=_SHORT, le=_LONG, description="size of a pixel; 1 mm if unknown")
    size: ImageSize = size_field(2, 1 << 14, "needed for a path that does not say")
    trajectory: str | None = Field(
        None,
        description="NPY file of the places (views, samples, 2 or 3) of samples (views, coils, samples); the file's "
        "if it has one",
    )
    unit: Unit = Field(
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
    keep_noise: bool = switch("do not even out the noise of coils, even if the file has measured it")
    scale: Literal["image", "none"] = Field("image", description="scale data so that the image is about 1, or not")


def _tell(recording: Recording) -> list[str]:
    """What a recording holds, for `plugstream info`."""
    where = "on a grid" if recording.trajectory is None else f"along {len(recording.trajectory)} paths"
    lines = [f"{recording.kind}, {' x '.join(map(str, recording.data.shape))}, {where}"]
    if recording.sampled is not None:
        lines.append(f"{100 * recording.sampled.mean():.3g} % of k-space")
    return lines


@FORMATS.importer(
    "mri", "k-space of several coils: NPY or NPZ, on a grid or with a trajectory, and ISMRMRD (HDF5)", MRIImport, _tell
)
def build(options: MRIImport, file: Path, out: Path) -> ImportResult:
    """Write the scan."""
    from plugstream.instruments.mri import MRI
    from plugstream.scans.importers.mri_steps import estimate_maps, first_image, noisy_coils

    names = ("stack", "repetition", "trajectory", "pixel")
    recording = read_recording(file, **{name: getattr(options, name) for name in names})
    if options.conjugate:
        recording = replace(recording, data=recording.data.conj())
    if options.held_out and not options.leave_out:
        raise InputError("--held-out takes what --leave-out leaves; give --leave-out 0.1, say, too")
    remarks = list(recording.remarks)
    steps: dict[str, Any] = {"kind": recording.kind}
    recording = _whiten(recording, options, steps, remarks)
    voxels = _voxels(recording, options, remarks)
    samples, held_out = _samples(recording, options, voxels, remarks)
    coils, maps = samples.data.shape[-2], recording.maps
    if maps is not None:
        if maps.shape[0] != coils or maps[0].size != math.prod(voxels.shape):
            raise InputError(f"coil_maps are {maps.shape}, but must be {(coils, *voxels.shape)}")
        maps = np.ascontiguousarray(maps.reshape(coils, -1, *voxels.shape[-2:]))
    elif coils > 1:
        maps = estimate_maps(samples, voxels, options)
        steps["coil maps"] = options.maps
        remarks.append(f"coil maps were estimated from the middle of k-space ({options.maps})")
        if options.maps == "espirit" and not options.keep_phase:
            steps["smooth phase"] = "in the coil maps"
            remarks.append(
                "the image's smooth phase is in the coil maps, which leaves the image nearly real; --keep-phase "
                "keeps it in the image"
            )
    noisy = {} if recording.noise is not None or options.keep_noise else noisy_coils(samples)
    if noisy and maps is not None:  # after maps are estimated, which weighs coils in the image
        factors = np.array([1 / noisy.get(coil, 1.0) for coil in range(coils)], np.float32)[:, None]
        samples, held_out = (replace(part, data=part.data * factors) for part in (samples, held_out))
        maps = maps * factors[..., None, None]
        steps["noisy coils"] = {str(coil): round(times, 3) for coil, times in noisy.items()}
        listed = ", ".join(f"number {coil} {times:.2g} times" for coil, times in noisy.items())
        remarks.append(f"coils with more noise than the others count less: {listed} (--keep-noise: as the others)")
    largest, explained = first_image(samples, voxels, maps)
    scale = 1.0
    if options.scale == "image":
        if not largest > 0:
            raise InputError("k-space is all zero")
        scale = 1 / largest
        steps["scale"] = scale
        remarks.append(f"data was multiplied by {scale:.4g}, so that the image is about 1")
    steps["explained by the first image"] = explained
    samples = held_out if options.held_out else samples
    instrument = MRI(voxels, coils, samples.data.shape[-1], samples.data.ndim == 4, maps)
    optional = {"trajectory": samples.trajectory, "density": samples.density, "mask": samples.mask}
    columns = {name: column for name, column in optional.items() if column is not None}
    instrument.check_plausible(columns)
    instrument.check_views(columns)
    instrument.warn_if_implausible(columns)

    def read(views: slice) -> dict[str, Any]:
        data = (scale * samples.data[views]).astype(np.complex64)
        return {"data": data, **{name: column[views] for name, column in columns.items()}}

    truth = None if recording.truth is None else (scale * recording.truth).astype(np.complex64)
    provenance = made_by("mri", file, options, steps=steps, y_axis="down")  # as k-space arrays are drawn
    return write_reading(Reading(instrument, len(samples.data), read, None, truth, provenance, remarks, 1), out)


def _whiten(recording: Recording, options: MRIImport, steps: dict[str, Any], remarks: list[str]) -> Recording:
    """Data and maps of combinations of coils whose noise is independent and of one size."""
    noise = recording.noise
    if noise is None or options.keep_noise:
        return recording
    from plugstream.scans.importers.mri_steps import whitening_matrix

    axis = 0 if recording.trajectory is None else recording.data.ndim - 2
    if len(noise) != recording.data.shape[axis]:
        raise InputError(f"noise is of {len(noise)} coils, but data of {recording.data.shape[axis]}; --keep-noise")
    try:
        matrix = whitening_matrix(noise)
    except InputError as error:  # a scan without useful noise is still a scan
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
        slices = recording.data.shape[1:2] if recording.stack else ()
        shape = (*slices, *(read_size(options, recording.trajectory.shape[2]) or ()))
    if shape is None:
        also = "" if recording.spacing or options.pixel else ", and of a pixel in metres, such as --pixel 0.001"
        raise InputError(
            f"a trajectory does not say how large the image is: give its size in pixels, such as --size 128 or --size "
            f"96,128{also}"
        )
    spacing = recording.spacing if options.pixel is None else (options.pixel,)
    if spacing is None:
        spacing = (1e-3,)
        remarks.append("the size of a pixel is not known: 1 mm is assumed (--pixel)")
    if len(spacing) == 1:
        spacing = spacing * len(shape)
    if len(spacing) != len(shape):
        raise InputError(f"its pixel has {len(spacing)} numbers, and the image {len(shape)} axes")
    return centered_voxels(shape, spacing)


def _samples(recording: Recording, options: MRIImport, voxels: Voxels, remarks: list[str]) -> tuple[Samples, Samples]:
    """Views to reconstruct from, and the views that are left out."""
    from plugstream.models.coils import find_calibration
    from plugstream.models.kspace import encoded_voxels
    from plugstream.scans.importers.mri_steps import Samples, group_grid, leave_out

    if recording.trajectory is not None:
        unit = recording.unit if options.unit == "auto" else options.unit
        path = _in_metres(recording.trajectory, unit, voxels, remarks)
        samples = Samples(path, recording.data, np.ones(path.shape[:2], bool), recording.density)
        count = round(options.leave_out * len(path))
        out = np.sort(np.random.default_rng(options.seed).permutation(len(path))[:count])
        if options.held_out and count == 0:
            raise InputError(f"{options.leave_out:g} of {len(path)} views is none; leave out more")
        return samples.take(np.setdiff1d(np.arange(len(path)), out)), samples.take(out)
    sampled, encoded = recording.sampled, voxels
    assert sampled is not None
    if recording.stack:
        if not (sampled == sampled[:1]).all():
            raise InputError("slices of a stack must be sampled alike; import them one by one")
        sampled, encoded = sampled[0], encoded_voxels(voxels, 2)
    if not sampled.any():
        raise InputError("k-space is all zero")
    keep = np.ones_like(sampled)
    if options.leave_out:
        keep = leave_out(sampled, find_calibration(sampled), options.leave_out, options.seed)
    parts = (recording.data, sampled, encoded, options.groups, options.seed)
    samples = group_grid(*parts, chosen=keep)
    return samples, group_grid(*parts, chosen=~keep) if options.leave_out else samples


def _in_metres(path: NDArray[np.float64], unit: Unit, voxels: Voxels, remarks: list[str]) -> NDArray[np.float64]:
    """A trajectory in 1/m; "auto" guesses its unit from its largest value."""
    axes = path.shape[2]
    shape, steps = np.array(voxels.shape[-axes:]), np.array(voxels.spacing[-axes:])
    if unit == "auto":
        most = float(np.abs(path).max())
        limits = {"pixel": 0.5, "radians": np.pi, "fov": max(shape) / 2, "1/m": float(0.5 / steps.min())}
        off: dict[Any, float] = {name: abs(np.log(max(most, 1e-30) / value)) for name, value in limits.items()}
        unit = min(off, key=lambda name: off[name])
        if off[unit] > 0.35:
            raise InputError(f"the trajectory goes out to {most:.4g}, which fits no unit; say it with --unit")
        remarks.append(f"the trajectory goes out to {most:.4g}, so its unit is taken to be {unit} (--unit)")
    factors = {"1/m": np.ones(axes), "pixel": 1 / steps, "radians": 1 / (2 * np.pi * steps), "fov": 1 / (steps * shape)}
    return np.asarray(path * factors[unit])
