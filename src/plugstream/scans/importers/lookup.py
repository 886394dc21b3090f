"""Arrays and values of an open file by our names, with their units."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from plugstream.base.errors import InputError

__all__ = ["UNITS", "Lookup", "Source", "check_names", "one_number", "read_rows", "unit_of"]

UNITS = {"m": 1.0, "cm": 1e-2, "mm": 1e-3, "um": 1e-6, "nm": 1e-9}


class Source(Protocol):
    """An open file of named arrays."""

    path: Path

    def find(self, name: str) -> Any:
        """The array or attribute of this name, with shape and dtype and read by slicing, or None."""

    def attribute(self, name: str, of: str | None) -> Any:
        """An attribute of the file, or of this array in it, or None."""

    def names(self) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """Everything in the file: name, shape, type."""


class Lookup:
    """Arrays and values by our names.

    Arguments: source; mapping from our names to the file's, or for values to numbers; a name that is not mapped is
    looked for under itself, a value also among the attributes of the file and of its data.
    """

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

    def value(self, name: str) -> list[float] | None:
        """A number, or a few of them, or None."""
        return self.find_value(name)[0]

    def find_value(self, name: str) -> tuple[list[float] | None, Any]:
        """A number, or a few of them, and where they were found, which has attributes such as `units`."""
        given = self.mapping.get(name)
        if given is not None and not isinstance(given, str):
            return _numbers(name, given), None
        found = self.find(name)
        if found is None:
            return None, None
        return _numbers(name, read_rows(found, (), name, self.source) if hasattr(found, "shape") else found), found

    def find(self, name: str) -> Any:
        """What the file has by this name: an array, or an attribute of the file or of its data; None for nothing."""
        found = self.array(name)
        if found is None:
            data = next((self.mapping.get(key, key) for key in ("data", "data_real") if key in self.mapping), "data")
            found = self.source.attribute(name, None)
            found = self.source.attribute(name, data) if found is None else found
        return found


def check_names(mapping: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse a mapping of a name that there is not, with the nearest one."""
    known = list(names)
    for name in mapping:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else f"; names are {', '.join(known)}"
            raise InputError(f"there is no {name!r} to map{hint}")


def unit_of(array: Any) -> str | None:
    """What an array's attribute `units` says, None where it has none."""
    own = getattr(array, "attrs", {}).get("units")
    return own.decode(errors="replace") if isinstance(own, bytes) else None if own is None else str(own)


def read_rows(array: Any, rows: slice | tuple[()], name: str, source: Source) -> Any:
    try:
        return array[rows]
    except Exception as error:  # of a damaged file; h5py raises OSError, RuntimeError and more
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        where = f" from row {rows.start or 0}" if isinstance(rows, slice) else ""
        raise InputError(f"{name} of {source.path} cannot be read{where}: {text}") from error


def _numbers(name: str, value: Any) -> list[float]:
    try:
        numbers = np.atleast_1d(np.asarray(value)).ravel()
        if numbers.dtype.kind not in "fiub" or len(numbers) == 0 or not np.isfinite(numbers.astype(float)).all():
            raise ValueError
    except (TypeError, ValueError):
        shown = " ".join(repr(value).split())
        raise InputError(f"{name} must be a number, not {shown if len(shown) <= 80 else shown[:77] + '...'}") from None
    return [float(number) for number in numbers]


def one_number(name: str, numbers: list[float]) -> float:
    if len(numbers) != 1:
        raise InputError(f"{name} must be one number, not {len(numbers)}")
    return numbers[0]
