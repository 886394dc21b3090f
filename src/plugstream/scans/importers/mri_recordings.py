"""Recordings of MR scanners as arrays: k-space on a grid (NPY, NPZ), or along any path (NPZ, ISMRMRD)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.scans.importers.formats import Format, Formats
from plugstream.scans.importers.ismrmrd import is_ismrmrd, read_ismrmrd
from plugstream.scans.importers.source import Source, first_line

Real = NDArray[np.float64]
Complex = NDArray[np.complex64]
Unit = Literal["auto", "1/m", "pixel", "fov", "radians"]


@dataclass(frozen=True)
class Recording:
    """The content of a file, in memory.

    Arguments:
        kind: in words.
        data: (coils, *grid), zero at N // 2, where k-space is on a grid; else (views, coils, samples), or
            (views, slices, coils, samples) for a stack of slices.
        trajectory: (views, samples, axes), None for a grid. unit: of the trajectory.
        sampled: (*grid), which of the grid was measured.
        stack: whether slices were measured one by one: the first axis of the grid is then slices, not k-space.
        shape, spacing: of the image, in metres; None if unknown.
        maps, density, truth: coil maps (coils, *shape), density of samples (views, samples), the true image.
        noise: (coils, n), received without an object.
        remarks: for a person.
    """

    kind: str
    data: Complex
    trajectory: Real | None = None
    unit: Unit = "auto"
    sampled: NDArray[np.bool_] | None = None
    stack: bool = False
    shape: tuple[int, ...] | None = None
    spacing: tuple[float, ...] | None = None
    maps: Complex | None = None
    density: NDArray[np.float32] | None = None
    truth: Complex | None = None
    noise: Complex | None = None
    remarks: tuple[str, ...] = field(default=())


def read_recording(path: Path, **options: Any) -> Recording:
    """The recording of a file; an unknown one is refused.

    Arguments: path; options: stack, that the first axis of a grid is slices; repetition of an ISMRMRD file; trajectory,
    an NPY file of the places of samples, for files without; pixel in metres, for headers without.
    """
    with FORMATS.open(path, **options) as recording:
        return recording


def _read_ismrmrd(
    source: Source, *, repetition: int = 0, trajectory: str | None = None, pixel: float | None = None, **_: Any
) -> Recording:
    if trajectory is not None and is_ismrmrd(source):
        raise InputError(f"{source.path} says where its samples were taken; leave out --trajectory")
    return Recording(**read_ismrmrd(source, repetition=repetition, pixel=pixel))


def _read_npy(source: Source, *, stack: bool = False, trajectory: str | None = None, **_: Any) -> Recording:
    array = _load(source.path, "k-space that is known (NPY, NPZ or ISMRMRD)")
    if array.dtype.kind != "c":
        raise InputError(f"{source.path} holds {array.dtype}, and k-space is complex")
    if trajectory is None:
        return _grid_alone(array, source.path.name, stack)
    return _along_path(array.astype(np.complex64), _load(trajectory, "trajectory"))


def _load(path: str | Path, kind: str) -> NDArray[Any]:
    try:
        array = np.load(path, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it holds several arrays")
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} is no {kind}: {first_line(error)}") from error
    return array


def _grid_alone(array: NDArray[Any], name: str, stack: bool) -> Recording:
    """An array without named axes as k-space on a grid; one that may well be spokes or spirals is refused.

    A grid has fewer coils than rows and columns; samples along paths (views, coils, samples) have more views than
    coils.
    """
    recording = _grid_of(array, f"the array {name}", stack)
    coils, grid = array.shape[0], array.shape[-2:]
    if coils > min(grid):
        raise InputError(
            f"{name} has shape {array.shape}, which as k-space on a grid would be {coils} coils of {grid[0]} x "
            f"{grid[1]}: if its axes are views, coils and samples, say where these were taken with --trajectory "
            "FILE.npy, (views, samples, 2 or 3); if it is a grid, save it as kspace in an NPZ"
        )
    size = " x ".join(map(str, array.shape[1:]))
    note = f"its axes were taken for {coils} coils of a grid of {size}; samples along paths need --trajectory"
    return replace(recording, remarks=(note,))


def _grid_of(array: NDArray[Any], kind: str, stack: bool) -> Recording:
    """K-space on a grid, (coils, *grid); what is zero in all coils was not measured."""
    if array.ndim not in (3, 4) or 0 in array.shape:
        raise InputError(f"k-space on a grid is (coils, H, W) or (coils, D, H, W), not of shape {array.shape}")
    if stack and array.ndim == 3:
        raise InputError(f"a stack of slices is (coils, slices, H, W), and k-space here is {array.shape}")
    if not np.isfinite(array).all():
        raise InputError("k-space holds NaN or infinity; write zero where nothing was measured")
    return Recording(kind, array.astype(np.complex64), sampled=(array != 0).any(0), stack=stack, shape=array.shape[1:])


def _along_path(data: Complex, path: NDArray[Any]) -> Recording:
    """Samples (views, coils, samples), or (views, slices, coils, samples) of a stack, and their places."""
    if path.ndim != 3 or path.shape[2] not in (2, 3) or path.dtype.kind not in "fiu":
        raise InputError(f"the trajectory is {path.shape}, but must be (views, samples, 2 or 3)")
    if data.ndim not in (3, 4) or (data.shape[0], data.shape[-1]) != path.shape[:2]:
        raise InputError(
            f"data is {data.shape}, but for this trajectory must be {path.shape[0], 'coils', path.shape[1]}"
        )
    if not (np.isfinite(data).all() and np.isfinite(path).all()):
        raise InputError("samples, or where they were taken, hold NaN or infinity")
    return Recording("samples along a path", data, path.astype(np.float64), stack=data.ndim == 4)


def _read_npz(source: Source, *, stack: bool = False, trajectory: str | None = None, **_: Any) -> Recording:
    def waves(name: str) -> Any:
        array = source.read_complex(name)
        return None if array is None else array.astype(np.complex64)

    kspace, path = waves("kspace"), source.read("trajectory")
    if trajectory is not None:
        if path is not None:
            raise InputError(f"{source.path} has a trajectory of its own; leave out --trajectory")
        path = _load(trajectory, "trajectory")
    pixel, maps = source.read_numbers("pixel"), waves("coil_maps")
    spacing = None if pixel is None else tuple(pixel.ravel().tolist())
    more: dict[str, Any] = {"spacing": spacing, "maps": maps, "truth": waves("truth")}
    if len(getattr(source.find("noise"), "shape", ())) == 2:  # a single number may be its level
        more["noise"] = waves("noise")
    if kspace is not None and path is None:
        mask = source.read_numbers("mask", bool)
        if mask is not None:
            if mask.shape != kspace.shape[1:]:
                raise InputError(f"the mask is {mask.shape}, but k-space {kspace.shape[1:]}")
            more["sampled"] = mask
        recording = _grid_of(kspace, "k-space on a grid", stack)
        unread = sorted(source.name_set() - {"kspace", "mask", "pixel", "coil_maps", "truth", "noise"})
        said = f"not used: {', '.join(unread)}; the places of samples are called trajectory (or --trajectory FILE.npy)"
        return replace(recording, remarks=(*recording.remarks, *[said] * bool(unread)), **more)
    data = waves("data") if kspace is None else kspace
    if data is None or path is None:
        found = ", ".join(f"{name} {shape}" for name, shape, _ in source.names())
        needed = "kspace (coils, H, W), or data (views, coils, samples) and trajectory (or --trajectory FILE.npy)"
        raise InputError(f"{source.path} has {found}; it must have {needed}")
    recording = _along_path(data, path)
    density, size = source.read_numbers("density", np.float32), source.read_numbers("size", np.int64)
    shape = None if maps is None else tuple(maps.shape[1:])
    if size is not None:
        sizes = tuple(size.ravel().tolist())
        sizes = sizes * path.shape[2] if len(sizes) == 1 else sizes
        shape = (*data.shape[1:2], *sizes) if data.ndim == 4 and len(sizes) == path.shape[2] else sizes
    return replace(recording, shape=shape, density=density, **more)


def _has_kspace(source: Source) -> bool:
    names = source.name_set()
    return "kspace" in names or {"data", "trajectory"} <= names


def _is_complex_array(source: Source) -> bool:
    if source.path.suffix.lower() != ".npy":
        return False
    try:
        array = np.load(source.path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return False  # the reader says why
    return array.ndim in (3, 4) and array.dtype.kind == "c"


FORMATS = Formats(
    Format("HDF5", is_ismrmrd, _read_ismrmrd),
    Format("NPZ", _has_kspace, _read_npz),
    Format("", _is_complex_array, _read_npy, fallback=True),
    unknown="not k-space that we know (NPY, NPZ or ISMRMRD)",
)
