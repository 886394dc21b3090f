"""The event log: one JSON object a line, with a checksum, from which the terminal and the report are made."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from plugstream.errors import DamagedError, StorageError
from plugstream.lines import LineWriter, read_lines

__all__ = ["Event", "EventLog", "Listener", "checked_events", "measurements", "read_events"]

_WHAT = "the event log"

Event = dict[str, Any]
Listener = Callable[[Event], None]


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**62


def _wholes(value: Any) -> bool:
    return isinstance(value, list) and all(map(_whole, value))


def _number(value: Any) -> bool:
    return value is None or type(value) in (int, float)


def _numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_number, value.values()))


def _flag(value: Any) -> bool:
    return type(value) is bool


def _text(value: Any) -> bool:
    return isinstance(value, str)


# What events that are read back must tell, and of which kind it must be; a checksum can be right and the event not.
_NEEDED: dict[str, dict[str, Callable[[Any], bool]]] = {
    "views": {"step": _whole, "views": _whole, "damaged": _wholes, "lipschitz": _number, "ended": _flag},
    "measured": {"step": _whole, "values": _numbers},
    "resume": {"step": _whole},
    "stop": {"step": _whole, "time": _number, "wall": _number, "reason": _text, "failed": _flag},
    "contradiction": {
        "step": _whole,
        "views": lambda value: value is None or _wholes(value),
        "part": _text,
        "factor": _number,
        "theta": _number,
    },
    "watched": {"step": _whole, "steps": _whole, "theta": _number},
    "theory": {
        **dict.fromkeys(("theta", "gamma", "nu", "batch", "distance"), _number),
        "unmet": lambda value: isinstance(value, list) and all(map(_text, value)),
    },
}


class EventLog:
    """Appends events to a file, each flushed as it happens, and passes them on to listeners.

    An event has `event`, its kind, `at`, seconds since the epoch, and what belongs to its kind. Numbers that JSON
    cannot write (NaN, infinity) become null.
    """

    def __init__(self, path: Path, listeners: tuple[Listener, ...] = ()) -> None:
        self._lines = LineWriter(path, _WHAT)
        self.path = path
        self._listeners = listeners

    @property
    def check(self) -> str:
        """What tells the log as it is now from every other."""
        return self._lines.check

    def add(self, kind: str, **content: Any) -> None:
        event = {"event": kind, "at": round(time.time(), 3), **_plain(content)}
        try:
            self._lines.add(event)
        except OSError as error:
            raise self._unwritten(error) from error
        for listener in self._listeners:
            listener(event)

    def sync(self) -> None:
        """Make what was added outlast a power cut."""
        try:
            self._lines.sync()
        except OSError as error:
            raise self._unwritten(error) from error

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what could not be written was told when it was added
            self._lines.close()

    def _unwritten(self, error: OSError) -> StorageError:
        return StorageError(
            f"cannot write the event log {self.path}: {error.strerror}; fix that and go on with 'plugstream resume'"
        )


def read_events(path: Path) -> Iterator[Event]:
    """The events of a log; a last line that was cut short by a crash is left out, and any other damage refused."""
    for event, _ in checked_events(path):
        yield event


def checked_events(path: Path) -> Iterator[tuple[Event, str]]:
    """The events of a log, and what `EventLog.check` was after each."""
    for number, event, check in read_lines(path, _WHAT):
        kind = event.get("event")
        needed = {"event": _text, **(_NEEDED.get(kind, {}) if isinstance(kind, str) else {})}
        told = all(name in event and right(event[name]) for name, right in needed.items())
        if not (told and _whole(event.get("step", 0))):
            raise DamagedError(
                f"line {number} of {_WHAT} {path} cannot be read: it is no event; bring the file back from a copy, or "
                "start anew"
            )
        yield event, check


def measurements(path: Path) -> list[Event]:
    """The events of kind "measured" that count: where a run was resumed, what came after its checkpoint is repeated."""
    out: list[Event] = []
    for event in read_events(path):
        if event["event"] == "resume":
            out = [earlier for earlier in out if earlier["step"] <= event["step"]]
        elif event["event"] == "measured":
            out.append(event)
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
