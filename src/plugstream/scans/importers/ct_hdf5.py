"""The HDF5 files of synchrotron tomography: Data Exchange, as of the Advanced Photon Source, and NeXus, NXtomo."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.models.ct_line_integrals import FlatField
from plugstream.scans.importers.ct_projections import Projections, angles_in_radians, length_in_metres
from plugstream.scans.importers.reading import Indices
from plugstream.scans.importers.source import Source, unit_of

# The values of image_key.
_PROJECTION, _FLAT, _DARK = 0, 1, 2
# Where files of the APS, TomoBank and others give the size of a pixel; behind a lens the camera's own are larger.
_PIXEL = (
    "/measurement/instrument/detection_system/objective/resolution",
    "/measurement/instrument/detector/pixel_size_x",
    "/measurement/instrument/detector/x_pixel_size",
    "/measurement/instrument/detector/pixel_size",
)


def is_exchange(source: Source) -> bool:
    """Whether an HDF5 file has the projections of Data Exchange."""
    return getattr(source.find("/exchange/data"), "ndim", 0) == 3


def read_exchange(source: Source) -> Projections:
    """The projections of a Data Exchange file: a parallel beam, its flat and dark fields, and angles in degrees.

    /exchange/data (views, rows, columns), data_white and data_dark (frames, rows, columns), theta (views,). Flat fields
    are averaged, since the format does not say when they were taken. Without flat fields the projections must be line
    integrals, whose description is "sinogram" or "attenuation"; otherwise the file is refused.

    Reference: De Carlo et al., Scientific data exchange, J. Synchrotron Rad. 21, 2014.
    """
    data = source.find("/exchange/data")
    axes = _text(source.attribute("axes", "/exchange/data"))
    if axes and not axes.startswith("theta"):
        raise InputError(f"its data has the axes {axes}; only theta:y:x is read")
    flat, field = _mean_field(source, "data_white"), None
    if flat is not None:
        field = FlatField.from_frames([flat], _mean_field(source, "data_dark"))
    elif "transmission" in _text(source.attribute("description", "/exchange/data")) or data.dtype.kind in "iu":
        raise InputError("it has no flat fields, /exchange/data_white, to turn counts into line integrals with")
    theta, angles = source.find("/exchange/theta"), None
    if theta is not None:
        angles = angles_in_radians(theta[:], unit_of(theta))
        angles = angles if len(angles) == data.shape[0] else None  # of other frames too, or of none
    pixel = _first_length(source, _PIXEL, "pixel size")
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
    """The group of the detector with an image_key, None where the file has none."""
    for name, shape, _ in source.names():
        group, _, last = name.rpartition("/")
        if last == "image_key" and len(shape) == 1 and getattr(source.find(f"{group}/data"), "ndim", 0) == 3:
            return group
    return None


def read_nexus(source: Source) -> Projections:
    """The projections of an NXtomo file: a parallel beam, or a cone where it tells the distances.

    The detector has `data` (frames, rows, columns) and `image_key` (frames,): 0 for a projection, 1 for a flat and 2
    for a dark field, 3 for a frame that does not count. Neighbouring flat fields are a group, placed by the number of
    projections before it, and interpolated between. `rotation_angle` of the sample has an angle a frame. Distances are
    `x_pixel_size`, `y_pixel_size` and `distance` of the detector, from the sample, and `distance` of the source.

    Reference: the application definition NXtomo, https://manual.nexusformat.org/classes/applications/NXtomo.html
    """
    group = find_nexus(source)
    if group is None:
        raise InputError("it has no detector with data and image_key")
    data, key = source.find(f"{group}/data"), np.asarray(source.read(f"{group}/image_key")).astype(np.int64)
    if key.shape != data.shape[:1]:
        raise InputError(f"its image_key has {key.size} entries for {data.shape[0]} frames")
    frames, flats, darks = (np.flatnonzero(key == kind) for kind in (_PROJECTION, _FLAT, _DARK))
    if len(flats) == 0:
        raise InputError("none of its frames is a flat field, image_key 1, to turn counts into line integrals with")
    places = np.searchsorted(frames, flats)  # flat fields with no projection between them are one group
    field = FlatField.from_frames(
        [_mean_frame(data, flats[places == place]) for place in np.unique(places)],
        _mean_frame(data, darks) if len(darks) else None,
        np.unique(places).astype(float).tolist(),
    )
    angles = _angles(source, group, len(key))
    width, height = (_first_length(source, [f"{group}/{axis}_pixel_size"], "pixel size") for axis in "xy")
    behind = _first_length(source, [f"{group}/distance"], "distance of the detector")
    beam = group.rpartition("/")[0]
    names = [f"{beam}/{name}/distance" for name in ("SOURCE", "source")]
    before = abs(_first_length(source, names, "distance of the source") or 0.0)
    cone = 0 < before < 10 and behind is not None  # metres; a synchrotron is further away
    return Projections(
        "NXtomo",
        len(frames),
        data.shape[1:],
        partial(_read_views, data, frames),
        None if angles is None else angles[frames],
        flat_field=field,
        pixel=None if width is None else (height or width, width),
        source=before if cone else None,
        detector=behind if cone else None,
        provenance={"place": group},
    )


def _angles(source: Source, group: str, frames: int) -> NDArray[np.float64] | None:
    """The rotation angle of each frame: that of the sample nearest to the detector's entry."""
    names = [name for name, _, _ in source.names() if name.rpartition("/")[2] == "rotation_angle"]
    if not names:
        return None

    def shared(name: str) -> int:  # prefers, of two entries in a file, the detector's
        return sum(a == b for a, b in zip(name.split("/"), group.split("/"), strict=False))

    place = max(names, key=lambda name: (shared(name), "sample" in name.lower()))
    values = angles_in_radians(source.read(place), unit_of(source.find(place)))
    if len(values) != frames:
        raise InputError(f"its rotation_angle has {len(values)} entries for {frames} frames")
    return values


