"""A command that is at work is never silent for long: what it is doing, how far it is, and for how long.

While a command runs a thread looks now and then whether anything was written. After a second without a word a terminal
shows a line, which the next output takes the place of; in a file or pipe it is a line of its own after two seconds, and
ever less often where one thing takes long. What is being done comes from `plugstream.progress.report`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from plugstream.progress import listening

__all__ = ["keep_informed"]

# Seconds of silence, on a terminal and elsewhere; reading the clock ten times as often costs nothing.
_TERMINAL, _PLAIN = 1.0, 1.9
# Lines about one thing in a file or pipe before they become rarer, and the longest time between two.
_LINES, _LONGEST = 15, 60.0


@contextlib.contextmanager
def keep_informed(what: str, *, plain: bool = True, since: float | None = None) -> Iterator[None]:
    """Keep a person informed while this lasts.

    Arguments: what, the work until the first report; plain, False for commands whose output in a file or pipe is to be
    their own alone; since when it has been silent, on the monotonic clock, now if not given.
    """
    stream = sys.stderr
    live = bool(stream.isatty()) and os.environ.get("TERM", "dumb") != "dumb"
    if not (live or plain):
        yield
        return
    before = sys.stdout, sys.stderr
    beat = _Heartbeat(stream, live, what, time.monotonic() if since is None else since)
    sys.stderr = _WatchedStream(stream, beat)
    if live and sys.stdout.isatty():
        sys.stdout = _WatchedStream(sys.stdout, beat)
    thread = threading.Thread(target=beat.run, name="plugstream-heartbeat", daemon=True)
    thread.start()
    try:
        with listening(beat.hear):
            yield
    finally:
        beat.stop.set()
        thread.join(timeout=5)
        beat.clear()
        sys.stdout, sys.stderr = before


class _Heartbeat:
    """What is being done, since when, and when something was last written."""

    def __init__(self, stream: Any, live: bool, what: str, since: float) -> None:
        self.stream, self.live = stream, live
        self.stop = threading.Event()
        self.lock = threading.RLock()
        self.open = False  # whether a line of ours stands on the terminal
        self._shown = self._begun = since
        self._what, self._done, self._total = what, 0, 0
        self._lines = 0

    def hear(self, what: str, done: int, total: int) -> None:
        """A listener of `plugstream.progress`."""
        if what.partition(",")[0] != self._what.partition(",")[0]:
            self._begun, self._lines = time.monotonic(), 0
        self._what, self._done, self._total = what, done, total

    def notice(self) -> None:
        """Something else is about to be written."""
        self.clear()
        self._shown = time.monotonic()

    def clear(self) -> None:
        if self.open:
            self.open = False
            self._write("\r\x1b[2K")

    def run(self) -> None:
        while not self.stop.wait(_TERMINAL / 10):
            now = time.monotonic()
            pause = _TERMINAL if self.live else min(_LONGEST, _PLAIN * 2.0 ** max(0, self._lines - _LINES))
            if now - self._shown >= pause:
                with self.lock:
                    if now - self._shown >= pause and not self.stop.is_set():
                        self._show(now)

    def _show(self, now: float) -> None:
        count = f": {self._done} of {self._total}" if self._total else f": {self._done}" if self._done else ""
        text = f"{self._what}{count}, {now - self._begun:.0f} s"
        if self.live:
            self._write(f"\r\x1b[2K{text[: self._width() - 1]}")
            self.open = True
        else:
            self._write(f"{text}\n")
            self._lines += 1
        self._shown = now

    def _width(self) -> int:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return os.get_terminal_size(self.stream.fileno()).columns or 80
        return 80

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # whoever read it went away; that is no reason to end
            self.stream.write(text)
            self.stream.flush()


class _WatchedStream:
    """A standard stream that tells the heartbeat of what is written to it."""

    def __init__(self, stream: Any, beat: _Heartbeat) -> None:
        self._stream, self._beat = stream, beat

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        # With a limit, since a process that was forked meanwhile has a lock that nobody opens.
        held = self._beat.lock.acquire(timeout=1)
        try:
            self._beat.notice()
            return int(self._stream.write(text))
        finally:
            if held:
                self._beat.lock.release()
