"""The event log: one JSON object a line, from which the terminal, the report and later the live page are made."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["Event", "EventLog", "Listener", "read_events"]

Event = dict[str, Any]
Listener = Callable[[Event], None]


class EventLog:
    """Appends events to a file, each flushed as it happens, and passes them on to listeners.

    An event has `event`, its kind, `at`, seconds since the epoch, and what belongs to its kind. Numbers that JSON
    cannot write (NaN, infinity) become null.
    """

    def __init__(self, path: Path, listeners: tuple[Listener, ...] = ()) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._listeners = listeners

    def add(self, kind: str, **content: Any) -> None:
        event = {"event": kind, "at": round(time.time(), 3), **_plain(content)}
        self._file.write(json.dumps(event) + "\n")
        self._file.flush()
        for listener in self._listeners:
            listener(event)

    def close(self) -> None:
        self._file.close()


def read_events(path: Path) -> Iterator[Event]:
    """The events of a log; a last line that was cut short by a crash is left out."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


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
