"""The event log of a run: one event a line with a checksum, from which everything shown of the run is made.

The first line says what the file is, and of which version; every other is an event: its kind, `at`, seconds since the
epoch, and what belongs to its kind, as the classes of `plugstream.runs.events` declare.

    {"format": "plugstream-events", "version": 1, "check": "..."}
    {"event": "views", "at": 1763.2, "step": 120, "views": 37, "damaged": [], "lipschitz": 3.9e-05, "ended": false, ...}

`plugstream.runs.replay` makes the history of a run from it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from plugstream.base.checked_jsonl import LineTail, LineWriter, read_lines
from plugstream.base.errors import DamagedError, InputError, StorageError
from plugstream.runs.events import Event, parse_event

__all__ = [
    "VERSION",
    "EventLog",
    "EventTail",
    "Listener",
    "SilentLog",
    "checked_events",
    "read_events",
]

VERSION = 1
_FORMAT = "plugstream-events"
_WHAT = "the event log"

Listener = Callable[[Event], None]


class EventLog:
    """Appends events to a file, each in it when `add` returns, and passes them on to listeners."""

    def __init__(self, path: Path, listeners: tuple[Listener, ...] = ()) -> None:
        self._lines = LineWriter(path, _WHAT)
        self.path = path
        self._listeners = listeners
        if not self.check:
            self._write({"format": _FORMAT, "version": VERSION})

    @property
    def check(self) -> str:
        """What tells the log as it is now from every other."""
        return self._lines.check

    def add(self, event: Event) -> None:
        """Write an event, with the time that it is now."""
        event = replace(event, at=round(time.time(), 3))
        self._write(event.content())
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

    def _write(self, content: Mapping[str, Any]) -> None:
        try:
            if not self._lines.in_place:
                raise StorageError(
                    f"the event log {self.path} was removed or replaced while the run went on, which has no other "
                    "record; bring it back, and 'plugstream resume' goes on from the last checkpoint, or start again"
                )
            self._lines.add(content)
        except OSError as error:
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> StorageError:
        return StorageError(
            f"cannot write the event log {self.path}: {error.strerror}; fix that and go on with 'plugstream resume'"
        )


class SilentLog(EventLog):
    """A log that nothing is written to: that of a process which helps the one that writes."""

    check = ""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, event: Event) -> None:
        return

    def sync(self) -> None:
        return

    def close(self) -> None:
        return


def read_events(path: Path) -> Iterator[Event]:
    """The events of a log; a last line that was cut short by a crash is left out, and any other damage refused."""
    for event, _ in checked_events(path):
        yield event


def checked_events(path: Path) -> Iterator[tuple[Event, str]]:
    """The events of a log, and what `EventLog.check` was after each."""
    return _events(read_lines(path, _WHAT), path)


class EventTail:
    """The events of a log that a run may still write to: each call of `read` gives those that are new.

    Arguments: path of the log, which need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = LineTail(path, _WHAT)

    @property
    def files(self) -> int:
        """How many logs were read from their first line: more than one where another has taken its place."""
        return self._lines.files

    def read(self) -> list[Event]:
        """What was added since the last call; a line that is only half there waits for the next, damage is refused."""
        return [event for event, _ in _events(self._lines.read(), self.path)]


def _events(lines: Iterable[tuple[int, dict[str, Any], str]], path: Path) -> Iterator[tuple[Event, str]]:
    for number, content, check in lines:
        if number == 1:
            _check_header(content, path)
            continue
        event = parse_event(content)
        if event is None:  # a checksum can be right and the event not
            raise DamagedError(
                f"line {number} of {_WHAT} {path} cannot be read: it is no event of version {VERSION}; bring the file "
                "back from a copy, or start anew"
            )
        yield event, check


def _check_header(content: Mapping[str, Any], path: Path) -> None:
    if content == {"format": _FORMAT, "version": VERSION}:
        return
    version = content.get("version") if content.get("format") == _FORMAT else None
    what = "tells no version" if version is None else f"is of version {version}"
    raise InputError(
        f"line 1 of {_WHAT} {path} {what}, and this plugstream reads version {VERSION}; use the one that wrote it, or "
        "start anew"
    )
