"""Scans of the Born instrument from arrays that have names in some file.

A mapping says where in the file each of our names is. Arrays: data (or data_real and data_imag, or total), receivers,
one of transmitters, plane_waves and fields, and if there are any incident, mask and truth. Values: wavelength or
frequency, size, and pixel or width; background, center and far_field may be left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.base.registry import Field, Options
from plugstream.images.grid import Grid
from plugstream.images.space import ImageSpace
from plugstream.instruments.base import find_instrument
from plugstream.instruments.born import Born2D
from plugstream.instruments.spectrum import LIGHT
from plugstream.scans.importers.arrays import reader
from plugstream.scans.importers.base import switch
from plugstream.scans.importers.calibration import MISMATCH_LIMIT, NEAR, Calibration, Calibrator
from plugstream.scans.importers.frequencies import (
    FREQUENCY_UNITS,
    Band,
    choose_band,
    choose_frequencies,
    join_readings,
    take_band,
)
from plugstream.scans.importers.reading import Reading, read_blocks
from plugstream.scans.importers.source import (
    UNITS,
    Complex,
    Lookup,
    Source,
    check_names,
    join_parts,
    kind_of,
    one_number,
    read_complex,
    read_rows,
    unit_of,
)

__all__ = ["ARRAYS", "VALUES", "BornImport", "read_born"]

SOURCES = tuple(column.name for column in Born2D.columns if column.choice == "illumination")
ARRAYS = ("data", "data_real", "data_imag", "total", "incident", "receivers", *SOURCES, "mask", "truth")
VALUES = ("wavelength", "frequency", "frequency_axis", "background", "size", "pixel", "width", "center", "far_field")
_WORDS = ("frequency_unit",)


class BornImport(Options):
    """What can be said besides of a file of a scattering experiment."""

    frequency: float | None = Field(None, le=1e6, description="which of the file's frequencies to take, in GHz")
    frequencies: str | None = Field(
        None, max_length=1 << 16, description="several of the file's frequencies in one scan: 2,4,6GHz, or all"
    )
    size: int | None = Field(None, le=65_536, description="pixels a side of the image to form")
    width: float | None = Field(None, le=1e15, description="width of the image")
    wavelength: float | None = Field(None, le=1e15, description="wavelength in vacuum, where the file does not tell")
    unit: str | None = Field(None, description="unit of all lengths: m, cm, mm, um, nm (what the file says, or m)")
    conjugate: bool = switch("the file's time goes as exp(+i w t)")


@reader("scattering-2d", options=BornImport, values=VALUES)
@reader("born-2d", options=BornImport, values=VALUES)
def read_born(source: Source, mapping: Mapping[str, Any], options: Any) -> Reading:
    """A file as a scan of `born-2d`, or of `scattering-2d`, which is the same experiment.

    Arguments: source; mapping from our names to the file's, or for values to numbers; options, see `BornImport`:
    unit of all lengths, by default what an attribute `units` of each says, and else m; conjugate for data and fields
    with time going as exp(+i w t); frequency in GHz, which of the file's to take, or where the file does not tell.

    An incident field, measured without the object, calibrates the data: see `Calibrator`. With it the data may be given
    as the total field, whose difference to the incident one is then taken.
    """
    if options.unit is not None and options.unit not in UNITS:
        raise InputError(f"there is no unit {options.unit!r}; choose one of {', '.join(UNITS)}")
    check_names(mapping, (*ARRAYS, *VALUES, *_WORDS))
    flags = {name: getattr(options, name) for name in ("wavelength", "size", "width")}
    mapping = {**mapping, **{name: value for name, value in flags.items() if value is not None}}
    if options.frequencies is None:
        return _read_band(source, mapping, options, options.frequency)
    if options.frequency is not None or options.wavelength is not None:
        raise InputError("several frequencies and one are both given; leave --frequencies or the other out")
    lengths, rates, _ = BornLookup(source, mapping, options.unit).spectrum()
    known = lengths if lengths is not None else [LIGHT / rate for rate in rates or () if rate > 0]
    chosen = choose_frequencies(source.path, options.frequencies, known)
    return join_readings([_read_band(source, mapping, options, one) for one in chosen])


def _read_band(source: Source, mapping: Mapping[str, Any], options: Any, frequency: float | None) -> Reading:
    """A file at one frequency, in GHz; the one that it has if not given."""
    unit, conjugate = options.unit, options.conjugate
    plan = _plan(BornLookup(source, mapping, unit), frequency, find_instrument(options.instrument))
    provenance: dict[str, Any] = {
        "mapping": dict(mapping),
        "unit": unit or "of the file, or m",
        "conjugated": conjugate,
    }
    if plan.band.count > 1:
        provenance["frequency_ghz"] = plan.band.gigahertz
    factor = 1 + 0j
    remarks: tuple[str, ...] = ()
    if plan.incident is not None:
        try:
            calibration = _calibrate(plan, source, conjugate)
        except InputError as error:
            raise InputError(f"cannot import {source.path}: {error}") from error
        factor = calibration.factor
        direct = None if calibration.near is None else round(calibration.near, 4)
        provenance["calibration"] = [factor.real, factor.imag]
        off = {"within_30_degrees": direct, "all_angles": round(calibration.everywhere, 4)}
        provenance["incident_mismatch"] = off
        remarks = (f"calibrated by the incident field: {_mismatch(off)}",)

    def read(rows: slice) -> dict[str, Any]:
        some = {name: read_rows(array, rows, name, source) * scale for name, (array, scale) in plan.rows.items()}
        some["data"] = read_rows(plan.data, rows, "data", source)
        if plan.total:
            some["data"] = some["data"] - read_rows(plan.incident, rows, "incident", source)
        if conjugate:
            some |= {name: some[name].conj() for name in ("data", "fields") if name in some}
        if plan.incident is not None:
            some["data"] = some["data"] / factor
        if plan.mask is not None:
            some["mask"] = read_rows(plan.mask, rows, "mask", source).astype(bool)
        return some

    return Reading(plan.instrument, plan.data.shape[0], read, None, plan.truth, provenance, remarks)


def _mismatch(off: Mapping[str, float | None]) -> str:
    near = off["within_30_degrees"]
    direct = "" if near is None else f"by {near:.2f} of the modelled one within 30 degrees of the direct line, "
    return f"it is off {direct}by {off['all_angles']:.2f} over all receivers"


class BornLookup(Lookup):
    """Arrays and values by our names, with lengths in metres and the wavelength however a file says it."""

    def __init__(self, source: Source, mapping: Mapping[str, Any], unit: str | None) -> None:
        super().__init__(source, mapping)
        self.unit = unit

    def length(self, name: str) -> list[float] | None:
        """The same in metres."""
        numbers, found = self.find_value(name)
        return None if numbers is None else [self.metres(name, found) * number for number in numbers]

    def metres(self, name: str, found: Any) -> float:
        """Metres in the unit of an array: the one that was given, or what its attribute `units` says, or 1."""
        if self.unit is not None:
            return UNITS[self.unit]
        own = unit_of(found) or "m"
        if own not in UNITS:
            known = ", ".join(UNITS)
            raise InputError(f"{name} of {self.source.path} is in {own!r}, which is none of {known}; give --unit")
        return UNITS[own]

    def spectrum(self) -> tuple[list[float] | None, list[float] | None, float | None]:
        """The file's wavelengths in metres, or else its frequencies in Hz, and a wavelength that is asked for."""
        given = self.mapping.get("wavelength")
        asked = None
        if given is not None and not isinstance(given, str):
            asked = one_number("wavelength", self.length("wavelength") or [])
            there = self.source.find("wavelength")  # a choice, where the file has several
            several = getattr(there, "shape", None) is not None and np.prod(there.shape) > 1
            lengths = BornLookup(self.source, {}, self.unit).length("wavelength") if several else None
        else:
            lengths = self.length("wavelength")
        rates, found = self.find_value("frequency")
        word = self.mapping.get("frequency_unit")
        own = str(word) if word is not None else unit_of(found) or "Hz"
        if rates is not None and own not in FREQUENCY_UNITS:
            known = ", ".join(FREQUENCY_UNITS)
            raise InputError(f"the frequency of {self.source.path} is in {own!r}, which is none of {known}")
        if rates is not None:
            rates = [FREQUENCY_UNITS[own] * rate for rate in rates]
        return lengths, rates, asked

    def band(self, frequency: float | None) -> Band | None:
        """The wavelength: the one that is given, or that of the file which a frequency in GHz asks for, or None."""
        lengths, rates, asked = self.spectrum()
        if asked is not None and lengths is None and (rates is None or len(rates) < 2) and frequency is None:
            rates = None  # a wavelength that is given wins over what one frequency of the file says
        return choose_band(self.source.path, lengths, rates, wavelength=asked, frequency=frequency)


