"""A scan from arrays that have names in some file: what HDF5 and NPZ share.

A mapping says where in the file each of our names is. Arrays: data (or data_real and data_imag), receivers, one of
transmitters, plane_waves and fields, and if there are any mask and truth. Values: wavelength, size, and pixel or width;
background, center and far_field may be left out.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from plugstream.errors import InputError
from plugstream.files import read_small
from plugstream.scans.geometry import Grid, Setup
from plugstream.scans.layout import SOURCES
from plugstream.scans.plausible import check_plausible
from plugstream.scans.scan import check_truth
from plugstream.scans.writer import ScanWriter, whole_scan
from plugstream.text import shell_quote

__all__ = ["ARRAYS", "UNITS", "VALUES", "Source", "describe_file", "import_arrays", "import_outlook", "read_mapping"]

ARRAYS = ("data", "data_real", "data_imag", "receivers", *SOURCES, "mask", "truth")
VALUES = ("wavelength", "background", "size", "pixel", "width", "center", "far_field")
UNITS = {"m": 1.0, "cm": 1e-2, "mm": 1e-3, "um": 1e-6, "nm": 1e-9}
_BLOCK_BYTES = 4 << 20


class Source(Protocol):
    """An open file of named arrays."""

    path: Path

    def find(self, name: str) -> Any:
        """The array or attribute of this name, with shape and dtype and read by slicing, or None."""

    def attribute(self, name: str, of: str | None) -> Any:
        """An attribute of the file, or of this array in it, or None."""

    def names(self) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """Everything in the file: name, shape, type."""


def import_arrays(
    source: Source,
    out: str | Path,
    mapping: Mapping[str, Any],
    *,
    unit: str | None = None,
    conjugate: bool = False,
) -> int:
    """Write a scan from the arrays of an open file, some views at a time, and return the number of views.

    Holds for files of any size: no more than a few megabytes of measurements are in memory. An output that exists is
    refused, and nothing half-written is left behind.

    Arguments: source; out, the scan to make; mapping from our names to the file's, or for values to numbers; names that
    are not mapped are looked for under our own name, values also among the attributes; unit of all lengths, by default
    what an attribute `units` of each says, and else m; conjugate for data and fields with time going as exp(+i w t).
    """
    target = Path(out)
    if target.exists():
        raise InputError(f"{target} exists already; remove it or choose another name")
    if unit is not None and unit not in UNITS:
        raise InputError(f"there is no unit {unit!r}; choose one of {', '.join(UNITS)}")
    for name in mapping:
        if name not in (*ARRAYS, *VALUES):
            near = difflib.get_close_matches(name, (*ARRAYS, *VALUES), n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else f"; names are {', '.join((*ARRAYS, *VALUES))}"
            raise InputError(f"there is no {name!r} to map{hint}")
    plan = _plan(_Lookup(source, mapping, unit))
    provenance = {
        "made_by": "plugstream import",
        "file": source.path.name,
        "mapping": dict(mapping),
        "unit": unit or "of the file, or m",
        "conjugated": conjugate,
    }
    views, receivers = plan.data.shape
    step = max(1, _BLOCK_BYTES // (16 * receivers))
    try:
        with (
            whole_scan(target) as partial,
            ScanWriter(partial, plan.setup, provenance=provenance, truth=plan.truth) as writer,
        ):
            for start in range(0, views, step):
                rows = slice(start, min(start + step, views))
                some = {name: _read(array, rows, name, source) * scale for name, (array, scale) in plan.rows.items()}
                some["data"] = _read(plan.data, rows, "data", source)
                if conjugate:
                    some |= {name: some[name].conj() for name in ("data", "fields") if name in some}
                if plan.mask is not None:
                    some["mask"] = _read(plan.mask, rows, "mask", source).astype(bool)
                writer.append(**some)
            writer.finish()
    except InputError as error:
        raise InputError(f"cannot import {source.path}: {error}") from error
    return views


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
            check_plausible(_plan(_Lookup(source, {}, None)).setup)
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
        yield len(shape) == 2 and ("complex" in what or what.startswith(("[", "{")))
        yield len(shape) == 3 and shape[-1] == 2 and numbers
        yield len(shape) == 2 and min(shape) > 2 and numbers and real.count(shape) > 1


def open_error(path: Path, error: Exception, kind: str) -> InputError:
    """The one line for a file that cannot be opened."""
    if not path.exists():
        return InputError(f"there is no file {path}")
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return InputError(f"{path} cannot be read as {kind}: {text}")


@dataclass(frozen=True)
class _Plan:
    """What will be read: the setup, the data, sources with the scale to metres, mask and truth."""

    setup: Setup
    data: _Complex
    rows: Mapping[str, tuple[Any, float]]
    mask: Any
    truth: NDArray[np.float32] | None


class _Lookup:
    """Arrays and values by our names."""

    def __init__(self, source: Source, mapping: Mapping[str, Any], unit: str | None) -> None:
        self.source, self.mapping, self.unit = source, mapping, unit

    def array(self, name: str) -> Any:
        place = self.mapping.get(name, name)
        if not isinstance(place, str):
            raise InputError(f"{name} must be mapped to a name in {self.source.path}, not to {place!r}")
        found = self.source.find(place)
        if found is None and name in self.mapping:
            near = difflib.get_close_matches(place, [known for known, _, _ in self.source.names()], n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]}?" if near else "; 'plugstream info' lists what is there"
            raise InputError(f"{self.source.path} has no {place}, which {name} is mapped to{hint}")
        return found

    def value(self, name: str) -> list[float] | None:
        """A number, or a few of them, or None."""
        return self._value(name)[0]

    def length(self, name: str) -> list[float] | None:
        """The same in metres."""
        numbers, found = self._value(name)
        return None if numbers is None else [self.metres(name, found) * number for number in numbers]

    def metres(self, name: str, found: Any) -> float:
        """Metres in the unit of an array: the one that was given, or what its attribute `units` says, or 1."""
        if self.unit is not None:
            return UNITS[self.unit]
        own = getattr(found, "attrs", {}).get("units", "m")
        own = own.decode(errors="replace") if isinstance(own, bytes) else str(own)
        if own not in UNITS:
            known = ", ".join(UNITS)
            raise InputError(f"{name} of {self.source.path} is in {own!r}, which is none of {known}; give --unit")
        return UNITS[own]

    def _value(self, name: str) -> tuple[list[float] | None, Any]:
        given = self.mapping.get(name)
        if given is not None and not isinstance(given, str):
            return _numbers(name, given), None
        found = self.array(name)
        if found is None:
            data = next((self.mapping.get(key, key) for key in ("data", "data_real") if key in self.mapping), "data")
            found = self.source.attribute(name, None)
            found = self.source.attribute(name, data) if found is None else found
        if found is None:
            return None, None
        return _numbers(name, _read(found, (), name, self.source) if hasattr(found, "shape") else found), found


def _plan(look: _Lookup) -> _Plan:
    path = look.source.path
    data = _data(look)
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
        array = _complex(path, name, array)
        _check(path, name, array, (views, *grid.shape), "c", "(views, H, W)")
    else:
        _check(path, name, array, (views, 2), "fiu", "(views, 2), as data has them")
    mask, truth = look.array("mask"), look.array("truth")
    if mask is not None:
        _check(path, "mask", mask, (views, receivers), "biu", "(views, receivers), as data has them")
    if truth is not None:
        _check(path, "truth", truth, grid.shape, "fiu", "that of the grid")
        truth = np.asarray(_read(truth, slice(None), "truth", look.source), dtype=np.float32)
        check_truth(truth, grid)
    wavelength = look.length("wavelength")
    if wavelength is None:
        raise InputError(f"the wavelength is not given in {path}; use --wavelength, in the unit of the lengths")
    background = look.value("background")
    where = np.asarray(_read(positions, slice(None), "receivers", look.source), dtype=np.float64)
    setup = Setup(
        receivers=where if far[0] else look.metres("receivers", positions) * where,
        wavelength=_one("wavelength", wavelength),
        grid=grid,
        background=1.0 if background is None else _one("background", background),
        far_field=bool(far[0]),
    )
    scale = look.metres(name, array) if name == "transmitters" else 1.0
    return _Plan(setup, data, {name: (array, scale)}, mask, truth)


def _grid(look: _Lookup) -> Grid:
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
    step = _one(name, found) / (sizes[1] if name == "width" and sizes[1] else 1)
    middle = center or [0.0, 0.0]
    if len(middle) != 2:
        raise InputError(f"the center must be two numbers, x and y, not {len(middle)}")
    return Grid((int(sizes[0]), int(sizes[1])), step, (middle[0], middle[1]))


class _Complex:
    """An array of complex numbers, read by slicing its rows, however they are stored."""

    dtype = np.dtype(np.complex128)

    def __init__(self, shape: tuple[int, ...], read: Callable[[slice], Any]) -> None:
        self.shape, self._read = shape, read

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return np.asarray(self._read(rows))


def _complex(path: Path, name: str, array: Any) -> _Complex:
    """Complex numbers as they are, as records of a real and an imaginary part, or as a last axis of two."""
    if getattr(array, "shape", None) is None or not (array.dtype.kind in "fiuc" or _record(array.dtype)):
        raise InputError(f"{name} of {path} holds {_kind(array)}, not numbers")
    shape = tuple(array.shape)
    if array.dtype.kind == "c":
        return _Complex(shape, lambda rows: array[rows])
    if record := _record(array.dtype):
        return _Complex(shape, lambda rows: _joined(*(array[rows][part] for part in record)))
    if len(shape) < 3 or shape[-1] != 2:
        raise InputError(
            f"{name} of {path} is {_kind(array)}, and the field is complex; store complex numbers, or real and "
            f"imaginary part in a last axis of two{', or map data_real and data_imag' if name == 'data' else ''}"
        )
    return _Complex(shape[:-1], lambda rows: _joined(*np.moveaxis(array[rows], -1, 0)))


def _data(look: _Lookup) -> _Complex:
    """The measurements, which may also be two arrays."""
    path = look.source.path
    parts = {name: look.array(name) for name in ("data", "data_real", "data_imag")}
    parts = {name: array for name, array in parts.items() if array is not None}
    if sorted(parts) not in (["data"], ["data_imag", "data_real"]):
        what = "none of them" if not parts else " and ".join(parts)
        raise InputError(f"{path} must give data, or data_real and data_imag, but gives {what}; use --map data=PATH")
    if "data" in parts:
        data = _complex(path, "data", parts["data"])
    else:
        real, imag = (parts[name] for name in ("data_real", "data_imag"))
        for name, array in parts.items():
            _check(path, name, array, getattr(real, "shape", ()), "fiu", "as data_real has them")
        data = _Complex(tuple(real.shape), lambda rows: _joined(real[rows], imag[rows]))
    if len(data.shape) != 2 or 0 in data.shape:
        raise InputError(f"data of {path} has shape {data.shape}, but must be (views, receivers)")
    return data


def _record(dtype: np.dtype[Any]) -> list[str]:
    """The names of the real and the imaginary part in records of the two, such as MATLAB writes; else nothing."""
    names = {name.lower(): name for name in dtype.names or ()}
    for real, imag in (("r", "i"), ("re", "im"), ("real", "imag")):
        if set(names) == {real, imag} and all(dtype[name].kind in "fiu" for name in names.values()):
            return [names[real], names[imag]]
    return []


def _joined(real: NDArray[Any], imag: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(real + 1j * imag)


def _read(array: Any, rows: slice | tuple[()], name: str, source: Source) -> Any:
    try:
        return array[rows]
    except Exception as error:  # of a damaged file; h5py raises OSError, RuntimeError and more
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        where = f" from row {rows.start or 0}" if isinstance(rows, slice) else ""
        raise InputError(f"{name} of {source.path} cannot be read{where}: {text}") from error


def _check(path: Path, name: str, array: Any, shape: tuple[int, ...], kinds: str, what: str) -> None:
    if getattr(array, "shape", None) is None or array.dtype.kind not in kinds:
        raise InputError(f"{name} of {path} holds {_kind(array)}, which cannot be {name}")
    if tuple(array.shape) != tuple(shape):
        raise InputError(f"{name} of {path} has shape {tuple(array.shape)}, but must be {shape}: {what}")


def _kind(array: Any) -> str:
    if not hasattr(array, "shape"):
        return "an attribute" if not hasattr(array, "keys") else "a group"
    if array.shape is None:
        return "nothing"
    return f"{array.dtype} of shape {tuple(array.shape)}"


def _numbers(name: str, value: Any) -> list[float]:
    try:
        numbers = np.atleast_1d(np.asarray(value)).ravel()
        if numbers.dtype.kind not in "fiub" or len(numbers) == 0 or not np.isfinite(numbers.astype(float)).all():
            raise ValueError
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a number, not {value!r}") from None
    return [float(number) for number in numbers]


def _one(name: str, numbers: list[float]) -> float:
    if len(numbers) != 1:
        raise InputError(f"{name} must be one number, not {len(numbers)}")
    return numbers[0]
