"""How an instrument sends a scan over ZeroMQ: the messages, written and read.

A message has several parts: a JSON header, then bytes. Messages of a scan are numbered by `sequence`:

    0      begin   the instrument's fixed arrays; then JSON: instrument, attributes, dtype, columns, provenance
    v + 1  view v  its data; then the columns that `columns` in the header names, in the order of their declaration
    n + 1  end     nothing more: the scan has n views
    n + 2  bye     nothing more: the sender knows that all is safe, and the receiver need not stay for it

The header has `plugstream` (version of the protocol), `type`, `scan` (an identifier), `token` (a secret of the sender,
by which it is known again), `sequence`, and with bytes `crc32c` of all parts together. That of `begin` has `instrument`
and `arrays`, the shapes of the fixed arrays by name; that of a view `dtype` and `shape` of its data, and `columns`. All
numbers are little-endian. What they mean is declared by the instrument, which both sides must have.

The receiver answers with headers alone: `ack` with the last sequence that is safe on its disk, `nak` with the sequence
that it wants next and the reason, `conflict` where it has something else in that place, `refuse` where sending again
would not help. An answer repeats neither scan nor token.

Whatever a message claims is bounded before it is used: bytes of the header, depth and digits of its JSON, the length of
its names, bytes and number of its parts, and pixels.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.files import load_json
from plugstream.instruments.base import Instrument
from plugstream.instruments.born import InstrumentLike, instrument_parts
from plugstream.scans.checks import fixed_arrays
from plugstream.scans.layout import find_instrument
from plugstream.scans.parts import MOST_BYTES, Part, as_bytes, check_sizes, checksum

_PROTOCOL = 3
_HEADER_BYTES = 1 << 16
_BEGIN = {"plugstream", "type", "scan", "token", "sequence", "instrument", "arrays", "crc32c"}
_MOST_REASON = 200
_MOST_PIXELS = 1 << 28  # of an image: nobody has the memory for more
_MOST_SEQUENCE = 1 << 53
_MOST_DEPTH = 8  # of what begin says, so that it can be written again wherever it goes


class RefusedError(Exception):
    """A message that cannot be used: `kind` is what it is counted as."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(one_line(reason))
        self.kind = kind


@contextmanager
def refusing(kind: str = "mistyped") -> Iterator[None]:
    """Blame what is wrong on the message: an InputError in the block becomes a `RefusedError`."""
    try:
        yield
    except InputError as error:
        raise RefusedError(kind, str(error)) from error


@dataclass(frozen=True)
class Name:
    """What a scan is known by: an identifier, and its sender's secret, without which nobody continues it."""

    scan: str
    token: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", self.scan):
            raise InputError("a scan is named by 1 to 64 letters, digits, dots and dashes")
        if not re.fullmatch(r"[!-~]{16,128}", self.token):
            raise InputError("a token is made of 16 to 128 letters, digits and signs, without spaces")

    def digest(self) -> str:
        """What a receiver keeps: it recognises the sender, and reveals no token."""
        return hashlib.sha256(f"plugstream stream\0{self.scan}\0{self.token}".encode()).hexdigest()


@dataclass(frozen=True)
class Announcement:
    """What `begin` says of a scan; `columns` are those of its views, None if that is left to the first view."""

    instrument: Instrument
    dtype: str
    columns: tuple[str, ...] | None
    provenance: dict[str, Any]