def _calibrate(plan: _Plan, source: Source, conjugate: bool) -> Calibration:
    """The calibration by the whole incident field, with a warning where it is not what the scan models."""
    ((name, (places, scale)),) = plan.rows.items()
    calibrator = Calibrator(plan.instrument, name)
    views, receivers = plan.data.shape
    for rows in read_blocks(views, 16 * receivers):
        incident = read_rows(plan.incident, rows, "incident", source)
        mask = None if plan.mask is None else read_rows(plan.mask, rows, "mask", source).astype(bool)
        where = np.asarray(read_rows(places, rows, name, source), dtype=np.float64) * scale
        calibrator.add(incident.conj() if conjugate else incident, where, mask)
    calibration = calibrator.result()
    off, where_off = calibration.near, f"within {NEAR:g} degrees of the direct line"
    if off is None:
        off, where_off = calibration.everywhere, "over all receivers"
    if off > MISMATCH_LIMIT:
        warnings.warn(
            f"the incident field of {source.path.name} is off by {off:.2f} of the modelled one {where_off}, more than "
            f"{MISMATCH_LIMIT}: look at the wavelength, the unit, the positions and --conjugate",
            PlugstreamWarning,
            stacklevel=4,
        )
    return calibration


@dataclass(frozen=True)
class _Plan:
    """What will be read: the instrument, the data, sources with the scale to metres, mask and truth.

    total: whether the data is the total field, of which the incident one is a part.
    """

    instrument: Born2D
    band: Band
    data: Complex
    total: bool
    incident: Complex | None
    rows: Mapping[str, tuple[Any, float]]
    mask: Any
    truth: NDArray[np.float32] | None


