"""Rows of sources of the last batches, kept by place: antennas of a long scan stand in few places, again and again."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from plugstream.images.grid import Points

__all__ = ["RecentRows"]

# Rows are kept up to so many bytes, and of batches of so many views: a pass over all views would only push others out.
_BYTES = 16 << 20
_BATCH = 64


class RecentRows:
    """The rows of points, (n, 2) to (n, P), of which those of places that came before are not computed again.

    Holds where a row is the same to the bit whichever others are computed with it, so that keeping it changes nothing.
    When there is no more room all are forgotten, so that memory does not grow with the number of views; and if fewer
    rows had been found than computed by then, there are too many places, and none are kept any more. Threads may share
    it.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, Tensor] = {}
        self._gain = 0  # rows that were found, less those that were computed
        self._useful = True

    @property
    def held(self) -> int:
        """Bytes kept."""
        return sum(row.nbytes for row in list(self._rows.values()))

    def find(self, points: Points, compute: Callable[[Points], Tensor]) -> Tensor:
        """The rows of these points; `compute` makes those that are not known."""
        if not (self._useful and 0 < len(points) <= _BATCH):
            return compute(points)
        known, places = self._rows, [point.tobytes() for point in points]
        found = [known.get(place) for place in places]
        new = {place: number for number, place in enumerate(places) if found[number] is None}
        self._gain += len(places) - 2 * len(new)
        if new:
            # Rows by themselves: a part of a tensor would keep all of it.
            rows = [row.clone() for row in compute(points[list(new.values())]).unbind()]
            made = dict(zip(new, rows, strict=True))
            if (len(known) + len(rows)) * rows[0].nbytes > _BYTES:
                known = self._rows = {}
                self._useful, self._gain = self._gain >= 0, 0
            if self._useful:
                known.update(made)
            found = [made[place] if row is None else row for place, row in zip(places, found, strict=True)]
        return torch.stack([row for row in found if row is not None])
