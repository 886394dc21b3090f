"""The event log: one JSON object a line, from which the terminal and the report are made."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from plugstream.errors import InputError

__all__ = ["Event", "EventLog", "Listener", "measurements", "read_events"]

Event = dict[str, Any]
Listener = Callable[[Event], None]

# What events that are read back must tell.
_NEEDED: dict[str, set[str]] = {
    "views": {"step", "views", "damaged", "lipschitz", "ended"},
    "measured": {"step", "values"},
    "resume": {"step"},
    "contradiction": {"step", "views", "part", "factor", "theta"},
    "watched": {"step", "steps", "theta"},
    "theory": {"theta", "gamma", "nu", "batch", "distance", "unmet"},
}


class EventLog:
    """Appends events to a file, each flushed as it happens, and passes them on to listeners.

    An event has `event`, its kind, `at`, seconds since the epoch, and what belongs to its kind. Numbers that JSON
    cannot write (NaN, infinity) become null.
    """

    def __init__(self, path: Path, listeners: tuple[Listener, ...] = ()) -> None:
        try:
            _drop_cut_line(path)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write the event log {path}: {error.strerror}") from error
        self.path = path
        self._listeners = listeners

    def add(self, kind: str, **content: Any) -> None:
        event = {"event": kind, "at": round(time.time(), 3), **_plain(content)}
        try:
            self._file.write(json.dumps(event) + "\n")
            self._file.flush()
        except OSError as error:
            raise self._unwritten(error) from error
        for listener in self._listeners:
            listener(event)

    def sync(self) -> None:
        """Make what was added outlast a power cut."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._unwritten(error) from error

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what could not be written was told when it was added
            self._file.close()

    def _unwritten(self, error: OSError) -> InputError:
        return InputError(
            f"cannot write the event log {self.path}: {error.strerror}; mend that and go on with 'plugstream resume'"
        )


def read_events(path: Path) -> Iterator[Event]:
    """The events of a log; a last line that was cut short by a crash is left out, and any other damage refused."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputError(f"cannot read the event log {path}: {error.strerror}") from error
    with file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                event = json.loads(line)
                if not _NEEDED.get(event["event"], set()) <= event.keys():
                    raise KeyError
            except (ValueError, KeyError, TypeError, AttributeError):
                raise InputError(
                    f"line {number} of the event log {path} cannot be read; bring back what it was, or take it out if "
                    "it told of nothing but measurements"
                ) from None
            yield event


def measurements(path: Path) -> list[Event]:
    """The events of kind "measured" that count: where a run was resumed, what came after its checkpoint is repeated."""
    out: list[Event] = []
    for event in read_events(path):
        if event["event"] == "resume":
            out = [earlier for earlier in out if earlier["step"] <= event["step"]]
        elif event["event"] == "measured":
            out.append(event)
    return out


def _drop_cut_line(path: Path) -> None:
    """Take off a last line that a crash cut short, so that the next event is a line of its own."""
    if path.exists():
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(path, whole)


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