def _plan(look: BornLookup, frequency: float | None, kind: Any) -> _Plan:
    path = look.source.path
    band = look.band(frequency)
    counts = [getattr(look.array(name), "shape", None) for name in ("transmitters", "plane_waves", "receivers")]
    lengths = [shape[0] if shape else None for shape in counts]
    want = (lengths[0] if lengths[0] is not None else lengths[1], lengths[2])
    axis = look.value("frequency_axis")
    at = None if axis is None else one_number("frequency_axis", axis)
    if at is not None and (at != int(at) or not -4 < at < 4):
        raise InputError(f"frequency_axis must be one of the data's axes, such as 0, 1 or 2, not {at:g}")

    def at_band(name: str, shape: tuple[int | None, ...], *, pairs: bool) -> Any:
        return take_band(path, name, look.array(name), band, shape, None if at is None else int(at), pairs)

    data, total = _data(look, lambda name: at_band(name, want, pairs=name in ("data", "total")))
    views, receivers = data.shape
    far = look.value("far_field") or [0.0]
    if far not in ([0.0], [1.0]):
        raise InputError("far_field must be true or false")
    positions = look.array("receivers")
    if positions is None:
        raise InputError(f"{path} has no receivers; map them with --map receivers=PATH")
    _check(path, "receivers", positions, (receivers, 2), "fiu", "(receivers, 2), as data has them")
    found = {name: array for name in SOURCES if (array := look.array(name)) is not None}
    if len(found) != 1:
        what = "none" if not found else " and ".join(found)
        raise InputError(f"{path} must give one of {', '.join(SOURCES)}, but gives {what}; map it with --map")
    ((name, array),) = found.items()
    grid = _grid(look)
    if name == "fields":
        array = at_band("fields", (views, *grid.shape), pairs=True)
        array = read_complex(path, name, array)
        _check(path, name, array, (views, *grid.shape), "c", "(views, H, W)")
    else:
        _check(path, name, array, (views, 2), "fiu", "(views, 2), as data has them")
    incident, truth = at_band("incident", (views, receivers), pairs=True), look.array("truth")
    if incident is not None:
        incident = read_complex(path, "incident", incident)
        _check(path, "incident", incident, (views, receivers), "c", "(views, receivers), as data has them")
    elif total:
        raise InputError(
            f"{path} gives the total field, but no incident one to subtract; map it with --map incident=PATH"
        )
    mask = at_band("mask", (views, receivers), pairs=False)
    if mask is not None:
        _check(path, "mask", mask, (views, receivers), "biu", "(views, receivers), as data has them")
    if truth is not None:
        _check(path, "truth", truth, grid.shape, "fiu", "that of the grid")
        truth = np.asarray(read_rows(truth, slice(None), "truth", look.source), dtype=np.float32)
        from plugstream.scans.checks import check_truth

        check_truth(truth, ImageSpace(grid.shape))
    if band is None:
        raise InputError(
            f"the wavelength is not given in {path}; use --wavelength, in the unit of the lengths, or --frequency"
        )
    background = look.value("background")
    where = np.asarray(read_rows(positions, slice(None), "receivers", look.source), dtype=np.float64)
    instrument = kind(
        receivers=where if far[0] else look.metres("receivers", positions) * where,
        wavelength=band.wavelength,
        grid=grid,
        background=1.0 if background is None else one_number("background", background),
        far_field=bool(far[0]),
    )
    scale = look.metres(name, array) if name == "transmitters" else 1.0
    return _Plan(instrument, band, data, total, incident, {name: (array, scale)}, mask, truth)


