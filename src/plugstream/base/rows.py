"""Arrays with a row for each view, in memory or on disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np


class Rows(Protocol):
    """An array with a row for each view, in memory or on disk; indexing it gives an array in memory."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...


def first_rows(columns: Mapping[str, Rows], n_views: int) -> Mapping[str, Rows]:
    """The columns of only the first views; columns on disk stay there."""
    return {name: _first(rows, n_views) if len(rows) > n_views else rows for name, rows in columns.items()}


def _first(rows: Any, count: int) -> Any:
    return rows.only(np.arange(count)) if hasattr(rows, "only") else rows[:count]
