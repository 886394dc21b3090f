"""Scans of the Born instrument from arrays that have names in some file.

A mapping says where in the file each of our names is. Arrays: data (or data_real and data_imag, or total), receivers,
one of transmitters, plane_waves and fields, and optionally incident, mask and truth. Values: wavelength or frequency,
size, and pixel or width; background, center and far_field are optional.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.base.image_size import ImageSize, read_size, size_field
from plugstream.base.registry import Field, Options
from plugstream.images.grid import Grid
from plugstream.instruments.base import find_instrument
from plugstream.instruments.born import Born2D
from plugstream.instruments.spectrum import FREQUENCY_UNITS, LIGHT
from plugstream.scans.importers.arrays import reader
from plugstream.scans.importers.base import switch
from plugstream.scans.importers.calibration import MISMATCH_LIMIT, NEAR, Calibration, Calibrator
from plugstream.scans.importers.frequencies import Band, choose_band, choose_frequencies, join_readings, take_band
from plugstream.scans.importers.reading import Reading, read_blocks
from plugstream.scans.importers.source import (
    UNITS,
    Complex,
    Lookup,
    Source,
    as_numbers,
    check_array,
    check_names,
    join_parts,
    one_number,
    read_complex,
    unit_of,
)

SOURCES = tuple(column.name for column in Born2D.columns if column.choice == "illumination")
ARRAYS = ("data", "data_real", "data_imag", "total", "incident", "receivers", *SOURCES, "mask", "truth")
VALUES = ("wavelength", "frequency", "frequency_axis", "background", "size", "pixel", "width", "center", "far_field")
_WORDS = ("frequency_unit",)


class BornImport(Options):
    """Options for a file of a scattering experiment."""

    frequency: float | None = Field(None, le=1e6, description="which of the file's frequencies to take, in GHz")
    frequencies: str | None = Field(
        None, max_length=1 << 16, description="several of the file's frequencies in one scan: 2,4,6GHz, or all"
    )
    size: ImageSize = size_field(1, 65_536, "the file's if not given")
    width: float | None = Field(None, le=1e15, description="width of the image")
    wavelength: float | None = Field(None, le=1e15, description="wavelength in vacuum, where the file has none")
    unit: str | None = Field(None, description="unit of all lengths: m, cm, mm, um, nm (what the file says, or m)")
    conjugate: bool = switch("the file's time goes as exp(+i w t)")


@reader("scattering-2d", options=BornImport, values=VALUES)
@reader("born-2d", options=BornImport, values=VALUES)
def read_born(source: Source, mapping: Mapping[str, Any], options: Any) -> Reading:
    """A file as a scan of `born-2d`, or of `scattering-2d`, which is the same experiment.

    Arguments: source; mapping from our names to the file's, or for values to numbers; options, see `BornImport`:
    unit of all lengths, by default the attribute `units` of each, or m; conjugate for data and fields with time going
    as exp(+i w t); frequency in GHz, which of the file's to take, or the only one where the file does not tell.

    An incident field, measured without the object, calibrates the data: see `Calibrator`. With it the data may be the
    total field, from which the incident one is subtracted.
    """
    if options.unit is not None and options.unit not in UNITS:
        raise InputError(f"there is no unit {options.unit!r}; choose one of {', '.join(UNITS)}")
    check_names(mapping, (*ARRAYS, *VALUES, *_WORDS))
    flags = {"wavelength": options.wavelength, "size": read_size(options, 2), "width": options.width}
    mapping = {**mapping, **{name: value for name, value in flags.items() if value is not None}}
    look = _BornLookup(source, mapping, options.unit)
    if options.frequencies is None:
        return _read_band(look, options, options.frequency)
    if options.frequency is not None or options.wavelength is not None:
        raise InputError("several frequencies and one are both given; leave --frequencies or the other out")
    chosen = choose_frequencies(source.path, options.frequencies, look.spectrum()[0])
    return join_readings([_read_band(look, options, frequency) for frequency in chosen])


class _BornLookup(Lookup):
    """Arrays and values by our names, with lengths in metres and the wavelength in any form."""

    def __init__(self, source: Source, mapping: Mapping[str, Any], unit: str | None) -> None:
        super().__init__(source, mapping)
        self.unit = unit

    def length(self, name: str) -> list[float] | None:
        """A number, or a few of them, in metres, or None."""
        numbers, array = self.find_value(name)
        return None if numbers is None else [self.metres(name, array) * number for number in numbers]

    def metres(self, name: str, array: Any) -> float:
        """Metres in the unit of an array: the unit of the options, or of its attribute `units`, or 1."""
        unit = self.unit or unit_of(array) or "m"
        if unit not in UNITS:
            units = ", ".join(UNITS)
            raise InputError(f"{name} of {self.source.path} is in {unit!r}, which is not one of {units}; give --unit")
        return UNITS[unit]

    def spectrum(self) -> tuple[list[float], bool, float | None]:
        """The file's wavelengths in metres, whether it gives frequencies, and the wavelength of the options."""
        literal = self.mapping.get("wavelength")
        chosen_wave = None
        if literal is not None and not isinstance(literal, str):
            chosen_wave = one_number("wavelength", self.length("wavelength") or [])
            stored = self.source.find("wavelength")  # a choice, where the file has several
            several = getattr(stored, "shape", None) is not None and np.prod(stored.shape) > 1
            lengths = _BornLookup(self.source, {}, self.unit).length("wavelength") if several else None
        else:
            lengths = self.length("wavelength")
        rates, array = self.find_value("frequency")
        unit = str(self.mapping.get("frequency_unit") or unit_of(array) or "Hz")
        if rates is not None:
            if unit not in FREQUENCY_UNITS:
                units = ", ".join(FREQUENCY_UNITS)
                raise InputError(f"the frequency of {self.source.path} is in {unit!r}, which is not one of {units}")
            rates = [LIGHT / (FREQUENCY_UNITS[unit] * rate) if rate > 0 else np.inf for rate in rates]
        return (rates or [], True, chosen_wave) if lengths is None else (lengths, False, chosen_wave)

    def band(self, frequency: float | None) -> Band | None:
        """The wavelength of the options, or that of the file at a frequency in GHz, or None."""
        waves, by_frequency, chosen_wave = self.spectrum()
        if chosen_wave is not None and frequency is None and by_frequency and len(waves) < 2:
            waves = []  # a wavelength of the options wins over the one frequency of the file
        return choose_band(self.source.path, waves, by_frequency, wavelength=chosen_wave, frequency=frequency)


