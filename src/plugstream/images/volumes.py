"""Volumes and series of them in and out: NPY, stacks in TIFF, and OME-Zarr."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.capacity import check_claim
from plugstream.base.errors import InputError, StorageError
from plugstream.base.files import hidden_place
from plugstream.images.pictures import open_tiff, read_tiff

_ENDINGS = (".npy", ".tif", ".tiff", ".zarr")


@dataclass(frozen=True)
class StoredVolume:
    """A volume as it is stored.

    Attributes: values, with the axes `axes`: letters of t and c, then zyx, or yx for a series of pictures; about, what
    OME-Zarr says of the axes and their scale, if it comes from one.
    """

    values: NDArray[Any]
    axes: str
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def ndim(self) -> int:
        """How many spatial axes it has, 2 or 3."""
        return 3 if "z" in self.axes else 2


def volume_header(path: Path) -> tuple[str, tuple[int, ...]]:
    """The axes and the shape of a volume, or of a series of pictures, by its ending and its header: an OME-Zarr, a
    stack of grey pictures, or an NPY of three or more axes whose last is longer than the channels of a colour picture.

    Axes are letters of t, c, z, y and x, in the order of the file; there are none if it is a picture, or cannot be
    read.
    """
    kind = path.suffix.lower()
    try:
        if kind == ".zarr" and path.is_dir():
            array, names, _ = _open_zarr(path)
            return names, tuple(array.shape)
        if kind == ".npy" and path.is_file():
            values = np.load(path, mmap_mode="r", allow_pickle=False)
            volume = values.ndim > 3 or (values.ndim == 3 and (values.shape[2] > 4 or values.dtype.kind == "c"))
            return (_usual_axes(values.ndim), values.shape) if volume else ("", ())
        if kind in (".tif", ".tiff") and path.is_file():
            with open_tiff(path) as file:
                names, shape = file.series[0].axes.lower(), file.series[0].shape
            if "z" not in names:  # tifffile's letters of stacks that say nothing of themselves
                names = names.replace("q", "z").replace("i", "z")
            return (names, shape) if "s" not in names and len(shape) > 2 else ("", ())
    except InputError:
        raise
    except Exception:  # which reading it as a picture explains
        return "", ()
    return "", ()


def _usual_axes(count: int) -> str:
    return "czyx" if count == 4 else "tczyx"[-count:]


def read_volume(path: Path) -> StoredVolume:
    """The volume of a file for which `volume_header` gives axes, z moved before y and x."""
    about: dict[str, Any] = {}
    kind = path.suffix.lower()
    try:
        if kind == ".zarr":
            array, names, about = _open_zarr(path)
            held = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            check_claim(array.nbytes, held, "it")
            values = np.asarray(array[...])
        else:
            names, _ = volume_header(path)
            values = np.load(path, allow_pickle=False) if kind == ".npy" else read_tiff(path)
    except Exception as error:  # each reader has its own errors
        raise InputError(f"cannot read the volume {path}: {error}".splitlines()[0]) from error
    if len(names) != values.ndim or not names.endswith("yx") or not set(names) <= set("tczyx"):
        raise InputError(f"{path} has the axes {names or values.shape}; t, c and z before y and x are understood")
    if "z" in names:
        values, names = np.moveaxis(values, names.index("z"), -3), f"{names.replace('z', '')[:-2]}zyx"
        about = about if about.get("axes") == names else {}
    if values.dtype.kind not in "fiuc" or 0 in values.shape:
        raise InputError(f"{path} holds {values.dtype} of shape {values.shape}; a volume of numbers is needed")
    return StoredVolume(np.asarray(values), names, about)


def check_volume_place(path: Path, *, complex: bool = False) -> None:
    """Refuse a place to which a volume cannot be written, before it is made."""
    if path.exists():
        raise InputError(f"{path} exists already; remove it or choose another name")
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} does not exist; make it first")
    if path.suffix.lower() not in _ENDINGS:
        raise InputError(f"cannot write {path.name}: for a volume the ending must be .npy, .tif or .zarr")
    if complex and path.suffix.lower() not in (".npy", ".zarr"):
        raise InputError(f"cannot write {path.name}: complex numbers are written as .npy or .zarr")


def write_volume(path: Path, volume: StoredVolume) -> None:
    """Write a volume as NPY, TIFF or OME-Zarr 0.5, at once and whole."""
    check_volume_place(path)
    values, kind = volume.values, path.suffix.lower()
    partial = hidden_place(path)
    try:
        if kind == ".npy":
            with partial.open("wb") as file:
                np.save(file, values)
        elif kind == ".zarr":
            _write_zarr(partial, volume)
        else:
            import tifffile

            with partial.open("wb") as file:
                about = {"axes": volume.axes.upper()}
                tifffile.imwrite(file, values, metadata=about, ome=True, photometric="minisblack")
        os.replace(partial, path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)


def _open_zarr(path: Path) -> tuple[Any, str, dict[str, Any]]:
    """The first level of an OME-Zarr (0.4 or 0.5), or an array of Zarr; its axes, and what it says of them."""
    import zarr

    node = zarr.open(path, mode="r")
    if isinstance(node, zarr.Array):
        return node, _usual_axes(node.ndim), {}
    attributes: Any = node.attrs.asdict()
    scales = attributes.get("ome", attributes).get("multiscales")
    if not scales:
        raise InputError(f"{path} is a Zarr group without an image: it has no multiscales")
    first = scales[0]["datasets"][0]
    axes = [axis if isinstance(axis, dict) else {"name": axis} for axis in scales[0].get("axes", [])]
    names = "".join(str(axis["name"]) for axis in axes)
    about = {"axes": names, "names": axes, "transformations": first.get("coordinateTransformations")}
    return node[first["path"]], names, about


def _write_zarr(path: Path, volume: StoredVolume) -> None:
    """One level, a slice a chunk."""
    import zarr

    kinds = {"t": "time", "c": "channel"}
    axes: Any = volume.about.get("names") or [{"name": a, "type": kinds.get(a, "space")} for a in volume.axes]
    scale = volume.about.get("transformations") or [{"type": "scale", "scale": [1.0] * len(axes)}]
    datasets = [{"path": "0", "coordinateTransformations": scale}]
    ome: Any = {"version": "0.5", "multiscales": [{"name": path.stem.strip("."), "axes": axes, "datasets": datasets}]}
    group = zarr.open_group(path, mode="w", zarr_format=3, attributes={"ome": ome})
    values = volume.values
    chunks = (1,) * (values.ndim - 2) + values.shape[-2:]
    names = list(volume.axes)
    array = group.create_array("0", shape=values.shape, dtype=values.dtype, chunks=chunks, dimension_names=names)
    array[...] = values
