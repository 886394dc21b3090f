"""One display for all that takes long: it is never silent for long, and what else is written does not break it.

A thread looks ten times a second whether there is something new to show. On a terminal that is a few lines which the
next output takes the place of (`plugstream.base.display.region`); in a file or pipe a line after two seconds without a
word, and ever less often where one thing takes long. What is being done comes from `plugstream.base.progress.report`,
or, while a reconstruction takes its steps, from whoever shows those (`Display.show`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Protocol

from plugstream.base.display.frame import Clock, Frame, Line, Part, duration, frame_text
from plugstream.base.display.notebook import NotebookRegion, in_notebook
from plugstream.base.display.region import TerminalRegion
from plugstream.base.errors import InputError
from plugstream.base.progress import Work, enclosing_work, listening
from plugstream.base.text import printable

__all__ = ["MODES", "Display", "View", "active_display"]

MODES = ("auto", "rich", "plain", "json", "none")

# Seconds of silence, on a terminal, elsewhere, and between two lines of JSON about one thing.
_TERMINAL, _PLAIN, _JSON = 1.0, 1.9, 1.0
# Seconds between two frames, and of work for every second that drawing takes, so that it is at most 1 % of it; however
# slow that is, the next frame comes after half a second.
_FRAME, _SHARE, _LATEST = 0.1, 100.0, 0.5
# Lines about one thing in a file or pipe before they become rarer, and the longest time between two.
_LINES, _LONGEST = 15, 60.0

_active: ContextVar[Display | None] = ContextVar("display", default=None)


def active_display() -> Display | None:
    """The display that is on, if there is one."""
    return _active.get()


class View(Protocol):
    """Something that is shown for as long as it lasts: the steps of a run."""

    def frame(self) -> Frame: ...


class Display:
    """Shows what is being done, from when it is entered until it is left.

    Arguments:
        mode: "rich", lines that are redrawn; "plain", lines that stay; "json", an object a line on standard output, the
            events of a run and what is said; "none", nothing but warnings. "auto" is rich on a terminal that can
            redraw, an element of its own in a notebook, and else plain.
        what: the work until the first report.
        beats: False for work whose output in a file or pipe is to be its own alone, however long it takes.
        since: when it has been silent, on the monotonic clock, now if not given.
    """

    def __init__(self, mode: str = "auto", what: str = "", *, beats: bool = True, since: float | None = None) -> None:
        if mode not in MODES:
            raise InputError(f"progress is shown as one of {', '.join(MODES)}, not as {mode!r}")
        self.mode, self._beats = mode, beats
        self.lock, self._process = threading.RLock(), os.getpid()
        self._stop = threading.Event()
        self._view: View | None = None
        self._shown = self._begun = time.monotonic() if since is None else since
        self._work: Work = (what, 0, 0)
        self._around: tuple[Work, ...] = ()
        self._clock = Clock()
        self._clocks: dict[str, Clock] = {}  # of what is around it
        self._lines, self._due, self._patience = 0, 0.0, _TERMINAL
        self._told: Any = None
        self._region: TerminalRegion | NotebookRegion | None = None
        self._midway = False  # whether a line of somebody else's has no end yet

    def __enter__(self) -> Display:
        self._before = sys.stdout, sys.stderr
        self._stream, self._out = sys.stderr, sys.stdout
        if self.mode == "auto":
            live = bool(self._stream.isatty()) and os.environ.get("TERM", "dumb") != "dumb" and _has_rich()
            self.mode = "rich" if live or in_notebook() else "plain"
        elif self.mode == "rich" and not _has_rich() and not in_notebook():
            raise InputError("rich is not installed; install it, or use --progress plain")
        if self.mode == "rich":
            self._region = NotebookRegion() if in_notebook() else TerminalRegion(self._stream)
        self._watch_streams()
        self._token: Token[Display | None] = _active.set(self)
        self._listening = listening(self.hear)
        self._listening.__enter__()
        self._thread: threading.Thread | None = None
        if self.mode in ("rich", "json") or (self.mode == "plain" and self._beats):
            self._thread = threading.Thread(target=self._run, name="plugstream-display", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
        if self._region is not None:
            self._region.close()
        self._listening.__exit__(kind, error, trace)
        _active.reset(self._token)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, _JsonStream):
                stream.finish()
        sys.stdout, sys.stderr = self._before

    def hear(self, what: str, done: int, total: int) -> None:
        """A listener of `plugstream.base.progress`."""
        around = enclosing_work()
        now = time.monotonic()
        if _title(what) != _title(self._work[0]):
            self._begun, self._lines, self._clock = now, 0, Clock()
        elif done < self._work[1] or [words[0] for words in around] != [words[0] for words in self._around]:
            self._begun, self._clock = now, Clock()
        self._work, self._around = (what, done, total), around
        self._clock.tick(done, now)
        self._clocks = {work[0]: self._clocks.get(work[0], Clock()) for work in around}
        for title, count, _ in around:
            self._clocks[title].tick(count, now)

    def show(self, view: View | None) -> None:
        """From now on show this while steps are taken; None for nothing."""
        if view is not None and self._view is None:
            self.hear("steps", 0, 0)
        self._view = view
        if view is not None and isinstance(self._region, NotebookRegion):
            with self._held():
                self._region.kept = False
                self._region.draw(view.frame())  # a notebook puts an element where the thread is that makes it
        if view is None and self._region is not None:
            with self._held():
                self._region.erase()

    def finish(self, view: View, text: str) -> None:
        """Say how what was shown came to its end: on a notebook's element, or in lines that stay."""
        if isinstance(self._region, NotebookRegion):
            with self._held():  # after what is being drawn, and nothing is drawn over it
                self._region.draw((*view.frame(), Line((Part(text),))))
                self._view, self._region.kept = None, True
            return
        self.show(None)
        if measured := frame_text(view.frame()[1:]):
            self.line(measured)
        self.line(text)

    def line(self, text: str, head: str = "", style: str = "") -> None:
        """A line that stays, in one piece whatever names it holds; on a terminal its `head` has a style of rich."""
        text = printable(text)
        if text.startswith("warning: "):
            head, style = "warning:", "warning"
        elif self.mode == "none":
            return
        if self.mode == "json":
            self.event({"event": "note", "at": round(time.time(), 3), "text": text})
            return
        if isinstance(self._region, TerminalRegion) and head and text.startswith(head):
            text = self._region.styled(head, style) + text[len(head) :]
        with contextlib.suppress(OSError, ValueError):  # whoever read it went away; that is no reason to end
            self.write(self._stream, f"{text}\n")
            self._stream.flush()

    def event(self, content: Mapping[str, Any]) -> None:
        """An object for whoever reads JSON lines."""
        if self.mode == "json":
            with self._held(), contextlib.suppress(OSError, ValueError):
                self._shown = time.monotonic()
                self._out.write(json.dumps(content) + "\n")
                self._out.flush()

    def write(self, stream: Any, text: str) -> int:
        """Write what is not ours to a stream, in place of what we show."""
        with self._held():
            if self._region is not None:
                self._region.erase()
            self._shown = time.monotonic()
            self._midway = bool(text) and not text.endswith("\n")
            return int(stream.write(text) or 0)

    @contextlib.contextmanager
    def _held(self) -> Any:
        if os.getpid() != self._process:  # one that was forked meanwhile, whose lock may be one that nobody opens
            yield
            return
        with self.lock:
            yield

    def _watch_streams(self) -> None:
        """Be told of all that is written."""
        if self.mode == "json":
            sys.stdout = _JsonStream(self._out, self, "output")
            sys.stderr = _JsonStream(self._stream, self, "note")
        elif isinstance(self._region, TerminalRegion) or (self.mode == "plain" and self._beats):
            sys.stderr = _WatchedStream(self._stream, self)
            if self._region is not None and self._out.isatty():
                sys.stdout = _WatchedStream(self._out, self)

    def _run(self) -> None:
        show: Callable[[float], None] = getattr(self, f"_show_{self.mode}")
        try:
            while not self._stop.wait(_FRAME):
                now = time.monotonic()
                if self._is_due(now):
                    with self._held():
                        if self._is_due(now) and not self._stop.is_set():
                            show(now)
        except Exception as error:  # what is measured may be of somebody else's making; the work goes on
            self.line(f"warning: progress is shown no more: {type(error).__name__}: {error}")

    def _is_due(self, now: float) -> bool:
        silent = now - self._shown
        if self.mode == "plain":
            return silent >= min(_LONGEST, _PLAIN * 2.0 ** max(0, self._lines - _LINES))
        if self.mode == "json":
            return silent >= _JSON and self._told != (self._work, self._around)
        if now < self._due or self._midway:
            return False
        return self._takes_steps() or silent >= self._patience or bool(self._region and self._region.is_open)

    def _takes_steps(self) -> bool:
        """Whether a view is what to show: something else that takes no time is no reason to hide it."""
        return self._view is not None and (self._work[0] == "steps" or time.monotonic() - self._begun < _TERMINAL)

    def _show_rich(self, now: float) -> None:
        assert self._region is not None
        if isinstance(self._region, TerminalRegion):
            _ = self._region.console  # not to be counted
        begin = time.thread_time()
        self._region.draw(self._view.frame() if self._view is not None and self._takes_steps() else self._frame(now))
        self._due = now + min(_LATEST, max(_FRAME, _SHARE * (time.thread_time() - begin)))
        self._patience = 0.0  # once there was a reason to show something, it is shown as it goes on

    def _show_plain(self, now: float) -> None:
        around = "".join(f"{_count(work)}, " for work in self._around)
        left = self._clock.left(*self._work[1:])
        more = "" if left is None else f", {duration(left)} left"
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(f"{around}{_count(self._work)}, {now - self._begun:.0f} s{more}\n")
            self._stream.flush()
        self._lines, self._shown = self._lines + 1, now

    def _show_json(self, now: float) -> None:
        self._told = self._work, self._around
        names = ("what", "done", "total")
        content: dict[str, Any] = {"event": "progress", "at": round(time.time(), 3)}
        content |= dict(zip(names, self._work, strict=True)) | {"seconds": round(now - self._begun, 1)}
        rate, left = self._clock.rate, self._clock.left(*self._work[1:])
        content |= {"rate": None if rate is None else round(rate, 4), "left": None if left is None else round(left, 1)}
        self.event({**content, "within": [dict(zip(names, work, strict=True)) for work in self._around]})

    def _frame(self, now: float) -> Frame:
        """What is being done, and below it what that is a part of."""
        what, done, total = self._work
        title, _, detail = what.partition(", ")
        count = f"{done}/{total}" if total else str(done) if done else ""
        rate = self._clock.rate
        parts = [
            Part(title, style="bold"),
            *([Part(count)] if count else []),
            *_left(self._clock, done, total),
            *([Part(detail)] if detail else []),
            *([] if rate is None else [Part(f"{rate:.3g}/s")]),
            Part(duration(now - self._begun), style="dim"),
        ]
        clocks = self._clocks  # perhaps of an instant before or after, since whoever reports does not wait for us
        around = [
            Line((Part(_count(work), style="bold"), *_left(clocks.get(work[0], Clock()), *work[1:])), *work[1:])
            for work in self._around
        ]
        return (*around, Line(tuple(parts), done, total))


