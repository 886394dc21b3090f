"""A command at work is never silent for long, and one that is quick says no more than before."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch

from plugstream import BornModel, LeastSquares, MatrixModel, ProximalGradient, SoftThreshold, cli, solve
from plugstream.base.display import screen as module
from plugstream.base.display.frame import Clock, Frame, frame_text
from plugstream.base.display.screen import Display, active_display
from plugstream.base.errors import InputError
from plugstream.base.progress import enclosing_work, listening, report, within
from plugstream.runs.pages import report as report_page
from plugstream.scans.store import StoredScan
from terminals import Screen


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_TERMINAL", "_PLAIN", "_FRAME"):
        monkeypatch.setattr(module, name, 0.02)
    monkeypatch.setenv("TERM", "xterm")


def _pipe(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Standard error is one; set within the test, since pytest has its own between a fixture and a test."""
    monkeypatch.setattr(sys, "stderr", made := io.StringIO())
    return made


def _terminal(monkeypatch: pytest.MonkeyPatch) -> Screen:
    made = Screen(80)
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setattr(sys, "stdout", made)
    return made


def _wait_for(stream: io.StringIO | Screen, text: str, times: int = 1) -> None:
    end = time.monotonic() + 150
    while (stream.written if isinstance(stream, Screen) else stream.getvalue()).count(text) < times:
        assert time.monotonic() < end, stream
        time.sleep(0.005)


def _wait_for_line(stream: io.StringIO, text: str, begun: float) -> None:
    """Until a line says this and how many seconds it has lasted, which are none if nothing else has the processor."""
    _wait_for(stream, f"{text}, ")
    found = re.search(rf"^{text}, (\d+) s$", stream.getvalue(), re.M)
    assert found is not None, stream.getvalue()
    assert int(found[1]) <= round(time.monotonic() - begun)


@pytest.mark.usefixtures("quick")
def test_a_pipe_gets_lines_with_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = _pipe(monkeypatch)
    begun = time.monotonic()
    with Display(what="starting") as display:
        assert active_display() is display
        _wait_for_line(stream, "starting", begun)
        begun = time.monotonic()
        report("reading", 3, 10)
        _wait_for_line(stream, "reading: 3 of 10", begun)
        print("a line of the command", file=sys.stderr)
        begun = time.monotonic()
        with within("evaluation", 2, 12), within("halving"):
            report("steps", 7)
            _wait_for_line(stream, "evaluation: 2 of 12, halving, steps: 7", begun)
    assert sys.stderr is stream
    assert active_display() is None
    assert enclosing_work() == ()
    assert "\r" not in stream.getvalue()
    assert "\na line of the command\n" in stream.getvalue()
    written = stream.getvalue()
    time.sleep(0.1)
    assert stream.getvalue() == written  # it has ended


def test_lines_about_one_thing_become_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked each second by the clock that is given, as the display's thread asks by the machine's."""
    stream, told = _pipe(monkeypatch), []
    monkeypatch.setattr(module, "_LINES", 3)
    monkeypatch.setattr(module, "_PLAIN", 1.0)
    with Display(what="waiting", beats=False, since=0.0) as display:
        for now in range(200):
            display._work = ("waiting", now, 0)
            if display._is_due(float(now)):
                display._show_plain(float(now))
                told.append(now)
    assert told == [1, 2, 3, 4, 6, 10, 18, 34, 66, 126, 186]  # in the end once a minute
    assert stream.getvalue().splitlines() == [f"waiting: {now}, {now} s" for now in told]


def test_lines_with_nothing_new_become_rare_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that loading libraries is one line of a log, and a count that moves again is told at once."""
    _pipe(monkeypatch)
    monkeypatch.setattr(module, "_PLAIN", 1.0)
    told = []
    with Display(what="loading", beats=False, since=0.0) as display:
        for now in range(200):
            if now == 20:
                display._work = ("reading", 5, 10)
            if display._is_due(float(now)):
                display._show_plain(float(now))
                told.append(now)
    assert told == [1, 3, 7, 15, 20, 22, 26, 34, 50, 82, 142]


@pytest.mark.usefixtures("quick")
def test_a_terminal_has_lines_that_the_next_output_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _terminal(monkeypatch)
    with Display(what="starting", beats=False):
        _wait_for(screen, "starting")
        print("result")
        report("x" * 200)
        _wait_for(screen, "x" * 79)
        assert screen.shown == ["result", "x" * 79]
        print("half a line", end="")
        time.sleep(0.06)
        assert screen.shown == ["result", "half a line"]  # which is not written over
        print(" and its end")
        with within("evaluation", 3, 12):
            report("steps", 25, 100)
            _wait_for(screen, "steps")
        assert [row.split("  ")[1] for row in screen.shown[-2:]] == ["evaluation: 3 of 12", "steps"]
        assert screen.shown[-2].startswith("━" * 10)
    assert screen.shown == ["result", "half a line and its end"]


@pytest.mark.usefixtures("quick")
def test_what_takes_no_time_is_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _terminal(monkeypatch)
    monkeypatch.setattr(module, "_TERMINAL", 1000.0)
    with Display(what="starting"):
        report("reading", 3, 10)
        time.sleep(0.1)
    assert screen.written == ""


@pytest.mark.usefixtures("quick")
def test_a_warning_stands_out_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _terminal(monkeypatch)
    with Display() as display:
        display.line("warning: so \x1b[31m it is")
    assert screen.shown == ["warning: so \\x1b[31m it is"]
    assert screen.written.startswith("\x1b[1;33mwarning:\x1b[0m ")


