"""What a scan says of itself, without opening it: for help and flags, which come before anything slow."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

from plugstream.base.files import read_small

_MOST = 16 << 20  # bytes of what a scan says of itself


def peek_instrument(place: str) -> str | None:
    """The name of the instrument that a folder or zip file says it is a scan of, None as of `peek_attributes`."""
    name = (peek_attributes(place) or {}).get("instrument")
    return name if isinstance(name, str) and ":" not in name else None  # FILE.py:NAME is for a person to type


def peek_attributes(place: str) -> dict[str, Any] | None:
    """What a folder or zip file says of itself as a scan.

    None for what is no such scan, is not there yet, cannot be read, or lies elsewhere; opening it says why.
    """
    try:
        if os.path.isfile(os.path.join(place, "zarr.json")):  # and not a pipe, say
            content: Any = json.loads(read_small(Path(place) / "zarr.json", _MOST))
        elif os.path.isfile(place) and zipfile.is_zipfile(place):
            with zipfile.ZipFile(place) as archive:
                file = min((n for n in archive.namelist() if n.rpartition("/")[2] == "zarr.json"), key=len)
                if archive.getinfo(file).file_size > _MOST:
                    return None
                content = json.loads(archive.read(file))
        else:
            return None
        attributes = content["attributes"]
        return attributes if isinstance(attributes, dict) else None
    except Exception:  # a damaged file, in one of many ways
        return None
