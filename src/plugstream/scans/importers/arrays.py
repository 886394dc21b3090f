"""A scan from arrays that have names in some file: what HDF5 and NPZ share.

A mapping says where in the file each of our names is. Arrays: data (or data_real and data_imag, or total), receivers,
one of transmitters, plane_waves and fields, and if there are any incident, mask and truth. Values: wavelength or
frequency, size, and pixel or width; background, center and far_field may be left out.
"""

from __future__ import annotations

import difflib
import re
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.errors import InputError, PlugstreamWarning
from plugstream.files import read_small
from plugstream.image_space import ImageSpace
from plugstream.models.born_plausible import check_plausible
from plugstream.scans.checks import check_truth
from plugstream.scans.geometry import Grid, Setup
from plugstream.scans.importers.calibration import MISMATCH_LIMIT, NEAR, Calibration, Calibrator
from plugstream.scans.importers.complex_numbers import Complex, join_parts, kind_of, read_complex
from plugstream.scans.importers.frequencies import Band, take_band
from plugstream.scans.importers.lookup import UNITS, Lookup, Source, one_number, read_rows
from plugstream.scans.writer import ScanWriter, whole_scan
from plugstream.text import shell_quote

__all__ = ["ARRAYS", "UNITS", "VALUES", "Source", "describe_file", "import_arrays", "import_outlook", "read_mapping"]

SOURCES = tuple(column.name for column in Setup.columns if column.choice == "illumination")
ARRAYS = ("data", "data_real", "data_imag", "total", "incident", "receivers", *SOURCES, "mask", "truth")
VALUES = ("wavelength", "frequency", "frequency_axis", "background", "size", "pixel", "width", "center", "far_field")
_WORDS = ("frequency_unit",)
_BLOCK_BYTES = 4 << 20


