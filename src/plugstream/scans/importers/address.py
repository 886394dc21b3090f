"""The address of a run that is read over the network, in the place of a file."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import cast

_ADDRESS = re.compile(r"(https?):/+(?=.)")


class RunAddress(PurePosixPath):
    """An address such as http://HOST:8000/a/b, with the parts of a path. No file of that name is ever there."""

    def __str__(self) -> str:
        return _ADDRESS.sub(r"\1://", super().__str__(), count=1)

    def exists(self) -> bool:
        return False

    def is_file(self) -> bool:
        return False

    def is_dir(self) -> bool:
        return False


def run_address(place: object) -> Path | None:
    """A `RunAddress`, which is used like a path, of a text or path that is one; None for others."""
    text = place.as_posix() if isinstance(place, Path) else str(place)
    return cast("Path", RunAddress(text)) if _ADDRESS.match(text) else None
