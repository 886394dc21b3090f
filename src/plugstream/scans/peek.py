"""Which instrument a scan is of, without opening it: for help and flags, which come before anything slow."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

from plugstream.base.files import read_small
from plugstream.scans.version3 import KIND

__all__ = ["peek_instrument"]

_MOST = 16 << 20  # bytes of what a scan says of itself


def peek_instrument(place: str) -> str | None:
    """The name of the instrument that a folder or zip file says it is a scan of.

    None for what is no such scan, is not there yet, cannot be read, or lies elsewhere: who opens it in earnest tells.
    """
    try:
        if os.path.isfile(os.path.join(place, "zarr.json")):  # and not a pipe, say
            content: Any = json.loads(read_small(Path(place) / "zarr.json", _MOST))
        elif os.path.isfile(place) and zipfile.is_zipfile(place):
            with zipfile.ZipFile(place) as archive:
                name = min((n for n in archive.namelist() if n.rpartition("/")[2] == "zarr.json"), key=len)
                if archive.getinfo(name).file_size > _MOST:
                    return None
                content = json.loads(archive.read(name))
        else:
            return None
        attributes = content["attributes"]
        found = attributes.get("instrument", KIND if attributes.get("version") == 3 else None)
    except Exception:  # of a damaged file, of which there are many kinds
        return None
    return found if isinstance(found, str) and ":" not in found else None  # FILE.py:NAME is for a person to type
