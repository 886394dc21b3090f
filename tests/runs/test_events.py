"""Events are typed, a resumed log tells the run once, and the next reader tells a dead run from a live one."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import warm
from plugstream import DamagedError, ImageSpace, InputError
from plugstream.base.checked_jsonl import LineWriter
from plugstream.runs.event_log import VERSION, EventLog, read_events
from plugstream.runs.events import (
    Chosen,
    Event,
    Finishing,
    Forecast,
    FoundStep,
    Heartbeat,
    Machine,
    Measurement,
    Note,
    Preview,
    Quantities,
    Resume,
    Space,
    Stage,
    Start,
    Steering,
    StepEvent,
    Stop,
    Trial,
    Views,
)
from plugstream.runs.liveness import Heartbeats, Process, is_running, this_process
from plugstream.runs.preview import Previews, make_panels, read_preview
from plugstream.runs.replay import replay
from small_run import main
from waiting import wait_until

RUN = ["--report", "none", "--sigma", "0.02", "--batch", "4", "--threads", "1", "--every", "5"]
PROCESS = {"pid": 12, "started": 34, "machine": "here boot pid"}
EXAMPLES: list[Event] = [
    Start(9, {"scan": {"follow": False}, "run": {"report": ["png"]}}, {}, "0.1", "2.9", "3.12", **PROCESS),
    Machine("here", "Linux 6", "a processor", 2, None, "cpu", 2, 1),
    Space(ImageSpace((3, 4), spacing=(0.1, 0.2), origin=(0.0, 0.0)).content()),
    Forecast(10, 120, True),
    Forecast(10, 0, True),
    Finishing(120),
    Note("text of a person, ü\n"),
    Views(3, 12, (4, 7), 1 / 3, False),
    Views(3, 12, (), None, True),
    Stage(3, 2, 5, "4 GHz", 36, 0.1 + 0.2, 1 / 3),
    Quantities(({"name": "snr", "title": "SNR", "unit": "dB", "needs_truth": True},)),
    Measurement(5, 0.1, {"snr": math.inf, "distance": 0.1 + 0.2}),
    Resume(5),
    Stop(9, 8, 0.5, 0.6, "all steps were taken", False, "converged", True, "it fell"),
    Stop(9, 9, 0.5, 0.6, "No space left on device", True),
    Steering(4, "change", 0.1 + 0.2, "0.5/L"),
    Trial(40, 2, 0.05, 1.41, 0.002, 0.003, 0.002, ended=False),
    FoundStep(40, 0.1 + 0.2),
    Chosen(40, "bm3d", {"tnrd": 0.003, "bm3d": 0.002, "ridge": None}),
    Steering(4, "change", None, 3.0),
    Steering(4, "pause"),
    Heartbeat(7, None, 12.5, 0.56, **PROCESS),
    Preview(7, "preview.safetensors", ({"name": "image", "range": [0.0, 1.0], "axes": []},)),
]


def write(path: Path, events: list[Event]) -> Path:
    log = EventLog(path)
    for event in events:
        log.add(event)
    log.close()
    return path


def test_every_kind_of_event_is_read_as_it_was_written(tmp_path):
    assert {type(event) for event in EXAMPLES} == {*Event.__subclasses__(), *StepEvent.__subclasses__()} - {StepEvent}
    before = time.time() - 0.001
    read = list(read_events(write(tmp_path / "events.jsonl", EXAMPLES)))
    assert read == EXAMPLES
    assert [type(event) for event in read] == [type(event) for event in EXAMPLES]
    assert all(before <= event.at <= time.time() + 0.001 for event in read)
    first = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[0])
    assert (first["format"], first["version"]) == ("plugstream-events", VERSION)


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ({"event": "start", "at": 1.0, "iterations": 3}, "tells no version"),
        ({"format": "plugstream-events", "version": 0}, "is of version 0"),
        ({"format": "plugstream-events", "version": VERSION + 1}, f"is of version {VERSION + 1}"),
        ({"format": "plugstream-journal", "version": VERSION}, "tells no version"),
    ],
)
def test_a_log_of_another_version_is_refused_in_one_line(tmp_path, first, message):
    lines = LineWriter(tmp_path / "events.jsonl", "the event log")
    lines.add(first)
    lines.close()
    with pytest.raises(InputError, match=f"line 1 of the event log .* {message}.*; use the one that wrote it"):
        replay(tmp_path / "events.jsonl")


@pytest.mark.parametrize(
    "change",
    [
        {"event": "fireworks"},
        {"event": None},
        {"step": -1},
        {"step": 2.0},
        {"step": True},
        {"values": {"snr": "good"}},
        {"values": []},
        {"time": None},
        {"more": 1},
    ],
)
def test_what_is_no_event_is_refused_though_its_checksum_is_right(tmp_path, change):
    path = write(tmp_path / "events.jsonl", [Note("one")])
    lines = LineWriter(path, "the event log")
    lines.add({**Measurement(1, 0.5, {"snr": 1.0}).content(), **change})
    lines.close()
    with pytest.raises(DamagedError, match=r"line 3 of the event log .* it is not an event of version"):
        list(read_events(path))


def test_what_a_resume_repeats_counts_once(tmp_path):
    start = EXAMPLES[0]
    first = [
        start,
        Views(0, 6, (), 1.0, False),
        Measurement(0, 0.0, {}),
        Quantities(({"name": "snr", "title": "SNR", "unit": "dB", "needs_truth": True},)),
        Measurement(5, 0.1, {}),
    ]
    lost = [Views(7, 9, (), 2.0, True), Measurement(10, 0.2, {"snr": 3.0})]
    lost += [Stop(10, 10, 0.2, 0.2, "it was interrupted", False)]
    after = [start, Resume(5), Measurement(10, 0.3, {"snr": 3.0})]
    history = replay(write(tmp_path / "a.jsonl", [*first, *lost, *after]))
    assert [event.step for event in history.measured] == [0, 5, 10]
    assert [(event.step, event.views) for event in history.views] == [(0, 6), (7, 9)]  # which it uses again
    assert history.arrivals() == [(0, 6), (7, 9)]
    assert (history.stop, history.step, history.last_step) == (None, 10, 10)
    # Views that are written for an earlier step take the place of later ones, and are known only so far.
    changed = replay(write(tmp_path / "b.jsonl", [*first, *lost, start, Resume(5), Views(5, 6, (2,), 1.0, False)]))
    assert [event.step for event in changed.views] == [0, 5]
    assert changed.last_step == 5
    # A run without a checkpoint begins anew, with its first measurement.
    anew = replay(write(tmp_path / "c.jsonl", [*first, start, Resume(0), Measurement(0, 0.0, {})]))
    assert [event.step for event in anew.measured] == [0]
    assert anew.step == 0


def test_the_history_of_a_resumed_run_is_that_of_one_that_went_through(scan, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(["reconstruct", str(scan), "--out", str(whole), *RUN, "--iterations", "30"]) == 0
    assert main(["reconstruct", str(scan), "--out", str(parts), *RUN, "--iterations", "10"]) == 0
    early = shutil.copytree(parts / "checkpoints", tmp_path / "early")
    assert main(["resume", str(parts), "--iterations", "20"]) == 0
    shutil.rmtree(parts / "checkpoints")
    shutil.copytree(early, parts / "checkpoints")  # so that ten steps are repeated
    assert main(["resume", str(parts), "--iterations", "30"]) == 0
    assert np.array_equal(np.load(whole / "result.npy"), np.load(parts / "result.npy"))
    one, other = (replay(folder / "events.jsonl") for folder in (whole, parts))
    assert [(e.step, e.values) for e in one.measured] == [(e.step, e.values) for e in other.measured]
    assert one.views == other.views
    assert (one.step, one.last_step) == (other.step, other.last_step) == (30, 30)
    assert one.stop is not None
    assert other.stop is not None
    assert replace(one.stop, time=0.0, wall=0.0) == replace(other.stop, time=0.0, wall=0.0)
    assert one.settings is not None
    assert other.settings is not None
    assert one.settings["algorithm"] == other.settings["algorithm"]  # as the last process was asked


def test_a_killed_run_is_known_as_dead_and_a_live_one_as_running(scan, tmp_path, capsys):
    folder = tmp_path / "run"
    words = ["reconstruct", str(scan), "--out", str(folder), *RUN, "--iterations", "100000000"]
    process = warm.Popen([sys.executable, "-m", "plugstream", *words], stderr=subprocess.DEVNULL)
    log = folder / "events.jsonl"
    try:
        wait_until(lambda: process.poll() is not None or (log.exists() and replay(log).step >= 5))
        assert process.poll() is None
        start = replay(log).start
        assert start is not None
        assert start.pid == process.pid
        assert is_running(folder, replay(log))
        (folder / ".lock").rename(tmp_path / "lock")  # as where locks cannot be seen: the process itself is asked
        assert is_running(folder, replay(log))
        (tmp_path / "lock").rename(folder / ".lock")
        assert main(["info", str(folder)]) == 0
        assert "(running)" in capsys.readouterr().out
    finally:
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not is_running(folder, replay(log)))  # threads end one by one; nobody asked for its status yet
    process.wait(30)
    history = replay(log)
    assert history.stop is None
    assert is_running(folder, history) is False
    assert main(["info", str(folder)]) == 0
    out = capsys.readouterr().out
    (step,) = re.findall(r"\(died at step (\d+), its last sign of life was", out)
    assert int(step) >= history.step  # the newest checkpoint may be later than what the log tells of
    assert f"plugstream resume {folder}" in out


def test_a_process_is_known_by_its_start_and_its_machine():
    me = this_process()
    assert me.pid == os.getpid()
    assert me.started > 0
    assert me.lives() is True
    assert replace(me, started=me.started - 1).lives() is False  # another one that got the same number
    assert Process(2**22 + 1, me.started, me.machine).lives() is False
    assert replace(me, machine="elsewhere").lives() is None


def test_heartbeats_come_at_most_so_often_with_progress_and_speed(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("plugstream.runs.liveness.time.monotonic", lambda: clock[0])
    log = EventLog(tmp_path / "events.jsonl")
    beats = Heartbeats(log, 1000)
    for step in range(101):  # ten a second
        beats.after_step(SimpleNamespace(state=SimpleNamespace(k=step)))
        clock[0] += 0.1
    log.close()
    found = [event for event in read_events(tmp_path / "events.jsonl") if isinstance(event, Heartbeat)]
    assert 1 <= len(found) <= 2
    assert all(event.rate == pytest.approx(10, rel=1e-6) for event in found)
    assert found[0].step == pytest.approx(50, abs=1)
    assert {(event.planned, event.pid) for event in found} == {(1000, os.getpid())}


def test_previews_do_not_change_a_bit_and_are_whole_small_and_explained(scan, tmp_path):
    words = ["reconstruct", str(scan), *RUN, "--iterations", "12"]
    assert main([*words, "--out", str(tmp_path / "a"), "--preview", "0"]) == 0
    assert main([*words, "--out", str(tmp_path / "b"), "--preview", "1e-9"]) == 0
    assert not (tmp_path / "a" / "preview.safetensors").exists()
    assert np.array_equal(np.load(tmp_path / "a" / "result.npy"), np.load(tmp_path / "b" / "result.npy"))
    history = replay(tmp_path / "b" / "events.jsonl")
    assert history.preview is not None
    step, tensors, panels = read_preview(tmp_path / "b" / history.preview.file)
    assert step == history.preview.step
    (panel,) = panels
    assert panel["quantity"] == "permittivity contrast"
    assert [(axis["name"], axis["unit"], axis["size"]) for axis in panel["axes"]] == [("y", "m", 24), ("x", "m", 24)]
    image = tensors["image"]
    assert image.shape == (24, 24)
    assert panel["range"] == [float(image.min()), float(image.max())]


def test_a_short_run_has_previews_but_no_heartbeats(scan, tmp_path):
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), *RUN, "--iterations", "3"]) == 0
    history = replay(tmp_path / "run" / "events.jsonl")
    assert history.heartbeat is None
    assert history.preview is not None
    assert history.preview.step == 3
    _, tensors, _ = read_preview(tmp_path / "run" / "preview.safetensors")  # which is the result in the end
    assert np.array_equal(tensors["image"].numpy(), np.load(tmp_path / "run" / "result.npy"))


def test_a_large_preview_is_of_means_that_lie_where_the_axes_say():
    space = ImageSpace((1030, 700), spacing=(0.5, 2.0), origin=(-3.0, 10.0))
    rows = torch.arange(1030.0)[:, None].expand(1030, 700) * 0.5 - 3.0  # the position itself
    tensors, (panel,) = make_panels(rows, space)
    small = tensors["image"]
    assert max(small.shape) <= 512
    y, x = panel["axes"]
    assert (y["size"], x["size"]) == tuple(small.shape)
    expected = y["origin"] + y["spacing"] * torch.arange(y["size"])
    assert torch.allclose(small[:-1, 0], expected[:-1].float())
    assert float(small[-1, 0]) == pytest.approx(float(rows[1029, 0]), abs=1.0)  # of the one row that is left
    assert x["origin"] + x["spacing"] * 0 == pytest.approx(10.0 + 1.0)


def test_volumes_complex_images_and_channels_have_panels_of_their_own():
    values = torch.randn(4, 6, 8, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    tensors, panels = make_panels(values, ImageSpace((4, 6, 8), is_complex=True, value_unit="S/m", phase="measured"))
    assert set(tensors) == {f"{at} {what}" for at in ("z = 2", "y = 3", "x = 4") for what in ("magnitude", "phase")}
    assert torch.equal(tensors["y = 3 magnitude"], values[:, 3].abs())
    assert torch.equal(tensors["x = 4 phase"], values[..., 4].angle())
    assert {panel["unit"] for panel in panels} == {"S/m", "rad"}
    assert [axis["name"] for axis in panels[2]["axes"]] == ["z", "x"]
    colour = torch.rand(3, 5, 7)
    colour[0, 0, 0] = math.nan
    tensors, (panel,) = make_panels(colour[None], ImageSpace((3, 5, 7), channels=True))
    assert tensors["image"].shape == (3, 5, 7)
    assert [axis["name"] for axis in panel["axes"]] == ["channel", "y", "x"]
    assert all(map(math.isfinite, panel["range"]))


def test_a_disk_that_takes_no_preview_does_not_end_the_run(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    previews = Previews(tmp_path / "gone", ImageSpace((4, 4)), log, 1e-9)
    for step in range(3):
        previews.after_step(SimpleNamespace(state=SimpleNamespace(k=step, image=torch.zeros(4, 4))))
        time.sleep(0.001)
    log.close()
    (note,) = read_events(tmp_path / "events.jsonl")
    assert isinstance(note, Note)
    assert "there are no more previews" in note.text
