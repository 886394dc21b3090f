"""The event log of a run: one event a line with a checksum, from which everything shown of the run is made.

The first line names the format and its version; every other is an event: its kind, `at`, seconds since the epoch, and
the fields that its class in `plugstream.runs.events` declares.

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

VERSION = 1
_FORMAT = "plugstream-events"
_NAME = "the event log"

Listener = Callable[[Event], None]


class EventLog:
    """Appends events to a file, each in it when `add` returns, and passes them on to listeners."""

    def __init__(self, path: Path, listeners: tuple[Listener, ...] = ()) -> None:
        self._lines = LineWriter(path, _NAME)
        self.path = path
        self._listeners = listeners
        if not self.check:
            self._write({"format": _FORMAT, "version": VERSION})

    @property
    def check(self) -> str:
        """A checksum of the log as it is now."""
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
        with contextlib.suppress(OSError):  # which was an error when the event was added
            self._lines.close()

    def _write(self, content: Mapping[str, Any]) -> None:
        try:
            if not self._lines.in_place:
                raise StorageError(
                    f"the event log {self.path} was removed or replaced while the run went on, which has no other "
                    "record; restore it, and 'plugstream resume' goes on from the last checkpoint, or start again"
                )
            self._lines.add(content)
        except OSError as error:
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> StorageError:
        return StorageError(
            f"cannot write the event log {self.path}: {error.strerror}; fix that and go on with 'plugstream resume'"
        )


class SilentLog(EventLog):
    """A log that nothing is written to, for a process that helps the one that writes, or only looks at a run."""

    check = ""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, event: Event) -> None:
        """Write nothing."""

    def sync(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def read_events(path: Path) -> Iterator[Event]:
    """The events of a log without a last line that a crash cut short; any other damage is refused."""
    return (event for event, _ in checked_events(path))


def checked_events(path: Path) -> Iterator[tuple[Event, str]]:
    """The events of a log, and what `EventLog.check` was after each."""
    return _events(read_lines(path, _NAME), path)


class EventTail:
    """The new events of a log that a run may still write to, or that is not there yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = LineTail(path, _NAME)

    @property
    def files(self) -> int:
        """How many logs were read from their first line: more than one where the file was replaced."""
        return self._lines.files

    def read(self) -> list[Event]:
        """The events added since the last call, without a line that is only half written; damage is refused."""
        return [event for event, _ in _events(self._lines.read(), self.path)]


def _events(lines: Iterable[tuple[int, dict[str, Any], str]], path: Path) -> Iterator[tuple[Event, str]]:
    for number, content, check in lines:
        if number == 1:
            _check_header(content, path)
            continue
        event = parse_event(content)
        if event is None:  # a checksum can be right and the event not
            raise DamagedError(
                f"line {number} of {_NAME} {path} cannot be read: it is not an event of version {VERSION}; restore the "
                "file from a copy, or start again"
            )
        yield event, check


def _check_header(content: Mapping[str, Any], path: Path) -> None:
    if content == {"format": _FORMAT, "version": VERSION}:
        return
    version = content.get("version") if content.get("format") == _FORMAT else None
    said = "tells no version" if version is None else f"is of version {version}"
    raise InputError(
        f"line 1 of {_NAME} {path} {said}, and this plugstream reads version {VERSION}; use the one that wrote it, or "
        "start again"
    )
