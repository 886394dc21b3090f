"""Scans of X-ray tomographs: Data Exchange, NXtomo, Helsinki and TIFF stacks, told apart by their content."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.image_size import ImageSize, read_size, size_field
from plugstream.base.registry import Field
from plugstream.models.ct_beams import cone_beam, fan_beam, parallel_beam
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.scans.importers.address import RunAddress
from plugstream.scans.importers.base import ImportResult, switch
from plugstream.scans.importers.ct_fields import FrameChoice, settle_field
from plugstream.scans.importers.ct_files import is_stack, read_angles, read_helsinki, read_stack
from plugstream.scans.importers.ct_hdf5 import (
    find_nexus,
    is_exchange,
    read_exchange,
    read_mapped,
    read_nexus,
    read_run,
    read_stream,
)
from plugstream.scans.importers.ct_projections import Projections
from plugstream.scans.importers.ct_rotation_axis import NOT_FOUND, covers_half_turn, covers_turn
from plugstream.scans.importers.ct_steps import Preparation, StepOptions
from plugstream.scans.importers.formats import Format, Formats
from plugstream.scans.importers.fpm import is_frames
from plugstream.scans.importers.growth import Growth
from plugstream.scans.importers.hdf5 import open_hdf5
from plugstream.scans.importers.reading import Reading, choose_views, made_by, name_file, spread_angles, write_reading
from plugstream.scans.importers.source import check_names
from plugstream.scans.importers.tiled import open_tiled
from plugstream.scans.streams.address import Address
from plugstream.scans.streams.frames import Names

_LONG = 1e6
_AXIS = (
    "frames of a stream come once, so its rotation axis cannot be looked for; give --center, the column that "
    "'plugstream import ct' found in an earlier scan, --like RUN, which takes it from a run of one, or --center middle"
)
_WAITING = "half a turn of projections, in which to find the rotation axis (--center COLUMN to begin at once)"
_ONE_SIDE = (
    "a whole turn of projections, since they end in air on one side alone, as with an axis at the side of the detector "
    "(--center COLUMN to begin at once)"
)
_MOVED = 0.25  # columns by which the axis of the last half turn may differ from that of the first unsaid


class CTImport(StepOptions):
    """Options for a tomograph's file, each of which wins over the file; lengths are in metres."""

    map: tuple[str, ...] = Field(
        (),
        description="where an HDF5 file of another layout, or a run of Tiled, has data, flats, darks, angles, "
        "image_key, pixel; or which attributes of a stream's frames are angles and image_key",
        json_schema_extra={"words": "NAME=PATH"},
    )
    flats: str = Field(
        "all",
        description="flat fields to use: all, START:STOP of them, another HDF5 file's, air at the edges, or none for "
        "line integrals",
    )
    darks: str = Field("all", description="dark fields to use: all, none, or START:STOP of them")
    angles: str | None = Field(None, description="text file with the angles of the projections in degrees")

    pixel: float | None = Field(None, gt=0, le=_LONG, description="width of a detector pixel; the file's if not given")
    source: float | None = Field(None, gt=0, le=_LONG, description="distance from the source to the rotation axis")
    detector: float | None = Field(None, ge=0, le=_LONG, description="distance from the rotation axis to the detector")
    arc: float | None = Field(None, gt=0, description="degrees that the projections cover, if the file has no angles")
    counts: bool = switch("store the detector's counts with flat and dark fields, instead of line integrals")
    clockwise: bool = switch("the angles go the other way around")
    size: ImageSize = size_field(2, 65_536, "the number of detector columns if not given")
    voxel: float | None = Field(
        None, gt=0, le=_LONG, description="size of a voxel; that of a detector pixel at the axis if not given"
    )


FORMATS = Formats(
    *(Format(matlab, lambda source: not is_frames(source), read_helsinki) for matlab in ("MATLAB", "MATLAB 7.3")),
    Format("HDF5", is_exchange, read_exchange),
    Format("HDF5", find_nexus, read_nexus),
    Format("", is_stack, read_stack),
    unknown="not a tomograph's file that we know: Data Exchange has /exchange/data, NXtomo an image_key, Helsinki's "
    "are MATLAB's, and stacks of TIFF or CBF are described in TOML, with projections = 'proj_*.tif'",
    strict=True,  # so that `plugstream info` says what is wrong with a tomograph's file
)


