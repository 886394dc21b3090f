"""A command at work is never silent for long, and one that is quick says no more than before."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from plugstream import LeastSquares, MatrixModel, ProximalGradient, SoftThreshold, solve
from plugstream.cli import heartbeat as module
from plugstream.cli.heartbeat import keep_informed
from plugstream.progress import listening, report
from small_run import SMALL, main


class Screen(io.StringIO):
    """A terminal, whose width nobody knows."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_TERMINAL", "_PLAIN"):
        monkeypatch.setattr(module, name, 0.1)
    monkeypatch.setenv("TERM", "xterm")


def _wait_for(stream: io.StringIO, text: str) -> None:
    end = time.monotonic() + 20
    while text not in stream.getvalue():
        assert time.monotonic() < end, stream.getvalue()
        time.sleep(0.01)


@pytest.mark.usefixtures("quick")
def test_a_pipe_gets_lines_with_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with keep_informed("starting"):
        _wait_for(stream, "starting, 0 s\n")
        report("reading", 3, 10)
        _wait_for(stream, "reading: 3 of 10, 0 s\n")
        print("a line of the command", file=sys.stderr)
        report("steps", 7)
        _wait_for(stream, "steps: 7, 0 s\n")
    assert sys.stderr is stream
    assert "\r" not in stream.getvalue()
    assert "\na line of the command\n" in stream.getvalue()
    written = stream.getvalue()
    time.sleep(0.3)
    assert stream.getvalue() == written  # it has ended


@pytest.mark.usefixtures("quick")
def test_lines_about_one_thing_become_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINES", 3)
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with keep_informed("waiting"):
        time.sleep(2.5)
    assert 3 <= stream.getvalue().count("waiting") <= 8  # at 0.1, 0.2, 0.3, 0.4, 0.6, 1.0 and 1.8 seconds


@pytest.mark.usefixtures("quick")
def test_a_terminal_has_one_line_that_the_next_output_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", screen)
    with keep_informed("starting", plain=False):
        _wait_for(screen, "\r\x1b[2Kstarting, 0 s")
        print("result")
        _wait_for(screen, "starting, 0 s\r\x1b[2Kresult\n")
        report("x" * 200)
        _wait_for(screen, "x" * 79)
    assert "\n\r\x1b[2K" + "x" * 79 in screen.getvalue()
    assert "x" * 80 not in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[2K")


def test_a_pipe_of_a_command_with_output_of_its_own_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with keep_informed("starting", plain=False):
        assert sys.stderr is stream
        assert threading.active_count() == len([t for t in threading.enumerate() if "heartbeat" not in t.name])


SLOW = """
import sys, time
from plugstream.models.born import BornModel
from plugstream.runs import results
from plugstream.scans.store import StoredScan
def slowly(function, seconds):
    def call(*args, **kwargs):
        time.sleep(seconds)
        return function(*args, **kwargs)
    return call
StoredScan.read = slowly(StoredScan.read, 3)
BornModel.__init__ = slowly(BornModel.__init__, 4)
results.draw_report = slowly(results.draw_report, 3)
from plugstream.cli import main
sys.exit(main())
"""


def test_reading_building_and_writing_are_told_of_while_they_last(tmp_path: Path) -> None:
    scan = tmp_path / "scan.zarr"
    assert main(["simulate", str(scan), *SMALL]) == 0
    words = ["reconstruct", str(scan), "--sigma", "0.02", "--threads", "1", "--iterations", "3"]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *words, "--out", str(tmp_path / "run")], stderr=subprocess.PIPE, text=True
    )
    killer = threading.Timer(100, process.kill)
    killer.start()
    try:
        assert process.stderr is not None
        lines = [(time.monotonic(), line) for line in process.stderr]
        assert process.wait(timeout=20) == 0
    finally:
        killer.cancel()
        process.kill()
    text = "".join(line for _, line in lines)
    for what in ("MB of the scan, ", "building the model of 12 views, ", "drawing the report, "):
        assert what in text
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(lines)]
    assert max(gaps) < 3.5  # two seconds, and what a busy machine adds


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
