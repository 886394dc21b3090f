"""Progress for a person at a terminal, made from the event log: one line rewritten, or plain lines in a file."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from typing import TextIO

from plugstream.algorithms import State
from plugstream.quantities import Quantity, read_quantity, sort_quantities
from plugstream.result import Progress
from plugstream.runs.callbacks import Callback
from plugstream.runs.events import Event, Measurement, Note, Quantities, Start, Stop, Views

__all__ = ["Terminal"]

_BAR = 24  # the bar's most characters
_LEAST_BAR = 6
_RECENT = 20.0  # seconds of steps that the time left is estimated from


class Terminal(Callback):
    """Shows events as they come. On a terminal steps rewrite one line; elsewhere every measurement is a line.

    The line fits the terminal, however narrow, and says how long the run will still take. Where the terminal cannot
    show blocks the bar is of # and -, and a terminal that cannot rewrite a line (TERM=dumb) gets plain lines.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._full, self._empty = _blocks(self._stream)
        self._follow = False
        self._total = 0  # not known while a scan is followed
        self._after = 0
        self._views = 0
        self._clock = _Clock()
        self._counted = 0.0
        self._shown = 0.0
        self._last: dict[str, float | None] = {}
        self._quantities: list[Quantity] = []
        self._open = False

    def __call__(self, event: Event) -> None:
        match event:
            case Note():
                self._line(event.text)
            case Start():
                self._follow = event.settings["scan"]["follow"]
                self._total = 0 if self._follow else event.iterations
                self._after = event.iterations
                self._clock = _Clock(event.settings["algorithm"]["time_limit"])
            case Views() if self._follow:
                now = time.monotonic()
                self._views = event.views
                if event.ended or now - self._counted > 1:
                    self._counted = now
                    more = ", and no more to come" if event.ended else ""
                    self._line(f"step {event.step}: {event.views} views{more}")
                self._total = event.step + self._after if event.ended else 0
            case Quantities():
                self._quantities = [read_quantity(content) for content in event.quantities]
            case Measurement():
                self._last = event.values
                if not self._live:
                    self._line("   ".join(long for long, _ in self._parts(event.step, event.time)))
            case Stop():
                self._line(
                    f"stopped after {event.step} steps and {event.time:.1f} s "
                    f"({event.wall:.1f} s with measuring): {event.reason}"
                )
                if event.verdict is not None:
                    self._line(f"verdict: {event.verdict}: {event.explanation}")

    def after_step(self, progress: Progress[State]) -> None:
        self.tick(progress.state.k, progress.time)

    def tick(self, step: int, seconds: float) -> None:
        """Called at every step; on a terminal it redraws the line at most ten times a second."""
        now = time.monotonic()
        self._clock.tick(step, now)
        if self._live and now - self._shown > 0.1:
            self._shown = now
            self._write(f"\r\x1b[2K{self._fit(step, seconds, self._width() - 1)}")  # the last column would scroll some
            self._open = True

    def _fit(self, step: int, seconds: float, width: int) -> str:
        """The progress in at most `width` characters: with long words, with short ones, or with fewer of them."""
        parts = self._parts(step, seconds)
        least = _LEAST_BAR + 1 if self._total else 0
        text = "   ".join(long for long, _ in parts)
        if len(text) + least > width:
            text = "  ".join(short for _, short in parts)
        # The first say most, and three of them more than a bar.
        while len(parts) > 1 and len(text) + (least if len(parts) > 3 else 0) > width:
            parts.pop()
            text = "  ".join(short for _, short in parts)
        room = min(_BAR, width - len(text) - 1)
        if not self._total or room < _LEAST_BAR:
            return text[:width]
        done = min(room, int(room * step / self._total))
        return f"{self._full * done}{self._empty * (room - done)} {text}"

    def _parts(self, step: int, seconds: float) -> list[tuple[str, str]]:
        """What there is to say, each in a long and a short form, the most important first."""
        total = f"/{self._total}" if self._total else ""
        count = f"{step:>{len(str(self._total))}}{total}"
        parts = [(f"step {count}", f"step {count}" if not self._total else count)]
        if self._follow and not self._total and self._views:
            parts.append((f"{self._views} views",) * 2)
        left = self._clock.left(step, self._total)
        spent = f"{seconds:6.1f} s"
        if left is not None:
            parts.append((f"{spent}, {_duration(left)} left", f"{_duration(left)} left"))
        else:
            parts.append((spent, spent.strip()))
        for quantity in sort_quantities(self._quantities, self._last):
            if (value := self._last[quantity.name]) is not None:
                parts.append((quantity.text(value), quantity.text(value, short=True)))
        return parts

    def _width(self) -> int:
        """Columns of the terminal as it is now; a person may change it while a run goes on."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        return 80

    def _line(self, text: str) -> None:
        self._write(f"\r\x1b[2K{text}\n" if self._open else f"{text}\n")
        self._open = False

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # whoever read it went away; that is no reason to end the run
            self._stream.write(text)
            self._stream.flush()


class _Clock:
    """How long a run will still take, from its steps of the last seconds."""

    def __init__(self, limit: float | None = None) -> None:
        self._limit = limit
        self._begun = time.monotonic()
        self._ticks: deque[tuple[float, int]] = deque()

    def tick(self, step: int, now: float) -> None:
        if self._ticks and now - self._ticks[-1][0] < 0.05:
            return
        self._ticks.append((now, step))
        # Two must stay, however slow the steps are.
        while len(self._ticks) > 2 and now - self._ticks[1][0] > _RECENT:
            self._ticks.popleft()

    def left(self, step: int, total: int) -> float | None:
        """Seconds, None while there is too little to judge by, or no end in sight."""
        if len(self._ticks) < 2 or not step < total:
            return None
        (first, before), (last, after) = self._ticks[0], self._ticks[-1]
        if after <= before or last - first < 0.5:
            return None
        seconds = (last - first) / (after - before) * (total - step)
        return seconds if self._limit is None else max(0.0, min(seconds, self._limit - (last - self._begun)))


def _duration(seconds: float) -> str:
    """Seconds, minutes or hours, as a person would say it."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 99.5 else f"{minutes / 60:.1f} h"


def _blocks(stream: TextIO) -> tuple[str, str]:
    """The characters of the bar, done and to do, that a stream can show.

    In the locale C Python writes UTF-8 all the same (PEP 538 and 540), setting LC_CTYPE to C.UTF-8 if need be, so what
    the terminal takes is known from the locale that a person chose.
    """
    chosen = [os.environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")]
    locale = next((name for name in chosen if name and name != "C.UTF-8"), "")
    try:
        if locale in ("C", "POSIX"):
            return "#", "-"
        "█░".encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "#", "-"
    return "█", "░"
