"""Progress fits the terminal, says how much time is left, and shows what the terminal can show."""

from __future__ import annotations

import io
import json
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plugstream.algorithms import ProximalGradient, State
from plugstream.base.display.frame import Clock, Line, Part, Thinned, duration, fit, sparkline
from plugstream.base.display.region import TerminalRegion, takes_blocks
from plugstream.base.display.screen import Display
from plugstream.base.display.steps import Steps
from plugstream.runs import terminal as module
from plugstream.runs.event_log import read_events
from plugstream.runs.events import Event, Forecast, Measurement, Quantities, Start, StepEvent, Stop, Trial
from plugstream.runs.terminal import Terminal
from plugstream.solver.monitors import PSNR, SNR, SSIM, Cost, Distance
from plugstream.solver.verdict import probe_length
from small_run import main, plugstream_main
from terminals import Screen, run_in_terminal
from waiting import wait_until

RUN = ["--sigma", "0.01", "--threads", "1", "--every", "10"]
START = Start(100, {"scan": {"follow": False}, "algorithm": {}}, {}, "0.1", "2", "3", pid=1, started=1, machine="")


def _terminal(monkeypatch: pytest.MonkeyPatch, columns: int = 80, term: str = "xterm") -> Screen:
    """Standard error is a terminal; set within the test, since pytest has its own between a fixture and a test."""
    made = Screen(columns)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stderr", made)
    return made


# A run that goes on when it has been drawn in its middle, after half a second of steps, by which its speed is known.
DRAWN_TWICE = """
import time
from plugstream.algorithms import ProximalGradient
from plugstream.base.display.region import TerminalRegion

drawn, begun, draw, step = 0, 0.0, TerminalRegion.draw, ProximalGradient.step

def counted(region, frame):
    global drawn
    draw(region, frame)
    drawn += 1

def paced(algorithm, state):
    global begun
    begun = begun or time.monotonic()
    if state.k == 100:
        time.sleep(max(0.0, begun + 0.6 - time.monotonic()))
    elif state.k == 200:
        before = drawn
        while drawn < before + 3:
            time.sleep(0.01)
    return step(algorithm, state)

TerminalRegion.draw, ProximalGradient.step = counted, paced
"""


def test_a_terminal_of_letters_alone_shows_a_run(scan: Path, tmp_path: Path) -> None:
    """In a process and pseudo-terminal of its own, whose locale is C."""
    words = ["reconstruct", str(scan), "--out", str(tmp_path / "run"), "--report", "none", *RUN]
    frames: list[list[str]] = []
    words += ["--iterations", "300"]
    status, shown = run_in_terminal(60, words, lambda screen: frames.append(screen.shown[-2:]), DRAWN_TWICE, LC_ALL="C")
    assert status == 0, shown.written
    assert shown.written.isascii()
    assert "\\u" not in shown.written
    bars = [rows for rows in frames if rows[0].startswith("#")]
    assert len(bars) > 2
    assert any(re.match(r"#+-+  .*\d+/300 +\d+ s left", rows[0]) for rows in bars)
    assert all(len(row) < 60 for rows in bars for row in rows)
    assert all(rows[1].startswith("SNR") for rows in bars)
    assert not any(row.startswith("#") for row in shown.shown)  # it is gone in the end, and the lines are there
    assert any(row.startswith("stopped after 300 steps") for row in shown.shown)
    assert any(re.match(r"step 300/300 .*distance", row) for row in shown.shown)


def test_a_run_in_this_process_shows_its_bar_and_leaves_lines_alone(
    scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen, step = _terminal(monkeypatch, 100), ProximalGradient.step

    def step_when_shown(algorithm: ProximalGradient, state: State) -> State:
        if state.k == 50:
            wait_until(lambda: "━" in screen.written and "distance to a fixed point" in screen.written)
        return step(algorithm, state)

    monkeypatch.setattr(ProximalGradient, "step", step_when_shown)
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), *RUN, "--iterations", "100"]) == 0
    assert "━" in screen.written
    assert "distance to a fixed point" in screen.written
    assert "━" not in "".join(screen.shown)
    notes = [event.text for event in read_events(tmp_path / "run" / "events.jsonl") if hasattr(event, "text")]
    assert "".join(screen.shown).count("".join(notes[0].split("\n"))) == 1
    assert "results are in" in "".join(screen.shown)


