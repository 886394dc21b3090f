"""The parts of a message: arrays as little-endian bytes, how large they may be, and their checksum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.instruments.base import Instrument

__all__ = ["MOST_BYTES", "Part", "as_bytes", "check_sizes", "checksum", "checksum_of", "little_endian", "view_parts"]

MOST_BYTES = 8 << 20
"""Of one part of a message: half a million positions."""


@dataclass(frozen=True)
class Part:
    """One part of a message: an array of this type and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        size = np.dtype(self.dtype).itemsize
        for length in self.shape:
            size *= length
        return size


def view_parts(instrument: Instrument, dtype: str, columns: Sequence[str]) -> list[Part]:
    """What a view with these columns carries."""
    parts = [Part("data", dtype, instrument.data_shape)]
    for column in instrument.columns:
        if column.name in columns:
            parts.append(Part(column.name, column.dtype, instrument.row_shape(column)))
    return parts


def check_sizes(instrument: Instrument, dtype: str, columns: Sequence[str] = ()) -> None:
    """Refuse views, or an instrument, that are too large for messages."""
    parts = view_parts(instrument, dtype, columns)
    for array in instrument.arrays:
        values = getattr(instrument, array.name)
        if values is not None:
            parts.append(Part(array.name, array.dtype, values.shape))
    for part in parts:
        if part.nbytes > MOST_BYTES:
            raise InputError(
                f"the scan's {part.name} take {part.nbytes} bytes, and a message has room for {MOST_BYTES}"
            )


def checksum_of(instrument: Instrument, columns: Mapping[str, NDArray[Any]]) -> int:
    """The crc32c of a view: of its columns one after another. One that is its default everywhere is as good as none."""
    defaults = {c.name: c.default for c in instrument.columns if c.optional and c.default is not None}
    kept = [v for name, v in columns.items() if name not in defaults or not (v == defaults[name]).all()]
    return checksum([as_bytes(values) for values in kept])


def as_bytes(values: NDArray[Any]) -> bytes:
    """The values as a message carries them."""
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def little_endian(dtype: str) -> np.dtype[Any]:
    """A dtype as messages have it."""
    return np.dtype(dtype).newbyteorder("<")


def checksum(parts: Sequence[bytes]) -> int:
    """The crc32c of parts one after another."""
    import google_crc32c

    total = 0
    for part in parts:
        total = google_crc32c.extend(total, part)
    return total
