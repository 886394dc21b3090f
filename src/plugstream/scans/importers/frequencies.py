"""Several frequencies in one file: the choice of one, arrays with an axis for them, and all of them in one scan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from plugstream.base.errors import InputError
from plugstream.instruments.base import Instrument
from plugstream.instruments.spectrum import LIGHT, describe_waves, match_waves, parse_waves
from plugstream.instruments.wavelengths import GAINS, WAVELENGTHS
from plugstream.scans.importers.reading import Reading, read_blocks

_SAME = 1e-3  # two frequencies that differ by less than this ratio are the same to a person
Shape = tuple[int | None, ...]
# What each frequency says by itself; the rest of its provenance is that of the file.
_EACH = ("frequency_ghz", "calibration", "horns", "incident_mismatch")


@dataclass(frozen=True)
class Band:
    """The wavelength to take, in metres, and which of the file's `count` it is; count is 0 where the file has none."""

    wavelength: float
    index: int = 0
    count: int = 0

    @property
    def gigahertz(self) -> float:
        return LIGHT / self.wavelength / 1e9


def choose_band(
    path: Path, waves: Sequence[float], by_frequency: bool, *, wavelength: float | None, frequency: float | None
) -> Band | None:
    """Which of a file's wavelengths (metres) to take.

    A file with one needs no choice, and a `wavelength` given by hand wins. Of several, the one within a thousandth of
    the choice is taken. Where the file has none, the choice is the wavelength, and without a choice it is None.

    Arguments: path; waves, the file's; by_frequency, whether the file gives frequencies; the choice, wavelength in
    metres or frequency in GHz.
    """
    for name, value in (("wavelength", wavelength), ("frequency", frequency)):
        if value is not None and not 0 < value < np.inf:
            raise InputError(f"the {name} must be a number > 0, not {value:g}")
    if wavelength is not None and frequency is not None:
        raise InputError("the wavelength and the frequency are both given; give one of them")
    wave = LIGHT / (frequency * 1e9) if frequency is not None else wavelength
    if not all(0 < wave < np.inf for wave in waves):
        raise InputError(f"the {'frequencies' if by_frequency else 'wavelengths'} of {path} are not all > 0")
    if len(waves) == 0:
        return None if wave is None else Band(wave)
    if wave is None:
        if len(waves) > 1:
            raise InputError(f"{path} has {_list_frequencies(waves)}; choose one with --frequency")
        return Band(waves[0], 0, 1)
    index = int(np.abs(np.log(np.array(waves) / wave)).argmin())
    if abs(waves[index] / wave - 1) <= _SAME:
        if waves.count(waves[index]) > 1:
            raise InputError(f"{path} has {LIGHT / waves[index] / 1e9:.6g} GHz more than once, so it cannot be chosen")
        return Band(waves[index], index, len(waves))
    if len(waves) == 1 and wavelength is not None:
        return Band(wavelength, 0, 1)
    hint = "; if that is not what they are, give --map frequency_unit=GHz or such" if by_frequency else ""
    choice = f"{frequency:g} GHz" if frequency is not None else f"wavelength of {wave:g} m"
    raise InputError(f"{path} has no {choice}; it has {_list_frequencies(waves)}{hint}")


def _list_frequencies(wavelengths: Sequence[float]) -> str:
    words = [f"{LIGHT / value / 1e9:.6g}" for value in wavelengths]
    return ", ".join(words if len(words) <= 12 else [*words[:11], "..", words[-1]]) + " GHz"


class _Slice:
    """An array at one place of one of its axes, read by slicing the first of the others."""

    def __init__(self, array: Any, axis: int, index: int) -> None:
        self.array, self.axis, self.index = array, axis, index
        self.shape = tuple(n for k, n in enumerate(array.shape) if k != axis)
        self.dtype, self.attrs = array.dtype, getattr(array, "attrs", {})

    def __getitem__(self, rows: slice) -> Any:
        key: list[Any] = [slice(None)] * len(self.array.shape)
        key[self.axis] = self.index
        key[1 if self.axis == 0 else 0] = rows
        return self.array[tuple(key)]


