"""Scans of ptychography from the files of others: CXI, PtychoShelves, ptypy, and the NPZ of tike's tests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.registry import Field, register
from plugstream.instruments.ptychography import Ptychography, neighbour_distance, place_frames
from plugstream.scans.importers.arrays import reader
from plugstream.scans.importers.base import ImportResult, switch
from plugstream.scans.importers.declaration import read_by_declaration
from plugstream.scans.importers.ptychography_recordings import FORMATS, Recording
from plugstream.scans.importers.reading import Reading, ViewOptions, choose_views, made_by, read_each, write_reading
from plugstream.scans.importers.source import Lookup, Source, read_rows

__all__ = ["PtychographyImport"]

_SHORT, _LONG = 1e-15, 1e6
_MARGIN = 2  # pixels around all frames, so that positions may be a little off
_LOOK = 64  # frames from which the mean pattern comes
_NO_PROBE = "it has no probe: the mean pattern tells a first one, in focus; refine it with --refine probe"

Axes = Literal["y,x", "-y,x", "y,-x", "-y,-x", "x,y", "-x,y", "x,-y", "-x,-y"]


class PtychographyImport(ViewOptions):
    """What can be said of a recording; lengths are in metres, and what the file says need not be said."""

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
    thin: float | None = Field(
        None, gt=0, lt=1, description="keep this part of the photons, drawn at random: 0.02 for 2 % of the dose"
    )
    thin_seed: int = Field(0, ge=0, le=2**63 - 1, description="seed of --thin")


def _tell(recording: Recording) -> list[str]:
    """What a recording holds, for `plugstream info`."""
    unit = "pixels" if recording.in_pixels else "m"
    span = np.ptp(recording.positions, axis=0)
    known = {"wavelength": recording.wavelength, "distance": recording.distance, "pixel": recording.pixel}
    lengths = ", ".join(f"{name} {value:.6g} m" for name, value in known.items() if value)
    modes = "no probe" if recording.probe is None else f"a probe of {len(recording.probe)} modes"
    rows, columns = recording.frames
    return [
        f"{recording.kind}: {recording.views} frames of {rows} x {columns} pixels, {modes}",
        f"positions over {span[0]:.6g} x {span[1]:.6g} {unit}" + (f"; {lengths}" if lengths else ""),
    ]


@register(
    "importer",
    "ptychography",
    "diffraction patterns of a scanned beam: CXI, PtychoShelves and ptypy (HDF5), tike's NPZ",
    options=PtychographyImport,
    describe=FORMATS.describer("ptychography", _tell),
    default_name=lambda options, file: f"{file.name.split('.')[0]}.zarr",
)
def build(options: PtychographyImport, file: Path, out: Path) -> ImportResult:
    """Write the scan."""
    with FORMATS.open(file) as recording:
        chosen = choose_views(options, recording.views)
        frames = _Frames(recording, options)
        pixel = _pixel(recording, options, frames.size)
        places = _oriented(recording.positions, options.axes)
        # All positions have their place in the image, so that scans of other views of a file have the same image.
        positions, shape = place_frames(places if recording.in_pixels else places / pixel, frames.shape, _MARGIN)
        _check_overlap(positions, frames.size)
        probe, remarks = _probe(recording, options, frames)
        looked_at = chosen[:: max(1, len(chosen) // _LOOK)]
        power = float(np.mean([frames.read(view).sum(dtype=np.float64) for view in looked_at.tolist()]))
        if not power > 0:
            raise InputError(f"the frames of {file} are dark, so there is nothing to reconstruct from")
        probe = probe * math.sqrt(power / float((np.abs(probe) ** 2).sum()))
        provenance = made_by("ptychography", file, options, kind=recording.kind, y_axis="down")
        if options.thin is not None:
            provenance["thin"] = {"part": options.thin, "seed": options.thin_seed}
            remarks.append(f"{power:.4g} photons a frame are left of the recorded ones")
        reading = Reading(
            Ptychography(probe.astype(np.complex64), *shape, pixel or 0.0, frames.good),
            len(chosen),
            read_each(chosen, frames.read, positions=positions),
            dtype=frames.dtype,
            provenance=provenance,
            remarks=tuple(remarks),
            at_once=1,
        )
        return write_reading(reading, out)


def _check_overlap(positions: NDArray[np.float64], size: int) -> None:
    """Refuse positions further apart than frames are wide, as near-field recordings have them.

    A frame is wavelength times distance over the detector's pixel wide, if it was recorded in the far field, and must
    hold the beam, which must overlap its neighbours.
    """
    apart = neighbour_distance(positions)
    if apart > size:
        raise InputError(
            f"positions are {apart:.3g} pixels of the object apart and frames {size} wide, so that nothing overlaps: "
            "recordings in the near field, shadows rather than diffraction patterns, are not known here; if this is "
            "none, see --pixel, --wavelength, --distance and --detector-pixel"
        )


class _Frames:
    """Frames as they are stored: cropped, turned, with zero frequency at the corner, thinned."""

    def __init__(self, recording: Recording, options: PtychographyImport) -> None:
        self.recording, self.options = recording, options
        rows, columns = recording.frames[::-1] if options.transpose else recording.frames
        self.whole = (rows, columns)
        self.center = _pair(options.center, (rows // 2, columns // 2)) if recording.centred else (0, 0)
        if not recording.centred and (options.center is not None or options.crop is not None):
            raise InputError("zero frequency of these frames is at their corner; --center and --crop are for others")
        self.size = options.crop or min(rows, columns)
        if not recording.centred and rows != columns:
            raise InputError(f"frames of {rows} x {columns} are not square")
        self.shape = (self.size, self.size)
        top, left = (c - self.size // 2 for c in self.center)
        self.window = (slice(top, top + self.size), slice(left, left + self.size))
        if recording.centred and (min(top, left) < 0 or top + self.size > rows or left + self.size > columns):
            raise InputError(
                f"{self.size} pixels about {self.center} are not within frames of {rows} x {columns}; give --crop, or "
                "another --center"
            )
        good = None if recording.good is None else self._turn(recording.good.T if options.transpose else recording.good)
        self.good = None if good is None or good.all() else good
        first = self._look()
        self.whole_numbers = bool((first == np.rint(first)).all())
        if options.thin is not None and not self.whole_numbers:
            raise InputError("--thin draws photons one by one, and these frames are no counts, which are whole numbers")
        largest = float(np.abs(first).max())
        self.dtype = "float32" if not self.whole_numbers else "int32" if largest > 2**14 else "uint16"

    def _look(self) -> NDArray[Any]:
        """A few frames, which tell what numbers they hold."""
        step = max(1, self.recording.views // 8)
        return np.stack([self.plain(view) for view in range(0, self.recording.views, step)])

    def _turn(self, frame: NDArray[Any]) -> NDArray[Any]:
        return np.fft.ifftshift(frame[self.window]) if self.recording.centred else frame

    def plain(self, view: int) -> NDArray[Any]:
        """A frame before it is thinned; what is masked, or negative, is zero."""
        frame = self.recording.read(slice(view, view + 1))[0]
        frame = self._turn(frame.T if self.options.transpose else frame)
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


def _oriented(positions: NDArray[np.float64], axes: Axes) -> NDArray[np.float64]:
    """Positions along rows and columns of the image."""
    words = axes.split(",")
    return np.stack([(-1 if "-" in w else 1) * positions[:, 0 if w.endswith("y") else 1] for w in words], 1)


def _pixel(recording: Recording, options: PtychographyImport, size: int) -> float:
    """The size of a pixel of the object, 0 where it is not known and need not be."""
    given = options.pixel or recording.pixel
    values = {name: getattr(options, name) or getattr(recording, name) for name in ("wavelength", "distance")}
    detector = options.detector_pixel or recording.detector_pixel
    if given is None and all(values.values()) and detector:
        given = values["wavelength"] * values["distance"] / (size * detector)
    if given is None and not recording.in_pixels:
        raise InputError(
            "it does not tell how large a pixel of the object is; give --pixel, or --wavelength, --distance and "
            "--detector-pixel, in metres"
        )
    return float(given or 0.0)


def _probe(
    recording: Recording, options: PtychographyImport, frames: _Frames
) -> tuple[NDArray[np.complex128], list[str]]:
    """The beam at the object: what was given, what the file has, or what the mean pattern would come from."""
    found = recording.probe
    if options.probe is not None:
        try:
            found = np.load(options.probe, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read the probe {options.probe}: {error}") from None
        found = np.asarray(found, dtype=np.complex128)
        found = found.reshape(-1, *found.shape[-2:]) if found.ndim >= 2 else found
    if found is not None:
        if found.ndim != 3 or found.shape[1:] != frames.shape:
            raise InputError(f"the probe has shape {found.shape}, but frames are {frames.shape}; give --probe FILE.npy")
        return found, []
    some = range(0, recording.views, max(1, recording.views // _LOOK))
    mean = np.mean([frames.plain(view) for view in some], axis=0)
    return _first_probe(mean)[None], [_NO_PROBE]


def _first_probe(mean: NDArray[Any]) -> NDArray[np.complex128]:
    """The beam in focus whose pattern is the mean of some frames, zero frequency at their corner: (n, n)."""
    beam: NDArray[np.complex128] = np.fft.fftshift(np.fft.ifft2(np.sqrt(mean)))
    return beam


@reader("ptychography", values=tuple(value.name for value in Ptychography.attributes))
def read_arrays(source: Source, mapping: Mapping[str, Any], options: Any) -> Reading:
    """Arrays as a scan of ptychography by its declaration; without a probe it is made as that of a recording is."""
    look = Lookup(source, mapping)
    data = look.array("data")
    shape: tuple[int, ...] = getattr(data, "shape", ())
    if look.array("probe") is not None or len(shape) != 3 or 0 in shape or data.dtype.kind not in "fiu":
        return read_by_declaration(source, mapping, Ptychography)
    some = [read_rows(data, slice(n, n + 1), "data", source)[0] for n in range(0, shape[0], max(1, shape[0] // _LOOK))]
    mean = np.maximum(np.mean(some, axis=0), 0)
    if not (np.isfinite(mean).all() and mean.any()):
        raise InputError(f"the frames of {source.path} are dark, or hold NaN or infinity, so they tell no probe")
    beam = _first_probe(mean)
    beam *= math.sqrt(float(mean.sum(dtype=np.float64)) / float((np.abs(beam) ** 2).sum()))
    made = read_by_declaration(_WithProbe(source, beam[None]), mapping, Ptychography)
    return replace(made, remarks=(*made.remarks, _NO_PROBE), provenance={**made.provenance, "probe": "first guess"})


class _WithProbe(Source):
    """A file with a probe that it does not have itself."""

    def __init__(self, source: Source, probe: NDArray[Any]) -> None:
        super().__init__(source.path)
        self.source, self.probe = source, probe

    def find(self, name: str) -> Any:
        return self.probe if name == "probe" else self.source.find(name)

    def attribute(self, name: str, of: str | None) -> Any:
        return self.source.attribute(name, of)

    def names(self) -> Iterator[tuple[str, tuple[int, ...], str]]:
        return self.source.names()


def _pair(text: str | None, usual: tuple[int, int]) -> tuple[int, int]:
    if text is None:
        return usual
    try:
        row, column = (int(word) for word in text.split(","))
    except ValueError:
        raise InputError(f"--center is {text!r}, but must be a row and a column, such as 64,64") from None
    return row, column