def test_a_dumb_terminal_gets_plain_lines(scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _terminal(monkeypatch, term="dumb")
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), *RUN, "--iterations", "20"]) == 0
    assert "\x1b" not in screen.written
    assert len(re.findall(r"(?m)^step +\d+/20 .*distance to a fixed point", screen.written)) == 3


def test_json_lines_are_the_events(scan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reconstruct", str(scan), "--out", str(tmp_path / "run"), *RUN, "--iterations", "20"]
    assert main([*words, "--progress", "json"]) == 0
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    log = [json.loads(json.dumps(event.content())) for event in read_events(tmp_path / "run" / "events.jsonl")]
    kinds = ("note", "progress", "exit")
    assert [line for line in lines if line["event"] not in kinds] == [e for e in log if e["event"] not in kinds]
    assert all(event in lines for event in log)
    assert {"event": "exit", "status": 0}.items() <= lines[-1].items()
    assert any("results are in" in line.get("text", "") for line in lines)
    assert err == ""
    assert main([*words, "--progress", "json"]) == 2  # it is there already
    out, err = capsys.readouterr()
    assert "exists already" in json.loads(out.splitlines()[-1])["error"]
    assert err.startswith("plugstream: ")


def test_no_progress_is_silent_but_for_errors(scan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reconstruct", str(scan), "--out", str(tmp_path / "run"), *RUN, "--iterations", "20", "--progress"]
    assert main([*words, "none"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main([*words, "none"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*words[:2], *words[4:], "loud"]) == 2
    assert "--progress" in capsys.readouterr().err


def draw(columns: int, *frames: Steps, follow: bool = False) -> Screen:
    screen = Screen(columns)
    region = TerminalRegion(screen)
    for steps in frames:
        region.draw(steps.frame())
    return screen


def full_steps(follow: bool = False) -> Steps:
    steps = Steps(0 if follow else 123456)
    steps.views = 37 if follow else 0
    steps.declare(quantity for kind in (Distance, SNR, PSNR, SSIM, Cost) for quantity in kind.measures)
    for n in range(30):
        steps.measure({"snr": -123.456 + n, "psnr": 33.3, "ssim": 0.91, "relative_distance": 1.2e-123, "cost": 1e300})
    steps.tick(0, 0.0, 0.0)
    steps.tick(99999, 123456.7, 10.0)
    return steps


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("width", [*range(8, 60, 3), 80, 110, 200])
def test_any_width_and_any_measurements_fit(monkeypatch: pytest.MonkeyPatch, width: int, follow: bool) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    shown = draw(width, full_steps(follow), full_steps(follow)).shown
    assert len(shown) == 2
    assert all(0 < len(row) < width for row in shown)
    assert "99999" in shown[0] or width < 12


def test_a_window_that_is_resized_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen(120)
    region = TerminalRegion(screen)
    screen.write("a line before\n")
    steps = full_steps()
    for columns in (120, 60, 30, 17, 25, 80, 200, 40):
        screen.resize(columns)
        region.draw(steps.frame())
        screen.write("^C")  # what a terminal shows of the keys
        region.draw(steps.frame())
        rows = screen.shown
        assert "".join(rows[:-2]) == "a line before"
        assert all(len(row) < columns for row in rows[-2:])
    region.erase()
    assert "".join(screen.shown) == "a line before"


def test_colours_are_left_out_where_nobody_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[32m" in draw(80, full_steps()).written
    monkeypatch.setenv("NO_COLOR", "1")
    shown = draw(80, full_steps())
    assert "\x1b[3" not in shown.written
    assert re.match("━+ +", shown.shown[0])  # what is to do is blank, so that it is told from what is done


@pytest.mark.parametrize(
    ("encoding", "locale", "blocks"),
    [("utf-8", "C", False), ("utf-8", "POSIX", False), ("ascii", "en_GB.UTF-8", False), ("latin-1", "", False),
     ("utf-8", "en_GB.UTF-8", True), ("utf-8", "", True), ("cp437", "", False), (None, "", False), ("none", "", False)],
)  # fmt: skip
def test_the_bar_is_what_the_terminal_can_show(
    monkeypatch: pytest.MonkeyPatch, encoding: str | None, locale: str, blocks: bool
) -> None:
    monkeypatch.delenv("LC_ALL", raising=False)
    monkeypatch.setenv("LC_CTYPE", "C.UTF-8")  # as Python sets it in the locale C
    monkeypatch.setenv("LANG", locale)
    assert takes_blocks(SimpleNamespace(encoding=encoding)) is blocks


def test_a_line_is_shortened_and_never_longer() -> None:
    line = Line((Part("step 12/100", "12/100"), Part("two words", "two"), Part("\x1b[31mred")), 12, 100)
    texts = ["".join(text for text, _ in fit(line, width, blocks=False)) for width in range(4, 80)]
    assert all(len(text) <= width for width, text in zip(range(4, 80), texts, strict=True))
    assert texts[-1] == f"{'#' * 4}{'-' * 36}  step 12/100   two words   \\x1b[31mred"
    assert texts[10 - 4] == "12/100"


def test_small_curves() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, float("nan"), 1.0], 5) == "▁ ▁"
    assert sparkline(range(1000), 4) == "▁▁▃█"  # over the logarithm of the steps
    assert list(long := sparkline(range(300), 16)) == sorted(long)
    assert (long[0], long[-1]) == ("▁", "█")
    series = Thinned(logarithmic=True)
    for n in range(5000):
        series.add(10.0**-n if n < 300 else 10.0**-300)
    assert len(series.values()) <= 257
    assert series.values()[0] == 0
    assert series.values()[-1] == pytest.approx(-300)
    assert sparkline(series.values()[:20], 8)[0] == "█"


def test_time_left_follows_the_recent_speed() -> None:
    clock = Clock()
    assert clock.left(0, 100) is None
    for step in range(51):  # one second a step at first
        clock.tick(step, 1000.0 + step)
    assert clock.left(50, 100) == pytest.approx(50)
    assert clock.rate == pytest.approx(1)
    for step in range(1, 201):  # and then ten steps a second
        clock.tick(50 + step, 1050.0 + step / 10)
    assert clock.left(250, 350) == pytest.approx(10, rel=0.2)
    assert clock.left(350, 350) is None
    clock.tick(20, 1071.0)  # a run that goes on from a checkpoint
    assert clock.rate is None


def test_time_left_of_steps_slower_than_the_window_and_of_a_limit() -> None:
    clock = Clock()
    for step in range(4):
        clock.tick(step, 1000.0 + 60 * step)
    assert clock.left(3, 10) == pytest.approx(420)
    limited = Clock(limit=30.0, begun=1000.0)
    for step in range(11):
        limited.tick(step, 1000.0 + step)
    assert limited.left(10, 1000) == pytest.approx(20)


def test_time_left_goes_by_where_the_run_will_end_and_says_so_where_that_is_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the forecasts of the run's process; the steps of another denoiser have a speed of their own."""
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    search = Trial(50, 3, 0.1, 1.0, 0.1, 0.1, 0.1, ended=True)
    with Display("plain", beats=False) as display:
        terminal = Terminal(display)
        terminal(START)
        terminal(Quantities(tuple(quantity.content() for quantity in SNR.measures)))
        said: list[Event] = [Forecast(0, 100, True), search, Forecast(60, 80, False), Forecast(90, 120, False)]
        for step in range(0, 101, 10):  # ten steps a second, and twenty after the search
            at = 1000 + step / 10 if step <= 50 else 1005 + (step - 50) / 20
            for event in said:
                if isinstance(event, StepEvent) and step - 10 < event.step <= step:
                    terminal(event)
            terminal(Measurement(step, step / 10, {"snr": 1.0}, at=at))
    left = [re.search(r" s, ((?:at most )?\d+ s) left", line) for line in stream.getvalue().splitlines()]
    assert [found and found[1] for found in left] == [
        None, "at most 9 s", "at most 8 s", "at most 7 s", "at most 6 s",
        None, "1 s", "0 s", None, "2 s", "1 s",
    ]  # fmt: skip


def test_a_run_says_where_it_will_end(scan: Path, tmp_path: Path) -> None:
    """With the steps of the check after it; of a search at most, and then what is left to do."""

    def forecasts(name: str, *words: str) -> list[Any]:
        folder = tmp_path / name
        few = ["--threads", "1", "--report", "none"]
        assert plugstream_main(["reconstruct", str(scan), "--out", str(folder), *few, *words]) == 0
        return [event for event in read_events(folder / "events.jsonl") if isinstance(event, Forecast | Trial | Stop)]

    steps = 40 + probe_length(40)
    *said, stop = forecasts("fixed", "--sigma", "0.02", "--iterations", "40", "--hold-out", "4")
    assert said == [Forecast(0, steps, False)]
    assert "held-out misfit" in stop.answers["was the strength chosen by the data?"]["text"]
    *said, _ = forecasts("plain", "--sigma", "0.02", "--iterations", "40")
    assert said == [Forecast(0, 40, False)]
    *said, _ = forecasts("arrives", "--sigma", "0.02", "--iterations", "40", "--arrive", "1e-6", "--hold-out", "4")
    assert said[0] == Forecast(0, steps, True)
    *said, stop = forecasts("falls", "--fall", "4", "--denoiser", "tv", "--every", "5")
    (ended,) = [event.step for event in said if isinstance(event, Trial) and event.ended]
    assert said[0].end > stop.step
    assert said[0].at_most
    ahead = [event for event in said if isinstance(event, Forecast) and event.step < stop.step]
    assert all(event.at_most == (event.step < ended) for event in ahead)
    assert ahead[-1].end == max(5 * math.ceil(ended * 1.25 / 5), 5 * math.ceil((ended + 16) / 5))  # at the first look
    *said, stop = forecasts("search", "--sigma", "0.02", "--search", "20", "--iterations", "40", "--every", "5")
    assert said[0] == Forecast(0, 40, True)
    (ended,) = [event.step for event in said if isinstance(event, Trial) and event.ended]
    assert said[-1] == Forecast(said[-1].step, ended + 20, False)
    assert stop.step == ended + 20


def test_json_lines_have_the_time_left_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", stream := io.StringIO())
    with Display("json", beats=False) as display:
        terminal = Terminal(display)
        for event in (START, Forecast(0, 50, True), Quantities(()), Measurement(0, 0.0, {}, at=1000.0)):
            terminal(event)
        terminal(Measurement(10, 1.0, {}, at=1001.0))
        display.hear("steps", 10, 100)
        display._show_json(0.0)
    told = [json.loads(line) for line in stream.getvalue().splitlines() if "progress" in line]
    assert [(line["done"], line["total"], line["left"], line["at_most"]) for line in told][-1] == (10, 100, 4.0, True)


def test_durations_are_short() -> None:
    told = [duration(s) for s in (0.2, 61, 99.4, 600, 8000, 86400)]
    assert told == ["0 s", "61 s", "99 s", "10 min", "2.2 h", "24.0 h"]


def test_a_file_gets_many_measurements_as_few_lines_and_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    monkeypatch.setattr(module, "_LINES", 5)
    with Display("plain", beats=False) as display:
        terminal = Terminal(display)
        terminal(START)
        terminal(Quantities(tuple(quantity.content() for quantity in SNR.measures)))
        for step in range(100):
            terminal(Measurement(step, step / 10, {"snr": float(step)}))
        terminal(Stop(99, 99, 9.9, 10.0, "all iterations were done", False, "converged", True, "it did"))
    lines = stream.getvalue().splitlines()
    assert [line.split("/")[0] for line in lines[:6]] == [f"step {n:>3}" for n in (0, 1, 2, 3, 4, 99)]
    assert lines[6:] == [
        "stopped after 99 steps and 9.9 s (10.0 s with measuring): all iterations were done",
        "verdict: converged: it did",
    ]