def import_arrays(
    source: Source,
    out: str | Path,
    mapping: Mapping[str, Any],
    *,
    unit: str | None = None,
    conjugate: bool = False,
    frequency: float | None = None,
) -> int:
    """Write a scan from the arrays of an open file, some views at a time, and return the number of views.

    Holds for files of any size: no more than a few megabytes of measurements are in memory. An output that exists is
    refused, and nothing half-written is left behind.

    Arguments: source; out, the scan to make; mapping from our names to the file's, or for values to numbers; names that
    are not mapped are looked for under our own name, values also among the attributes; unit of all lengths, by default
    what an attribute `units` of each says, and else m; conjugate for data and fields with time going as exp(+i w t);
    frequency in GHz, which of the file's to take, or where the file does not tell.

    An incident field, measured without the object, calibrates the data: see `Calibrator`. With it the data may be given
    as the total field, whose difference to the incident one is then taken.
    """
    target = Path(out)
    if target.exists():
        raise InputError(f"{target} exists already; remove it or choose another name")
    if unit is not None and unit not in UNITS:
        raise InputError(f"there is no unit {unit!r}; choose one of {', '.join(UNITS)}")
    names = (*ARRAYS, *VALUES, *_WORDS)
    for name in mapping:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else f"; names are {', '.join(names)}"
            raise InputError(f"there is no {name!r} to map{hint}")
    plan = _plan(Lookup(source, mapping, unit), frequency)
    provenance: dict[str, Any] = {
        "made_by": "plugstream import",
        "file": source.path.name,
        "mapping": dict(mapping),
        "unit": unit or "of the file, or m",
        "conjugated": conjugate,
    }
    if plan.band.count > 1:
        provenance["frequency_ghz"] = plan.band.gigahertz
    views, receivers = plan.data.shape
    step = max(1, _BLOCK_BYTES // (16 * receivers))
    factor = 1 + 0j
    try:
        if plan.incident is not None:
            calibration = _calibrate(plan, source, step, conjugate)
            factor = calibration.factor
            direct = None if calibration.near is None else round(calibration.near, 4)
            provenance["calibration"] = [factor.real, factor.imag]
            provenance["incident_mismatch"] = {
                "within_30_degrees": direct,
                "all_angles": round(calibration.everywhere, 4),
            }
        with (
            whole_scan(target) as partial,
            ScanWriter(partial, plan.setup, provenance=provenance, truth=plan.truth) as writer,
        ):
            for start in range(0, views, step):
                rows = slice(start, min(start + step, views))
                some = {
                    name: read_rows(array, rows, name, source) * scale for name, (array, scale) in plan.rows.items()
                }
                some["data"] = read_rows(plan.data, rows, "data", source)
                if plan.total:
                    some["data"] = some["data"] - read_rows(plan.incident, rows, "incident", source)
                if conjugate:
                    some |= {name: some[name].conj() for name in ("data", "fields") if name in some}
                if plan.incident is not None:
                    some["data"] = some["data"] / factor
                if plan.mask is not None:
                    some["mask"] = read_rows(plan.mask, rows, "mask", source).astype(bool)
                writer.append(**some)
            writer.finish()
    except InputError as error:
        raise InputError(f"cannot import {source.path}: {error}") from error
    return views


def _calibrate(plan: _Plan, source: Source, step: int, conjugate: bool) -> Calibration:
    """The calibration by the whole incident field, with a warning where it is not what the scan models."""
    ((name, (places, scale)),) = plan.rows.items()
    calibrator = Calibrator(plan.setup, name)
    views = plan.data.shape[0]
    for start in range(0, views, step):
        rows = slice(start, min(start + step, views))
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


def read_mapping(words: list[str], file: Path | None = None) -> dict[str, Any]:
    """The mapping that a TOML file and words such as data=/entry/data or size=64 give, the words winning.

    Arguments: words, each NAME=VALUE; file, TOML of such names at its top, if any.
    """
    from plugstream.settings import parse_value

    mapping: dict[str, Any] = {}
    if file is not None:
        try:
            mapping = tomllib.loads(read_small(file))
        except OSError as error:
            raise InputError(f"cannot read the mapping {file}: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:  # also a number of thousands of digits, lists thousands deep
            raise InputError(f"{file} is not TOML: {error}") from error
    for word in words:
        name, equals, value = word.partition("=")
        if not (equals and name and value):
            raise InputError(f"cannot read the mapping {word!r}; write NAME=PATH, such as data=/entry/data")
        mapping[name] = parse_value(value) if name in VALUES and not value.startswith("/") else value
    return mapping


def describe_file(path: str | Path) -> list[str] | None:
    """What is in a file that can be imported, a line for each array; None for a file of another kind.

    Arguments: path of an HDF5 file of any name, or of one ending in .npz for arrays, in .exp or .txt for Institut
    Fresnel files.
    """
    from plugstream.scans.importers import fresnel, hdf5, npz

    path = Path(path)
    if not path.is_file():
        return None
    kind = path.suffix.lower()
    if kind in (".exp", ".txt"):
        return fresnel.describe_fresnel(path)
    if kind in (".h5", ".hdf5", ".nxs") or hdf5.is_hdf5(path):
        opener: Any = hdf5.open_hdf5
    elif kind == ".npz":
        opener = npz.open_npz
    else:
        return None
    with opener(path) as source:
        return [f"{name}  {shape} {what}" for name, shape, what in source.names()]


def import_outlook(path: str | Path) -> str:
    """What 'plugstream import' can do with a file that `describe_file` knows, in words: all, nothing, or what it needs.

    Arguments: path, as of `describe_file`.
    """
    from plugstream.scans.importers import hdf5, npz

    path = Path(path)
    if path.suffix.lower() in (".exp", ".txt"):
        return f"'plugstream import fresnel {shell_quote(path)} --frequency GHZ' makes a scan of it"
    kind = "npz" if path.suffix.lower() == ".npz" else "hdf5"
    opener: Any = npz.open_npz if kind == "npz" else hdf5.open_hdf5
    with opener(path) as source:
        try:
            check_plausible(_plan(Lookup(source, {}, None), None).setup)
        except InputError as error:
            if not any(_may_be_data([(shape, what) for _, shape, what in source.names()])):
                return (
                    "'plugstream import' cannot make a scan of it: no array of it can be a scattered field, which is "
                    "complex, or a real and an imaginary part, of (views, receivers)"
                )
            return f"'plugstream import {kind}' makes a scan of it if --map says where in it everything is: {error}"
    return f"'plugstream import {kind} {shell_quote(path)}' makes a scan of it"


def _may_be_data(arrays: list[tuple[tuple[int, ...], str]]) -> Iterator[bool]:
    """For each array whether it might be the data: complex, records of two, a last axis of two, or one of a pair."""
    real = [shape for shape, what in arrays if len(shape) == 2 and re.match(r"u?int|float", what)]
    for shape, what in arrays:
        numbers = re.match(r"u?int|float", what) is not None
        yield len(shape) in (2, 3) and ("complex" in what or what.startswith(("[", "{")))  # or of several frequencies
        yield len(shape) in (3, 4) and shape[-1] == 2 and numbers
        yield len(shape) == 2 and min(shape) > 2 and numbers and real.count(shape) > 1


def open_error(path: Path, error: Exception, kind: str) -> InputError:
    """The one line for a file that cannot be opened."""
    if not path.exists():
        return InputError(f"there is no file {path}")
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return InputError(f"{path} cannot be read as {kind}: {text}")


@dataclass(frozen=True)
class _Plan:
    """What will be read: the setup, the data, sources with the scale to metres, mask and truth.

    total: whether the data is the total field, of which the incident one is a part.
    """

    setup: Setup
    band: Band
    data: Complex
    total: bool
    incident: Complex | None
    rows: Mapping[str, tuple[Any, float]]
    mask: Any
    truth: NDArray[np.float32] | None


def _plan(look: Lookup, frequency: float | None) -> _Plan:
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
        check_truth(truth, ImageSpace(grid.shape))
    if band is None:
        raise InputError(
            f"the wavelength is not given in {path}; use --wavelength, in the unit of the lengths, or --frequency"
        )
    background = look.value("background")
    where = np.asarray(read_rows(positions, slice(None), "receivers", look.source), dtype=np.float64)
    setup = Setup(
        receivers=where if far[0] else look.metres("receivers", positions) * where,
        wavelength=band.wavelength,
        grid=grid,
        background=1.0 if background is None else one_number("background", background),
        far_field=bool(far[0]),
    )
    scale = look.metres(name, array) if name == "transmitters" else 1.0
    return _Plan(setup, band, data, total, incident, {name: (array, scale)}, mask, truth)


def _grid(look: Lookup) -> Grid:
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


def _data(look: Lookup, find: Callable[[str], Any]) -> tuple[Complex, bool]:
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
