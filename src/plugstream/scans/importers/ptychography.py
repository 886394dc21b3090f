"""Scans of ptychography from the files of others: CXI, PtychoShelves, ptypy, and the NPZ of tike's tests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.registry import Field
from plugstream.instruments.ptychography import Ptychography, neighbour_distance, place_frames
from plugstream.scans.importers.arrays import read_by_declaration, reader
from plugstream.scans.importers.base import ImportResult, switch
from plugstream.scans.importers.growth import Growth
from plugstream.scans.importers.ptychography_recordings import FORMATS, Recording
from plugstream.scans.importers.reading import (
    Indices,
    Reading,
    ViewOptions,
    choose_views,
    made_by,
    name_file,
    parse_pair,
    write_reading,
)
from plugstream.scans.importers.source import Lookup, Source
from plugstream.scans.streams.address import Address
from plugstream.scans.streams.frames import PROJECTION, LostError, Names

_SHORT, _LONG = 1e-15, 1e6
_MARGIN = 2  # pixels around all frames, so that positions may be a little off
_SAMPLES = 64  # frames for the mean pattern
_NO_PROBE = "it has no probe: a first one, in focus, is made from the mean pattern; refine it with --refine probe"

Axes = Literal["y,x", "-y,x", "y,-x", "-y,-x", "x,y", "-x,y", "x,-y", "-x,-y"]


class PtychographyImport(ViewOptions):
    """Options for a recording, each of which wins over the file; lengths are in metres."""

    crop: int | None = Field(None, ge=2, le=65536, description="keep this many pixels a side about zero frequency")
    center: str | None = Field(
        None, description="row and column of zero frequency in frames, such as 64,64; the middle if not given"
    )
    axes: Axes = Field("y,x", description="how rows and columns of the image follow from the file's y and x")
    transpose: bool = switch("swap rows and columns of frames, as for MATLAB files")
    pixel: float | None = Field(None, ge=_SHORT, le=_LONG, description="size of a pixel of the object")
    wavelength: float | None = Field(None, ge=_SHORT, le=_LONG, description="wavelength")
    distance: float | None = Field(None, ge=_SHORT, le=_LONG, description="distance from the object to the detector")
    detector_pixel: float | None = Field(None, ge=_SHORT, le=_LONG, description="size of a pixel of the detector")
    probe: str | None = Field(
        None, description="NPY file of the beam at the object, (n, n) or (modes, n, n); the file's if it has one"
    )
    positions: str | None = Field(
        None, description="text or NPY file of rows y x, in metres; the file's if it has them, and needed for a stream"
    )
    power: float | None = Field(
        None, gt=0, description="photons of a frame that the probe is scaled to; measured if not"
    )
    channel: str | None = Field(None, description="channel of a stream's frames, such as threshold_2; the first if not")
    thin: float | None = Field(
        None, gt=0, lt=1, description="keep this part of the photons, drawn at random: 0.02 for 2 % of the dose"
    )
    thin_seed: int = Field(0, ge=0, le=2**63 - 1, description="seed of --thin")


def _tell(recording: Recording) -> list[str]:
    """What a recording holds, for `plugstream info`."""
    unit = "pixels" if recording.in_pixels else "m"
    span = np.ptp(recording.positions, axis=0)
    values = {name: getattr(recording, name) for name in ("wavelength", "distance", "pixel")}
    lengths = "".join(f"{name} {value:.6g} m, " for name, value in values.items() if value).removesuffix(", ")
    modes = "no probe" if recording.probe is None else f"a probe of {len(recording.probe)} modes"
    views, rows, columns = recording.data.shape
    return [
        f"{recording.kind}: {views} frames of {rows} x {columns} pixels, {modes}",
        f"positions over {span[0]:.6g} x {span[1]:.6g} {unit}" + (f"; {lengths}" if lengths else ""),
    ]


def check_stream(options: PtychographyImport, file: Path | Address, growth: Growth) -> None:
    """Refuse to follow a file, and a stream without what no frame can tell."""
    if not isinstance(file, Address):
        raise InputError("a file of ptychography cannot be followed while it grows; those of ct and hdf5 can")
    for name, what in (
        ("positions", "where the beam will be: rows y x, in metres"),
        ("probe", "the beam, of an earlier scan"),
    ):
        if getattr(options, name) is None:
            raise InputError(f"a stream needs --{name} FILE, {what}")


@contextmanager
def open_stream(options: PtychographyImport, address: Address, growth: Growth) -> Iterator[Reading]:
    """How a stream is read as a scan, as far as its frames are there."""
    options = options.model_copy(update=growth.settings)
    with name_file(address):
        if "positions" not in growth.memory:
            growth.memory["positions"] = _read_positions(Path(options.positions or ""))
        positions = growth.memory["positions"]
        source = growth.memory["tap"].open(Names(data=options.channel), growth, fields=False)
        frames, facts = source.frames, source.frames.facts
        numbers = np.flatnonzero(source.find("image_key") == PROJECTION)
        growth.expected = growth.expected or len(positions)
        there = growth.turn_to(min(len(numbers), len(positions)), "frame")
        if options.center is None and "center" in facts:
            growth.settings["center"] = "{},{}".format(*facts["center"])
            options = options.model_copy(update=growth.settings)
        recording = Recording(
            source.name,
            _Numbered(source.find("data"), numbers),
            positions,
            good=None if frames.bad is None else ~frames.bad,
            wavelength=facts.get("wavelength"),
            distance=facts.get("distance"),
            detector_pixel=None if frames.pixel is None else frames.pixel[1],
        )
        yield _read(recording, options, address, there, growth)


@FORMATS.importer(
    "ptychography",
    "diffraction patterns of a scanned beam: CXI, PtychoShelves and ptypy (HDF5), tike's NPZ",
    PtychographyImport,
    _tell,
    default_name=lambda options, file: f"{file.stem if isinstance(file, Address) else file.name.split('.')[0]}.zarr",
    open_reading=open_stream,
    check_growing=check_stream,
    streams=True,
)
def build(options: PtychographyImport, file: Path, out: Path) -> ImportResult:
    """Write the scan."""
    if options.channel is not None:
        raise InputError("--channel is for streams; leave it out")
    with FORMATS.open(file) as recording:
        if options.positions is not None:
            recording = replace(recording, positions=_read_positions(Path(options.positions)), in_pixels=False)
            if recording.views != recording.data.shape[0]:
                raise InputError(f"there are {recording.views} positions for {recording.data.shape[0]} frames")
        return write_reading(_read(recording, options, file, recording.views), out)


def _read(
    recording: Recording, options: PtychographyImport, file: Path | Address, there: int, growth: Growth | None = None
) -> Reading:
    """How a recording is read as a scan. Arguments: there, how many frames are; growth, if there will be more."""
    frames = _Frames(recording, options, growing=growth is not None)
    pixel = _pixel(recording, options, frames.size)
    # Rows and columns of the image are y or x of the file, maybe reversed.
    words = options.axes.split(",")
    places = np.stack([(-1 if "-" in w else 1) * recording.positions[:, "yx".index(w[-1])] for w in words], 1)
    # All positions have their place in the image, so that scans of other views of a file have the same image.
    positions, shape = place_frames(places if recording.in_pixels else places / pixel, frames.shape, _MARGIN)
    _check_overlap(positions, frames.size)
    probe, remarks = _probe(recording, options, frames)
    views = choose_views(options, there, growing=growth is not None)
    power = _power(options, frames, views, growth)
    probe = probe * math.sqrt(power / float((np.abs(probe) ** 2).sum()))
    options = options if growth is None else options.model_copy(update=growth.settings)
    provenance = made_by("ptychography", file, options, kind=recording.kind, y_axis="down")
    if options.thin is not None:
        provenance["thin"] = {"part": options.thin, "seed": options.thin_seed}
        remarks.append(f"{power:.4g} photons a frame are left of the recorded ones")
    instrument = Ptychography(probe.astype(np.complex64), *shape, pixel, frames.good)

    def read(rows: slice) -> dict[str, Any]:
        data = np.stack([frames.read(view) for view in views[rows].tolist()])
        return {"data": data, "positions": positions[views[rows]]}

    return Reading(instrument, len(views), read, frames.dtype, None, provenance, remarks, 1)


def _power(options: PtychographyImport, frames: _Frames, views: Indices, growth: Growth | None) -> float:
    """The photons of a mean frame; of a recording that grows, of the first that can be read, once and for all."""
    if options.power is not None:
        return options.power
    if growth is None:
        power = float(np.mean([frames.read(view).sum(dtype=np.float64) for view in _sample(views.tolist())]))
    else:
        readable = (one for view in views.tolist() if (one := _sum_of(frames, view)) > 0)
        power = growth.settings["power"] = next(readable, 0.0)
        if power == 0:
            growth.settings.pop("power")
            growth.wait("no frame with light in it is there yet")
    if not power > 0:
        raise InputError("its frames are dark, so there is nothing to reconstruct from")
    return power


def _sum_of(frames: _Frames, view: int) -> float:
    """The photons of a frame, 0 of one that is lost."""
    try:
        return float(frames.read(view).sum(dtype=np.float64))
    except LostError:
        return 0.0


class _Numbered:
    """Some frames of a stream, read by a slice of one."""

    def __init__(self, data: Any, numbers: Indices) -> None:
        self._data, self._numbers = data, numbers
        self.shape, self.dtype = (len(numbers), *data.shape[1:]), data.dtype

    def __getitem__(self, views: slice) -> NDArray[Any]:
        return np.stack([self._data[int(number)] for number in self._numbers[views]])


def _read_positions(path: Path) -> NDArray[np.float64]:
    """Rows y x in metres, from a text or an NPY file."""
    try:
        table = np.load(path, allow_pickle=False) if path.suffix == ".npy" else np.loadtxt(path, ndmin=2)
        places = np.asarray(table, dtype=np.float64)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the positions {path}: {str(error).splitlines()[0]}") from None
    if places.ndim != 2 or places.shape[1] != 2 or len(places) == 0 or not np.isfinite(places).all():
        raise InputError(f"the positions {path} are {places.shape}, and must be rows of two numbers, y x")
    return places


def _sample(views: Any, count: int = _SAMPLES) -> Any:
    """About `count` of these views, evenly spaced."""
    return views[:: max(1, len(views) // count)]


def _check_overlap(positions: NDArray[np.float64], size: int) -> None:
    """Refuse positions further apart than frames are wide, as in near-field recordings.

    A far-field frame is wavelength times distance over the detector's pixel wide, and must hold the beam, which must
    overlap its neighbours.
    """
    gap = neighbour_distance(positions)
    if gap > size:
        raise InputError(
            f"positions are {gap:.3g} pixels of the object apart and frames {size} wide, so nothing overlaps: "
            "recordings in the near field, shadows rather than diffraction patterns, are not known here; if this is "
            "none, see --pixel, --wavelength, --distance and --detector-pixel"
        )


class _Frames:
    """Frames as they are stored: cropped, turned, with zero frequency at the corner, thinned."""

    def __init__(self, recording: Recording, options: PtychographyImport, *, growing: bool = False) -> None:
        self.recording, self.options = recording, options
        rows, columns = recording.data.shape[:0:-1] if options.transpose else recording.data.shape[1:]
        self.size = options.crop or min(rows, columns)
        self.shape = (self.size, self.size)
        if recording.centred:
            advice = f"--center is {options.center!r}, but must be a row and a column, such as 64,64"
            center = (rows // 2, columns // 2) if options.center is None else parse_pair(options.center, int, advice)
            top, left = (c - self.size // 2 for c in center)
            self.window = (slice(top, top + self.size), slice(left, left + self.size))
            if min(top, left) < 0 or top + self.size > rows or left + self.size > columns:
                raise InputError(
                    f"{self.size} pixels about {center} are not within frames of {rows} x {columns}; give --crop, or "
                    "another --center"
                )
        elif options.center is not None or options.crop is not None:
            raise InputError("zero frequency of these frames is at their corner; --center and --crop are for others")
        elif rows != columns:
            raise InputError(f"frames of {rows} x {columns} are not square")
        good = None if recording.good is None else self._turn(recording.good)
        self.good = None if good is None or good.all() else good
        if growing:  # then its type alone can tell
            kind = np.dtype(recording.data.dtype)
            self.whole_numbers, largest = kind.kind in "iu", 0.0 if kind.itemsize <= 2 else math.inf
        else:
            first = np.stack([self.plain(view) for view in _sample(range(recording.views), 8)])
            self.whole_numbers, largest = bool((first == np.rint(first)).all()), float(np.abs(first).max())
        if options.thin is not None and not self.whole_numbers:
            raise InputError("--thin draws photons one by one, and these frames are no counts, which are whole numbers")
        self.dtype = "float32" if not self.whole_numbers else "int32" if largest > 2**14 else "uint16"

    def _turn(self, frame: NDArray[Any]) -> NDArray[Any]:
        frame = frame.T if self.options.transpose else frame
        return np.fft.ifftshift(frame[self.window]) if self.recording.centred else frame

    def plain(self, view: int) -> NDArray[Any]:
        """A frame before it is thinned, zero where it is masked or negative."""
        frame = self._turn(np.asarray(self.recording.data[view : view + 1])[0])
        if self.good is not None:
            frame = np.where(self.good, frame, 0)
        if not np.isfinite(frame).all():
            raise InputError(f"frame {view} holds NaN or infinity, where no mask says that it does not count")
        return np.asarray(np.maximum(frame, 0))

    def read(self, view: int) -> NDArray[Any]:
        """A frame as it is stored."""
        frame = self.plain(view)
        if not self.whole_numbers:
            return np.asarray(frame, dtype=np.float32)
        counts: NDArray[Any] = np.rint(frame).astype(np.int64)
        if not (counts == frame).all():
            raise InputError(f"frame {view} holds parts of counts, and those looked at first none; convert them all")
        if self.options.thin is None:
            return counts
        draw = np.random.default_rng([self.options.thin_seed, view])
        return np.asarray(draw.binomial(counts, self.options.thin))


def _pixel(recording: Recording, options: PtychographyImport, size: int) -> float:
    """The size of a pixel of the object, 0 where it is not known and not needed."""
    names = ("pixel", "wavelength", "distance", "detector_pixel")
    pixel, wavelength, distance, detector = (getattr(options, name) or getattr(recording, name) for name in names)
    if pixel is None and wavelength and distance and detector:
        pixel = wavelength * distance / (size * detector)
    if pixel is None and not recording.in_pixels:
        raise InputError(
            "it does not say how large a pixel of the object is; give --pixel, or --wavelength, --distance and "
            "--detector-pixel, in metres"
        )
    return float(pixel or 0.0)


def _probe(
    recording: Recording, options: PtychographyImport, frames: _Frames
) -> tuple[NDArray[np.complex128], list[str]]:
    """The beam at the object, of the options, of the file, or made from the mean pattern; and remarks."""
    probe = recording.probe
    if options.probe is not None:
        try:
            probe = np.asarray(np.load(options.probe, allow_pickle=False), dtype=np.complex128)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read the probe {options.probe}: {error}") from None
        probe = probe.reshape(-1, *probe.shape[-2:]) if probe.ndim >= 2 else probe
    if probe is None:
        mean = np.mean([frames.plain(view) for view in _sample(range(recording.views))], axis=0)
        return _first_probe(mean)[None], [_NO_PROBE]
    if probe.ndim != 3 or probe.shape[1:] != frames.shape:
        raise InputError(f"the probe has shape {probe.shape}, but frames are {frames.shape}; give --probe FILE.npy")
    return probe, []


def _first_probe(mean: NDArray[Any]) -> NDArray[np.complex128]:
    """The beam in focus with this mean pattern, zero frequency at its corner: (n, n)."""
    beam: NDArray[np.complex128] = np.fft.fftshift(np.fft.ifft2(np.sqrt(mean)))
    return beam


@reader("ptychography", values=tuple(value.name for value in Ptychography.attributes))
def read_arrays(source: Source, mapping: Mapping[str, Any], options: Any) -> Reading:
    """Arrays as a scan of ptychography by its declaration; a missing probe is made from the mean pattern."""
    look = Lookup(source, mapping)
    data = look.array("data")
    shape: tuple[int, ...] = getattr(data, "shape", ())
    if look.array("probe") is not None or len(shape) != 3 or 0 in shape or data.dtype.kind not in "fiu":
        return read_by_declaration(source, mapping, Ptychography)
    mean = np.maximum(np.mean([data[n : n + 1][0] for n in _sample(range(shape[0]))], axis=0), 0)
    if not (np.isfinite(mean).all() and mean.any()):
        raise InputError(
            f"the frames of {source.path} are dark, or hold NaN or infinity, so no probe can be made from them"
        )
    beam = _first_probe(mean)
    beam *= math.sqrt(float(mean.sum(dtype=np.float64)) / float((np.abs(beam) ** 2).sum()))
    reading = read_by_declaration(source, mapping, Ptychography, {"probe": beam[None]})
    return replace(reading, remarks=[_NO_PROBE], provenance={"probe": "first guess"})
