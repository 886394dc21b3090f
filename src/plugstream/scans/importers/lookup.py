"""Arrays and values of an open file by our names, with their units."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from plugstream.errors import InputError
from plugstream.scans.importers.frequencies import FREQUENCY_UNITS, Band, choose_band

__all__ = ["UNITS", "Lookup", "Source", "one_number", "read_rows"]

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

    def band(self, frequency: float | None) -> Band | None:
        """The wavelength: the one that is given, or that of the file which a frequency in GHz asks for, or None."""
        given = self.mapping.get("wavelength")
        asked = None
        if given is not None and not isinstance(given, str):
            asked = one_number("wavelength", self.length("wavelength") or [])
            there = self.source.find("wavelength")  # a choice, where the file has several
            several = getattr(there, "shape", None) is not None and np.prod(there.shape) > 1
            lengths = Lookup(self.source, {}, self.unit).length("wavelength") if several else None
        else:
            lengths = self.length("wavelength")
        rates, found = self._value("frequency")
        word = self.mapping.get("frequency_unit")
        own = word if word is not None else getattr(found, "attrs", {}).get("units", "Hz")
        own = own.decode(errors="replace") if isinstance(own, bytes) else str(own)
        if rates is not None and own not in FREQUENCY_UNITS:
            known = ", ".join(FREQUENCY_UNITS)
            raise InputError(f"the frequency of {self.source.path} is in {own!r}, which is none of {known}")
        if rates is not None:
            rates = [FREQUENCY_UNITS[own] * rate for rate in rates]
        if asked is not None and lengths is None and (rates is None or len(rates) < 2) and frequency is None:
            rates = None  # a wavelength that is given wins over what one frequency of the file says
        return choose_band(self.source.path, lengths, rates, wavelength=asked, frequency=frequency)

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
        return _numbers(name, read_rows(found, (), name, self.source) if hasattr(found, "shape") else found), found


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
