"""A scan from arrays that have names in some file: what HDF5 and NPZ share.

A mapping says where in the file each of our names is. Arrays: data (or data_real and data_imag), receivers, one of
transmitters, plane_waves and fields, and if there are any mask and truth. Values: wavelength, size, and pixel or width;
background, center and far_field may be left out.
"""

from __future__ import annotations

import difflib
import os
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from plugstream.errors import InputError
from plugstream.scans.geometry import Grid, Setup
from plugstream.scans.layout import SOURCES
from plugstream.scans.writer import ScanWriter

__all__ = ["ARRAYS", "UNITS", "VALUES", "Source", "describe_file", "import_arrays", "read_mapping"]

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
    unit: str = "m",
    conjugate: bool = False,
) -> int:
    """Write a scan from the arrays of an open file, some views at a time, and return the number of views.

    Holds for files of any size: no more than a few megabytes of measurements are in memory. An output that exists is
    refused, and nothing half-written is left behind.

    Arguments: source; out, the scan to make; mapping from our names to the file's, or for values to numbers; names that
    are not mapped are looked for under our own name, values also among the attributes; unit of all lengths; conjugate
    for data recorded with time going as exp(+i w t).
    """
    target = Path(out)
    if target.exists():
        raise InputError(f"{target} exists already; remove it or choose another name")
    if unit not in UNITS:
        raise InputError(f"there is no unit {unit!r}; choose one of {', '.join(UNITS)}")
    for name in mapping:
        if name not in (*ARRAYS, *VALUES):
            near = difflib.get_close_matches(name, (*ARRAYS, *VALUES), n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else f"; names are {', '.join((*ARRAYS, *VALUES))}"
            raise InputError(f"there is no {name!r} to map{hint}")
    plan = _plan(_Lookup(source, mapping), UNITS[unit])
    provenance = {"made_by": "plugstream import", "file": source.path.name, "unit": unit, "conjugated": conjugate}
    partial = target.with_name(f".{target.name}.{os.getpid()}.importing")
    views, receivers = plan.field.shape
    step = max(1, _BLOCK_BYTES // (16 * receivers))
    try:
        with ScanWriter(partial, plan.setup, provenance=provenance, truth=plan.truth) as writer:
            for start in range(0, views, step):
                rows = slice(start, min(start + step, views))
                data = plan.field.read(rows)
                some = {name: _read(array, rows, name, source) * scale for name, (array, scale) in plan.rows.items()}
                if plan.mask is not None:
                    some["mask"] = _read(plan.mask, rows, "mask", source).astype(bool)
                writer.append(data.conj() if conjugate else data, **some)
            writer.finish()
        partial.rename(target)
    except InputError as error:
        raise InputError(f"cannot import {source.path}: {error}") from error
    except OSError as error:
        raise InputError(f"cannot write the scan {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return views


def read_mapping(words: list[str], file: Path | None = None) -> dict[str, Any]:
    """The mapping that a TOML file and words such as data=/entry/data or size=64 give, the words winning.

    Arguments: words, each NAME=VALUE; file, TOML of such names at its top, if any.
    """
    from plugstream.settings import parse_value

    mapping: dict[str, Any] = {}
    if file is not None:
        try:
            mapping = tomllib.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"cannot read the mapping {file}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{file} is not TOML: {error}") from error
    for word in words:
        name, equals, value = word.partition("=")
        if not (equals and name and value):
            raise InputError(f"cannot read the mapping {word!r}; write NAME=PATH, such as data=/entry/data")
        mapping[name] = parse_value(value) if name in VALUES and not value.startswith("/") else value
    return mapping


def describe_file(path: str | Path) -> list[str] | None:
    """What is in a file that can be imported, a line for each array; None for a file of another kind.

    Arguments: path, ending in .npz, .h5, .hdf5 or .nxs for arrays, in .exp or .txt for Institut Fresnel files.
    """
    from plugstream.scans.importers import fresnel, hdf5, npz

    path = Path(path)
    openers: dict[str, Any] = {".npz": npz.open_npz, **dict.fromkeys((".h5", ".hdf5", ".nxs"), hdf5.open_hdf5)}
    if path.suffix in openers and path.is_file():
        with openers[path.suffix](path) as source:
            return [f"{name}  {tuple(shape)} {kind}" for name, shape, kind in source.names()]
    if path.suffix in (".exp", ".txt") and path.is_file():
        return fresnel.describe_fresnel(path)
    return None


def open_error(path: Path, error: Exception, kind: str) -> InputError:
    """The one line for a file that cannot be opened."""
    if not path.exists():
        return InputError(f"there is no file {path}")
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return InputError(f"{path} cannot be read as {kind}: {text}")


@dataclass(frozen=True)
class _Plan:
    """What will be read: the setup, the field, sources with the scale to metres, mask and truth."""

    setup: Setup
    field: _Field
    rows: Mapping[str, tuple[Any, float]]
    mask: Any
    truth: NDArray[np.float32] | None


class _Lookup:
    """Arrays and values by our names."""

    def __init__(self, source: Source, mapping: Mapping[str, Any]) -> None:
        self.source, self.mapping = source, mapping

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

    def value(self, name: str) -> Any:
        """A number, or a few of them, or None."""
        given = self.mapping.get(name)
        if given is not None and not isinstance(given, str):
            return _numbers(name, given)
        found = self.array(name)
        if found is None:
            data = next((self.mapping.get(key, key) for key in ("data", "data_real") if key in self.mapping), "data")
            found = self.source.attribute(name, None)
            found = self.source.attribute(name, data) if found is None else found
        return None if found is None else _numbers(name, found[()] if hasattr(found, "shape") else found)


def _plan(look: _Lookup, scale: float) -> _Plan:
    path = look.source.path
    field = _Field.find(look)
    views, receivers = field.shape
    far = bool(look.value("far_field") or False)
    positions = look.array("receivers")
    if positions is None:
        raise InputError(f"{path} has no receivers; map them with --map receivers=PATH")
    _check(path, "receivers", positions, (receivers, 2), "fiu", "(receivers, 2), as data has them")
    found = {name: array for name in SOURCES if (array := look.array(name)) is not None}
    if len(found) != 1:
        what = "none" if not found else " and ".join(found)
        raise InputError(f"{path} must give one of {', '.join(SOURCES)}, but gives {what}; map it with --map")
    ((name, array),) = found.items()
    grid = _grid(look, scale)
    if name == "fields":
        _check(path, name, array, (views, *grid.shape), "c", "(views, H, W)")
    else:
        _check(path, name, array, (views, 2), "fiu", "(views, 2), as data has them")
    mask, truth = look.array("mask"), look.array("truth")
    if mask is not None:
        _check(path, "mask", mask, (views, receivers), "biu", "(views, receivers), as data has them")
    if truth is not None:
        _check(path, "truth", truth, grid.shape, "fiu", "that of the grid")
        truth = np.asarray(_read(truth, slice(None), "truth", look.source), dtype=np.float32)
    wavelength = look.value("wavelength")
    if wavelength is None:
        raise InputError(f"the wavelength is not given in {path}; use --wavelength, in the unit of the lengths")
    background = look.value("background")
    where = np.asarray(_read(positions, slice(None), "receivers", look.source), dtype=np.float64)
    setup = Setup(
        receivers=where if far else scale * where,
        wavelength=scale * _one("wavelength", wavelength),
        grid=grid,
        background=1.0 if background is None else _one("background", background),
        far_field=far,
    )
    return _Plan(setup, field, {name: (array, scale if name == "transmitters" else 1.0)}, mask, truth)


def _grid(look: _Lookup, scale: float) -> Grid:
    size, pixel, width, center = (look.value(name) for name in ("size", "pixel", "width", "center"))
    if size is None or (pixel is None) == (width is None):
        raise InputError("the image's grid is not given; use --size in pixels, and --width or pixel=... by --map")
    sizes = [*size, *size] if len(size) == 1 else size
    if len(sizes) != 2 or any(n != int(n) for n in sizes):
        raise InputError(f"the size must be one or two whole numbers of pixels, not {size}")
    step = _one("pixel", pixel) if pixel is not None else _one("width", width) / sizes[1]
    middle = [0.0, 0.0] if center is None else center
    if len(middle) != 2:
        raise InputError(f"the center must be two numbers, x and y, not {center}")
    return Grid((int(sizes[0]), int(sizes[1])), scale * step, (scale * middle[0], scale * middle[1]))


class _Field:
    """The measurements, complex however they are stored: complex, a last axis of two, or two arrays."""

    def __init__(self, source: Source, parts: Mapping[str, Any], shape: tuple[int, int]) -> None:
        self.source, self.parts, self.shape = source, parts, shape

    @classmethod
    def find(cls, look: _Lookup) -> _Field:
        path = look.source.path
        parts = {name: look.array(name) for name in ("data", "data_real", "data_imag")}
        parts = {name: array for name, array in parts.items() if array is not None}
        if sorted(parts) not in (["data"], ["data_imag", "data_real"]):
            what = "none of them" if not parts else " and ".join(parts)
            raise InputError(
                f"{path} must give data, or data_real and data_imag, but gives {what}; use --map data=PATH"
            )
        for name, array in parts.items():
            kinds = "fiuc" if name == "data" else "fiu"
            if not hasattr(array, "shape") or array.dtype.kind not in kinds:
                raise InputError(f"{name} of {path} holds {_kind(array)}, not numbers")
        first = next(iter(parts.values()))
        shape = first.shape
        if len(parts) == 2 and parts["data_imag"].shape != shape:
            raise InputError(f"data_real and data_imag of {path} differ in shape: {shape}, {parts['data_imag'].shape}")
        if len(parts) == 1 and first.dtype.kind != "c":
            if len(shape) != 3 or shape[2] != 2:
                raise InputError(
                    f"data of {path} is {_kind(first)}, and the field is complex; store complex numbers, or real "
                    "and imaginary part in a last axis of two, or map data_real and data_imag"
                )
            shape = shape[:2]
        if len(shape) != 2 or 0 in shape:
            raise InputError(f"data of {path} has shape {first.shape}, but must be (views, receivers)")
        return cls(look.source, parts, (int(shape[0]), int(shape[1])))

    def read(self, rows: slice) -> NDArray[Any]:
        parts = [np.asarray(_read(array, rows, name, self.source)) for name, array in self.parts.items()]
        if len(parts) == 2:
            return np.asarray(parts[0] + 1j * parts[1])
        return parts[0] if parts[0].dtype.kind == "c" else np.asarray(parts[0][..., 0] + 1j * parts[0][..., 1])


def _read(array: Any, rows: slice, name: str, source: Source) -> Any:
    try:
        return array[rows]
    except Exception as error:  # of a damaged file; h5py raises OSError, RuntimeError and more
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{name} of {source.path} cannot be read from row {rows.start or 0}: {text}") from error


def _check(path: Path, name: str, array: Any, shape: tuple[int, ...], kinds: str, what: str) -> None:
    if not hasattr(array, "dtype") or array.dtype.kind not in kinds:
        raise InputError(f"{name} of {path} holds {_kind(array)}, which cannot be {name}")
    if tuple(array.shape) != shape:
        raise InputError(f"{name} of {path} has shape {tuple(array.shape)}, but must be {shape}: {what}")


def _kind(array: Any) -> str:
    if not hasattr(array, "shape"):
        return "an attribute" if not hasattr(array, "keys") else "a group"
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