def _grid(look: BornLookup) -> Grid:
    size, center = look.value("size"), look.length("center")
    # A width that was asked for is meant even where the file has a pixel, and the other way round.
    asked = [name for name in ("pixel", "width") if name in look.mapping] or ["pixel", "width"]
    steps = {name: found for name in asked if (found := look.length(name)) is not None}
    if size is None or not steps:
        raise InputError("the image's grid is not given; use --size in pixels, and --width or pixel=... by --map")
    if len(steps) > 1:
        raise InputError(
            "the image's grid is given twice, by pixel and by width; give one of them, as --width or --map"
        )
    sizes = [*size, *size] if len(size) == 1 else size
    if len(sizes) != 2 or any(n != int(n) for n in sizes):
        raise InputError(f"the size must be one or two whole numbers of pixels, not {size}")
    ((name, found),) = steps.items()
    step = one_number(name, found) / (sizes[1] if name == "width" and sizes[1] else 1)
    middle = center or [0.0, 0.0]
    if len(middle) != 2:
        raise InputError(f"the center must be two numbers, x and y, not {len(middle)}")
    return Grid((int(sizes[0]), int(sizes[1])), step, (middle[0], middle[1]))


def _data(look: BornLookup, find: Callable[[str], Any]) -> tuple[Complex, bool]:
    """The measurements, which may also be two arrays, and whether they are of the total field."""
    path = look.source.path
    scattered = ("data", "data_real", "data_imag")
    parts = {name: array for name in (*scattered, "total") if (array := find(name)) is not None}
    asked = [name for name in parts if name in look.mapping]
    if "total" in parts and len(parts) > 1:  # what is asked for is meant, and else the scattered field
        unused = scattered if asked == ["total"] else () if "total" in asked else ("total",)
        parts = {name: array for name, array in parts.items() if name not in unused}
    if sorted(parts) not in (["data"], ["data_imag", "data_real"], ["total"]):
        what = "none of them" if not parts else " and ".join(parts)
        raise InputError(
            f"{path} must give data, or data_real and data_imag, but gives {what}; use --map data=PATH, or total=PATH "
            "and incident=PATH"
        )
    if "data_real" in parts:
        real, imag = (parts[name] for name in ("data_real", "data_imag"))
        for name, array in parts.items():
            _check(path, name, array, getattr(real, "shape", ()), "fiu", "as data_real has them")
        data = Complex(tuple(real.shape), lambda rows: join_parts(real[rows], imag[rows]))
    else:
        ((name, array),) = parts.items()
        data = read_complex(path, name, array)
    if len(data.shape) != 2 or 0 in data.shape:
        several = ", with an axis besides for each of the file's frequencies" if len(data.shape) > 2 else ""
        raise InputError(f"data of {path} has shape {data.shape}, but must be (views, receivers){several}")
    return data, "total" in parts


def _check(path: Path, name: str, array: Any, shape: tuple[int, ...], kinds: str, what: str) -> None:
    if getattr(array, "shape", None) is None or array.dtype.kind not in kinds:
        raise InputError(f"{name} of {path} holds {kind_of(array)}, which cannot be {name}")
    if tuple(array.shape) != tuple(shape):
        raise InputError(f"{name} of {path} has shape {tuple(array.shape)}, but must be {shape}: {what}")
