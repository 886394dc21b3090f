"""Frequencies and wavelengths as people write them, and the views of a scan by wavelength."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plugstream.base.errors import InputError

LIGHT = 299_792_458.0  # metres a second
FREQUENCY_UNITS = {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9, "THz": 1e12}
_LENGTH_UNITS = {"m": 1.0, "cm": 1e-2, "mm": 1e-3, "um": 1e-6, "nm": 1e-9}
_WORD = re.compile(r"\s*([-+0-9.eE]+)\s*([A-Za-z]*)\s*")
_SAME = 1e-3  # two frequencies that are nearer than this, as a ratio, are the same to a person
_MOST = 10_000  # of one list


def parse_waves(text: str) -> tuple[float, ...]:
    """Wavelengths in vacuum, in metres, from a list of frequencies or wavelengths such as `2,4,6GHz` or `632.8nm`.

    A number without a unit has the next unit of the list, or GHz if there is none. Refuse anything but a list of
    distinct positive numbers.
    """
    words = [word for word in text.split(",") if word.strip()]
    if not words or len(words) > _MOST:
        raise InputError(f"{_shorten(text)!r} is not a list of frequencies; write 2,4,6GHz, or wavelengths as 50,75mm")
    waves: list[float] = []
    unit = "GHz"
    frequencies = {name.lower(): name for name in FREQUENCY_UNITS}
    for word in reversed(words):
        match = _WORD.fullmatch(word)
        try:
            value = float(match[1]) if match else math.nan
        except ValueError:
            value = math.nan
        name = match[2] if match else ""
        unit = frequencies.get(name.lower(), name) if name else unit
        if not 0 < value < math.inf or (unit not in FREQUENCY_UNITS and unit not in _LENGTH_UNITS):
            units = ", ".join((*FREQUENCY_UNITS, *_LENGTH_UNITS))
            raise InputError(
                f"{_shorten(word.strip())!r} is not a frequency or wavelength; write 4GHz, with one of {units}"
            )
        wave = LIGHT / (value * FREQUENCY_UNITS[unit]) if unit in FREQUENCY_UNITS else value * _LENGTH_UNITS[unit]
        if not 0 < wave < math.inf:
            raise InputError(f"{_shorten(word.strip())!r} is too large or too small for a frequency")
        if any(_same(wave, other) for other in waves):
            raise InputError(f"{_shorten(text)!r} names {describe_wave(wave)} twice; leave one of them out")
        waves.append(wave)
    return tuple(reversed(waves))


def describe_wave(wavelength: float) -> str:
    """A wavelength in vacuum in words: its frequency below 1 THz, `4 GHz`, else its length, `632.8 nm`."""
    hertz = LIGHT / wavelength
    if hertz < 1e12:
        unit = next(name for name in ("GHz", "MHz", "kHz", "Hz") if hertz >= FREQUENCY_UNITS[name] or name == "Hz")
        return f"{hertz / FREQUENCY_UNITS[unit]:.6g} {unit}"
    unit = "um" if wavelength >= 1e-6 else "nm"
    return f"{wavelength / _LENGTH_UNITS[unit]:.6g} {unit}"


def describe_waves(wavelengths: Sequence[float]) -> str:
    """Wavelengths in words, the longest first, with a common unit written once; of many, the first ones."""
    words = [describe_wave(wave) for wave in sorted(wavelengths, reverse=True)]
    if len(words) > 12:
        words = [*words[:10], "..", words[-1]]
    units = {word.partition(" ")[2] for word in words if word != ".."}
    if len(units) == 1:
        return ", ".join(word.partition(" ")[0] for word in words) + f" {units.pop()}"
    return ", ".join(words)


def match_waves(waves: Sequence[float], available: Sequence[float], where: str) -> tuple[int, ...]:
    """The numbers of wavelengths among the available ones, within a thousandth; refuse one that is missing.

    Arguments: waves and available, in metres; where, for the message, such as the name of a file.
    """
    numbers = []
    for wave in waves:
        nearest = int(np.abs(np.log(np.asarray(available, dtype=np.float64) / wave)).argmin())
        if not _same(float(available[nearest]), wave):
            raise InputError(f"{where} has no {describe_wave(wave)}; it has {describe_waves(available)}")
        numbers.append(nearest)
    return tuple(numbers)


@dataclass(frozen=True)
class Spectrum:
    """The wavelengths of a scan in the order of their first views, and the number of each view's: (views,)."""

    wavelengths: tuple[float, ...]
    group: NDArray[np.int64]

    def views(self, number: int) -> NDArray[np.int64]:
        """The views of one of the wavelengths, ascending."""
        return np.flatnonzero(self.group == number)


def find_spectrum(wavelengths: ArrayLike) -> Spectrum:
    """The distinct wavelengths of views, (views,), compared to the bit."""
    each = np.asarray(wavelengths, dtype=np.float64)
    values, first, group = np.unique(each, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return Spectrum(tuple(values[order].tolist()), place[group.reshape(-1)].astype(np.int64))


def _same(one: float, other: float) -> bool:
    return abs(one / other - 1) <= _SAME


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}..."