class _Setup(NamedTuple):
    """Height and width of a pixel, in `unit`, and distances from the axis; source is None for parallel beams."""

    height: float
    width: float
    unit: str
    source: float | None
    detector: float

    @property
    def scale(self) -> float:
        """How much smaller a pixel is at the axis than on the detector."""
        return 1.0 if self.source is None else self.source / (self.source + self.detector)

    @property
    def fan(self) -> float | None:
        """The width of a pixel in distances of the detector from the source."""
        return None if self.source is None else self.width / (self.source + self.detector)


def _setup(projections: Projections, options: CTImport) -> _Setup:
    """The lengths of the options, or else of the file."""
    height, width = projections.pixel or (1.0, 1.0)
    unit = "m" if options.pixel is not None or projections.pixel is not None else "pixel"
    if options.pixel is not None:
        height, width = height / width * options.pixel, options.pixel
    source = projections.source if options.source is None else options.source
    behind = projections.detector if options.detector is None else options.detector
    if (source is None) != (behind is None):
        raise InputError(
            "a source needs the distance of the --detector from the rotation axis, and a detector that of the --source"
        )
    if source is not None and unit == "pixel":
        raise InputError("a source at a distance needs the width of a detector --pixel, in metres")
    return _Setup(height, width, unit, source, behind or 0.0)


def _geometry(
    projections: Projections, options: CTImport, prepared: Preparation, turns: NDArray[np.float64], setup: _Setup
) -> tuple[Rays, Voxels]:
    """The rays of views at these angles, and the voxels."""
    columns, rows = projections.shape[1], range(projections.shape[0])[prepared.rows]
    if rows.step != 1 and setup.source is not None:
        raise InputError("of a cone beam every row between the first and the last is needed; leave the step out")
    height, width, scale = setup.height * rows.step, setup.width, 1.0
    detector = (len(rows), columns)
    distances: dict[str, Any] = {"source": setup.source, "detector": setup.detector, "center": prepared.center}
    if setup.source is None:
        shape: Any = columns if prepared.flat_image else detector
        rays = parallel_beam(turns, shape, (height, width), center=prepared.center)
    else:
        scale = setup.scale
        if prepared.flat_image:
            rays = fan_beam(turns, columns, width, **distances)
        else:
            middle = (projections.shape[0] - 1) / 2 - rows.start  # the source is as high as the detector's middle
            rays = cone_beam(turns, detector, (height, width), middle=middle, **distances)
    step = scale * width if options.voxel is None else options.voxel
    size = read_size(options, 2) or (columns, columns)
    if prepared.width is not None:
        wide = math.ceil(prepared.width * scale * width / step - 1e-9)
        if options.size is None:
            size = (wide, wide)
        elif options.field is not None and min(size) < wide:
            raise InputError(
                f"--size {','.join(map(str, options.size))} is less than the {wide} voxels of --field "
                f"{options.field:g}; leave one out"
            )
    if prepared.flat_image:
        return rays, Voxels(size, step)
    tall = scale * height if options.voxel is None or setup.source is None else options.voxel
    return rays, Voxels((len(rows), *size), (tall, step, step))


def _tell(projections: Projections) -> list[str]:
    """What a tomograph's file holds, for `plugstream info`."""
    rows, columns = projections.shape
    angles, field = projections.angles, projections.flat_field
    arc = "angles unknown" if angles is None else f"over {np.rad2deg(np.ptp(angles)):.4g} degrees"
    pixel = "size of a pixel unknown" if projections.pixel is None else f"pixels of {projections.pixel[1]:.6g} m"
    beam = "parallel beam" if projections.source is None else f"source at {projections.source:.6g} m"
    flats = "line integrals" if field is None else f"counts, {len(field.flats)} groups of flat fields"
    if field is not None and (field.flats == field.dark).all():
        flats = "no flat fields"
    return [
        f"{projections.kind}: {projections.views} projections of {rows} x {columns}, {arc}, {beam}, {pixel}",
        flats,
    ]