@pytest.mark.usefixtures("quick")
def test_what_cannot_be_drawn_is_no_reason_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def frame(self) -> Frame:
            raise ValueError("no such format")

    screen = _terminal(monkeypatch)
    with Display() as display:
        display.show(Broken())
        _wait_for(screen, "no such format")
        print("the work goes on")
    assert screen.shown == ["warning: progress is no longer shown: ValueError: no such format", "the work goes on"]


def test_a_frame_may_be_drawn_in_the_middle_of_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reports does not wait for the thread that draws: of work that has just begun there is no clock yet."""
    frames: list[Frame] = []

    class Looking(Clock):
        def tick(self, step: int, now: float) -> None:
            super().tick(step, now)
            frames.append(display._frame(now))

    monkeypatch.setattr(module, "Clock", Looking)
    with Display("plain", beats=False) as display:
        report("steps", 1, 9)
        with within("evaluation", 2, 12):
            report("steps", 2, 9)
        report("steps", 3, 9)
    assert {frame_text(frame[:-1]) for frame in frames} == {"", "evaluation: 2 of 12"}


def test_whoever_writes_waits_for_a_frame_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is stopped while a frame is drawn wrote into its middle a second later."""

    class Busy:
        held = False

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            self.held = timeout < 0  # whoever has a limit waits in vain
            return self.held

        def release(self) -> None:
            self.held = False

        __enter__ = acquire

        def __exit__(self, *_: object) -> None:
            self.release()

    held: list[bool] = []

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            held.append(lock.held)
            return super().write(text)

    monkeypatch.setattr(sys, "stderr", stream := Stream())
    with Display("plain", beats=False) as display:
        display.lock = lock = Busy()  # type: ignore[assignment]
        display.line("one line")
        display._process = -1  # as of a process that was forked while somebody else had the lock
        display.line("and one more")
    assert held == [True, False]
    assert stream.getvalue() == "one line\nand one more\n"


def test_a_clock_may_be_set_back_while_it_is_read() -> None:
    class Vanishing(deque[tuple[float, int]]):
        def __getitem__(self, index: Any) -> tuple[float, int]:
            self.clear()  # as another thread does, for a run that goes back
            return super().__getitem__(index)

    clock = Clock(limit=60.0, begun=0.0)
    clock._ticks = Vanishing([(0.0, 0), (10.0, 20)])
    assert clock.rate == 2
    assert clock.left(20, 40) == 10


def test_without_rich_there_are_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(module, "_has_rich", lambda: False)
    _terminal(monkeypatch)
    with Display() as display:
        assert display.mode == "plain"
    with pytest.raises(InputError, match="rich is not installed"), Display("rich"):
        pass


def test_a_pipe_of_a_command_with_output_of_its_own_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = _pipe(monkeypatch)
    with Display(what="starting", beats=False):
        assert sys.stderr is stream
        assert not [thread for thread in threading.enumerate() if "display" in thread.name]


def _slowly(function: Any, stream: io.StringIO, what: str) -> Any:
    """A function that takes as long as it takes to be told of twice."""

    def call(*args: Any, **kwargs: Any) -> Any:
        _wait_for(stream, what, 2)
        return function(*args, **kwargs)

    return call


@pytest.mark.usefixtures("quick")
def test_reading_building_and_writing_are_told_of_while_they_last(
    scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = _pipe(monkeypatch)
    read, build, draw = "MB of the scan, ", "building the model of 12 views, ", "writing report.html, "
    for place, name, what in ((StoredScan, "read", read), (BornModel, "__init__", build)):
        monkeypatch.setattr(place, name, _slowly(getattr(place, name), stream, what))
    monkeypatch.setattr(report_page, "write_report", _slowly(lambda *args, **kwargs: None, stream, draw))
    monkeypatch.setattr(cli, "Display", lambda mode, what, **more: Display(mode, what))  # as for a process of its own
    words = ["reconstruct", str(scan), "--sigma", "0.02", "--threads", "1", "--iterations", "3"]
    assert cli.main([*words, "--out", str(tmp_path / "run")]) == 0
    for what in (read, build, draw):
        assert stream.getvalue().count(what) >= 2


def test_solve_tells_of_steps_and_of_l() -> None:
    heard: list[tuple[str, int, int]] = []
    matrices = torch.randn(4, 6, 20, generator=torch.Generator().manual_seed(0))
    algorithm = ProximalGradient(
        LeastSquares(MatrixModel(list(matrices), (4, 5)), torch.ones(4, 6)), SoftThreshold(), sigma=0.1
    )
    result = solve(algorithm, iterations=3, progress=lambda *words: heard.append(words))
    assert heard[0][0].startswith("estimating L of every view")
    assert [words for words in heard if words[0] == "steps"] == [("steps", 0, 3), ("steps", 1, 3), ("steps", 2, 3)]
    heard.clear()
    again = solve(algorithm, iterations=3)  # silent by default
    assert heard == []
    assert torch.equal(result.image, again.image)


def test_listeners_nest_and_end() -> None:
    outer: list[str] = []
    inner: list[str] = []
    with listening(lambda what, done, total: outer.append(what)):
        report("a")
        with listening(lambda what, done, total: inner.append(what)):
            report("b")
        with listening(None):
            report("c")
    report("d")
    assert (outer, inner) == (["a", "c"], ["b"])
