"""The HDF5 files of synchrotron tomography: Data Exchange, as of the Advanced Photon Source, and NeXus, NXtomo."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.models.ct_line_integrals import FlatField
from plugstream.scans.importers.ct_fields import FrameChoice, Frames, make_field, settle_fields, wait_for_fields
from plugstream.scans.importers.ct_projections import (
    Projections,
    angles_in_radians,
    length_in_metres,
    look_like_radians,
)
from plugstream.scans.importers.formats import open_source
from plugstream.scans.importers.growth import Growth
from plugstream.scans.importers.reading import Indices
from plugstream.scans.importers.source import Lookup, Source, as_numbers, check_array, check_names, unit_of
from plugstream.scans.importers.tiled import TiledRun
from plugstream.scans.streams.frames import DARK, FLAT, PROJECTION
from plugstream.scans.streams.tap import StreamSource

_NO_FLATS = (
    "it has no flat fields{}, to turn counts into line integrals with; --flats FILE takes those of another file, and "
    "--flats air the air at the edges"
)
_BOOKKEEPING = re.compile(r"/(seq_num|time|ts_[^/]*)$")  # of a run of Tiled
# The names that a mapping may have, and where Data Exchange has them.
NAMES = ("data", "flats", "darks", "angles", "image_key", "pixel")
_EXCHANGE = {"data": "/exchange/data", "flats": "/exchange/data_white", "darks": "/exchange/data_dark"}
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


def read_exchange(source: Source, choice: FrameChoice = FrameChoice()) -> Projections:  # noqa: B008 - frozen
    """The projections of a Data Exchange file: a parallel beam, its flat and dark fields, and angles in degrees.

    /exchange/data (views, rows, columns), data_white and data_dark (frames, rows, columns), theta (views,). Flat and
    dark fields are averaged, unless /defaults/HDF5FrameLocation says in which order all frames were taken, as tomoscan
    writes it.

    Reference: De Carlo et al., Scientific data exchange, J. Synchrotron Rad. 21, 2014.
    """
    axes = _text(source.attribute("axes", "/exchange/data"))
    if axes and not axes.startswith("theta"):
        raise InputError(f"its data has the axes {axes}; only theta:y:x is read")
    name = source.read("/measurement/sample/name")
    words = {} if name is None else {"sample": _text(name)}
    pixel = _first_length(source, _PIXEL, "pixel size")
    has_angles = choice.angles and source.find("/exchange/theta") is not None
    look = Lookup(source, _EXCHANGE | ({"angles": "/exchange/theta"} if has_angles else {}))
    return _read_separate("Data Exchange", look, choice, pixel, words)


def read_mapped(source: Source, mapping: Mapping[str, Any], choice: FrameChoice) -> Projections:
    """The projections of an HDF5 file of any layout: a parallel beam.

    Arguments: source; mapping from `data`, and `flats`, `darks`, `angles` and `pixel` where the file has them, to paths
    in it; or with `image_key`, as NXtomo has it, `data` and `angles` of all frames; choice of fields.
    """
    check_names(mapping, NAMES)
    mapping = {name: place for name, place in mapping.items() if choice.angles or name != "angles"}
    look = Lookup(source, mapping)
    if "data" not in mapping or len(getattr(look.array("data"), "shape", ())) != 3:
        raise InputError("--map must lead from data to projections (views, rows, columns)")
    pixel = _first_length(source, [mapping["pixel"]], "pixel size") if "pixel" in mapping else None
    if "image_key" not in mapping:
        return _read_separate("HDF5", look, choice, pixel, {})
    return _read_keyed("HDF5", look, choice, None if pixel is None else (pixel, pixel), {})


def read_run(run: TiledRun, mapping: Mapping[str, Any], choice: FrameChoice) -> Projections:
    """The projections of a run of Tiled: a parallel beam. Arguments: run; the rest as of `read_mapped`."""
    if "data" not in mapping:
        there = [f"{name} {shape}" for name, shape, _ in run.names() if not _BOOKKEEPING.search(name)]
        raise InputError(
            f"say where it has projections and angles, --map data=/A/B angles=/A/C; it has {', '.join(there[:12])}"
        )
    projections = read_mapped(run, mapping, choice)
    return replace(projections, kind="Tiled", provenance=run.provenance(), remarks=run.remarks())


def _read_separate(
    kind: str, look: Lookup, choice: FrameChoice, pixel: float | None, words: Mapping[str, Any]
) -> Projections:
    """Projections in a dataset of their own."""
    source, data = look.source, _counts(look, "data")
    growth, views, angles, remarks = source.growth, int(data.shape[0]), _mapped_angles(look), list[str]()
    if growth is None:
        angles = None if angles is None or len(angles) != views else angles  # of other frames too, or of none
    elif "angles" in look.mapping:
        views = min(views, 0 if angles is None else len(angles))  # which may lag behind
    if growth is not None:
        remarks = _doubts(growth, look)
        views = growth.turn_to(views, "projection" + " with its angle" * ("angles" in look.mapping))
        angles = None if angles is None else angles[:views]
    field = _separate_field(look, choice, views)
    return Projections(
        kind,
        views,
        data.shape[1:],
        _reader(data, np.arange(views), angles, growth),
        None if angles is None else np.nan_to_num(angles),
        flat_field=field,
        pixel=None if pixel is None else (pixel, pixel),
        provenance=words,
        remarks=remarks,
    )


def _separate_field(look: Lookup, choice: FrameChoice, views: int) -> FlatField:
    """The flat field from datasets of flat and dark fields."""
    source, growth = look.source, look.source.growth
    if growth is not None and "field" in growth.memory:
        return cast("FlatField", growth.memory["field"])
    if choice.file is not None:
        return _keep(source, read_field(choice.file))
    flats, darks = _frames(look, "flats"), _frames(look, "darks")
    if growth is not None:
        counts = (0 if flats is None else len(flats.numbers), 0 if darks is None else len(darks.numbers))
        wait_for_fields(growth, counts, views)
        choice = settle_fields(choice, growth if counts[0] else None, *counts, there=counts)
    integers = look.array("data").dtype.kind in "iu"
    if growth is not None and flats is None and integers and choice.flats == "all":
        growth.wait(_NO_FLATS.format(f", {look.mapping['flats']}" if "flats" in look.mapping else ""))
    places = {} if growth is not None else {name: _places(look, name, views) for name in ("flats", "darks")}
    empty = Frames(look.array("data"), np.arange(0))
    field = make_field(choice, flats or empty, darks, places.get("flats"), places.get("darks"))
    return field if flats is None else _keep(source, field)


def _places(look: Lookup, name: str, views: int) -> Indices | None:
    """For each flat or dark field how many projections came before it; None where the file does not say."""
    words, frames = look.source.read("/defaults/HDF5FrameLocation"), _frames(look, name)
    kind = np.array([] if words is None else [_text(word) for word in np.ravel(words)])
    before, own = np.cumsum(kind == look.mapping["data"]), kind == look.mapping.get(name)
    fits = frames is not None and before[-1:].tolist() == [views] and int(own.sum()) == len(frames.numbers)
    return np.asarray(before[own]) if fits else None


def _keep(source: Source, field: FlatField) -> FlatField:
    """Keep the field of a recording that grows, since its frames are many."""
    if source.growth is not None:
        source.growth.memory["field"] = field
    return field


def read_field(path: Path) -> FlatField:
    """The flat and dark fields of another Data Exchange or NXtomo file, of which flat fields make one group."""
    if not path.is_file():  # a pipe would be waited for
        raise InputError(f"there is no file {path} with flat fields")
    with open_source(path) as source:
        look = Lookup(source, _EXCHANGE)
        group = None if source.find("/exchange/data_white") is not None else find_nexus(source)
        if group is None:
            flats, darks = _frames(look, "flats"), _frames(look, "darks")
        else:
            data, key = source.find(f"{group}/data"), as_numbers("image_key", source.read(f"{group}/image_key"))
            flats, darks = (Frames(data, np.flatnonzero(key == kind)) for kind in (FLAT, DARK))
        if flats is None or not len(flats.numbers):
            raise InputError(f"{path} has no flat fields of Data Exchange or NXtomo")
        return make_field(FrameChoice(), flats, darks)


def _counts(look: Lookup, name: str) -> Any:
    """An array of what a detector counted."""
    return check_array(look.source.path, name, look.array(name))


def _frames(look: Lookup, name: str) -> Frames | None:
    """The frames of a flat or dark field in a dataset of their own; None where there are none."""
    if name not in look.mapping or look.source.find(look.mapping[name]) is None:
        return None
    array = _counts(look, name)
    if 0 in array.shape:
        return None
    if array.ndim == 2:
        return Frames(np.asarray(array[:])[None], np.arange(1))
    if array.ndim != 3:
        place = look.mapping[name].rpartition("/")[2]
        raise InputError(f"its {place} has shape {array.shape}, but must be (frames, rows, columns)")
    return Frames(array, np.arange(array.shape[0]))


def _mapped_angles(look: Lookup) -> NDArray[np.float64] | None:
    """The angles that are mapped, in radians; None where there are none, or none yet."""
    array = look.array("angles") if "angles" in look.mapping else None
    if array is None or 0 in check_array(look.source.path, "angles", array, "fiub").shape:
        return None
    unit = unit_of(array) or (None if look.source.growth is None else "degrees")  # while they grow they cannot tell it
    return angles_in_radians(array[()], unit)


def _reader(data: Any, frames: Indices, angles: NDArray[np.float64] | None, growth: Growth | None) -> Any:
    """Reads projections whose angle is a number; while a file is open, a second angle of 0 may be none yet."""
    if angles is None:
        return partial(_read_views, data, frames)
    wrong = dict.fromkeys(np.flatnonzero(~np.isfinite(angles)).tolist(), "NaN or infinity as its angle")
    if growth is not None and not growth.closed:
        wrong |= dict.fromkeys(np.flatnonzero(angles == 0)[1:].tolist(), "no angle yet")

    def read(views: Indices, rows: slice) -> NDArray[Any]:
        if unknown := wrong.keys() & set(views.tolist()):
            raise InputError(f"projection {min(unknown)} has {wrong[min(unknown)]}")
        return _read_views(data, frames, views, rows)

    return read


def _doubts(growth: Growth, look: Lookup) -> list[str]:
    """What to say of a finished file whose arrays differ in length, or whose angles may be radians."""
    arrays = {name: look.array(name) for name in ("data", "image_key", "angles") if name in look.mapping}
    remarks = growth.uneven({name: int(array.shape[0]) for name, array in arrays.items()})
    angles = arrays.get("angles")
    if growth.closed and angles is not None and unit_of(angles) is None and look_like_radians(np.asarray(angles[:])):
        remarks.append("its angles have no unit: they were taken for degrees, but look like radians; import it anew")
    return remarks


def read_stream(source: StreamSource, choice: FrameChoice) -> Projections:
    """The projections of a stream: a parallel beam, with flat and dark fields among its frames or in another file."""
    names = ("data", "image_key", "angles") if choice.angles else ("data", "image_key")
    look = Lookup(source, {name: name for name in names})
    return _read_keyed(source.name, look, choice, source.frames.pixel, {})


def find_nexus(source: Source) -> str | None:
    """The group of the detector with an image_key, None where the file has none."""
    for name, shape, _ in source.names():
        group, _, last = name.rpartition("/")
        if last == "image_key" and len(shape) == 1 and getattr(source.find(f"{group}/data"), "ndim", 0) == 3:
            return group
    return None


def read_nexus(source: Source, choice: FrameChoice = FrameChoice()) -> Projections:  # noqa: B008 - frozen
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
    mapping = {"data": f"{group}/data", "image_key": f"{group}/image_key"}
    if choice.angles and (angles := _find_angles(source, group)) is not None:
        mapping["angles"] = angles
    width, height = (_first_length(source, [f"{group}/{axis}_pixel_size"], "pixel size") for axis in "xy")
    behind = _first_length(source, [f"{group}/distance"], "distance of the detector")
    beam = group.rpartition("/")[0]
    names = [f"{beam}/{name}/distance" for name in ("SOURCE", "source")]
    before = abs(_first_length(source, names, "distance of the source") or 0.0)
    cone = 0 < before < 10 and behind is not None  # metres; a synchrotron is further away
    pixel = None if width is None else (height or width, width)
    distances = {"source": before if cone else None, "detector": behind if cone else None}
    projections = _read_keyed("NXtomo", Lookup(source, mapping), choice, pixel, {"place": group}, **distances)
    return projections if source.growth is not None else _follow_monitor(projections, source, group, choice)


def _follow_monitor(projections: Projections, source: Source, group: str, choice: FrameChoice) -> Projections:
    """The projections with their exposure, if the entry's `control` has a monitor value for each frame.

    With flat fields of different times the monitor is used only if it makes them alike.
    """
    words, field = source.read(f"{group.partition('/instrument')[0]}/control/data"), projections.flat_field
    bright = np.zeros(1) if field is None else (field.flats - field.dark).mean((1, 2))
    if words is None or field is None or choice.file is not None or not (bright > 0).all():
        return projections
    values, key = np.ravel(words), as_numbers("image_key", source.read(f"{group}/image_key"), np.int64)
    frames, flats = np.flatnonzero(key == PROJECTION), np.flatnonzero(key == FLAT)
    exposure, told = None, "is not a positive number a frame, and is not used"
    if (
        values.shape == key.shape
        and values.dtype.kind in "fiu"
        and (values[np.isin(key, (PROJECTION, FLAT))] > 0).all()
    ):
        places = np.searchsorted(frames, flats)
        levels = np.array([values[flats[places == place]].mean() for place in field.places])
        exposure = values[frames] / np.interp(np.arange(len(frames)), field.places, levels)
        told = f"changes by {np.ptp(exposure):.1%}, which is divided out of each view"
        if np.std(np.log(bright / levels)) > max(0.005, np.std(np.log(bright)) / 2):
            exposure, told = None, "does not follow its flat fields, and is not used"
    return replace(projections, exposure=exposure, remarks=[*projections.remarks, f"its monitor, control/data, {told}"])


def _read_keyed(
    kind: str,
    look: Lookup,
    choice: FrameChoice,
    pixel: tuple[float, float] | None,
    words: Mapping[str, Any],
    **distances: Any,
) -> Projections:
    """Projections, flat and dark fields in one dataset, told apart by their image_key."""
    source, data = look.source, _counts(look, "data")
    growth, key = source.growth, as_numbers("image_key", look.array("image_key")[()], np.int64)
    angles = _mapped_angles(look)
    remarks = list[str]()
    if growth is not None:  # each may lag behind the others
        if source.container != "stream":
            remarks = _doubts(growth, look)
        lengths = [len(key), int(data.shape[0])]
        lengths += [0 if angles is None else len(angles)] if "angles" in look.mapping else []
        key, angles = key[: min(lengths)], None if angles is None else angles[: min(lengths)]
    elif key.shape != data.shape[:1]:
        raise InputError(f"its image_key has {key.size} entries for {data.shape[0]} frames")
    elif angles is not None and len(angles) != len(key):
        raise InputError(f"its rotation_angle has {len(angles)} entries for {len(key)} frames")
    frames = np.flatnonzero(key == PROJECTION)
    if growth is not None:
        views = growth.turn_to(len(frames), "projection" + " with its angle" * ("angles" in look.mapping))
        frames = frames[:views]
    angles = None if angles is None else angles[frames]
    return Projections(
        kind,
        len(frames),
        data.shape[1:],
        _reader(data, frames, angles, None if source.container == "stream" else growth),
        None if angles is None else np.nan_to_num(angles),
        flat_field=_keyed_field(source, data, key, choice),
        pixel=pixel,
        provenance=words,
        remarks=remarks,
        **distances,
    )


def _keyed_field(source: Source, data: Any, key: Indices, choice: FrameChoice) -> FlatField:
    """The flat field of frames with an image_key."""
    growth = source.growth
    if growth is not None and "field" in growth.memory:
        return cast("FlatField", growth.memory["field"])
    if choice.file is not None:
        return _keep(source, read_field(choice.file))
    frames, flats, darks = (np.flatnonzero(key == kind) for kind in (PROJECTION, FLAT, DARK))
    if growth is not None and len(flats) == 0 and choice.flats == "all":
        growth.wait(_NO_FLATS.format(", image_key 1"))
    if len(flats) == 0:
        return make_field(choice, Frames(data, flats), Frames(data, darks))
    places = np.searchsorted(frames, flats)  # flat fields with no projection between them are one group
    first = flats[places == places[0]]
    if growth is not None and not growth.final and not (key[first[-1] :] == PROJECTION).any():
        growth.wait(f"{len(first)} flat fields are there, which may become more")
    early = int((darks < max(frames[:1].max(initial=0), first[-1])).sum())
    choice = settle_fields(choice, growth, len(first), early, there=(len(flats), len(darks)))
    dark_places = np.searchsorted(frames, darks)
    return _keep(source, make_field(choice, Frames(data, flats), Frames(data, darks), places, dark_places))


def _find_angles(source: Source, group: str) -> str | None:
    """Where the rotation angle of each frame is: that of the sample nearest to the detector's entry."""
    names = [name for name, _, _ in source.names() if name.rpartition("/")[2] == "rotation_angle"]

    def shared(name: str) -> int:  # prefers, of two entries in a file, the detector's
        return sum(a == b for a, b in zip(name.split("/"), group.split("/"), strict=False))

    return max(names, key=lambda name: (shared(name), "sample" in name.lower()), default=None)


def _first_length(source: Source, places: Any, quantity: str) -> float | None:
    """The length at the first of these places where the file has one, in metres."""
    arrays = ((place, array) for place in places if (array := source.find(place)) is not None)
    return next((length_in_metres(source.read(place), unit_of(array), quantity) for place, array in arrays), None)


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
