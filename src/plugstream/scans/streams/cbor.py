"""CBOR, as detectors send it: strict, with limits, and without a copy of the bytes that are the picture.

A message is data of a stranger: what it says of lengths is compared with what is there, nesting and counts are limited,
and no tag makes anything but numbers.

References: RFC 8949 (CBOR), RFC 8746 (typed arrays).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.scans.streams.compression import decompress

_DEEP, _MANY, _AXES = 16, 1 << 16, 8
_WIDTHS = {24: ">B", 25: ">H", 26: ">I", 27: ">Q"}
_FLOATS = {25: ">e", 26: ">f", 27: ">d"}
_SIMPLE: dict[int, Any] = {20: False, 21: True, 22: None, 23: None}
_MULTI, _COMPRESSED = 40, 56500
# Tags of typed arrays: unsigned and signed integers, floats, big-endian and little-endian.
_TYPES = {64 + n: dtype for n, dtype in enumerate(("u1", ">u2", ">u4", ">u8", "u1", "<u2", "<u4", "<u8"))}
_TYPES |= {72 + n: dtype for n, dtype in enumerate(("i1", ">i2", ">i4", ">i8", "i1", "<i2", "<i4", "<i8")) if n != 4}
_TYPES |= {80 + n: dtype for n, dtype in enumerate((">f2", ">f4", ">f8"))} | {84: "<f2", 85: "<f4", 86: "<f8"}


@dataclass(frozen=True)
class Tag:
    """A value with a number that says what it is."""

    number: int
    value: Any


class _End:
    """Where an item of unknown length ends."""


class _Reader:
    def __init__(self, message: memoryview) -> None:
        self.message, self.place, self.items = message, 0, 0

    def take(self, count: int) -> memoryview:
        if count > len(self.message) - self.place:
            raise InputError("it ends too early")
        self.place += count
        return self.message[self.place - count : self.place]

    def item(self, depth: int = 0) -> Any:
        self.items += 1
        if depth > _DEEP or self.items > _MANY:
            raise InputError(f"it is nested more than {_DEEP} deep, or has more than {_MANY} items")
        first = self.take(1)[0]
        major, short = first >> 5, first & 31
        if major == 7:
            return self._simple(short)
        length = None if short == 31 and 2 <= major <= 5 else self._number(short)
        if major < 2:
            return length if major == 0 else -1 - (length or 0)
        if major < 4:
            return self._string(major, depth, length)
        if major == 6:
            assert length is not None
            return Tag(length, self.item(depth + 1))
        return self._list(depth, length) if major == 4 else self._map(depth, length)

    def _number(self, short: int) -> int:
        if short < 24:
            return short
        if short not in _WIDTHS:
            raise InputError(f"it has a length of the unknown kind {short}")
        number: int = struct.unpack(_WIDTHS[short], self.take(1 << (short - 24)))[0]
        return number

    def _simple(self, short: int) -> Any:
        if short in _FLOATS:
            return struct.unpack(_FLOATS[short], self.take(1 << (short - 24)))[0]
        if short == 31:
            return _End
        if short not in _SIMPLE:
            raise InputError(f"it has the unknown value {short}")
        return _SIMPLE[short]

    def _string(self, major: int, depth: int, length: int | None) -> str | memoryview:
        if length is None:  # in pieces
            pieces = list[bytes]()
            while (piece := self.item(depth + 1)) is not _End:
                if not isinstance(piece, str if major == 3 else memoryview):
                    raise InputError("it has a string whose pieces are of another kind")
                pieces.append(piece.encode() if isinstance(piece, str) else bytes(piece))
            data = memoryview(b"".join(pieces))
        else:
            data = self.take(length)
        return data if major == 2 else str(data, "utf-8", errors="replace")

    def _list(self, depth: int, length: int | None) -> list[Any]:
        values = list[Any]()
        while length is None or len(values) < length:
            if (value := self.item(depth + 1)) is _End:
                if length is not None:
                    raise InputError("it has a list that ends too early")
                break
            values.append(value)
        return values

    def _map(self, depth: int, length: int | None) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        count = 0
        while length is None or count < length:
            count += 1
            if (key := self.item(depth + 1)) is _End and length is None:
                break
            if not isinstance(key, str | int):
                raise InputError("it has a map whose keys are neither text nor numbers")
            if (value := self.item(depth + 1)) is _End:
                raise InputError("it has a key without a value")
            values[key] = value
        return values


def decode(message: memoryview) -> Any:
    """The one item of a message: numbers, text, memoryviews of bytes, lists, dicts and `Tag`."""
    reader = _Reader(message)
    item = reader.item()
    if item is _End or reader.place != len(message):
        raise InputError("it does not end where its content does")
    return item


def as_array(item: Any, most: int) -> NDArray[Any]:
    """The array of a typed array (RFC 8746), with its dimensions where it has some, decompressed.

    Arguments: item, as `decode` gives it; most, bytes that it may have.
    """
    if isinstance(item, Tag) and item.number == _MULTI:
        if not isinstance(item.value, list) or len(item.value) != 2 or not isinstance(item.value[0], list):
            raise InputError("its array has no dimensions")
        dimensions = item.value[0]
        array = as_array(item.value[1], most)
        known = len(dimensions) <= _AXES and all(type(n) is int and 0 <= n <= most for n in dimensions)
        if not known or math.prod(dimensions) != array.size:
            raise InputError(f"its array of {array.size} numbers is said to be {str(dimensions)[:80]}")
        return array.reshape(dimensions)
    if not isinstance(item, Tag) or item.number not in _TYPES:
        tag = f", but one of tag {item.number}" if isinstance(item, Tag) else ""
        raise InputError(f"it has no array of numbers of a known type{tag}")
    dtype, data = np.dtype(_TYPES[item.number]), _as_bytes(item.value, most)
    if len(data) % dtype.itemsize:
        raise InputError(f"its array of {len(data)} bytes has numbers of {dtype.itemsize}")
    return np.frombuffer(data, dtype)


def _as_bytes(item: Any, most: int) -> Any:
    """Bytes, or what the tag of compressed bytes stands for."""
    if isinstance(item, Tag) and item.number == _COMPRESSED:
        if not isinstance(item.value, list) or len(item.value) != 3 or not isinstance(item.value[2], memoryview):
            raise InputError("its compressed bytes do not say how they are compressed")
        algorithm, size, data = item.value
        return decompress(str(algorithm), size, data, most)
    if not isinstance(item, memoryview):
        raise InputError("its array has no bytes")
    if len(item) > most:
        raise InputError(f"its array has {len(item)} bytes, and {most} are as many as there can be")
    return item
