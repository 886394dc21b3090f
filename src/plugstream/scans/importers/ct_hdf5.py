"""The HDF5 files of synchrotron tomography: Data Exchange, as of the Advanced Photon Source, and NeXus, NXtomo."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.models.ct_line_integrals import FlatField
from plugstream.scans.importers.ct_projections import Projections, angles_in_radians, length_in_metres, pick_views
from plugstream.scans.importers.reading import Indices
from plugstream.scans.importers.source import Source, read_rows, unit_of

__all__ = ["find_nexus", "is_exchange", "read_exchange", "read_nexus"]

# What image_key says of a frame.
_PROJECTION, _FLAT, _DARK = 0, 1, 2
# Where files of the APS, TomoBank and others say how large a pixel is; behind a lens the camera's own are larger.
_PIXEL = (
    "/measurement/instrument/detection_system/objective/resolution",
    "/measurement/instrument/detector/pixel_size_x",
    "/measurement/instrument/detector/x_pixel_size",
    "/measurement/instrument/detector/pixel_size",
)


def is_exchange(source: Source) -> bool:
    """Whether an HDF5 file has projections where Data Exchange has them."""
    return getattr(source.find("/exchange/data"), "ndim", 0) == 3


def read_exchange(source: Source) -> Projections:
    """The projections of a Data Exchange file: a parallel beam, its flat and dark fields, and angles in degrees.

    /exchange/data (views, rows, columns), data_white and data_dark (frames, rows, columns), theta (views,). Frames of
    flat fields are averaged, whenever they were taken, since the format does not say when. Without flat fields the
    projections must be line integrals already, which a file says by the description of its data, "sinogram" or
    "attenuation"; otherwise it is refused.

    Reference: De Carlo et al., Scientific data exchange, J. Synchrotron Rad. 21, 2014.
    """
    data = source.find("/exchange/data")
    axes = _text(source.attribute("axes", "/exchange/data"))
    if axes and not axes.startswith("theta"):
        raise InputError(f"its data has the axes {axes}; only theta:y:x is read")
    whites, darks = (source.find(f"/exchange/{name}") for name in ("data_white", "data_dark"))
    field = None
    if whites is not None and np.prod(whites.shape) > 0:
        flats = _frames(whites, source, "data_white")
        field = FlatField.from_frames([flats], None if darks is None else _frames(darks, source, "data_dark"))
    elif "transmission" in _text(source.attribute("description", "/exchange/data")) or data.dtype.kind in "iu":
        raise InputError("it has no flat fields, /exchange/data_white, to turn counts into line integrals with")
    theta = source.find("/exchange/theta")
    angles = None
    if theta is not None:
        told = angles_in_radians(read_rows(theta, slice(None), "theta", source), unit_of(theta))
        angles = told if len(told) == data.shape[0] else None  # of other frames too, or of none

    sizes = (_length(source, place, "pixel size") for place in _PIXEL)
    pixel = next((size for size in sizes if size is not None), None)
    name = source.read("/measurement/sample/name")
    return Projections(
        "Data Exchange",
        data.shape[0],
        data.shape[1:],
        partial(_read_views, data, np.arange(data.shape[0])),
        angles,
        flat_field=field,
        pixel=None if pixel is None else (pixel, pixel),
        provenance={} if name is None else {"sample": _text(name)},
    )


def find_nexus(source: Source) -> str | None:
    """The group of the detector whose frames an image_key tells apart, None where the file has none."""
    for name, shape, _ in source.names():
        group, _, last = name.rpartition("/")
        if last == "image_key" and len(shape) == 1 and getattr(source.find(f"{group}/data"), "ndim", 0) == 3:
            return group
    return None


def read_nexus(source: Source) -> Projections:
    """The projections of an NXtomo file: a parallel beam, or a cone where it tells the distances.

    The detector has `data` (frames, rows, columns) and `image_key` (frames,): 0 for a projection, 1 for a flat and 2
    for a dark field, 3 for a frame that does not count. Neighbouring flat fields are a group, taken when as many
    projections had been as come before it, and interpolated between. `rotation_angle` of the sample has an angle a
    frame. Distances are those of `x_pixel_size`, `y_pixel_size` and `distance` of the detector, from the sample, and
    of `distance` of the source.

    Reference: the application definition NXtomo, https://manual.nexusformat.org/classes/applications/NXtomo.html
    """
    group = find_nexus(source)
    if group is None:
        raise InputError("it has no detector with data and image_key")
    data, key = source.find(f"{group}/data"), np.asarray(source.read(f"{group}/image_key")).astype(np.int64)
    if key.shape != data.shape[:1]:
        raise InputError(f"its image_key has {key.size} entries for {data.shape[0]} frames")
    frames = np.flatnonzero(key == _PROJECTION)
    flats, darks = np.flatnonzero(key == _FLAT), np.flatnonzero(key == _DARK)
    if len(flats) == 0:
        raise InputError("none of its frames is a flat field, image_key 1, to turn counts into line integrals with")
    groups = np.split(flats, np.flatnonzero(np.diff(flats) > 1) + 1)
    places = [float((frames < part[0]).sum()) for part in groups]
    merged: dict[float, list[int]] = {}
    for place, part in zip(places, groups, strict=True):  # groups with no projection between them are one
        merged.setdefault(place, []).extend(part.tolist())
    field = FlatField.from_frames(
        [_mean_frame(data, np.asarray(part)) for part in merged.values()],
        _mean_frame(data, darks) if len(darks) else None,
        list(merged),
    )
    angles = _angles(source, group, len(key))

    width, height = (_length(source, f"{group}/{axis}_pixel_size", "pixel size") for axis in "xy")
    behind = _length(source, f"{group}/distance", "distance of the detector")
    beam = group.rpartition("/")[0]
    lengths = (_length(source, f"{beam}/{name}/distance", "distance of the source") for name in ("SOURCE", "source"))
    before = next(filter(None, lengths), None)
    cone = before is not None and behind is not None and 0 < abs(before) < 10  # metres; a synchrotron is further away
    return Projections(
        "NXtomo",
        len(frames),
        data.shape[1:],
        partial(_read_views, data, frames),
        None if angles is None else angles[frames],
        flat_field=field,
        pixel=None if width is None else (height or width, width),
        source=abs(before) if cone and before is not None else None,
        detector=behind if cone else None,
        provenance={"place": group},
    )


def _angles(source: Source, group: str, frames: int) -> NDArray[np.float64] | None:
    """The rotation angle of each frame: that of the sample nearest to the detector's entry."""
    found = [name for name, _, _ in source.names() if name.rpartition("/")[2] == "rotation_angle"]
    if not found:
        return None

    def shared(name: str) -> int:  # of two entries in a file, the one that the detector is in
        pairs = zip(name.split("/"), group.split("/"), strict=False)
        return sum(a == b for a, b in pairs)

    place = max(found, key=lambda name: (shared(name), "sample" in name.lower()))
    values = angles_in_radians(source.read(place), unit_of(source.find(place)))
    if len(values) != frames:
        raise InputError(f"its rotation_angle has {len(values)} entries for {frames} frames")
    return values