@contextmanager
def open_reading(options: CTImport, file: Path | Address, growth: Growth | None = None) -> Iterator[Reading]:
    """How a file is read as a scan, while it is open.

    Arguments: options; file; growth, of a recording that may still be written. Then nothing may depend on all of its
    projections: the rotation axis is found in the first half turn, air is subtracted only if columns are given, and
    neither stripes nor the hardening of the beam are taken out.
    """
    from plugstream.instruments.ct import CT
    from plugstream.instruments.ct_counts import CTCounts

    options = options if growth is None else fix_options(options, file, growth)
    choice = FrameChoice(options.flats, options.darks, options.angles is None and options.arc is None)
    with _open_projections(options, choice, file, growth) as there:
        projections = settle_field(there, choice, growth)
        angles = _angles(projections, options, growth)
        setup = _setup(projections, options)
        prepared = _prepare(projections, options, angles, setup.fan, growth)
        # Of a recording that grows, rays are made with their views: making all at each look takes longer and longer.
        turns = angles[prepared.views]
        rays, voxels = _geometry(projections, options, prepared, turns if growth is None else turns[:1], setup)
        seen = prepared.seen * setup.width * setup.scale
        dtype, instrument = None, CT.of(rays, voxels, unit=setup.unit, good=prepared.good, seen=seen)
        if options.counts:
            dtype = prepared.keep_counts()
            instrument = CTCounts.of_counts(rays, voxels, prepared.field, unit=setup.unit, good=prepared.good)
            instrument = replace(instrument, seen=seen)
        else:
            prepared.find_hardening(rays)
            if growth is None:
                prepared.tell_drift(angles)
        instrument.check_plausible({"rays": rays.vectors})
        remarks = list(prepared.remarks)
        if setup.unit == "pixel":
            remarks.append("the file does not say how large a pixel is, so lengths are in pixels; --pixel gives metres")
        remarks += projections.remarks
        if "citation" in projections.provenance:
            remarks.append(f"cite {projections.provenance['citation']}")

        def read(views: slice) -> dict[str, Any]:
            data = prepared.read_counts(views) if options.counts else prepared.read(views)
            columns = {"place": prepared.views[views].astype(np.float64)} if options.counts else {}
            new = rays.vectors[views]
            if growth is not None:
                new = _geometry(projections, options, prepared, turns[views], setup)[0].vectors
            return {"data": data[:, 0] if prepared.flat_image else data, "rays": new, **columns}

        options = options if growth is None else options.model_copy(update=growth.settings)
        provenance = made_by("ct", file, options, steps=prepared.steps, **projections.provenance)
        yield Reading(instrument, len(prepared.views), read, dtype, None, provenance, remarks)


def fix_options(options: CTImport, file: Path | Address, growth: Growth) -> CTImport:
    """The options for a recording that grows; those that need all of its projections are refused, or off."""
    if isinstance(file, Address):
        _stream_names(options)
    if options.stripes:
        raise InputError("--stripes needs all projections, and this recording still grows; leave it out")
    if options.center == "auto" and isinstance(file, Address):
        raise InputError(_AXIS)
    if growth.settings.get("center") == options.center:  # typed, and not found in the recording
        growth.settings.pop("center")
    choose_views(options, 0, growing=True)
    if options.arc is not None and growth.expected is None:
        raise InputError("--arc is divided among all projections; say how many to --expect, or give --angles FILE")
    if options.angles is not None and growth.expected is None:
        growth.expected = len(read_angles(Path(options.angles)))
    fixed = {"air": 0 if options.air == "auto" else options.air, "hardening": "none"}
    return options.model_copy(update=fixed | growth.settings)


@contextmanager
def _open_projections(
    options: CTImport, choice: FrameChoice, file: Path | Address, growth: Growth | None
) -> Iterator[Projections]:
    """The recording of a file, by its format or by a mapping."""
    if isinstance(file, Address):
        assert growth is not None
        with name_file(file):
            yield read_stream(growth.memory["tap"].open(_stream_names(options), growth), choice)
        return
    if isinstance(file, RunAddress):
        with name_file(file), open_tiled(file) as run:
            yield read_run(run, _read_map(options, "/"), choice)
        return
    if not options.map:
        with FORMATS.open(file, growth, choice=choice) as projections:
            yield projections
        return
    with name_file(file), open_hdf5(file, growth=growth) as source:
        yield read_mapped(source, _read_map(options, "/"), choice)