def begin(
    name: Name,
    instrument: InstrumentLike,
    provenance: Mapping[str, Any],
    columns: Sequence[str] | None = None,
    dtype: str | None = None,
) -> list[bytes]:
    """The first message of a scan: everything but the views; one that a receiver could not take is refused.

    Arguments: columns that the views will have; None leaves that to the first view. dtype of the data, the instrument's
    usual one if not given.
    """
    device = instrument_parts(instrument)[0]
    dtype = dtype or device.data.dtypes[0]
    content = {
        "instrument": device.name,
        "attributes": device.values(),
        "dtype": dtype,
        "columns": None if columns is None else list(columns),
        "provenance": dict(provenance),
    }
    try:
        text = json.dumps(content, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the provenance cannot be written as JSON: {error}") from error
    check_sizes(device, dtype, columns or ())
    if len(text) > _HEADER_BYTES:
        raise InputError(f"the scan's provenance take {len(text)} bytes, and a message has room for {_HEADER_BYTES}")
    arrays = fixed_arrays(device)
    shapes = {array: list(values.shape) for array, values in arrays.items()}
    parts = [*map(as_bytes, arrays.values()), text]
    frames = _frames("begin", name, 0, parts, instrument=device.name, arrays=shapes)
    try:
        Message.parse(frames).announcement()
    except RefusedError as refused:
        raise InputError(f"no receiver would take this scan: {refused}") from refused
    return frames


def view(name: Name, number: int, columns: Mapping[str, NDArray[Any]]) -> list[bytes]:
    """View `number`: data, and then its columns in the order of their declaration, each without an axis of views."""
    data, parts = columns["data"], [as_bytes(values) for values in columns.values()]
    claims = {"view": number, "columns": list(columns)[1:], "dtype": data.dtype.name, "shape": list(data.shape)}
    return _frames("view", name, number + 1, parts, **claims)


def end(name: Name, views: int) -> list[bytes]:
    """The last message: there are this many views."""
    return _frames("end", name, views + 1, views=views)


def bye(name: Name, views: int) -> list[bytes]:
    """What a sender says when the end was acknowledged; it is not answered."""
    return _frames("bye", name, views + 2)


def _frames(kind: str, name: Name, sequence: int, parts: Sequence[bytes] = (), **claims: Any) -> list[bytes]:
    sums = {"crc32c": checksum(parts)} if parts else {}
    header = {"type": kind, "scan": name.scan, "token": name.token, "sequence": sequence, **claims, **sums}
    return [json.dumps({"plugstream": _PROTOCOL, **header}).encode(), *parts]


def reply(kind: str, sequence: int, reason: str = "", **more: Any) -> bytes:
    """The receiver's answer: "ack", "nak", "conflict" or "refuse"."""
    extra = {**more, "reason": one_line(reason)} if reason else more
    return json.dumps({"plugstream": _PROTOCOL, "type": kind, "sequence": sequence, **extra}).encode()


@dataclass(frozen=True)
class Message:
    """A message as it came, its header checked as far as possible without knowing the scan."""

    header: Mapping[str, Any]
    parts: Sequence[bytes]

    @classmethod
    def parse(cls, frames: Sequence[bytes]) -> Message:
        """Read the header; what is not one, or not of this protocol, is refused."""
        if not frames or len(frames[0]) > _HEADER_BYTES:
            raise RefusedError("oversized" if frames else "truncated", f"a header has at most {_HEADER_BYTES} bytes")
        try:
            header = load_json(frames[0], most_bytes=_HEADER_BYTES)
        except ValueError as error:
            raise RefusedError("unreadable", f"the header cannot be read: {error}") from None
        if not isinstance(header, dict) or not _is_exactly(header.get("plugstream"), _PROTOCOL):
            raise RefusedError("mistyped", f"the header is not of this protocol, whose version is {_PROTOCOL}")
        message = cls(header, frames[1:])
        for name, kind in (("type", str), ("scan", str), ("token", str), ("sequence", int)):
            message.field(name, kind)
        if not 0 <= message.sequence <= _MOST_SEQUENCE:
            raise RefusedError("mistyped", "sequence in the header must not be negative, nor far beyond any scan")
        return message

    @property
    def kind(self) -> str:
        return str(self.header["type"])

    @property
    def sequence(self) -> int:
        return int(self.header["sequence"])

    def name(self) -> Name:
        """Which scan it belongs to, with the proof."""
        with refusing():
            return Name(self.header["scan"], self.header["token"])

    def field(self, name: str, kind: type) -> Any:
        """A field of the header; True is no number."""
        value = self.header.get(name)
        if type(value) is not kind:
            raise RefusedError("mistyped", f"{name} in the header must be of type {kind.__name__}")
        return value

    def announcement(self) -> Announcement:
        """What `begin` says; an instrument that is not known here is refused."""
        with refusing():
            kind = find_instrument({"instrument": self.field("instrument", str)[:100]})
        shapes = self.field("arrays", dict)
        if unknown := sorted(set(self.header) - _BEGIN):  # of another version
            raise RefusedError("mistyped", f"begin has no {unknown[0]!r} in its header")
        parts = []
        for array in kind.arrays:
            shape = shapes.get(array.name)
            if shape is None and array.optional:
                continue
            sizes: list[Any] = shape if isinstance(shape, list) and len(shape) == len(array.shape) else [None]
            if any(type(size) is not int or not 1 <= size <= MOST_BYTES for size in sizes):
                raise RefusedError("mistyped", f"begin must carry {array.name} with the axes {list(array.shape)}")
            parts.append(Part(array.name, array.dtype, tuple(sizes)))
            if parts[-1].nbytes > MOST_BYTES:
                raise RefusedError("mistyped", f"{array.name} may have {MOST_BYTES} bytes, not {parts[-1].nbytes}")
        if set(shapes) - {part.name for part in parts}:
            raise RefusedError("mistyped", f"{kind.name} has other arrays than begin says")
        arrays = self._arrays(parts, text=True)
        try:
            content = load_json(self.parts[len(parts)], most_bytes=_HEADER_BYTES, most_depth=_MOST_DEPTH)
            return _announcement(kind, arrays, content)
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            reason = str(error) if isinstance(error, InputError) else repr(error)
            raise RefusedError("mistyped", f"begin does not describe a scan: {reason}") from error

    def view(self, instrument: Instrument, dtype: str) -> dict[str, NDArray[Any]]:
        """What a view carries, by name: data, and its columns in the order of their declaration."""
        if self.field("view", int) != self.sequence - 1:
            raise RefusedError("mistyped", "view and sequence do not agree: sequence is view + 1")
        columns, declared = self.field("columns", list), [column.name for column in instrument.columns]
        if [name for name in declared if name in columns] != columns:
            raise RefusedError("mistyped", f"a view has some of {', '.join(declared)}, in this order")
        shape = list(instrument.data_shape)
        if self.header.get("dtype") != dtype or not _is_exactly(self.header.get("shape"), shape):
            claim = f"{self.header.get('dtype')} of {self.header.get('shape')}"[:80]
            raise RefusedError("mistyped", f"{self.kind} must carry {dtype} of {shape}, not {claim}")
        return self._arrays(Part.of_view(instrument, dtype, columns))

    def _arrays(self, columns: Sequence[Part], *, text: bool = False) -> dict[str, NDArray[Any]]:
        """The parts as arrays, with `text` followed by JSON; refused if they are not what they must be."""
        sizes = [len(part) for part in self.parts]
        most = [column.nbytes for column in columns] + [_HEADER_BYTES] * text
        least = [column.nbytes for column in columns] + [0] * text
        if len(sizes) > len(most) or any(size > limit for size, limit in zip(sizes, most, strict=False)):
            raise RefusedError("oversized", f"{self.kind} has parts of {sizes[:4]} bytes instead of {most}")
        if len(sizes) < len(least) or any(size < limit for size, limit in zip(sizes, least, strict=True)):
            raise RefusedError("truncated", f"{self.kind} has parts of {sizes} bytes instead of {most}")
        if self.field("crc32c", int) != checksum(self.parts):
            raise RefusedError("damaged", f"{self.kind} fails its checksum")
        arrays = {}
        for column, part in zip(columns, self.parts, strict=False):
            if column.dtype == "bool" and np.frombuffer(part, np.uint8).max(initial=0) > 1:
                raise RefusedError("mistyped", f"{column.name} must be made of bytes of 0 and 1")
            values = np.frombuffer(part, np.dtype(column.dtype).newbyteorder("<"))
            arrays[column.name] = values.reshape(column.shape)
        return arrays


def one_line(text: str) -> str:
    """A text that others wrote, fit to be shown: one line, not long, without control characters."""
    return "".join(c if c.isprintable() else " " for c in text[:_MOST_REASON])


def _announcement(kind: type[Instrument], arrays: Mapping[str, NDArray[Any]], content: Any) -> Announcement:
    columns, dtype, provenance = content["columns"], content["dtype"], content["provenance"]
    if len(content) != 5:
        raise ValueError("it has instrument, attributes, dtype, columns and provenance, and nothing else")
    if content["instrument"] != kind.name:
        raise ValueError("the header names another instrument")
    if dtype not in kind.data.dtypes:
        raise ValueError(f"its data is {' or '.join(kind.data.dtypes)}")
    declared = [column.name for column in kind.columns]
    if columns is not None and (type(columns) is not list or any(name not in declared for name in columns)):
        raise ValueError(f"its columns are {', '.join(declared)}")
    if not isinstance(provenance, dict):
        raise ValueError("the provenance is not an object")
    json.dumps(provenance, allow_nan=False, ensure_ascii=False).encode()  # a number or text that cannot be kept
    attributes = content["attributes"]
    names = {attribute.name for attribute in kind.attributes}
    if not isinstance(attributes, dict) or set(attributes) != names:
        raise ValueError(f"its attributes are {', '.join(sorted(names)) or 'none'}")
    instrument = kind.from_parts(arrays, attributes)
    if math.prod(instrument.image.shape) > _MOST_PIXELS:
        raise ValueError(f"an image has at most {_MOST_PIXELS} pixels")
    return Announcement(instrument, dtype, None if columns is None else tuple(columns), provenance)


def _is_exactly(value: Any, expected: int | list[int]) -> bool:
    """Whether JSON has these whole numbers: 1.0 and true equal 1, but are written differently."""
    return json.dumps(value) == json.dumps(expected)
