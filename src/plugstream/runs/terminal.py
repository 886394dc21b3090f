"""Progress for a person at a terminal, made from the event log: one line rewritten, or plain lines in a file."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TextIO

from plugstream.runs.events import Event

__all__ = ["Terminal"]


class Terminal:
    """Shows events as they come. On a terminal steps rewrite one line; elsewhere every measurement is a line."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._follow = False
        self._total = 0  # not known while a scan is followed
        self._after = 0
        self._counted = 0.0
        self._shown = 0.0
        self._last: dict[str, float | None] = {}
        self._open = False

    def __call__(self, event: Event) -> None:
        kind = event["event"]
        if kind == "note":
            self._line(event["text"])
        elif kind == "start":
            self._follow = event["settings"]["scan"]["follow"]
            self._total = 0 if self._follow else event["iterations"]
            self._after = event["iterations"]
        elif kind == "views" and self._follow:
            now = time.monotonic()
            if event["ended"] or now - self._counted > 1:
                self._counted = now
                more = ", and no more to come" if event["ended"] else ""
                self._line(f"step {event['step']}: {event['views']} views{more}")
            self._total = event["step"] + self._after if event["ended"] else 0
        elif kind == "measured":
            self._last = event["values"]
            if not self._live:
                self._line(self._describe(event["step"], event["time"]))
        elif kind == "stop":
            self._line(
                f"stopped after {event['step']} steps and {event['time']:.1f} s "
                f"({event['wall']:.1f} s with measuring): {event['reason']}"
            )

    def tick(self, step: int, seconds: float) -> None:
        """Called at every step; on a terminal it redraws the line at most ten times a second."""
        if self._live and time.monotonic() - self._shown > 0.1:
            self._shown = time.monotonic()
            done = int(24 * step / max(1, self._total)) if self._total else 0
            bar = "█" * done + "░" * (24 - done)
            self._write(f"\r\x1b[2K{bar} {self._describe(step, seconds)}")
            self._open = True

    def _describe(self, step: int, seconds: float) -> str:
        total = f"/{self._total}" if self._total else ""
        parts = [f"step {step:>{len(str(self._total))}}{total}", f"{seconds:6.1f} s"]
        if (snr := self._last.get("snr")) is not None:
            parts.append(f"SNR {snr:6.2f} dB")
        if (distance := self._last.get("relative_distance")) is not None:
            parts.append(f"distance to a fixed point {distance:.2e} of its start")
        if (cost := self._last.get("cost", self._last.get("fidelity"))) is not None:
            parts.append(f"cost {cost:.4e}")
        return "   ".join(parts)

    def _line(self, text: str) -> None:
        self._write(f"\r\x1b[2K{text}\n" if self._open else f"{text}\n")
        self._open = False

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # whoever read it went away; that is no reason to end the run
            self._stream.write(text)
            self._stream.flush()