def _first_length(source: Source, places: Any, quantity: str) -> float | None:
    """The length at the first of these places where the file has one, in metres."""
    arrays = ((place, array) for place in places if (array := source.find(place)) is not None)
    return next((length_in_metres(source.read(place), unit_of(array), quantity) for place, array in arrays), None)


def _mean_field(source: Source, name: str) -> NDArray[Any] | None:
    """The mean of the frames of a flat or dark field, (1, rows, columns), None where there are none."""
    array = source.find(f"/exchange/{name}")
    if array is None or 0 in array.shape:
        return None
    if array.ndim == 2:
        return np.asarray(array[:])[None]
    if array.ndim != 3:
        raise InputError(f"its {name} has shape {array.shape}, but must be (frames, rows, columns)")
    return _mean_frame(array, np.arange(array.shape[0]))


def _text(value: Any) -> str:
    value = value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
    return value.decode(errors="replace") if isinstance(value, bytes) else "" if value is None else str(value)


def _read_views(data: Any, frames: Indices, views: Indices, rows: slice) -> NDArray[Any]:
    """Projections (views, rows, columns); evenly spaced ones in one piece."""
    chosen = frames[views]
    steps = np.diff(chosen)
    if len(chosen) and (steps == steps[:1]).all():
        step = int(steps[0]) if len(steps) else 1
        return np.asarray(data[int(chosen[0]) : int(chosen[-1]) + 1 : step, rows])
    return np.stack([np.asarray(data[int(frame), rows]) for frame in chosen])


def _mean_frame(array: Any, frames: Indices) -> NDArray[np.float64]:
    """The mean of some frames of a dataset, (1, rows, columns); read one by one, since there may be many."""
    total = np.zeros(array.shape[1:])
    for frame in frames:
        total += array[int(frame)]
    return (total / len(frames))[None]