def _read_band(look: _BornLookup, options: Any, frequency: float | None) -> Reading:
    """A file at one frequency, in GHz; None for the only one that it has."""
    path, conjugate, band = look.source.path, options.conjugate, look.band(frequency)
    shapes = [getattr(look.array(name), "shape", None) for name in ("transmitters", "plane_waves", "receivers")]
    lengths = [shape[0] if shape else None for shape in shapes]
    expected = (lengths[0] if lengths[0] is not None else lengths[1], lengths[2])
    numbers = look.value("frequency_axis")
    axis = None if numbers is None else one_number("frequency_axis", numbers)
    if axis is not None and (axis != int(axis) or not -4 < axis < 4):
        raise InputError(f"frequency_axis must be one of the data's axes, such as 0, 1 or 2, not {axis:g}")

    def at_band(name: str, shape: tuple[int | None, ...], *, pairs: bool) -> Any:
        return take_band(path, name, look.array(name), band, shape, None if axis is None else int(axis), pairs)

    data, is_total = _data(look, lambda name: at_band(name, expected, pairs=name in ("data", "total")))
    shape = views, receivers = data.shape
    as_data = "(views, receivers), as data has them"
    far_field = look.value("far_field") or [0.0]
    if far_field not in ([0.0], [1.0]):
        raise InputError("far_field must be true or false")
    positions = look.array("receivers")
    if positions is None:
        raise InputError(f"{path} has no receivers; map them with --map receivers=PATH")
    check_array(path, "receivers", positions, "fiu", (receivers, 2), "(receivers, 2), as data has them")
    lights = {name: array for name in SOURCES if (array := look.array(name)) is not None}
    if len(lights) != 1:
        names = " and ".join(lights) or "none"
        raise InputError(f"{path} must give one of {', '.join(SOURCES)}, but gives {names}; map it with --map")
    ((kind, light),) = lights.items()
    grid = _grid(look, band)
    if kind == "fields":
        light = read_complex(path, kind, at_band(kind, (views, *grid.shape), pairs=True))
        check_array(path, kind, light, "c", (views, *grid.shape), "(views, H, W)")
    else:
        check_array(path, kind, light, "fiu", (views, 2), "(views, 2), as data has them")
    incident = at_band("incident", shape, pairs=True)
    if incident is not None:
        incident = check_array(path, "incident", read_complex(path, "incident", incident), "c", shape, as_data)
    elif is_total:
        raise InputError(
            f"{path} gives the total field, but no incident one to subtract; map it with --map incident=PATH"
        )
    mask = at_band("mask", shape, pairs=False)
    if mask is not None:
        check_array(path, "mask", mask, "biu", shape, as_data)
    truth = look.array("truth")
    if truth is not None:
        truth = check_array(path, "truth", truth, "fiu", grid.shape, "that of the grid")[:]
    if band is None:
        raise InputError(
            f"the wavelength is not given in {path}; use --wavelength, in the unit of the lengths, or --frequency"
        )
    places, background = as_numbers("receivers", positions[:]), look.value("background")
    instrument: Any = find_instrument(options.instrument)
    instrument = instrument(
        receivers=places if far_field[0] else look.metres("receivers", positions) * places,
        wavelength=band.wavelength,
        grid=grid,
        background=1.0 if background is None else one_number("background", background),
        far_field=bool(far_field[0]),
    )
    scale = look.metres(kind, light) if kind == "transmitters" else 1.0

    def read_mask(rows: slice) -> NDArray[np.bool_] | None:
        return None if mask is None else mask[rows].astype(bool)

    provenance: dict[str, Any] = {"mapping": dict(look.mapping), "unit": options.unit or "of the file, or m"}
    provenance["conjugated"] = conjugate
    if band.count > 1:
        provenance["frequency_ghz"] = band.gigahertz
    factor, remarks = 1 + 0j, list[str]()
    if incident is not None:
        try:
            calibrator = Calibrator(instrument, kind)
            for rows in read_blocks(views, 16 * receivers):
                field, lit = incident[rows], np.asarray(light[rows], dtype=np.float64) * scale
                calibrator.add(field.conj() if conjugate else field, lit, read_mask(rows))
            calibration = calibrator.result()
        except InputError as error:
            raise InputError(f"cannot import {path}: {error}") from error
        factor = calibration.factor
        near = None if calibration.near is None else round(calibration.near, 4)
        mismatch = {"within_30_degrees": near, "all_angles": round(calibration.everywhere, 4)}
        provenance |= {"calibration": [factor.real, factor.imag], "incident_mismatch": mismatch}
        direct = "" if near is None else f"by {near:.2f} of the modelled one within 30 degrees of the direct line, "
        remarks.append(
            f"calibrated by the incident field: it is off {direct}by {mismatch['all_angles']:.2f} over all receivers"
        )
        _warn_if_off(calibration, path.name)

    def read(rows: slice) -> dict[str, Any]:
        block = {kind: light[rows] * scale, "data": data[rows]}
        if is_total:
            block["data"] = block["data"] - incident[rows]
        if conjugate:
            block |= {name: block[name].conj() for name in ("data", "fields") if name in block}
        if incident is not None:
            block["data"] = block["data"] / factor
        return block if mask is None else block | {"mask": read_mask(rows)}

    return Reading(instrument, views, read, None, truth, provenance, remarks)


