"""How an instrument sends a scan over ZeroMQ: the messages, written and read.

A message has several parts: a JSON header, then bytes. Messages of a scan are numbered by `sequence`:

    0      begin   receivers (R, 2) float64; then JSON: wavelength, background, grid, far_field, source, provenance
    v + 1  view v  data (R,) complex64; then its source, two float64; then, if `mask` is true, R bytes of 0 and 1
    n + 1  end     nothing more: the scan has n views
    n + 2  bye     nothing more: the sender knows that all is safe, and the receiver need not stay for it

The header has `plugstream` (version of the protocol), `type`, `scan` (an identifier), `token` (a secret of the sender,
by which it is known again), `sequence`, and with bytes `dtype` and `shape` of the first part and `crc32c` of all parts
together. All numbers are little-endian.

The receiver answers with headers alone: `ack` with the last sequence that is safe on its disk, `nak` with the sequence
that it wants next and the reason, `conflict` where it has something else in that place, `refuse` where sending again
would not help. Whoever does not know scan and token is told neither.

Whatever a message claims is bounded before it is used: bytes of the header, depth and digits of its JSON, the length of
its names, bytes and number of its parts, receivers and pixels.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.bounded_json import load_json
from plugstream.errors import InputError
from plugstream.scans.geometry import BornGeometry, Setup
from plugstream.scans.layout import setup_of

__all__ = [
    "MOST_BYTES",
    "STREAMED",
    "Column",
    "Message",
    "Name",
    "RefusedError",
    "begin",
    "bye",
    "checksum_of",
    "end",
    "reply",
    "view",
    "view_columns",
    "zmq_module",
]

MOST_BYTES = 8 << 20
"""Of one part of a message: the positions of half a million receivers."""
STREAMED = ("transmitters", "plane_waves")
"""The sources that a view can be sent with."""
_PROTOCOL = 2
_HEADER_BYTES = 1 << 16
_MOST_REASON = 200
_MOST_PIXELS = 1 << 28  # of an image: nobody has the memory for more
_MOST_SEQUENCE = 1 << 53


class RefusedError(Exception):
    """A message that cannot be used: `kind` is what it is counted as."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(one_line(reason))
        self.kind = kind


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
        """What is kept of it: it recognises the sender, and tells nobody the token."""
        return hashlib.sha256(f"plugstream stream\0{self.scan}\0{self.token}".encode()).hexdigest()


@dataclass(frozen=True)
class Column:
    """One part of a message: an array of this type and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        size = np.dtype(self.dtype).itemsize
        for length in self.shape:
            size *= length
        return size


def view_columns(receivers: int, source: str, *, masked: bool) -> list[Column]:
    """What a view of so many receivers carries."""
    columns = [Column("data", "complex64", (receivers,)), Column(source, "float64", (2,))]
    return [*columns, Column("mask", "bool", (receivers,))] if masked else columns


def checksum_of(columns: Mapping[str, NDArray[Any]]) -> int:
    """The crc32c of a view: of its columns one after another. A mask that leaves nothing out is as good as none."""
    return _crc32c([_bytes(name, values) for name, values in columns.items() if name != "mask" or not values.all()])


def zmq_module() -> Any:
    """pyzmq, or one line that says how to get it."""
    try:
        import zmq
    except ImportError:
        raise InputError("streaming needs pyzmq; install it with: pip install 'plugstream[live]'") from None
    return zmq


def begin(
    name: Name, setup: Setup | BornGeometry, provenance: Mapping[str, Any], source: str | None = None
) -> list[bytes]:
    """The first message of a scan: everything but the views; one that a receiver could not take is refused.

    `source` is what the views will have, transmitters or plane_waves; None leaves that to the first view.
    """
    grid = setup.grid
    content = {
        "wavelength": setup.wavelength,
        "background": setup.background,
        "grid": {"shape": [int(size) for size in grid.shape], "pixel": grid.pixel, "center": list(grid.center)},
        "far_field": setup.far_field,
        "source": source,
        "provenance": dict(provenance),
    }
    try:
        text = json.dumps(content, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the provenance cannot be written as JSON: {error}") from error
    receivers = setup.receivers.astype("<f8")
    for what, size, most in (("receivers", receivers.nbytes, MOST_BYTES), ("provenance", len(text), _HEADER_BYTES)):
        if size > most:
            raise InputError(f"the scan's {what} take {size} bytes, and a message has room for {most}")
    frames = _message("begin", name, 0, {"receivers": receivers}, [text])
    try:
        Message.parse(frames).setup()
    except RefusedError as refused:
        raise InputError(f"no receiver would take this scan: {refused}") from refused
    return frames


def view(name: Name, number: int, columns: Mapping[str, NDArray[Any]]) -> list[bytes]:
    """View `number`: data (receivers,), its transmitters or plane_waves (2,), and perhaps mask (receivers,)."""
    extra = {"view": number, "source": list(columns)[1], "mask": "mask" in columns}
    return _message("view", name, number + 1, columns, [], extra)


def end(name: Name, views: int) -> list[bytes]:
    """The last message: there are this many views."""
    return [_header("end", name, views + 1, {"views": views})]


def bye(name: Name, views: int) -> list[bytes]:
    """What a sender says when the end was acknowledged; it is not answered."""
    return [_header("bye", name, views + 2, {})]


def reply(kind: str, sequence: int, reason: str = "", **more: Any) -> bytes:
    """The receiver's answer: "ack", "nak", "conflict" or "refuse"."""
    extra = {**more, "reason": one_line(reason)} if reason else more
    return json.dumps({"plugstream": _PROTOCOL, "type": kind, "sequence": sequence, **extra}).encode()