def take_band(
    path: Path,
    name: str,
    array: Any,
    band: Band | None,
    expected: tuple[int | None, ...],
    axis: int | None,
    pairs: bool,
) -> Any:
    """An array of the file at the chosen frequency; unchanged where it has no axis of frequencies.

    Arguments: expected, its shape without that axis, None for unknown lengths; axis, where it is, None to find it by
    the lengths; pairs, whether a last axis of two may hold real and imaginary parts.
    """
    shape = getattr(array, "shape", None)
    if shape is None or band is None or band.count == 0:
        return array
    real_pairs = pairs and array.dtype.kind in "fiu" and len(shape) > len(expected) and shape[-1] == 2
    axes = shape[:-1] if real_pairs else shape
    if len(axes) != len(expected) + 1:
        if band.count > 1 and len(axes) == len(expected) and name != "mask":
            raise InputError(
                f"{name} of {path} has shape {tuple(shape)}, without an axis for the file's {band.count} frequencies"
            )
        return array

    def fits(k: int) -> bool:
        rest = (*axes[:k], *axes[k + 1 :])
        return axes[k] == band.count and all(b is None or a == b for a, b in zip(rest, expected, strict=True))

    candidates = range(len(axes)) if axis is None else [axis % len(axes)] if -len(axes) <= axis < len(axes) else []
    fitting = [k for k in candidates if fits(k)]
    if not fitting:
        return array  # of a wrong shape, which is refused where shapes are checked
    if len(fitting) > 1:
        raise InputError(
            f"which axis of {name} of {path}, {tuple(shape)}, is that of its {band.count} frequencies cannot be told; "
            f"give --map frequency_axis={fitting[0]} or {fitting[-1]}"
        )
    return _Slice(array, fitting[0], band.index)


def choose_frequencies(path: Path, words: str, wavelengths: Sequence[float]) -> list[float]:
    """Frequencies in GHz, the lowest first, of a list such as 2,4,6GHz, or "all" of the file's wavelengths (metres)."""
    if len(wavelengths) < 2:
        raise InputError(f"{path} is not of several frequencies; leave --frequencies out")
    chosen = list(wavelengths)
    if words.strip().lower() != "all":
        chosen = [wavelengths[number] for number in match_waves(parse_waves(words), wavelengths, str(path))]
    return [LIGHT / wave / 1e9 for wave in sorted(chosen, reverse=True)]


def join_readings(readings: Sequence[Reading]) -> Reading:
    """One reading of all: the views of the first, then of the second, and so on, each with its wavelength and gain.

    The gain of a frequency is 1 / sqrt(mean ||y_i||^2) over its views, for which the data is read once, a few megabytes
    at a time. The instruments differ only in their wavelength.
    """
    instruments: list[Any] = [reading.instrument for reading in readings]
    waves = [instrument.wavelength for instrument in instruments]
    gains = [_gain(reading) for reading in readings]
    ends = np.cumsum([reading.n_views for reading in readings])

    def read(rows: slice) -> dict[str, Any]:
        first, last, _ = rows.indices(int(ends[-1]))
        parts = []
        for number, reading in enumerate(readings):
            begin = int(ends[number]) - reading.n_views
            low, high = max(first, begin) - begin, min(last, int(ends[number])) - begin
            if low < high:
                part = reading.read(slice(low, high))
                part["data"] = gains[number] * part["data"]
                part[WAVELENGTHS.name] = np.full(high - low, waves[number])
                part[GAINS.name] = np.full(high - low, gains[number])
                parts.append(part)
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    instrument: Instrument = replace(instruments[0], wavelength=min(waves))
    first = readings[0]
    provenance = dict(first.provenance)
    provenance |= {name: [reading.provenance[name] for reading in readings] for name in _EACH if name in provenance}
    summary = f"{len(readings)} frequencies, {describe_waves(waves)}, each brought to the same mean energy"
    remarks = dict.fromkeys([summary, *(remark for reading in readings for remark in reading.remarks)])
    return Reading(instrument, int(ends[-1]), read, first.dtype, first.truth, provenance, tuple(remarks))


def _gain(reading: Reading) -> float:
    energies: list[float] = []
    for rows in read_blocks(reading.n_views, 16 * int(np.prod(reading.instrument.data_shape))):
        views = reading.read(rows)
        data = np.where(views.get("mask", True), views["data"], 0)
        energies += (np.abs(data.astype(np.complex128)) ** 2).sum(1).tolist()
    mean = sum(energies) / reading.n_views
    if not np.isfinite(mean):
        raise InputError("the data holds NaN or infinity, or is too large to compute with; mask it, or scale it")
    return 1.0 if mean == 0 else float(1 / np.sqrt(mean))
