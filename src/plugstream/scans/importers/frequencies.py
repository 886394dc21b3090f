"""Several frequencies in one file: which to take, arrays that have an axis for them, and all of them in one scan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.instruments.base import Instrument
from plugstream.instruments.spectrum import FREQUENCY_UNITS, LIGHT, describe_waves, match_waves, parse_waves
from plugstream.instruments.wavelengths import GAINS, WAVELENGTHS
from plugstream.scans.importers.reading import Reading, read_blocks

__all__ = ["FREQUENCY_UNITS", "LIGHT", "Band", "choose_band", "choose_frequencies", "join_readings", "take_band"]

_SAME = 1e-3  # two frequencies that are nearer than this, as a ratio, are the same to a person
# What each frequency says by itself; the rest of its provenance is that of the file.
_EACH = ("frequency_ghz", "calibration", "incident_mismatch")


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
    path: Path,
    wavelengths: Sequence[float] | None,
    frequencies: Sequence[float] | None,
    *,
    wavelength: float | None = None,
    frequency: float | None = None,
) -> Band | None:
    """Which of a file's wavelengths (metres) or frequencies (Hz) is meant.

    Where it has one, nothing need be asked for, and a `wavelength` that is asked for wins. Where it has several, the
    one within a thousandth of what is asked for is taken. Where it has none, what is asked for is the wavelength,
    and None says that nothing is known.

    Arguments: what the file has, None for nothing; wavelength in metres or frequency in GHz that is asked for.
    """
    for name, value in (("wavelength", wavelength), ("frequency", frequency)):
        if value is not None and not 0 < value < np.inf:
            raise InputError(f"the {name} must be a number > 0, not {value:g}")
    if wavelength is not None and frequency is not None:
        raise InputError("the wavelength and the frequency are both given; give one of them")
    wanted = LIGHT / (frequency * 1e9) if frequency is not None else wavelength
    by_frequency = wavelengths is None
    listed = list(wavelengths or frequencies or [])
    if any(not 0 < value < np.inf for value in listed):
        raise InputError(f"the {'frequencies' if by_frequency else 'wavelengths'} of {path} are not all > 0")
    known = np.array([LIGHT / value if by_frequency else value for value in listed])
    if len(known) == 0:
        return None if wanted is None else Band(wanted)
    if wanted is None:
        if len(known) > 1:
            raise InputError(f"{path} has {_list_frequencies(known)}; choose one with --frequency")
        return Band(float(known[0]), 0, 1)
    index = int(np.abs(np.log(known / wanted)).argmin())
    if abs(known[index] / wanted - 1) <= _SAME:
        if (known == known[index]).sum() > 1:
            raise InputError(f"{path} has {LIGHT / known[index] / 1e9:.6g} GHz more than once, so it cannot be chosen")
        return Band(float(known[index]), index, len(known))
    if len(known) == 1 and wavelength is not None:
        return Band(wavelength, 0, 1)
    hint = "; if that is not what they are, give --map frequency_unit=GHz or such" if by_frequency else ""
    asked = f"{frequency:g} GHz" if frequency is not None else f"wavelength of {wanted:g} m"
    raise InputError(f"{path} has no {asked}; it has {_list_frequencies(known)}{hint}")


def _list_frequencies(wavelengths: Any) -> str:
    shown = [f"{LIGHT / value / 1e9:.6g}" for value in wavelengths]
    return ", ".join(shown if len(shown) <= 12 else [*shown[:11], "..", shown[-1]]) + " GHz"


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
    path: Path, name: str, array: Any, band: Band | None, want: tuple[int | None, ...], axis: int | None, pairs: bool
) -> Any:
    """An array of the file at the frequency that was chosen; as it is where it has no axis of frequencies.

    Arguments: want, its shape without that axis, None for what is not known; axis, where it is, None to find it by the
    lengths; pairs, whether a last axis of two may hold real and imaginary parts.
    """
    shape = getattr(array, "shape", None)
    if shape is None or band is None or band.count == 0:
        return array
    real_pairs = pairs and array.dtype.kind in "fiu" and len(shape) > len(want) and shape[-1] == 2
    axes = shape[:-1] if real_pairs else shape
    if len(axes) != len(want) + 1:
        if band.count > 1 and len(axes) == len(want) and name != "mask":
            raise InputError(
                f"{name} of {path} has shape {tuple(shape)}, without an axis for the file's {band.count} frequencies"
            )
        return array

    def fits(k: int) -> bool:
        rest = (*axes[:k], *axes[k + 1 :])
        return axes[k] == band.count and all(b is None or a == b for a, b in zip(rest, want, strict=True))

    asked = range(len(axes)) if axis is None else [axis % len(axes)] if -len(axes) <= axis < len(axes) else []
    found = [k for k in asked if fits(k)]
    if not found:
        return array  # of another shape, which is said where shapes are checked
    if len(found) > 1:
        raise InputError(
            f"which axis of {name} of {path}, {tuple(shape)}, is that of its {band.count} frequencies cannot be told; "
            f"give --map frequency_axis={found[0]} or {found[-1]}"
        )
    return _Slice(array, found[0], band.index)


def choose_frequencies(path: Any, asked: str, known: Sequence[float]) -> list[float]:
    """Frequencies in GHz, the lowest first, of a list such as 2,4,6GHz, or "all" of a file's.

    Arguments: path, for messages; known, the file's wavelengths in metres.
    """
    if len(known) < 2:
        raise InputError(f"{path} is not of several frequencies; leave --frequencies out")
    if asked.strip().lower() == "all":
        chosen = sorted(known, reverse=True)
    else:
        numbers = match_waves(parse_waves(asked), known, str(path))
        chosen = sorted((known[number] for number in numbers), reverse=True)
    return [LIGHT / wave / 1e9 for wave in chosen]


def join_readings(readings: Sequence[Reading]) -> Reading:
    """One reading of all: views of the first, then of the second, and so on, each with its wavelength and gain.

    The gain of a frequency is 1 / sqrt(mean ||y_i||^2) over its views, which the data is read once for, a few megabytes
    at a time. Instruments differ in nothing but their wavelength.
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
    said = [reading.provenance for reading in readings]
    provenance: dict[str, Any] = {
        name: [one[name] for one in said] if name in _EACH else value for name, value in said[0].items()
    }
    about = f"{len(readings)} frequencies, {describe_waves(waves)}, each brought to the same mean energy"
    remarks = dict.fromkeys([about, *(remark for reading in readings for remark in reading.remarks)])
    first = readings[0]
    return Reading(instrument, int(ends[-1]), read, first.dtype, first.truth, provenance, tuple(remarks))


def _gain(reading: Reading) -> float:
    energy = 0.0
    size = 16 * int(np.prod(reading.instrument.data_shape))
    for rows in read_blocks(reading.n_views, size):
        views = reading.read(rows)
        data: NDArray[Any] = np.asarray(views["data"])
        data = data if "mask" not in views else np.where(views["mask"], data, 0)
        energy += float((np.abs(data.astype(np.complex128)) ** 2).sum())
    mean = energy / reading.n_views
    if not np.isfinite(mean):
        raise InputError("the data holds NaN or infinity, or is too large to compute with; mask it, or scale it")
    return 1.0 if mean == 0 else float(1 / np.sqrt(mean))
