"""Arrays with a row for each view, wherever they lie."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Rows"]


class Rows(Protocol):
    """An array with a row for each view, in memory or on a disk: what is asked for by its index is then in memory."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...