@dataclass(frozen=True)
class Message:
    """A message as it came, its header checked as far as it can be without knowing the scan."""

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
        if not isinstance(header, dict) or not _same(header.get("plugstream"), _PROTOCOL):
            raise RefusedError("mistyped", f"the header is not of this protocol, whose version is {_PROTOCOL}")
        message = cls(header, frames[1:])
        for name, kind in (("type", str), ("scan", str), ("token", str), ("sequence", int)):
            message.field(name, kind)
        if not 0 <= message.sequence <= _MOST_SEQUENCE:
            raise RefusedError("mistyped", "sequence in the header must not be negative, nor beyond all reason")
        return message

    @property
    def kind(self) -> str:
        return str(self.header["type"])

    @property
    def sequence(self) -> int:
        return int(self.header["sequence"])

    def name(self) -> Name:
        """Which scan it is of, and the proof."""
        try:
            return Name(self.header["scan"], self.header["token"])
        except InputError as error:
            raise RefusedError("mistyped", str(error)) from None

    def field(self, name: str, kind: type) -> Any:
        """A field of the header; True is no number."""
        value = self.header.get(name)
        if type(value) is not kind:
            raise RefusedError("mistyped", f"{name} in the header must be of type {kind.__name__}")
        return value

    def setup(self) -> tuple[Setup, str | None, dict[str, Any]]:
        """What `begin` says: the setup, the name of the sources if it is told, and where the data comes from."""
        shape = self.header.get("shape")
        count = shape[0] if isinstance(shape, list) and shape else None
        if type(count) is not int or not 1 <= count <= MOST_BYTES // 16:
            raise RefusedError(
                "mistyped", f"begin must carry receivers of shape [count, 2], at most {MOST_BYTES // 16} of them"
            )
        arrays = self._arrays([Column("receivers", "float64", (count, 2))], text=True)
        try:
            values = load_json(self.parts[1], most_bytes=_HEADER_BYTES)
            source, provenance = values["source"], values["provenance"]
            if source is not None and source not in STREAMED:
                raise ValueError(f"no source {source}")
            if not isinstance(provenance, dict) or not _shallow(provenance):
                raise ValueError("the provenance is not an object, or too deep")
            json.dumps(provenance, allow_nan=False, ensure_ascii=False).encode()  # a number or text that cannot be kept
            told = {name: values[name] for name in ("wavelength", "grid", "far_field")}
            setup = setup_of({**told, "background_permittivity": values["background"]}, arrays["receivers"])
            if setup.grid.shape[0] * setup.grid.shape[1] > _MOST_PIXELS:
                raise ValueError(f"an image has at most {_MOST_PIXELS} pixels")
            return setup, source, provenance
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            what = str(error) if isinstance(error, InputError) else repr(error)
            raise RefusedError("mistyped", f"begin does not describe a scan: {what}") from error

    def view(self, receivers: int) -> dict[str, NDArray[Any]]:
        """What a view carries, by name: data (receivers,), source (2,), and mask (receivers,) if there is one."""
        if self.field("view", int) != self.sequence - 1:
            raise RefusedError("mistyped", "view and sequence do not agree: sequence is view + 1")
        source, masked = self.field("source", str), self.field("mask", bool)
        if source not in STREAMED:
            raise RefusedError("mistyped", f"a view has one of {', '.join(STREAMED)}, not {source[:20]!r}")
        return self._arrays(view_columns(receivers, source, masked=masked))

    def _arrays(self, columns: Sequence[Column], *, text: bool = False) -> dict[str, NDArray[Any]]:
        """The parts as arrays; refused where they are not what they must be, or not what the header says.

        `text` says that after the arrays there is a part of JSON.
        """
        first = columns[0]
        if self.header.get("dtype") != first.dtype or not _same(self.header.get("shape"), list(first.shape)):
            claim = f"{self.header.get('dtype')} of {self.header.get('shape')}"[:80]
            raise RefusedError("mistyped", f"{self.kind} must carry {first.dtype} of {list(first.shape)}, not {claim}")
        sizes = [len(part) for part in self.parts]
        most = [column.nbytes for column in columns] + [_HEADER_BYTES] * text
        least = [column.nbytes for column in columns] + [0] * text
        if len(sizes) > len(most) or any(size > limit for size, limit in zip(sizes, most, strict=False)):
            raise RefusedError("oversized", f"{self.kind} has parts of {sizes[:4]} bytes instead of {most}")
        if len(sizes) < len(least) or any(size < limit for size, limit in zip(sizes, least, strict=True)):
            raise RefusedError("truncated", f"{self.kind} has parts of {sizes} bytes instead of {most}")
        if self.field("crc32c", int) != _crc32c(self.parts):
            raise RefusedError("damaged", f"{self.kind} fails its checksum")
        arrays = {}
        for column, part in zip(columns, self.parts, strict=False):
            if column.dtype == "bool" and np.frombuffer(part, np.uint8).max(initial=0) > 1:
                raise RefusedError("mistyped", "a mask is made of bytes of 0 and 1")
            arrays[column.name] = np.frombuffer(part, _little(column.dtype)).reshape(column.shape)
        return arrays


