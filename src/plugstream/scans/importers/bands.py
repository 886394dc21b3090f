"""Several frequencies of a file in one scan: the readings of each, one after another, brought to a common scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.instruments.base import Instrument
from plugstream.instruments.spectrum import LIGHT, describe_waves, match_waves, parse_waves
from plugstream.instruments.wavelengths import GAINS, WAVELENGTHS
from plugstream.scans.importers.arrays import read_blocks
from plugstream.scans.importers.declaration import Reading

__all__ = ["choose_frequencies", "join_readings"]

# What each frequency says by itself; the rest of its provenance is that of the file.
_EACH = ("frequency_ghz", "calibration", "incident_mismatch")


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
                some = reading.read(slice(low, high))
                some["data"] = gains[number] * some["data"]
                parts.append(
                    {
                        **some,
                        WAVELENGTHS.name: np.full(high - low, waves[number]),
                        GAINS.name: np.full(high - low, gains[number]),
                    }
                )
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
        some: Mapping[str, Any] = reading.read(rows)
        data: NDArray[Any] = np.asarray(some["data"])
        kept = data if "mask" not in some else np.where(some["mask"], data, 0)
        energy += float((np.abs(kept.astype(np.complex128)) ** 2).sum())
    mean = energy / reading.n_views
    if not np.isfinite(mean):
        raise InputError("the data holds NaN or infinity, or is too large to compute with; mask it, or scale it")
    return 1.0 if mean == 0 else float(1 / np.sqrt(mean))
