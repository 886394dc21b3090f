"""NXtomo: the NeXus files of synchrotron tomography, where projections, flat and dark fields are one stack."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.models.ct_line_integrals import FlatField
from plugstream.scans.importers.ct_projections import (
    Indices,
    Projections,
    angles_in_radians,
    length_in_metres,
    mean_frame,
    pick_views,
)
from plugstream.scans.importers.lookup import Source, read_rows, unit_of

__all__ = ["find_nexus", "read_nexus"]

# What image_key says of a frame.
_PROJECTION, _FLAT, _DARK = 0, 1, 2


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
    data, key = source.find(f"{group}/data"), np.asarray(_read(source, f"{group}/image_key")).astype(np.int64)
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
        [mean_frame(data, np.asarray(part)) for part in merged.values()],
        mean_frame(data, darks) if len(darks) else None,
        list(merged),
    )
    angles = _angles(source, group, len(key))

    def read(views: Indices, rows: slice) -> NDArray[Any]:
        try:
            return pick_views(data, frames[views], rows)
        except (OSError, RuntimeError) as error:
            raise InputError(f"projections {views[0]} to {views[-1]} cannot be read: {error}") from error

    width, height = (_length(source, f"{group}/{axis}_pixel_size", "pixel size") for axis in "xy")
    behind = _length(source, f"{group}/distance", "distance of the detector")
    beam = group.rpartition("/")[0]
    before = _length(source, f"{beam}/SOURCE/distance", "distance of the source") or _length(
        source, f"{beam}/source/distance", "distance of the source"
    )
    cone = before is not None and behind is not None and 0 < abs(before) < 10  # metres; a synchrotron is further away
    return Projections(
        "NXtomo",
        len(frames),
        data.shape[1:],
        read,
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
    values = angles_in_radians(_read(source, place), unit_of(source.find(place)))
    if len(values) != frames:
        raise InputError(f"its rotation_angle has {len(values)} entries for {frames} frames")
    return values


def _length(source: Source, place: str, what: str) -> float | None:
    found = source.find(place)
    return None if found is None else length_in_metres(_read(source, place), unit_of(found), what)


def _read(source: Source, place: str) -> Any:
    found = source.find(place)
    return read_rows(found, () if not getattr(found, "shape", ()) else slice(None), place, source)
