"""Rows of sources of the last batches, cached by place: antennas of a long scan return to few places."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from plugstream.images.grid import Points

# Rows are cached up to so many bytes, and only for batches of so many views: a pass over all views would evict others.
_BYTES = 16 << 20
_BATCH = 64


class RecentRows:
    """A cache of the rows of points, (n, 2) to (n, P).

    Holds where a row has the same bits whatever rows are computed with it, so that caching changes nothing. A full
    cache is emptied, so that memory does not grow with the number of views; if by then fewer rows were cached than
    computed, there are too many places, and the cache is switched off. Threads may share it.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, Tensor] = {}
        self._gain = 0  # rows taken from the cache, less rows computed
        self._useful = True

    @property
    def held(self) -> int:
        """Bytes kept."""
        return sum(row.nbytes for row in list(self._rows.values()))

    def find(self, points: Points, compute: Callable[[Points], Tensor]) -> Tensor:
        """The rows of these points; `compute` makes those that are not cached."""
        if not (self._useful and 0 < len(points) <= _BATCH):
            return compute(points)
        places = [point.tobytes() for point in points]
        rows = {place: row for place in places if (row := self._rows.get(place)) is not None}
        missing = {place: number for number, place in enumerate(places) if place not in rows}
        self._gain += len(places) - 2 * len(missing)
        if missing:
            # Clones, since a part of a tensor would keep all of it.
            new = [row.clone() for row in compute(points[list(missing.values())]).unbind()]
            if (len(self._rows) + len(new)) * new[0].nbytes > _BYTES:
                self._rows = {}
                self._useful, self._gain = self._gain >= 0, 0
            computed = dict(zip(missing, new, strict=True))
            if self._useful:
                self._rows.update(computed)
            rows |= computed
        return torch.stack([rows[place] for place in places])