def one_line(text: str) -> str:
    """A text that others wrote, fit to be shown: one line, not long, without control characters."""
    return "".join(c if c.isprintable() else " " for c in text[:_MOST_REASON])


def _message(
    kind: str,
    name: Name,
    sequence: int,
    columns: Mapping[str, NDArray[Any]],
    more: Sequence[bytes],
    extra: Mapping[str, Any] | None = None,
) -> list[bytes]:
    parts = [*(_bytes(column, values) for column, values in columns.items()), *more]
    first = next(iter(columns.values()))
    claims = {"dtype": first.dtype.name, "shape": list(first.shape), "crc32c": _crc32c(parts)}
    return [_header(kind, name, sequence, {**claims, **(extra or {})}), *parts]


def _header(kind: str, name: Name, sequence: int, extra: Mapping[str, Any]) -> bytes:
    known = {"plugstream": _PROTOCOL, "type": kind, "scan": name.scan, "token": name.token, "sequence": sequence}
    return json.dumps({**known, **extra}).encode()


def _bytes(name: str, values: NDArray[Any]) -> bytes:
    dtype = {"data": "complex64", "mask": "bool"}.get(name, "float64")
    return values.astype(_little(dtype), copy=False).tobytes()


def _little(dtype: str) -> np.dtype[Any]:
    return np.dtype(dtype).newbyteorder("<")


def _crc32c(parts: Sequence[bytes]) -> int:
    import google_crc32c

    total = 0
    for part in parts:
        total = google_crc32c.extend(total, part)
    return total


def _same(found: Any, wanted: int | list[int]) -> bool:
    """Whether JSON has these whole numbers: 1.0 and true are equal to 1, and are not it."""
    if isinstance(wanted, list):
        return type(found) is list and len(found) == len(wanted) and all(map(_same, found, wanted))
    return type(found) is int and found == wanted


def _shallow(value: Any, depth: int = 8) -> bool:
    """Whether JSON is no deeper than this, so that it can be written again wherever it goes."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth > 0 and all(_shallow(item, depth - 1) for item in inside)