def _length(source: Source, place: str, what: str) -> float | None:
    found = source.find(place)
    return None if found is None else length_in_metres(source.read(place), unit_of(found), what)


def _frames(array: Any, source: Source, name: str) -> NDArray[Any]:
    """The mean of the frames, as one."""
    if array.ndim == 2:
        return np.asarray(read_rows(array, slice(None), name, source))[None]
    if array.ndim != 3 or array.shape[0] == 0:
        raise InputError(f"its {name} has shape {array.shape}, but must be (frames, rows, columns)")
    try:
        return _mean_frame(array, np.arange(array.shape[0]))
    except (OSError, RuntimeError) as error:
        raise InputError(f"its {name} cannot be read: {error}") from error


def _text(value: Any) -> str:
    value = value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
    return value.decode(errors="replace") if isinstance(value, bytes) else "" if value is None else str(value)


def _read_views(data: Any, frames: Indices, views: Indices, rows: slice) -> NDArray[Any]:
    try:
        return pick_views(data, frames[views], rows)
    except (OSError, RuntimeError) as error:
        raise InputError(f"projections {views[0]} to {views[-1]} cannot be read: {error}") from error


def _mean_frame(array: Any, frames: Indices) -> NDArray[np.float64]:
    """The mean of some frames of a dataset, as one: (1, rows, columns); read one by one, since they may be many."""
    total = np.zeros(array.shape[1:])
    for frame in frames:
        total += array[int(frame)]
    return (total / len(frames))[None]
