"""`plugstream watch`: what another terminal shows of a run that goes on, has ended or was killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plugstream.base.errors import DamagedError
from plugstream.cli import main, watch as module
from plugstream.runs import describe, liveness  # before anything is replaced, which they would keep
from plugstream.runs.event_log import EventLog, EventTail, read_events
from plugstream.runs.events import Heartbeat, Measurement, Note, Start, Stop
from plugstream.runs.folder import lock
from plugstream.runs.liveness import this_process
from plugstream.runs.replay import History
from small_run import RUN, main as run_small
from terminals import Screen
from waiting import wait_until


@pytest.fixture(scope="module")
def ended(scan: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ended") / "run"
    assert run_small(["reconstruct", str(scan), "--out", str(folder), *RUN, "--iterations", "20"]) == 0
    return folder


@pytest.fixture
def begun(ended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same run as it was before its end."""
    monkeypatch.setattr(module, "_EVERY", 0.01)
    monkeypatch.setattr(module, "_ALIVE", 0.02)
    folder = shutil.copytree(ended, tmp_path / "run")
    kept = [event for event in read_events(folder / "events.jsonl") if getattr(event, "step", 0) < 20]
    (folder / "events.jsonl").unlink()
    log = EventLog(folder / "events.jsonl")
    for event in kept:
        log.add(event)
    log.close()
    return folder


@contextmanager
def writing(folder: Path, *steps: object) -> Iterator[None]:
    """While this lasts somebody writes to the run: events, or waits until a function is true."""

    def write() -> None:
        with lock(folder):
            log = EventLog(folder / "events.jsonl")
            ready.set()
            for step in steps:
                if callable(step):
                    wait_until(step)
                else:
                    log.add(step)  # type: ignore[arg-type]
            log.close()

    ready = threading.Event()
    thread = threading.Thread(target=write)
    thread.start()
    assert ready.wait(60)
    try:
        yield
    finally:
        thread.join(timeout=90)


STOP = Stop(20, 20, 1.0, 1.2, "all iterations were done", False, "converged", True, "it did")


def test_an_ended_run_is_told_at_once(ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted((path.name, path.stat().st_mtime_ns) for path in ended.iterdir())
    assert main(["watch", str(ended)]) == 0
    err = capsys.readouterr().err
    assert "building the model of 12 views" in err
    assert err.count("step 20/20") == 1
    assert "stopped after 20 steps" in err
    assert "verdict: " in err
    assert sorted((path.name, path.stat().st_mtime_ns) for path in ended.iterdir()) == before


def test_a_killed_run_is_told_with_how_to_go_on(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, me, added = EventLog(begun / "events.jsonl"), this_process(), time.time()
    log.add(Heartbeat(19, 20, 1.0, 3.0, pid=me.pid, started=me.started + 1, machine=me.machine))
    log.close()
    assert main(["watch", str(begun)]) == 1
    err, seconds = capsys.readouterr().err, time.time() - added
    found = re.search(r": died at step 19, its last sign of life was (\d+) s ago\n", err)
    assert found is not None, err
    assert err[: found.start()].endswith(str(begun))
    assert int(found[1]) <= round(seconds)
    assert f"go on with: plugstream resume {begun}\n" in err


def test_a_run_that_ends_while_it_is_looked_at_did_not_die(
    begun: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its last words come after its log was read, and before it is seen that its process is no more."""

    def end(folder: Path, history: History) -> bool:
        if history.stop is None and list(read_events(folder / "events.jsonl"))[-1] != STOP:
            log = EventLog(folder / "events.jsonl")
            log.add(STOP)
            log.close()
        return False

    other = shutil.copytree(begun, begun.parent / "other")
    monkeypatch.setattr(liveness, "is_running", end)
    assert main(["watch", str(begun)]) == 0
    err = capsys.readouterr().err
    assert "verdict: converged: it did" in err
    assert "died" not in err
    monkeypatch.setattr(describe, "is_running", end)
    assert main(["info", str(other)]) == 0
    out = capsys.readouterr().out
    assert "died" not in out
    assert f"{other} (finished)" in out


def test_a_run_that_goes_on_is_followed_to_its_end(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(90)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    events = [
        lambda: "step 10/20" in screen.written,
        Measurement(15, 0.5, {"snr": 17.25, "relative_distance": 1e-3}),
        lambda: "step 15/20" in screen.written and "SNR 17.25 dB" in screen.written,
        Note("warning: something"),
        lambda: "something" in "".join(screen.shown),
        STOP,
    ]
    with writing(begun, *events):
        assert main(["watch", str(begun)]) == 0
    rows = screen.shown
    assert any(row.startswith(f"watching {begun}"[:80]) for row in rows)
    assert "warning: something" in rows
    assert rows[-1] == "verdict: converged: it did"
    assert "━" not in "".join(rows)


@pytest.mark.usefixtures("own_ctrl_c")
def test_the_keyboard_ends_the_watching_and_not_the_run(
    begun: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looking, done = threading.Event(), threading.Event()
    monkeypatch.setattr(module, "_tell_state", lambda *words: looking.set())

    def interrupt() -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return True

    with writing(begun, looking.is_set, interrupt, done.is_set, STOP):
        status = main(["watch", str(begun)])
        done.set()
    assert status == 0
    assert f"stopped watching {begun}; the run goes on\n" in capsys.readouterr().err
    assert list(read_events(begun / "events.jsonl"))[-1] == STOP


def test_the_keyboard_at_the_end_does_not_tell_that_a_dead_run_goes_on(
    begun: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*words: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_tell_death", interrupt)
    monkeypatch.setattr(liveness, "is_running", lambda *words: False)
    assert main(["watch", str(begun)]) == 0
    assert capsys.readouterr().err.endswith(f"stopped watching {begun}\n")


def test_json_lines_are_all_events_and_then_the_new_ones(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = Stop(17, 10, 1.0, 1.2, "the image became NaN", True)
    waiting = iter(range(10))
    with writing(begun, lambda: next(waiting, None) is None, failed):
        assert main(["watch", str(begun), "--progress", "json"]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    told = [line for line in lines if line["event"] not in ("progress", "exit")]
    said = [line for line in told if line.get("text", "").startswith("watching")]
    log = [json.loads(json.dumps(event.content())) for event in read_events(begun / "events.jsonl")]
    assert [line for line in told if line not in said] == log
    assert lines[-1]["status"] == 1


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path)]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err


def test_a_log_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = EventTail(path)
    assert tail.read() == []
    log = EventLog(path)
    log.add(Note("one"))
    assert tail.read() == [Note("one")]
    log.add(Note("two"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])  # half a line
    assert tail.read() == []
    path.write_bytes(whole)
    assert tail.read() == [Note("two")]
    path.write_bytes(whole + b'{"event": "note", "at": 1.0, "text": "three", "check": "0000000000000000"}\n')
    with pytest.raises(DamagedError, match="line 4 of the event log"):
        tail.read()
    path.rename(tmp_path / "old")  # another run in the same place
    other = EventLog(path)
    start = Start(1, {}, {}, "0.1", "2", "3", pid=1, started=1, machine="")
    other.add(start)
    assert tail.read() == [start]
