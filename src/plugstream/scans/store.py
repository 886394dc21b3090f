"""A scan on disk: a Zarr v3 group whose data is checked by crc32c, and a commit record that says how much of it counts.

    scan.zarr/
      zarr.json       the group: format, version, units, wavelength, grid, conventions, provenance
      data/           complex64 (views, receivers), a few views a chunk, crc32c on every chunk
      receivers/      float64 (receivers, 2)      transmitters/  float64 (views, 2)
      mask/           bool (views, receivers)     fields/        complex64 (views, H, W)     truth/  float32 (H, W)
      plane_waves/    float64 (views, 2), unit vectors; this and far-field receivers are what version 2 added
      commit.json     {"views": n, "complete": true}, replaced atomically after the data it speaks of

Readers never look past `views` of the commit record. A scan is written beside its place and renamed when it is whole.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.errors import InputError
from plugstream.scans.geometry import BornGeometry, Grid
from plugstream.scans.scan import MemoryScan, Scan, check_agreement, check_finite

__all__ = ["FORMAT", "VERSION", "StoredScan", "open_scan", "save_scan"]

FORMAT = "plugstream-scan"
# A scan is written with the lowest version that can say what it holds, so that older readers take what they know.
VERSION = 2
# Small enough that drawing one view reads little else, large enough that a scan is not a million files.
_CHUNK_BYTES = 1 << 16


def save_scan(scan: Scan, path: str | Path) -> None:
    """Write a scan as a new folder; one that exists is refused, and nothing half-written is left behind.

    Arguments: scan, in memory or itself stored (then copied block by block); path, by custom ending in .zarr.
    """
    import zarr

    target = Path(path)
    if target.exists():
        raise InputError(f"{target} exists already; remove it or choose another name")
    if not target.parent.is_dir():
        raise InputError(f"the folder {target.parent} does not exist; make it first")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    geometry = scan.geometry
    try:
        group = zarr.create_group(partial, attributes=_describe(scan))
        arrays = {
            "receivers": geometry.receivers,
            "transmitters": geometry.transmitters,
            "plane_waves": geometry.plane_waves,
            "mask": geometry.mask,
            "fields": None if geometry.fields is None else geometry.fields.astype(np.complex64),
            "truth": scan.truth,
        }
        for name, array in arrays.items():
            if array is not None:
                group.create_array(name, data=np.ascontiguousarray(array), compressors=_checksum())
        step = max(1, _CHUNK_BYTES // (8 * geometry.n_receivers))
        shape = (geometry.n_views, geometry.n_receivers)
        data = group.create_array(
            "data",
            shape=shape,
            chunks=(min(step, shape[0]), shape[1]),
            dtype="complex64",
            compressors=_checksum(),
            attributes={"axes": ["view", "receiver"]},
        )
        for start in range(0, shape[0], step):
            views = torch.arange(start, min(start + step, shape[0]))
            data[start : start + len(views)] = scan.read(views).numpy()
        _commit(partial, shape[0], complete=True)
        partial.rename(target)
    except OSError as error:
        raise InputError(f"cannot write the scan {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def open_scan(path: str | Path) -> StoredScan:
    """Open a scan on disk without reading its measurements; whatever does not agree with itself is refused."""
    import zarr

    folder = Path(path)
    if not folder.exists():
        raise InputError(f"there is no scan at {folder}")
    try:
        group: Any = zarr.open_group(folder, mode="r")
        attributes: dict[str, Any] = dict(group.attrs)
    except Exception as error:  # Zarr raises many kinds for a folder that is not a group
        raise InputError(
            f"{folder} is not a scan: no Zarr group can be read there ({error})".splitlines()[0]
        ) from error
    if attributes.get("format") != FORMAT:
        raise InputError(f"{folder} is a Zarr group, but not a {FORMAT}; make one with 'plugstream simulate'")
    if attributes.get("version") not in range(1, VERSION + 1):
        found = attributes.get("version")
        raise InputError(f"{folder} is a scan of version {found}, and this plugstream reads versions 1 to {VERSION}")
    try:
        commit = json.loads((folder / "commit.json").read_text())
        committed, complete = int(commit["views"]), bool(commit["complete"])
        geometry = _geometry(group, attributes)
        truth = np.asarray(group["truth"][...]) if "truth" in group else None
        data = group["data"]
    except InputError as error:
        raise InputError(f"the scan {folder} contradicts itself: {error}") from error
    except Exception as error:
        raise InputError(f"the scan {folder} is damaged: {error!r}".splitlines()[0]) from error
    if data.dtype != np.complex64:
        raise InputError(f"the data of {folder} is {data.dtype}, but must be complex64")
    try:
        check_agreement(data.shape, geometry, truth)
    except InputError as error:
        raise InputError(f"the scan {folder} contradicts itself: {error}") from error
    if not 0 <= committed <= data.shape[0]:
        raise InputError(f"commit.json of {folder} speaks of {committed} views, but there are {data.shape[0]}")
    if committed < data.shape[0]:
        geometry = geometry.with_views(np.arange(committed))
    return StoredScan(folder, data, geometry, truth, attributes.get("provenance", {}), complete)


class StoredScan:
    """A scan on disk; it holds the geometry, and reads measurements when they are asked for."""

    def __init__(
        self,
        path: Path,
        array: Any,
        geometry: BornGeometry,
        truth: NDArray[np.float32] | None,
        provenance: Mapping[str, Any],
        complete: bool,
    ) -> None:
        self.path = path
        self.geometry = geometry
        self.truth = truth
        self.provenance = provenance
        self.complete = complete
        self._array = array

    @property
    def n_views(self) -> int:
        return self.geometry.n_views

    def read(self, views: Tensor | None = None) -> Tensor:
        wanted = np.arange(self.n_views) if views is None else views.cpu().numpy()
        if len(wanted) and not (wanted.min() >= 0 and wanted.max() < self.n_views):
            raise InputError(f"the scan has views 0 to {self.n_views - 1}, not {wanted.min()} to {wanted.max()}")
        distinct, place = np.unique(wanted, return_inverse=True)
        try:
            values = self._array.oindex[distinct]
        except Exception:
            raise InputError(self._name_damage(distinct)) from None
        return torch.from_numpy(np.ascontiguousarray(values[place]))

    def load(self) -> MemoryScan:
        """The whole scan in memory, checked for NaN and infinity."""
        return MemoryScan(self.read(), self.geometry, self.truth, self.provenance)

    def check(self) -> None:
        """Read every view, and refuse the scan if a chunk is damaged or holds NaN or infinity, naming the view."""
        step = self._array.chunks[0]
        for start in range(0, self.n_views, step):
            views = torch.arange(start, min(start + step, self.n_views))
            check_finite(self.read(views), self.geometry.mask, start)

    def _name_damage(self, views: NDArray[np.int64]) -> str:
        for view in views.tolist():
            try:
                self._array[view]
            except Exception as error:
                what = str(error).splitlines()[0] if str(error) else type(error).__name__
                return f"view {view} of {self.path} cannot be read: {what}"
        return f"the data of {self.path} cannot be read"


def _describe(scan: Scan) -> dict[str, Any]:
    geometry = scan.geometry
    plane, far = geometry.plane_waves is not None, geometry.far_field
    source = "plane wave of amplitude 1" if plane else "unit line source"
    field = "far-field amplitude A, u ~ A exp(i k r) / sqrt(r)," if far else "scattered field"
    return {
        "format": FORMAT,
        "version": 2 if plane or far else 1,
        "kind": "born-2d",
        **({"far_field": True} if far else {}),
        "wavelength": geometry.wavelength,
        "background_permittivity": geometry.background,
        "grid": {
            "shape": list(geometry.grid.shape),
            "pixel": geometry.grid.pixel,
            "center": list(geometry.grid.center),
        },
        "units": {"length": "m", "data": f"{field} of a {source}", "image": "permittivity contrast"},
        "conventions": {
            "time": "exp(-i w t), outgoing waves are H0^(1)",
            "positions": "x, y",
            "pixels": "row i, column j at x = xc + (j - W // 2) pixel, y = yc + (i - H // 2) pixel",
        },
        "provenance": dict(scan.provenance),
    }


def _geometry(group: Any, attributes: Mapping[str, Any]) -> BornGeometry:
    def array(name: str) -> Any:
        return np.asarray(group[name][...]) if name in group else None

    grid = attributes["grid"]
    return BornGeometry(
        receivers=array("receivers"),
        transmitters=array("transmitters"),
        plane_waves=array("plane_waves"),
        far_field=bool(attributes.get("far_field", False)),
        mask=array("mask"),
        fields=array("fields"),
        wavelength=float(attributes["wavelength"]),
        background=float(attributes["background_permittivity"]),
        grid=Grid((int(grid["shape"][0]), int(grid["shape"][1])), float(grid["pixel"]), tuple(grid["center"])),
    )


def _checksum() -> list[Any]:
    from zarr.codecs import Crc32cCodec

    return [Crc32cCodec()]  # and no compression: measured fields are noise in their low bits


def _commit(folder: Path, views: int, *, complete: bool) -> None:
    temporary = folder / ".commit.json.new"
    with temporary.open("w") as file:
        json.dump({"views": views, "complete": complete}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / "commit.json")
