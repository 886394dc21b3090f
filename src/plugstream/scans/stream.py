"""How an instrument sends a scan over ZeroMQ: the messages, written and read.

A message has several parts: a JSON header, then bytes. Messages of a scan are numbered by `sequence`:

    0      begin   receivers (R, 2) float64; then JSON: wavelength, background, grid, far_field, source, provenance
    v + 1  view v  data (R,) complex64; then its source, two float64; then, if `mask` is true, R bytes of 0 and 1
    n + 1  end     nothing more: the scan has n views
    n + 2  bye     nothing more: the sender knows that all is safe, and the receiver need not stay for it

The header has `plugstream` (version of the protocol), `type`, `scan` (an identifier), `sequence`, and with bytes
`dtype` and `shape` of the first part and `crc32c` of all parts together. All numbers are little-endian.

The receiver answers with headers alone: `ack` with the last sequence that is safe on its disk, `nak` with the sequence
that it wants next and the reason, `refuse` where sending again would not help.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.errors import InputError
from plugstream.scans.geometry import BornGeometry, Setup
from plugstream.scans.layout import setup_of

__all__ = ["MOST_BYTES", "Message", "RefusedError", "begin", "bye", "end", "reply", "view", "zmq_module"]

MOST_BYTES = 8 << 20
"""Of one part of a message: the positions of half a million receivers."""
_PROTOCOL = 1
_HEADER_BYTES = 1 << 16
_SIDE = 1 << 16  # pixels of an image: nobody has the memory for more
_SOURCES = ("transmitters", "plane_waves")


class RefusedError(Exception):
    """A message that cannot be used: `kind` is what it is counted as."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def zmq_module() -> Any:
    """pyzmq, or one line that says how to get it."""
    try:
        import zmq
    except ImportError:
        raise InputError("streaming needs pyzmq; install it with: pip install 'plugstream[live]'") from None
    return zmq


