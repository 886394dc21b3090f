"""The arrays that messages carry: their bytes, the limit on their size, and the checksums that compare views."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from plugstream.base.errors import DamagedError, InputError
from plugstream.instruments.base import Instrument
from plugstream.scans.checks import fixed_arrays
from plugstream.scans.scan import Scan, stored_dtype, view_bytes

MOST_BYTES = 8 << 20
"""The limit for one part of a message: half a million positions."""

_BLOCK_BYTES = 32 << 20


class Part(NamedTuple):
    """One part of a message: an array of this dtype and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @classmethod
    def of_view(cls, instrument: Instrument, dtype: str, columns: Collection[str]) -> list[Part]:
        """What a view with these columns carries."""
        declared = [column for column in instrument.columns if column.name in columns]
        rows = [cls(column.name, column.dtype, instrument.row_shape(column)) for column in declared]
        return [cls("data", dtype, instrument.data_shape), *rows]


def check_sizes(instrument: Instrument, dtype: str, columns: Collection[str] = ()) -> None:
    """Refuse views, or an instrument, that are too large for messages."""
    arrays = [Part(name, values.dtype.name, values.shape) for name, values in fixed_arrays(instrument).items()]
    for part in (*Part.of_view(instrument, dtype, columns), *arrays):
        if part.nbytes > MOST_BYTES:
            raise InputError(
                f"the scan's {part.name} take {part.nbytes} bytes, and a message has room for {MOST_BYTES}"
            )


def as_bytes(values: NDArray[Any]) -> bytes:
    """The values as a message carries them: little-endian."""
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def checksum(parts: Iterable[bytes]) -> int:
    """The crc32c of parts one after another."""
    import google_crc32c

    total = 0
    for part in parts:
        total = google_crc32c.extend(total, part)
    return total


def checksum_of(instrument: Instrument, columns: Mapping[str, NDArray[Any]]) -> int:
    """The crc32c of a view: its columns one after another, leaving out those that equal their default everywhere."""
    defaults = {c.name: c.default for c in instrument.columns if c.optional and c.default is not None}
    return checksum(
        as_bytes(values)
        for name, values in columns.items()
        if name not in defaults or not (values == defaults[name]).all()
    )


class Sums:
    """The crc32c of each view, in order, four bytes a view, and a total over the first of them."""

    def __init__(self) -> None:
        self._values = array("I")
        self._unknown: set[int] = set()

    def __len__(self) -> int:
        return len(self._values)

    def append(self, value: int | None) -> None:
        """Add the next view; None if it cannot be read."""
        if value is None:
            self._unknown.add(len(self))
        self._values.append(value or 0)

    def truncate(self, views: int) -> None:
        """Forget all but the first views."""
        del self._values[views:]
        self._unknown = {view for view in self._unknown if view < views}

    def agrees(self, view: int, value: int) -> bool:
        """Whether this view has this checksum."""
        return view not in self._unknown and self._values[view] == value

    def total(self, views: int, first: int = 0, before: int = 0) -> int | None:
        """The crc32c of the checksums of the first views, each as four bytes; None if one is unknown.

        Arguments: first, before: continue from the total `before` of `first` views that are not in here.
        """
        import google_crc32c

        if self._unknown:
            return None
        values = np.array(self._values[: views - first], dtype="<u4")
        return int(google_crc32c.extend(before, values.tobytes()))


def read_sums(scan: Scan, views: int) -> Sums:
    """The checksums of the first views of a scan, which are read for this; a damaged one has none."""
    sums = Sums()
    step = max(1, _BLOCK_BYTES // view_bytes(scan)) if views else 1
    for first in range(0, views, step):
        numbers = range(first, min(views, first + step))
        try:
            block: Any = scan.read(torch.arange(numbers.start, numbers.stop)).numpy()
        except DamagedError:  # then one by one
            block = [None] * len(numbers)
        for number, data in zip(numbers, block, strict=True):
            try:
                sums.append(checksum_of(scan.instrument, view_of(scan, number, data)))
            except DamagedError:
                sums.append(None)
    return sums


def view_of(scan: Scan, number: int, data: NDArray[Any] | None = None) -> dict[str, NDArray[Any]]:
    """The columns of one view, as `plugstream.scans.stream.view` takes them; `data` if it has been read already."""
    columns = scan.columns
    data = scan.read(torch.tensor([number])).numpy()[0] if data is None else data
    names = [column.name for column in scan.instrument.columns if column.name in columns]
    return {"data": data.astype(stored_dtype(scan), copy=False), **{name: columns[name][number] for name in names}}
