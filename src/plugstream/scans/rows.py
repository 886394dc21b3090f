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
from plugstream.scans.chunks import ChunkReader

__all__ = ["StoredRows"]

_KEPT = 8  # batches that were read ahead


class StoredRows:
    """The rows of views on a disk, as `Rows`. Threads may share it.

    `ahead` reads the rows of a batch before they are asked for, and the last few batches are kept; so whoever reads the
    data of the batch ahead of time has these read with it.

    Arguments: reader of the array; scan, where it lies, for messages; views, how many there are.
    """

    def __init__(self, reader: ChunkReader, scan: str, views: int) -> None:
        self.reader, self.scan = reader, scan
        self._views = views
        self._chosen: NDArray[np.int64] | None = None  # of these views; all of them for None
        self._kept: OrderedDict[bytes, NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self.reader.layout.row)

    def __len__(self) -> int:
        return self._views if self._chosen is None else len(self._chosen)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        """Rows by a number, a slice or an array of numbers; a `DamagedError` names the views that cannot be had."""
        if isinstance(index, slice):
            index = np.arange(*index.indices(len(self)))
        numbers = np.asarray(index, dtype=np.int64)
        views = np.atleast_1d(numbers if self._chosen is None else self._chosen[numbers])
        with self._lock:
            rows = self._kept.get(views.tobytes())
        rows = self._read(views, self.reader.read) if rows is None else rows
        return rows if numbers.ndim else rows[0]

    def only(self, index: NDArray[np.int64]) -> Self:
        """Those of some views, which are still on the disk."""
        some = copy.copy(self)  # with the batches that were read ahead
        some._chosen = index if self._chosen is None else self._chosen[index]
        return some

    def grown(self, views: int) -> Self:
        """Of a scan that has so many views by now."""
        more = copy.copy(self)
        more._views = views
        return more

    def ahead(self, views: NDArray[np.int64]) -> None:
        """Read rows that will be asked for; `views` are numbers of the scan."""
        rows = self._read(views, self.reader.read_batch)
        with self._lock:
            self._kept[views.tobytes()] = rows
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)

    def _read(self, views: NDArray[np.int64], read: Callable[[NDArray[np.int64]], NDArray[Any]]) -> NDArray[Any]:
        name = self.reader.name.removesuffix("s").replace("_", " ")
        try:
            rows = read(views)
        except DamagedError as error:
            bad = {view: f"its {name} is damaged: {why}" for view, why in error.views.items()}
            raise DamagedError(self.scan, bad) from None
        if rows.dtype.kind == "c" and not np.isfinite(rows).all():
            infinite = views[~np.isfinite(rows).all(tuple(range(1, rows.ndim)))]
            raise DamagedError(self.scan, dict.fromkeys(infinite.tolist(), f"its {name} holds NaN or infinity"))
        return rows
