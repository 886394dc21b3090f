"""An open file of named arrays, which every importer reads: units, complex numbers and one-line errors."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.scans.importers.growth import Growth

UNITS = {"m": 1.0, "cm": 1e-2, "mm": 1e-3, "um": 1e-6, "nm": 1e-9}


class Source:
    """An open file of named arrays. This one has no known container, and no arrays.

    Attributes: container, "HDF5", "NPZ", "MATLAB" or "MATLAB 7.3"; path; growth, of a file that is still written.
    """

    container = ""
    growth: Growth | None = None

    def __init__(self, path: Path) -> None:
        self.path = path

    def find(self, name: str) -> Any:
        """The array or attribute of this name, with shape and dtype and read by slicing, or None."""
        return None

    def attribute(self, name: str, array: str | None) -> Any:
        """An attribute of the file, or of this array in it, or None."""
        return None

    def names(self) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """Everything in the file: name, shape, type."""
        return iter(())

    def name_set(self) -> set[str]:
        return {name for name, _, _ in self.names()}

    def read(self, name: str) -> Any:
        """The whole array or value of this name, or None."""
        array = self.find(name)
        return array[()] if hasattr(array, "shape") else array

    def read_numbers(self, name: str, dtype: Any = np.float64) -> NDArray[Any] | None:
        """The whole array or value of this name as numbers of this type, or None."""
        value = self.read(name)
        return None if value is None else as_numbers(name.rpartition("/")[2], value, dtype)

    def read_number(self, name: str) -> float | None:
        """One finite number, or None."""
        value = self.read(name)
        if value is None:
            return None
        try:
            number = float(np.asarray(value).reshape(()))
        except (TypeError, ValueError):
            raise InputError(f"{name.rpartition('@')[2]} of {self.path} must be one number") from None
        if not np.isfinite(number):
            raise InputError(f"{name.rpartition('@')[2]} of {self.path} must be finite")
        return number

    def first_number(self, name: str) -> float | None:
        """The first number of an array or value, or None."""
        numbers = self.read_numbers(name)
        return None if numbers is None or numbers.size == 0 else float(numbers.flat[0])

    def read_values(self, names: Mapping[str, Iterable[str]], group: str = "") -> dict[str, float]:
        """Numbers by our names, each from the first of the file's names for it that exists."""
        values: dict[str, float] = {}
        for key, theirs in names.items():
            for name in theirs:
                if key not in values and (number := self.read_number(f"{group}{name}")) is not None:
                    values[key] = number
        return values

    def read_complex(self, name: str) -> NDArray[Any] | None:
        """The whole array of this name as complex numbers, however they are stored, or None."""
        array = self.find(name)
        return None if array is None else read_complex(self.path, name, array)[:]


def as_numbers(what: str, value: Any, dtype: Any = np.float64) -> NDArray[Any]:
    """Real numbers of a file as an array of this type; text, records and opaque data are refused by the name `what`."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        shown = f"{str(value)[:40]!r}" if array.size == 1 else f"{array.dtype} of shape {array.shape}"
        raise InputError(f"its {what} must be numbers, not {shown}")
    with np.errstate(invalid="ignore"):
        return array if dtype is None else array.astype(dtype)


def first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def read_head(path: Path, size: int) -> bytes:
    """The first bytes of a file, none of one that cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""


def open_error(path: Path, error: Exception, container: str) -> InputError:
    """The one line for a file that cannot be opened."""
    if not path.exists():
        return InputError(f"there is no file {path}")
    return InputError(f"{path} cannot be read as {container}: {first_line(error)}")


class Lookup:
    """Arrays and values by our names.

    Arguments: source; mapping from our names to the file's, or for values to numbers. A name that is not mapped is
    looked up as it is, a value also among the attributes of the file and of its data.
    """

    def __init__(self, source: Source, mapping: Mapping[str, Any]) -> None:
        self.source, self.mapping = source, mapping

    def array(self, name: str) -> Any:
        place = self.mapping.get(name, name)
        if not isinstance(place, str):
            raise InputError(f"{name} must be mapped to a name in {self.source.path}, not to {place!r}")
        array = self.source.find(place)
        if array is None and name in self.mapping:
            near = difflib.get_close_matches(place, [other for other, _, _ in self.source.names()], n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]}?" if near else "; 'plugstream info' lists what is there"
            raise InputError(f"{self.source.path} has no {place}, which {name} is mapped to{hint}")
        return array

    def value(self, name: str) -> list[float] | None:
        """A number, or a few of them, or None."""
        return self.find_value(name)[0]

    def find_value(self, name: str) -> tuple[list[float] | None, Any]:
        """A number, or a few of them, and the array that they are from, which may have an attribute `units`."""
        literal = self.mapping.get(name)
        if literal is not None and not isinstance(literal, str):
            return _numbers(name, literal), None
        array = self.find(name)
        if array is None:
            return None, None
        return _numbers(name, array[()] if hasattr(array, "shape") else array), array

    def find(self, name: str) -> Any:
        """What the file has by this name: an array, or an attribute of the file or of its data; None for nothing."""
        value = self.array(name)
        if value is None:
            value = self.source.attribute(name, None)
        if value is None:
            data = next((self.mapping.get(key, key) for key in ("data", "data_real") if key in self.mapping), "data")
            value = self.source.attribute(name, data)
        return value