def _read_map(options: CTImport, start: str) -> dict[str, str]:
    """The mapping, to places that begin so."""
    pairs = [word.partition("=") for word in options.map]
    if not all(name and place and place.startswith(start) for name, _, place in pairs):
        raise InputError(f"cannot read the mapping; write NAME=PATH, such as data={start}entry/data")
    return {name: place for name, _, place in pairs}


def _stream_names(options: CTImport) -> Names:
    """What of the attributes of a stream's frames counts."""
    mapping = _read_map(options, "")
    check_names(mapping, ("angles", "image_key", "data"))
    has_angles = options.angles is None and options.arc is None
    if "angles" in mapping and not has_angles:
        raise InputError("--map angles=NAME is given, and --angles or --arc, too; one is enough")
    angles = mapping.get("angles", "angle") if has_angles else None
    return Names(angles, mapping.get("image_key", "image_key"), mapping.get("data"))


def _angles(projections: Projections, options: CTImport, growth: Growth | None) -> NDArray[np.float64]:
    """The angles of the projections, in radians: of the options, or else of the file."""
    if options.angles is not None and options.arc is not None:
        raise InputError("--angles and --arc are both given; one is enough")
    angles = projections.angles
    if options.angles is not None:
        angles = read_angles(Path(options.angles))
    if options.arc is not None:
        angles = spread_angles(options.arc, projections.views if growth is None else growth.expected or 0)
    if angles is None:
        raise InputError(
            "it does not have an angle for each projection; give the --arc that they cover, in degrees, or --angles"
        )
    if growth is not None:
        angles = angles[: projections.views]
    if len(angles) != projections.views:
        raise InputError(f"there are {len(angles)} angles for {projections.views} projections")
    return -angles if options.clockwise else angles


def _prepare(
    projections: Projections, options: CTImport, angles: NDArray[np.float64], fan: float | None, growth: Growth | None
) -> Preparation:
    """The steps to line integrals, which are found once for a recording that grows."""
    if growth is None:
        return Preparation(projections, options, angles, fan)
    if "prepared" not in growth.memory:
        growth.memory["prepared"] = _prepare_first(projections, options, angles, fan, growth)
    prepared: Preparation = growth.memory["prepared"]
    prepared.grow_to(projections)
    if len(prepared.views) == 0:
        growth.wait("none of the chosen projections is there yet")
    return prepared


def _prepare_first(
    projections: Projections, options: CTImport, angles: NDArray[np.float64], fan: float | None, growth: Growth
) -> Preparation:
    """The steps to line integrals by the first projections; the rotation axis by half a turn of them.

    Where nothing more will come, the axis that was found so is compared with that of the last ones.
    """
    over = growth.final or (growth.expected is not None and len(angles) >= growth.expected)
    settled, searched = growth.settings.get("center"), options.center == "auto" and projections.center is None
    if (early := searched and not over) and not covers_half_turn(angles):
        growth.wait(_WAITING)
    try:
        prepared = Preparation(projections, options, angles, fan, growing=True)
    except InputError as error:
        if early:
            growth.wait(f"{_WAITING}; {error}")
        raise
    if early and prepared.axis_found == NOT_FOUND:
        growth.wait(f"{_WAITING}, and of a fan some more")
    if early and sum(prepared.air) == 1 and not covers_turn(angles):
        growth.wait(_ONE_SIDE)
    if prepared.width is not None and options.field is None:
        growth.settings["field"] = prepared.width
    if searched:
        growth.settings["center"] = prepared.center
    elif settled is not None and growth.final:
        # Angles the other way around: half a turn is then that of the last projections.
        again = Preparation(projections, options.model_copy(update={"center": "auto"}), -angles, fan, growing=True)
        if abs(moved := again.center - prepared.center) > _MOVED:
            growth.remarks.append(
                f"the last half turn puts the rotation axis at column {again.center:.2f}, {moved:+.2f} from where the "
                f"first did; if it did not move, import the file again with --center {again.center:.2f}"
            )
    return prepared


@FORMATS.importer(
    "ct",
    "an X-ray tomograph's file: Data Exchange or NXtomo HDF5, stack of TIFF or CBF (.toml), Helsinki .mat",
    CTImport,
    _tell,
    open_reading=open_reading,
    check_growing=fix_options,
    streams=True,
)
def build(options: CTImport, file: Path, out: Path) -> ImportResult:
    """Write the scan, some views at a time."""
    with open_reading(options, file) as reading:
        return write_reading(reading, out)
