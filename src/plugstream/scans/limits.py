"""How much a receiver takes from whoever sends: views, bytes, and what must stay free on the disk."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from plugstream.base.errors import InputError
from plugstream.scans.stream import RefusedError

__all__ = ["Limits", "Quota"]

_LOOK = 0.2  # seconds between two looks at how full the disk is


@dataclass(frozen=True)
class Limits:
    """How much a receiver takes: what goes beyond is refused, and what it has stays.

    Arguments: connections at once, None for 32; views of the scan; nbytes of its views, None for as many as the disk
    has; free, bytes that stay free on the disk, None for 1 GB or a twentieth of it, whichever is less.
    """

    connections: int | None = None
    views: int = 10_000_000
    nbytes: int | None = None
    free: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("views", 1), ("nbytes", 1), ("free", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"the limit of {name} must be at least {least}, not {value}")


class Quota:
    """The limits, applied to a scan that lies in a folder."""

    def __init__(self, limits: Limits, folder: Path) -> None:
        self.limits = limits
        self._folder = folder
        self._room, self._looked = 0, -_LOOK

    def check(self, views: int, size: int) -> None:
        """Refuse the last of so many views, of `size` bytes, if it is too much."""
        limits = self.limits
        if views > limits.views:
            raise RefusedError("quota", f"no more than {limits.views} views are taken here (--max-views)")
        if limits.nbytes is not None and views * size > limits.nbytes:
            raise RefusedError("quota", f"no more than {limits.nbytes} bytes are taken here (--max-bytes)")
        self.check_disk(size)

    def check_disk(self, size: int) -> None:
        """Refuse what would fill the disk, for the time being: room may be made, and then it goes on."""
        now = time.monotonic()
        if now - self._looked >= _LOOK:
            usage = shutil.disk_usage(self._folder)
            kept = min(1 << 30, usage.total // 20) if self.limits.free is None else self.limits.free
            self._looked, self._room = now, usage.free - kept
        self._room -= size
        if self._room < 0:
            self._looked = -_LOOK
            raise RefusedError("waiting", "the receiver's disk is as full as it may become (--keep-free); make room")
