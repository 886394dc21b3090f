"""Line 19: the progress line fits the terminal, says how much time is left, and shows what the terminal can show."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from types import SimpleNamespace

import pytest

from plugstream.monitors import PSNR, SNR, SSIM, Cost, Distance
from plugstream.runs.events import Measurement, Quantities, Start
from plugstream.runs.terminal import Terminal, _blocks, _Clock, _duration

REDRAW = re.compile(r"\r\x1b\[2K([^\r\n]*)")
FRESH = {"LANG": "C.UTF-8", "TERM": "xterm"}


def run_in_terminal(columns: int, words: list[str], **environment: str) -> tuple[int, bytes]:
    """Run the command in a pseudo-terminal of this width: its exit status, and all that it wrote there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LC_") and k not in ("LANG", "COLUMNS")}
    process = subprocess.Popen(
        [sys.executable, "-m", "plugstream", *words],
        stdout=theirs, stderr=theirs, stdin=theirs, env={**kept, **FRESH, **environment},
    )  # fmt: skip
    os.close(theirs)
    written, end = b"", time.monotonic() + 90
    try:
        while time.monotonic() < end:
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    some = os.read(ours, 65536)
                except OSError:  # how Linux says that nobody writes any more
                    break
                if not some:
                    break
                written += some
            elif process.poll() is not None:
                break
        return process.wait(timeout=20), written
    finally:
        process.kill()
        process.wait(timeout=20)
        os.close(ours)


def progress_lines(written: bytes) -> list[str]:
    lines = REDRAW.findall(written.decode())
    return [line for line in lines if re.search(r"\d+/\d+", line)]


# Enough steps and measurements for a second or more, so that there is progress to show and time left to tell.
LONG = ["--report-format", "none", "--sigma", "0.01", "--iterations", "800", "--every", "10", "--cost", "true"]


@pytest.mark.parametrize("columns", [80, 40])
def test_the_line_fits_a_real_terminal(scan, tmp_path, columns):
    words = ["reconstruct", str(scan), "--out", str(tmp_path / "run"), *LONG]
    status, written = run_in_terminal(columns, words)
    lines = progress_lines(written)
    assert status == 0, written.decode()
    assert len(lines) > 5
    assert max(map(len, lines)) < columns
    assert any("left" in line for line in lines)
    assert any("█" in line for line in lines)
    if columns == 80:
        assert "SNR" in lines[-1]
        assert "distance" in lines[-1]


@pytest.mark.parametrize("environment", [{"LANG": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_an_ascii_terminal_gets_ascii(scan, tmp_path, environment):
    words = ["reconstruct", str(scan), "--out", str(tmp_path / "run"), *LONG]
    status, written = run_in_terminal(60, words, **environment)
    assert status == 0, written
    assert written.isascii()
    assert b"\\u" not in written
    assert any(line.startswith("#") for line in progress_lines(written))


@pytest.mark.parametrize(
    ("encoding", "locale", "bar"),
    [("utf-8", "C", "#-"), ("utf-8", "POSIX", "#-"), ("ascii", "en_GB.UTF-8", "#-"), ("latin-1", "", "#-"),
     ("utf-8", "en_GB.UTF-8", "█░"), ("utf-8", "", "█░"), ("cp437", "", "█░"), (None, "", "#-"), ("none", "", "#-")],
)  # fmt: skip
def test_the_bar_is_what_the_terminal_can_show(monkeypatch, encoding, locale, bar):
    monkeypatch.delenv("LC_ALL", raising=False)
    monkeypatch.setenv("LC_CTYPE", "C.UTF-8")  # as Python sets it in the locale C
    monkeypatch.setenv("LANG", locale)
    assert "".join(_blocks(SimpleNamespace(encoding=encoding))) == bar


def test_a_dumb_terminal_gets_plain_lines(scan, tmp_path):
    words = ["reconstruct", str(scan), "--out", str(tmp_path / "run"), *LONG]
    status, written = run_in_terminal(80, [*words, "--iterations", "20"], TERM="dumb")
    assert status == 0
    assert b"\x1b" not in written
    assert len(re.findall(rb"(?m)^step +\d+/20 .*distance to a fixed point", written)) == 3


class Screen(io.StringIO):
    """A terminal that is told its width."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("width", [*range(8, 60, 3), 80, 110, 200])
def test_any_width_and_any_measurements_fit(monkeypatch, width, follow):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(Terminal, "_width", lambda self: width)
    screen = Screen()
    terminal = Terminal(screen)
    settings = {"scan": {"follow": follow}, "algorithm": {"time_limit": None}}
    terminal(Start(123456, settings, {}, "0.1", "2", "3", pid=1, started=1, machine=""))
    values = {"snr": -123.456, "psnr": 33.3, "ssim": 0.91234, "relative_distance": 1.2e-123, "cost": 1e300}
    measures = [quantity.content() for kind in (Distance, SNR, PSNR, SSIM, Cost) for quantity in kind.measures]
    terminal(Quantities(tuple(measures)))
    terminal(Measurement(3, 1e5, values))
    terminal._clock._ticks.extend([(0.0, 0), (10.0, 5)])
    terminal.tick(99999, 123456.7)
    (line,) = REDRAW.findall(screen.getvalue())
    assert 0 < len(line) < width


def test_time_left_follows_the_recent_speed():
    clock = _Clock()
    assert clock.left(0, 100) is None
    for step in range(51):  # one second a step at first
        clock.tick(step, 1000.0 + step)
    assert clock.left(50, 100) == pytest.approx(50)
    for step in range(1, 201):  # and then ten steps a second
        clock.tick(50 + step, 1050.0 + step / 10)
    assert clock.left(250, 350) == pytest.approx(10, rel=0.2)
    assert clock.left(350, 350) is None


def test_time_left_of_steps_slower_than_the_window_and_of_a_limit():
    clock = _Clock()
    for step in range(4):
        clock.tick(step, 1000.0 + 60 * step)
    assert clock.left(3, 10) == pytest.approx(420)
    limited = _Clock(limit=30.0)
    limited._begun = 1000.0
    for step in range(11):
        limited.tick(step, 1000.0 + step)
    assert limited.left(10, 1000) == pytest.approx(20)


def test_durations_are_short():
    assert [_duration(s) for s in (0.2, 61, 99.4, 600, 8000, 86400)] == [
        "0 s",
        "61 s",
        "99 s",
        "10 min",
        "2.2 h",
        "24.0 h",
    ]