def _has_rich() -> bool:
    """Whether it is there, without importing it."""
    return importlib.util.find_spec("rich") is not None


def _left(clock: Clock, done: int, total: int) -> list[Part]:
    left = clock.left(done, total)
    return [] if left is None else [Part(f"{duration(left)} left", style="cyan")]


def _title(what: str) -> str:
    return what.partition(",")[0]


def _count(work: Work) -> str:
    what, done, total = work
    return f"{what}: {done} of {total}" if total else f"{what}: {done}" if done else what


class _WatchedStream:
    """A standard stream that tells the display of what is written to it."""

    def __init__(self, stream: Any, display: Display) -> None:
        self._stream, self._display = stream, display

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self._display.write(self._stream, text)


class _JsonStream:
    """A standard stream whose lines become objects."""

    encoding = "utf-8"

    def __init__(self, stream: Any, display: Display, kind: str) -> None:
        self._stream, self._display, self._kind, self._text = stream, display, kind, ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        *lines, self._text = (self._text + text).split("\n")
        for line in lines:
            self._display.event({"event": self._kind, "at": round(time.time(), 3), "text": line})
        return len(text)

    def finish(self) -> None:
        if self._text:
            self.write("\n")

    def flush(self) -> None:
        return

    def isatty(self) -> bool:
        return False
