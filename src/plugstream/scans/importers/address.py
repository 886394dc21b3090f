"""The address of what an importer reads over the network, in the place of a path."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import cast

_ADDRESS = re.compile(r"(https?):/+(?=.)")


class Address(PurePosixPath):
    """An address such as http://HOST:8000/a/b, with the parts of a path. No file of that name is ever there."""

    def __str__(self) -> str:
        return _ADDRESS.sub(r"\1://", super().__str__(), count=1)

    def exists(self) -> bool:
        return False

    def is_file(self) -> bool:
        return False

    def is_dir(self) -> bool:
        return False


def as_place(place: str | Path) -> Path:
    """A path, or an `Address`, which is used like one."""
    text = str(place) if isinstance(place, Address) else Path(place).as_posix()
    return cast("Path", Address(text)) if _ADDRESS.match(text) else Path(place)