def begin(scan: str, geometry: BornGeometry, provenance: Mapping[str, Any]) -> list[bytes]:
    """The first message of a scan: everything but the views; one that a receiver could not take is refused."""
    source = next((name for name in _SOURCES if getattr(geometry, name) is not None), None)
    if source is None:
        raise InputError("only scans with transmitters or plane waves can be streamed, not those with fields")
    grid = geometry.grid
    setup = {
        "wavelength": geometry.wavelength,
        "background": geometry.background,
        "grid": {"shape": list(grid.shape), "pixel": grid.pixel, "center": list(grid.center)},
        "far_field": geometry.far_field,
        "source": source,
        "provenance": dict(provenance),
    }
    try:
        text = json.dumps(setup, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InputError(f"the provenance cannot be written as JSON: {error}") from error
    receivers = geometry.receivers.astype("<f8")
    for what, size, most in (("receivers", receivers.nbytes, MOST_BYTES), ("provenance", len(text), _HEADER_BYTES)):
        if size > most:
            raise InputError(f"the scan's {what} take {size} bytes, and a message has room for {most}")
    return _message("begin", scan, 0, receivers, [text])


def view(
    scan: str, number: int, data: NDArray[Any], source: NDArray[Any], mask: NDArray[np.bool_] | None = None
) -> list[bytes]:
    """View `number`: data (receivers,), its source or plane wave (2,), and which receivers recorded (receivers,)."""
    more = [source.astype("<f8").tobytes()] + ([] if mask is None else [mask.astype(np.uint8).tobytes()])
    extra = {"view": number, "mask": mask is not None}
    return _message("view", scan, number + 1, data.astype("<c8"), more, extra)


def end(scan: str, views: int) -> list[bytes]:
    """The last message: there are this many views."""
    return [_header("end", scan, views + 1, {"views": views})]


def bye(scan: str, views: int) -> list[bytes]:
    """What a sender says when the end was acknowledged; it is not answered."""
    return [_header("bye", scan, views + 2, {})]


def reply(kind: str, scan: str | None, sequence: int, reason: str = "") -> bytes:
    """The receiver's answer: "ack", "nak" or "refuse"."""
    return _header(kind, scan, sequence, {"reason": reason} if reason else {})


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
            header = json.loads(frames[0], parse_constant=_no_constant)
        except (ValueError, RecursionError):
            raise RefusedError("unreadable", "the header is not JSON") from None
        if not isinstance(header, dict) or not _same(header.get("plugstream"), _PROTOCOL):
            raise RefusedError("mistyped", f"the header is not of this protocol, whose version is {_PROTOCOL}")
        message = cls(header, frames[1:])
        for name, kind in (("type", str), ("scan", str), ("sequence", int)):
            message.field(name, kind)
        if message.sequence < 0:
            raise RefusedError("mistyped", "sequence in the header must not be negative")
        return message

    @property
    def kind(self) -> str:
        return str(self.header["type"])

    @property
    def scan(self) -> str:
        return str(self.header["scan"])

    @property
    def sequence(self) -> int:
        return int(self.header["sequence"])

    def field(self, name: str, kind: type) -> Any:
        """A field of the header; True is no number."""
        value = self.header.get(name)
        if type(value) is not kind:
            raise RefusedError("mistyped", f"{name} in the header must be of type {kind.__name__}")
        return value

    def setup(self) -> tuple[Setup, str, dict[str, Any]]:
        """What `begin` says: the setup, the name of the sources, and where the data comes from."""
        shape = self.header.get("shape")
        count = shape[0] if isinstance(shape, list) and shape else None
        if type(count) is not int or count < 1:
            raise RefusedError("mistyped", "begin must carry receivers of shape [count, 2]")
        self._check("float64", [count, 2], [16 * count, None])
        try:
            values = json.loads(self.parts[1], parse_constant=_no_constant)
            source, provenance = values["source"], values["provenance"]
            if source not in _SOURCES:
                raise ValueError(f"no source {source}")
            if not isinstance(provenance, dict) or not _shallow(provenance):
                raise ValueError("the provenance is not an object, or too deep")
            json.dumps(provenance, allow_nan=False, ensure_ascii=False).encode()  # a number or text that cannot be kept
            receivers = np.frombuffer(self.parts[0], dtype="<f8").reshape(count, 2)
            told = {name: values[name] for name in ("wavelength", "grid", "far_field")}
            setup = setup_of({**told, "background_permittivity": values["background"]}, receivers)
            if max(setup.grid.shape) > _SIDE:
                raise ValueError(f"an image has at most {_SIDE} pixels a side")
            return setup, source, provenance
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            what = str(error) if isinstance(error, InputError) else repr(error)
            raise RefusedError("mistyped", f"begin does not describe a scan: {what}"[:200]) from error

    def rows(self, receivers: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_] | None]:
        """What a view carries: data (1, receivers), source (1, 2), mask (1, receivers) or None."""
        if self.field("view", int) != self.sequence - 1:
            raise RefusedError("mistyped", "view and sequence do not agree: sequence is view + 1")
        masked = self.field("mask", bool)
        self._check("complex64", [receivers], [8 * receivers, 16] + [receivers] * masked)
        mask = np.frombuffer(self.parts[2], dtype=np.uint8) if masked else None
        if mask is not None and mask.max(initial=0) > 1:
            raise RefusedError("mistyped", "a mask is made of bytes of 0 and 1")
        return (
            np.frombuffer(self.parts[0], dtype="<c8")[None],
            np.frombuffer(self.parts[1], dtype="<f8")[None],
            None if mask is None else mask.astype(bool)[None],
        )

    def _check(self, dtype: str, shape: list[int], lengths: Sequence[int | None]) -> None:
        """Refuse parts that are not what the header says, or that it ought not to say."""
        if self.header.get("dtype") != dtype or not _same(self.header.get("shape"), shape):
            claim = f"{self.header.get('dtype')} of {self.header.get('shape')}"[:80]
            raise RefusedError("mistyped", f"{self.kind} must carry {dtype} of {shape}, not {claim}")
        sizes = [len(part) for part in self.parts]
        limits = [_HEADER_BYTES if length is None else length for length in lengths]
        if len(sizes) > len(limits) or any(size > most for size, most in zip(sizes, limits, strict=False)):
            raise RefusedError("oversized", f"{self.kind} has parts of {sizes[:4]} bytes instead of {limits}")
        least = [0 if length is None else length for length in lengths]
        if len(sizes) < len(least) or any(size < few for size, few in zip(sizes, least, strict=True)):
            raise RefusedError("truncated", f"{self.kind} has parts of {sizes} bytes instead of {limits}")
        if self.field("crc32c", int) != _crc32c(self.parts):
            raise RefusedError("damaged", f"{self.kind} fails its checksum")


def _message(
    kind: str,
    scan: str,
    sequence: int,
    array: NDArray[Any],
    more: Sequence[bytes],
    extra: Mapping[str, Any] | None = None,
) -> list[bytes]:
    parts = [array.tobytes(), *more]
    claims = {"dtype": array.dtype.name, "shape": list(array.shape), "crc32c": _crc32c(parts)}
    return [_header(kind, scan, sequence, {**claims, **(extra or {})}), *parts]


def _header(kind: str, scan: str | None, sequence: int, extra: Mapping[str, Any]) -> bytes:
    return json.dumps({"plugstream": _PROTOCOL, "type": kind, "scan": scan, "sequence": sequence, **extra}).encode()


def _crc32c(parts: Sequence[bytes]) -> int:
    import google_crc32c

    total = 0
    for part in parts:
        total = google_crc32c.extend(total, part)
    return total


def _same(found: Any, wanted: int | list[int]) -> bool:
    """Whether JSON has these whole numbers: 1.0 and true are equal to 1, and are not it."""
    return repr(found) == repr(wanted)


def _shallow(value: Any, depth: int = 8) -> bool:
    """Whether JSON is no deeper than this, so that it can be written again wherever it goes."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth > 0 and all(_shallow(item, depth - 1) for item in inside)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
