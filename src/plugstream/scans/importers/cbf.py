"""Pictures of pixel detectors in CBF, the Crystallographic Binary File, as PILATUS detectors write them.

Reference: Bernstein and Ellis, CBF/imgCIF, International Tables for Crystallography G, 2006, chapter 5.6; byte_offset
compression, section 5.6.3.4.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError

_START = b"\x0c\x1a\x04\xd5"  # ends the header of the binary section
_ESCAPES = ((1, "<i2", -(2**15)), (2, "<i4", -(2**31)), (4, "<i8", None))


def read_cbf(path: Path) -> NDArray[np.int32]:
    """The picture of a file: (rows, columns). What is cut off, or fails its MD5, is refused."""
    content = path.read_bytes()
    start = content.find(_START)
    if start < 0:
        raise InputError("it has no binary section")
    header = content[:start].decode("latin-1")
    columns, rows, size = (
        _whole_number(header, f"X-Binary-Size{name}") for name in ("-Fastest-Dimension", "-Second-Dimension", "")
    )
    kind = re.search(r'conversions\s*=\s*"?([\w-]+)', header)
    if kind is None or kind[1].lower() != "x-cbf_byte_offset":
        raise InputError(f"its compression is {'unknown' if kind is None else kind[1]}; only byte_offset is read")
    data = content[start + len(_START) :][:size]
    if len(data) < size:
        raise InputError(f"it has {len(data)} of {size} bytes")
    if not 0 < rows * columns <= size:  # each pixel has a byte or more
        raise InputError(f"it has {rows} x {columns} pixels in {size} bytes")
    digest = re.search(r"(?m)^Content-MD5:\s*(\S+)", header)
    if digest is not None and base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode() != digest[1]:
        raise InputError("its bytes fail their MD5")
    return np.cumsum(_steps(data, rows * columns)).astype(np.int32).reshape(rows, columns)


def _whole_number(header: str, name: str) -> int:
    match = re.search(rf"(?m)^{name}:\s*(\d{{1,12}})\s*$", header)
    if match is None:
        raise InputError(f"it does not say its {name}")
    return int(match[1])


def _steps(data: bytes, count: int) -> NDArray[np.int64]:
    """The difference of each pixel from the one before: a byte, or after the byte -128 two, or after their least four.

    Bytes between two escapes are taken at once.
    """
    small: NDArray[Any] = np.frombuffer(data, dtype=np.int8)
    escapes = np.flatnonzero(small == -128)
    steps = np.zeros(count, dtype=np.int64)
    place = filled = 0
    while filled < count:
        after = int(np.searchsorted(escapes, place))
        end = int(escapes[after]) if after < len(escapes) else len(small)
        run = min(end - place, count - filled)
        steps[filled : filled + run] = small[place : place + run]
        place, filled = place + run, filled + run
        if filled == count:
            break
        place += 1
        for before, kind, escape in _ESCAPES:
            width = 2 * before
            if place + width > len(data):
                raise InputError(f"its bytes hold {filled} of {count} pixels")
            value = int(np.frombuffer(data, kind, 1, place)[0])
            place += width
            if value != escape:
                break
        steps[filled] = value
        filled += 1
    return steps
