"""Files of MATLAB 5 to 7, before SciPy reads them."""

from __future__ import annotations

import zlib
from pathlib import Path

from plugstream.base.capacity import check_claim
from plugstream.base.errors import InputError

_MATRIX, _COMPRESSED = 14, 15  # kinds of elements
_BLOCK = 1 << 20


def check_matlab(file: Path) -> None:
    """Refuse a damaged file, by the Adler-32 of its compressed variables, and one that unpacks to far too much.

    After 128 bytes of header come elements of a kind, a length and content; SciPy checks neither the checksum nor how
    much an element unpacks to.
    """
    try:
        with file.open("rb") as opened:
            order = {b"IM": "little", b"MI": "big"}.get(opened.read(128)[126:])
            if order is None:
                raise InputError("it is not a MATLAB file that can be read (version 5 to 7)")
            left = file.stat().st_size - 128
            while left > 0:
                head = opened.read(8)
                kind, size = (int.from_bytes(word, order) for word in (head[:4], head[4:]))  # type: ignore[arg-type]
                left -= 8 + size
                if kind not in (_MATRIX, _COMPRESSED) or left < 0:
                    raise InputError("it is damaged or cut short, or not a MATLAB file of variables")
                packed = opened.read(size)
                if kind == _COMPRESSED:
                    _check_variable(packed)
    except OSError as error:
        raise InputError(f"it cannot be read ({error.strerror})") from error


def _check_variable(packed: bytes) -> None:
    """Unpack a variable in pieces that are let go again."""
    stream, total, rest = zlib.decompressobj(), 0, packed
    try:
        while piece := stream.decompress(rest, _BLOCK):
            total, rest = total + len(piece), stream.unconsumed_tail
            check_claim(total, len(packed), "a variable of it")
    except zlib.error as error:
        raise InputError(f"it is damaged: a variable fails its checksum ({error})") from error
    if not stream.eof or stream.unused_data:
        raise InputError("it is not a MATLAB file that is whole: a variable is cut short")