def _warn_if_off(calibration: Calibration, file: str) -> None:
    """Warn of an incident field that is not what the scan models."""
    mismatch, where = calibration.near, f"within {NEAR:g} degrees of the direct line"
    if mismatch is None:
        mismatch, where = calibration.everywhere, "over all receivers"
    if mismatch > MISMATCH_LIMIT:
        warnings.warn(
            f"the incident field of {file} is off by {mismatch:.2f} of the modelled one {where}, more than "
            f"{MISMATCH_LIMIT}: look at the wavelength, the unit, the positions and --conjugate",
            PlugstreamWarning,
            stacklevel=4,
        )


def _grid(look: _BornLookup, band: Band | None) -> Grid:
    size, center = look.value("size"), look.length("center") or [0.0, 0.0]
    # An explicit width wins over a pixel in the file, and the other way round.
    names = [name for name in ("pixel", "width") if name in look.mapping] or ["pixel", "width"]
    steps = {name: length for name in names if (length := look.length(name)) is not None}
    if size is None or not steps:
        missing = "the image's grid is not given; use --size in pixels, and --width or pixel=... by --map"
        raise InputError(missing + ", and --wavelength or --frequency" * (band is None))
    if len(steps) > 1:
        raise InputError(
            "the image's grid is given twice, by pixel and by width; give one of them, as --width or --map"
        )
    sizes = [*size, *size] if len(size) == 1 else size
    if len(sizes) != 2 or any(n != int(n) for n in sizes):
        raise InputError(f"the size must be one or two whole numbers of pixels, not {size}")
    if len(center) != 2:
        raise InputError(f"the center must be two numbers, x and y, not {len(center)}")
    ((name, length),) = steps.items()
    step = one_number(name, length) / (sizes[1] if name == "width" and sizes[1] else 1)
    return Grid((int(sizes[0]), int(sizes[1])), step, (center[0], center[1]))


def _data(look: _BornLookup, find: Callable[[str], Any]) -> tuple[Complex, bool]:
    """The measurements, which may also be two arrays, and whether they are of the total field."""
    path = look.source.path
    scattered = ("data", "data_real", "data_imag")
    parts = {name: array for name in (*scattered, "total") if (array := find(name)) is not None}
    mapped = [name for name in parts if name in look.mapping]
    if "total" in parts and len(parts) > 1:  # the one that is mapped, or the scattered field
        unused = scattered if mapped == ["total"] else () if "total" in mapped else ("total",)
        parts = {name: array for name, array in parts.items() if name not in unused}
    if sorted(parts) not in (["data"], ["data_imag", "data_real"], ["total"]):
        names = " and ".join(parts) or "none of them"
        raise InputError(
            f"{path} must give data, or data_real and data_imag, but gives {names}; use --map data=PATH, or total=PATH "
            "and incident=PATH"
        )
    if "data_real" in parts:
        real, imag = parts["data_real"], parts["data_imag"]
        for name, array in parts.items():
            check_array(path, name, array, "fiu", getattr(real, "shape", ()), "as data_real has them")
        data = Complex(tuple(real.shape), lambda rows: join_parts(real[rows], imag[rows]))
    else:
        ((name, array),) = parts.items()
        data = read_complex(path, name, array)
    if len(data.shape) != 2 or 0 in data.shape:
        several = ", with an axis besides for each of the file's frequencies" if len(data.shape) > 2 else ""
        raise InputError(f"data of {path} has shape {data.shape}, but must be (views, receivers){several}")
    return data, "total" in parts
