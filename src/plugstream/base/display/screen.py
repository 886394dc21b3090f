"""One display for all long work, which is never silent for long and which other output does not break.

A thread looks ten times a second for something new. On a terminal it redraws a few lines, which the next output
replaces (`plugstream.base.display.region`); in a file or pipe it writes a line after two silent seconds, and less often
if one thing takes long or does not move. The work comes from `plugstream.base.progress.report` or, during the steps of
a reconstruction, from a `View` (`Display.show`).
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
from typing import Any, Protocol

from plugstream.base.display.frame import Clock, Frame, Line, Part, duration, frame_text, left_text
from plugstream.base.display.notebook import NotebookRegion, in_notebook
from plugstream.base.display.region import TerminalRegion, wrap_for
from plugstream.base.display.steps import Steps
from plugstream.base.errors import InputError
from plugstream.base.progress import Work, enclosing_work, listening
from plugstream.base.text import printable

MODES = ("auto", "rich", "plain", "json", "none")

# Seconds of silence on a terminal, elsewhere, and between two lines of JSON about one thing.
_TERMINAL, _PLAIN, _JSON = 1.0, 1.9, 1.0
# Seconds between two frames; seconds of work for each second of drawing, so that it takes at most 1 %; and the longest
# time between two frames.
_FRAME, _SHARE, _LATEST = 0.1, 100.0, 0.5
# Lines about one thing in a file or pipe before they become rarer, and the longest time between two.
_LINES, _LONGEST = 15, 60.0

_active: ContextVar[Display | None] = ContextVar("display", default=None)


def active_display() -> Display | None:
    """The active display, if there is one."""
    return _active.get()


class View(Protocol):
    """Something to show for as long as it lasts: the steps of a run."""

    def frame(self) -> Frame: ...


class Display:
    """A context manager that shows the work within its block.

    Arguments:
        mode: "rich", redrawn lines; "plain", lines that stay; "json", JSON lines on standard output for the events and
            messages of a run; "none", only warnings. "auto" is rich on a terminal that can redraw and in a notebook,
            and otherwise plain.
        what: the work until the first report.
        beats: False for work that writes nothing but its own output to a file or pipe, however long it takes.
        since: the beginning of the silence, on the monotonic clock; now if not given.
    """

    def __init__(self, mode: str = "auto", what: str = "", *, beats: bool = True, since: float | None = None) -> None:
        if mode not in MODES:
            raise InputError(f"progress is shown as one of {', '.join(MODES)}, not as {mode!r}")
        self.mode, self._beats = mode, beats
        self.lock, self._process = threading.RLock(), os.getpid()
        self._stop = threading.Event()
        self._view: View | None = None
        self._last_output = self._begun = time.monotonic() if since is None else since
        self._work: Work = (what, 0, 0)
        self._around: tuple[Work, ...] = ()
        self._clock = Clock()
        self._clocks: dict[str, Clock] = {}  # of the work around it
        self._lines, self._due, self._patience = 0, 0.0, _TERMINAL
        self._reported: Any = None
        self._same = 0  # lines in a row about work that has not moved, which become rarer at once
        self._region: TerminalRegion | NotebookRegion | None = None
        self._midway = False  # whether other output has begun a line and not ended it

    def __enter__(self) -> Display:
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

    def __exit__(self, *error: Any) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
        if self._region is not None:
            self._region.close()
        self._listening.__exit__(*error)
        _active.reset(self._token)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, _JsonStream):
                stream.finish()
        sys.stdout, sys.stderr = self._out, self._stream

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
        """Show this during steps from now on; None for nothing."""
        if view is not None and self._view is None:
            self.hear("steps", 0, 0)
        self._view = view
        if view is not None and isinstance(self._region, NotebookRegion):
            with self._locked():
                self._region.final = False
                self._region.draw(view.frame())  # in this thread, since a notebook puts the element in its cell
        if view is None and self._region is not None:
            with self._locked():
                self._region.erase()

    def finish(self, view: View, text: str) -> None:
        """Say how the steps ended: in the notebook's element, or in lines that stay."""
        if isinstance(self._region, NotebookRegion):
            with self._locked():  # so that nothing is drawn over it
                self._region.draw((*view.frame(), Line((Part(text),))))
                self._view, self._region.final = None, True
            return
        self.show(None)
        if measured := frame_text(view.frame()[1:]):
            self.line(measured)
        self.line(text)

    def line(self, text: str, head: str = "", style: str = "") -> None:
        """Write a line that stays; on a terminal its `head` has a style of rich."""
        text = printable(text)
        if text.startswith("warning: "):
            head, style = "warning:", "warning"
        elif self.mode == "none":
            return
        if self.mode == "json":
            self.event({"event": "note", "at": round(time.time(), 3), "text": text})
            return
        text = wrap_for(self._stream, text)
        if isinstance(self._region, TerminalRegion) and head and text.startswith(head):
            text = self._region.styled(head, style) + text[len(head) :]
        with contextlib.suppress(OSError, ValueError):  # the reader went away; work continues
            self.write(self._stream, f"{text}\n")
            self._stream.flush()

    def event(self, content: Mapping[str, Any]) -> None:
        """Write an object, if the mode is JSON."""
        if self.mode == "json":
            with self._locked(), contextlib.suppress(OSError, ValueError):
                self._last_output = time.monotonic()
                self._out.write(json.dumps(content) + "\n")
                self._out.flush()

    def write(self, stream: Any, text: str) -> int:
        """Write other output to a stream, in place of our lines."""
        with self._locked():
            if self._region is not None:
                self._region.erase()
            self._last_output = time.monotonic()
            self._midway = not text.endswith("\n") if text else self._midway  # `print` writes its empty end, too
            return int(stream.write(text) or 0)

    @contextlib.contextmanager
    def _locked(self) -> Any:
        if os.getpid() != self._process:  # a forked process, whose copy of the lock may stay locked
            yield
            return
        with self.lock:
            yield

    def _watch_streams(self) -> None:
        """Replace the standard streams by ones that go through this display."""
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
                    with self._locked():
                        if self._is_due(now) and not self._stop.is_set():
                            show(now)
        except Exception as error:  # a monitor may be a person's own; the work continues
            self.line(f"warning: progress is no longer shown: {type(error).__name__}: {error}")

    def _is_due(self, now: float) -> bool:
        silent = now - self._last_output
        if self.mode == "plain":
            same = self._same if self._reported == (self._work, self._around) else 0
            return silent >= min(_LONGEST, _PLAIN * 2.0 ** max(same, self._lines - _LINES))
        if self.mode == "json":
            return silent >= _JSON and self._reported != (self._work, self._around)
        if now < self._due or self._midway:
            return False
        return self._takes_steps() or silent >= self._patience or bool(self._region and self._region.is_open)

    def _takes_steps(self) -> bool:
        """Whether to show the view: other work hides it only if it takes long."""
        return self._view is not None and (self._work[0] == "steps" or time.monotonic() - self._begun < _TERMINAL)

    def _show_rich(self, now: float) -> None:
        assert self._region is not None
        if isinstance(self._region, TerminalRegion):
            _ = self._region.console  # imported before the clock starts
        begin = time.thread_time()
        view = self._view if self._takes_steps() else None
        frame = self._frame(now) if view is None else view.frame()
        if isinstance(self._region, NotebookRegion) and isinstance(view, Steps) and view.picture is not None:
            self._region.draw(frame, view.picture())
        else:
            self._region.draw(frame)
        self._due = now + min(_LATEST, max(_FRAME, _SHARE * (time.thread_time() - begin)))
        self._patience = 0.0  # once something is shown, it is updated without waiting

    def _show_plain(self, now: float) -> None:
        around = "".join(f"{_count(work)}, " for work in self._around)
        left = left_text(*self._left())
        more = f", {left}" if left else ""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(f"{around}{_count(self._work)}, {now - self._begun:.0f} s{more}\n")
            self._stream.flush()
        self._lines, self._last_output, work = self._lines + 1, now, (self._work, self._around)
        self._same, self._reported = self._same + 1 if self._reported == work else 1, work

    def _show_json(self, now: float) -> None:
        self._reported = self._work, self._around
        names = ("what", "done", "total")
        content: dict[str, Any] = {"event": "progress", "at": round(time.time(), 3)}
        content |= dict(zip(names, self._work, strict=True)) | {"seconds": round(now - self._begun, 1)}
        rate, (left, at_most) = self._clock.rate, self._left()
        content |= {"rate": None if rate is None else round(rate, 4), "left": None if left is None else round(left, 1)}
        content["at_most"] = at_most
        self.event({**content, "within": [dict(zip(names, work, strict=True)) for work in self._around]})

    def _left(self) -> tuple[float | None, bool]:
        """Seconds until the work is done, and whether at most; of the steps of a run as far as they know."""
        steps = self._view if self._takes_steps() else None
        return steps.left() if isinstance(steps, Steps) else (self._clock.left(*self._work[1:]), False)

    def _frame(self, now: float) -> Frame:
        """The work, and above it the work that it is a part of."""
        name, done, total = self._work
        title, _, detail = name.partition(", ")
        count = f"{done}/{total}" if total else str(done) if done else ""
        rate = self._clock.rate
        speed = "" if rate is None else f"{rate:.3g}/s"
        numbers = [Part(count), *_time_left(self._clock, done, total), Part(detail), Part(speed)]
        spent = Part(duration(now - self._begun), style="dim")
        parts = [Part(title, style="bold"), *(part for part in numbers if part.long), spent]
        clocks = self._clocks  # another thread may replace it meanwhile
        around = [
            Line((Part(_count(work), style="bold"), *_time_left(clocks.get(work[0], Clock()), *work[1:])), *work[1:])
            for work in self._around
        ]
        return (*around, Line(tuple(parts), done, total))


def _has_rich() -> bool:
    """Whether rich is installed, without importing it."""
    return importlib.util.find_spec("rich") is not None


def _time_left(clock: Clock, done: int, total: int) -> list[Part]:
    left = left_text(clock.left(done, total))
    return [Part(left, style="cyan")] if left else []


def _title(what: str) -> str:
    return what.partition(",")[0]


def _count(work: Work) -> str:
    what, done, total = work
    return f"{what}: {done} of {total}" if total else f"{what}: {done}" if done else what


class _WatchedStream:
    """A standard stream that writes through the display."""

    def __init__(self, stream: Any, display: Display) -> None:
        self._stream, self._display = stream, display

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self._display.write(self._stream, text)


class _JsonStream(_WatchedStream):
    """A standard stream whose lines become objects."""

    encoding = "utf-8"

    def __init__(self, stream: Any, display: Display, kind: str) -> None:
        super().__init__(stream, display)
        self._kind, self._text = kind, ""

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