def check_names(mapping: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse to map a name that does not exist, and suggest the nearest one."""
    ours = list(names)
    for name in mapping:
        if name not in ours:
            near = difflib.get_close_matches(name, ours, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else f"; names are {', '.join(ours)}"
            raise InputError(f"there is no {name!r} to map{hint}")


def unit_of(array: Any) -> str | None:
    """An array's attribute `units`, None where it has none."""
    unit = getattr(array, "attrs", {}).get("units")
    return unit.decode(errors="replace") if isinstance(unit, bytes) else None if unit is None else str(unit)


def _numbers(name: str, value: Any) -> list[float]:
    try:
        numbers = np.atleast_1d(np.asarray(value)).ravel()
        if numbers.dtype.kind not in "fiub" or len(numbers) == 0 or not np.isfinite(numbers.astype(float)).all():
            raise ValueError
    except (TypeError, ValueError):
        text = " ".join(repr(value).split())
        raise InputError(f"{name} must be a number, not {text if len(text) <= 80 else text[:77] + '...'}") from None
    return [float(number) for number in numbers]


def one_number(name: str, numbers: list[float]) -> float:
    if len(numbers) != 1:
        raise InputError(f"{name} must be one number, not {len(numbers)}")
    return numbers[0]


def check_array(
    path: Path, name: str, array: Any, kinds: str = "fiu", shape: tuple[int, ...] | None = None, meaning: str = ""
) -> Any:
    """An array of one of these kinds of numbers, and of this shape; anything else is refused."""
    if getattr(array, "shape", None) is None or array.dtype.kind not in kinds:
        raise InputError(f"{name} of {path} holds {_describe(array)}, which cannot be {name}")
    if shape is not None and tuple(array.shape) != tuple(shape):
        raise InputError(f"{name} of {path} has shape {tuple(array.shape)}, but must be {shape}: {meaning}")
    return array


class Complex:
    """An array of complex numbers, read by slicing its rows, however they are stored."""

    dtype = np.dtype(np.complex128)

    def __init__(self, shape: tuple[int, ...], read: Callable[[slice], Any]) -> None:
        self.shape, self._read = shape, read

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return np.asarray(self._read(rows))


def read_complex(path: Path, name: str, array: Any) -> Complex:
    """Complex numbers stored as such, as records of a real and an imaginary part, or as a last axis of two."""
    if getattr(array, "shape", None) is None or not (array.dtype.kind in "fiuc" or _record_parts(array.dtype)):
        raise InputError(f"{name} of {path} holds {_describe(array)}, not numbers")
    shape = tuple(array.shape)
    if array.dtype.kind == "c":
        return Complex(shape, lambda rows: array[rows])
    if record := _record_parts(array.dtype):
        return Complex(shape, lambda rows: join_parts(*(array[rows][part] for part in record)))
    if len(shape) < 3 or shape[-1] != 2:
        raise InputError(
            f"{name} of {path} is {_describe(array)}, and the field is complex; store complex numbers, or real and "
            f"imaginary part in a last axis of two{', or map data_real and data_imag' if name == 'data' else ''}"
        )
    return Complex(shape[:-1], lambda rows: join_parts(*np.moveaxis(array[rows], -1, 0)))


def _record_parts(dtype: np.dtype[Any]) -> list[str]:
    """The names of the real and the imaginary part in records of the two, such as MATLAB's; [] for other types."""
    names = {name.lower(): name for name in dtype.names or ()}
    for real, imag in (("r", "i"), ("re", "im"), ("real", "imag")):
        if set(names) == {real, imag} and all(dtype[name].kind in "fiu" for name in names.values()):
            return [names[real], names[imag]]
    return []


def join_parts(real: NDArray[Any], imag: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(real + 1j * imag)


def _describe(array: Any) -> str:
    if not hasattr(array, "shape"):
        return "an attribute" if not hasattr(array, "keys") else "a group"
    return "nothing" if array.shape is None else f"{array.dtype} of shape {tuple(array.shape)}"
