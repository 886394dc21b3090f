"""Masks and incident fields of a scan that is too large for memory: read for the views that are asked for."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import DamagedError
from plugstream.scans.checks import not_finite
from plugstream.scans.chunks import ChunkReader

_BATCHES = 8  # that were read ahead and stay in memory


class StoredRows:
    """The rows of views on a disk, as `Rows`. Threads may share it.

    `ahead` reads the rows of a batch before they are asked for, with its data, and the last few batches stay in memory.
    """

    def __init__(self, reader: ChunkReader, views: int) -> None:
        self.reader = reader
        self._views = views
        self._chosen: NDArray[np.int64] | None = None  # the views it is limited to; None for all
        self._batches: OrderedDict[bytes, NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self.reader.layout.row)

    def __len__(self) -> int:
        return self._views if self._chosen is None else len(self._chosen)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        """Rows by a number, a slice or an array of numbers; a `DamagedError` names the views that cannot be read."""
        if isinstance(index, slice):
            index = np.arange(*index.indices(len(self)))
        numbers = np.asarray(index, dtype=np.int64)
        views = np.atleast_1d(numbers if self._chosen is None else self._chosen[numbers])
        with self._lock:
            rows = self._batches.get(views.tobytes())
        rows = self._read(views, self.reader.read) if rows is None else rows
        return rows if numbers.ndim else rows[0]

    def only(self, index: NDArray[np.int64]) -> Self:
        """Those of some views, which stay on the disk."""
        chosen = copy.copy(self)  # with the batches that were read ahead
        chosen._chosen = index if self._chosen is None else self._chosen[index]
        return chosen

    def grown(self, views: int) -> Self:
        """Those of a scan that has so many views by now."""
        more = copy.copy(self)
        more._views = views
        return more

    def ahead(self, views: NDArray[np.int64]) -> None:
        """Read rows that will be asked for; `views` are numbers of the scan."""
        rows = self._read(views, self.reader.read_batch)
        with self._lock:
            self._batches[views.tobytes()] = rows
            while len(self._batches) > _BATCHES:
                self._batches.popitem(last=False)

    def _read(self, views: NDArray[np.int64], read: Callable[[NDArray[np.int64]], NDArray[Any]]) -> NDArray[Any]:
        try:
            rows = read(views)
        except DamagedError as error:
            bad = {view: name_damage(self.reader.name, fault) for view, fault in error.views.items()}
            raise DamagedError(self.reader.scan, bad) from None
        if rows.dtype.kind == "c" and (bad_rows := not_finite(rows, None)):
            fault = f"its {_singular(self.reader.name)} holds NaN or infinity"
            raise DamagedError(self.reader.scan, dict.fromkeys(views[bad_rows].tolist(), fault))
        return rows


def name_damage(column: str, fault: str) -> str:
    """What is wrong with a view whose row of a column is damaged."""
    return f"its {_singular(column)} is damaged: {fault}"


def _singular(column: str) -> str:
    return column.removesuffix("s").replace("_", " ")
