"""The checksums of a scan's views, by which two sides of a connection know that they mean the same views."""

from __future__ import annotations

from array import array

import numpy as np
import torch

from plugstream.base.errors import DamagedError
from plugstream.scans.parts import checksum_of
from plugstream.scans.scan import Scan, stored_dtype, view_bytes

__all__ = ["Sums", "read_sums", "view_of"]

_BLOCK_BYTES = 32 << 20


class Sums:
    """The crc32c of each view, in order: four bytes a view, and a total over the first so many of them."""

    def __init__(self) -> None:
        self._values = array("I")
        self._unknown: set[int] = set()

    def __len__(self) -> int:
        return len(self._values)

    def append(self, value: int | None) -> None:
        """Add the next view; None where it cannot be read."""
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
        """The crc32c of the checksums of the first views, each as four bytes; None where one is not known.

        Arguments: first, before: go on from the total `before` of `first` views, of which nothing else is known.
        """
        import google_crc32c

        if self._unknown:
            return None
        values = np.array(self._values[: views - first], dtype="<u4")
        return int(google_crc32c.extend(before, values.tobytes()))


def read_sums(scan: Scan, views: int) -> Sums:
    """The checksums of the first views of a scan, each of which is read; one that is damaged has none."""
    sums = Sums()
    step = max(1, _BLOCK_BYTES // view_bytes(scan)) if views else 1
    for first in range(0, views, step):
        numbers = range(first, min(views, first + step))
        try:
            data = scan.read(torch.arange(numbers.start, numbers.stop)).numpy()
        except DamagedError:
            for number in numbers:
                sums.append(_sum_alone(scan, number))
            continue
        for number in numbers:
            sums.append(checksum_of(scan.instrument, view_of(scan, number, data[number - first])))
    return sums


def view_of(scan: Scan, number: int, data: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """The columns of one view, as `plugstream.scans.stream.view` takes them; `data` if it has been read already."""
    columns = scan.columns
    data = scan.read(torch.tensor([number])).numpy()[0] if data is None else data
    names = [column.name for column in scan.instrument.columns if column.name in columns]
    return {"data": data.astype(stored_dtype(scan), copy=False), **{name: columns[name][number] for name in names}}


def _sum_alone(scan: Scan, number: int) -> int | None:
    try:
        return checksum_of(scan.instrument, view_of(scan, number))
    except DamagedError:
        return None
