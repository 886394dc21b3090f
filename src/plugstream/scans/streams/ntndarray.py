"""NTNDArray, the picture of EPICS's areaDetector: its numbers, undone from their codec, and the attributes beside them.

References: the normative types of EPICS 7; ADCore, NDPluginCodec and ntndArrayConverter.
"""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.capacity import check_claim
from plugstream.base.errors import InputError
from plugstream.scans.streams.compression import check_blosc, lz4_block, unshuffle_blocks

CODECS = ("blosc", "lz4", "bslz4", "zlib", "jpeg")
# pvData's numbers of types, which compressed arrays carry in codec.parameters.
_TYPES = {1: "i1", 2: "<i2", 3: "<i4", 4: "<i8", 5: "u1", 6: "<u2", 7: "<u4", 8: "<u8", 9: "<f4", 10: "<f8"}
_MOST_SIDE, _MOST_AXES = 1 << 20, 10
_SHUFFLED = 8192  # bytes of a block of bitshuffle, for numbers of 1, 2, 4 or 8
_MOST_ATTRIBUTES = 1000


def read_attributes(value: Any) -> dict[str, Any]:
    """The attributes that are a number or a text, by name."""
    attributes: dict[str, Any] = {}
    for one in value["attribute"][:_MOST_ATTRIBUTES]:
        content = one["value"]
        if isinstance(content, bool | int | float | str):
            attributes[str(one["name"])] = content
    return attributes


def read_time(value: Any, name: str) -> float | None:
    """A time stamp in seconds, None where there is none."""
    stamp = value[name]
    seconds = float(stamp["secondsPastEpoch"]) + 1e-9 * float(stamp["nanoseconds"])
    return seconds if seconds > 0 else None


def read_picture(value: Any) -> NDArray[Any] | None:
    """The numbers (rows, columns), or with more axes; None of an array that was never filled.

    The first dimension of NTNDArray runs fastest. One that lies about sizes, or has a codec that is not known, is
    refused.
    """
    sides = [int(one["size"]) for one in value["dimension"]]
    data = value["value"]
    if not sides or data is None:
        return None
    if len(sides) > _MOST_AXES or not all(0 < side <= _MOST_SIDE for side in sides):
        raise InputError(f"has the sides {str(sides)[:80]}")
    codec = str(value["codec"]["name"])
    numbers = np.asarray(data) if not codec else _decompress(codec, value, np.asarray(data), math.prod(sides))
    if numbers.size != math.prod(sides):
        raise InputError(f"has {numbers.size} numbers, and says that it is {' x '.join(map(str, sides))}")
    shape = [side for side in sides[::-1] if side > 1] if len(sides) > 2 else sides[::-1]
    return numbers.reshape([1] * (2 - len(shape)) + shape)


def _decompress(codec: str, value: Mapping[str, Any], data: NDArray[Any], count: int) -> NDArray[Any]:
    """So many numbers out of compressed bytes."""
    if codec not in CODECS:
        raise InputError(f"is compressed by {codec[:40]!r}; known are {', '.join(CODECS)}")
    kind = value["codec"]["parameters"]
    if kind not in _TYPES or isinstance(kind, bool):
        raise InputError(f"is compressed, and does not say of which type its numbers are: {str(kind)[:40]}")
    dtype, content = np.dtype(_TYPES[kind]), data.tobytes()
    size = count * dtype.itemsize
    check_claim(size, len(content), "is a picture that")
    numbers = np.frombuffer(_unpack(codec, content, size, dtype.itemsize), np.uint8)
    if numbers.nbytes != size:
        raise InputError(f"has {numbers.nbytes} bytes, and {count} numbers of {dtype.itemsize}")
    return numbers.view(dtype)


def _unpack(codec: str, content: bytes, size: int, item: int) -> Any:
    """Bytes; damaged ones are refused, and none become more than `size`."""
    try:
        if codec == "blosc":
            from numcodecs import blosc

            check_blosc(content, size)
            return blosc.decompress(content)
        if codec == "lz4":
            return lz4_block(content, size)
        if codec == "bslz4":
            return unshuffle_blocks(memoryview(content), size, _SHUFFLED, item)
        if codec == "zlib":
            return zlib.decompressobj().decompress(content, size + 1)
        return _unpack_jpeg(content, size)
    except InputError:
        raise
    except Exception:  # each codec has its own errors
        raise InputError(f"cannot be undone from {codec}: its bytes are damaged") from None


def _unpack_jpeg(content: bytes, size: int) -> Any:
    """The bytes of a JPEG in shades of grey."""
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=["JPEG"]) as picture:
        if picture.mode != "L" or picture.width * picture.height != size:
            raise InputError(
                f"is a JPEG of {picture.width} x {picture.height} in {picture.mode}, not in grey of {size}"
            )
        return picture.tobytes()
