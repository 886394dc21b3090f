"""Previews over time: they come early, take next to nothing, are few enough to keep, and change no bit of a run."""

from __future__ import annotations

import itertools
import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from plugstream.images.space import ImageSpace
from plugstream.runs import callbacks as pace_file, frames as frames_file
from plugstream.runs.callbacks import Pace
from plugstream.runs.event_log import EventLog, read_events
from plugstream.runs.events import Preview
from plugstream.runs.frames import PIXELS, Frames, frame_steps, read_frame
from plugstream.runs.preview import Previews, make_panels
from small_run import main

PLANE = ImageSpace((4, 6), spacing=(1e-3, 2e-3), origin=(0.0, 1.0), upwards=False)


def add(frames: Frames, step: int, image: torch.Tensor, space: ImageSpace = PLANE) -> None:
    frames.add(step, *make_panels(image, space))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time by which a pace goes, which the test moves."""
    now = [100.0]
    monkeypatch.setattr(pace_file.time, "monotonic", lambda: now[0])
    return now


def turns(pace: Pace, clock: list[float], seconds: float, cost: float) -> list[float]:
    """When turns were taken by somebody who asks every millisecond, each of which takes `cost` seconds."""
    begun, taken = clock[0], []
    while clock[0] < begun + seconds:
        if pace.due():
            taken.append(clock[0] - begun)
            with pace.turn():
                clock[0] += cost
        clock[0] += 0.001
    return taken


@pytest.mark.parametrize("cost", [0.0, 0.002, 0.02, 0.4])
def test_turns_take_at_most_a_hundredth_of_the_time_and_a_twentieth_of_a_second(clock, cost):
    pace = Pace(5.0, cost)
    seconds = 60.0
    taken = turns(pace, clock, seconds, cost)
    assert len(taken) * cost <= 0.05 + 0.01 * seconds + 1e-9
    assert pace.spent == pytest.approx(len(taken) * cost)


def test_a_live_run_is_shown_more_often(clock):
    """Previews of 30 ms take a twentieth of the time, and come about twice a second."""
    pace = Pace(0.5, 0.03, 0.05)
    taken = turns(pace, clock, 30.0, 0.03)
    assert pace.spent <= 0.05 + 0.05 * 30.0 + 1e-9
    assert max(np.diff(taken)) < 0.9


def test_ten_seconds_give_thirty_turns_or_more_most_of_them_early(clock):
    taken = turns(Pace(5.0), clock, 10.0, 0.002)
    assert 30 <= len(taken) <= 100
    assert taken[0] == 0
    assert np.median(taken) < 5
    assert all(later - before < 0.6 for before, later in itertools.pairwise(taken))


def test_a_slow_disk_makes_turns_rarer_and_no_holes(clock):
    taken = turns(Pace(5.0), clock, 1.0, 0.008)
    assert len(taken) >= 5
    assert max(np.diff(taken)) < 0.5


def test_later_turns_come_every_few_seconds_and_never_for_0(clock):
    taken = turns(Pace(0.5), clock, 60.0, 0.0)
    assert np.diff(taken)[-20:] == pytest.approx(0.5, abs=0.01)
    assert turns(Pace(0.0), clock, 1.0, 0.0) == []


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_a_frame_is_read_as_it_was_but_for_16_bits(tmp_path, scale):
    image = scale * torch.randn(4, 6)
    image[1, 2], image[2, 3] = math.nan, -math.inf
    add(Frames(tmp_path), 7, image)
    assert frame_steps(tmp_path) == [7]
    values, (panel,) = read_frame(tmp_path, 7)
    known = torch.isfinite(image).numpy()
    assert np.array_equal(np.isnan(values["image"]), ~known)
    span = float(image[known].max() - image[known].min())
    assert np.abs(values["image"] - image.numpy())[known].max() <= 0.6 * span / 65534 + 1e-6 * scale
    assert [axis["name"] for axis in panel["axes"]] == ["y", "x"]
    assert panel["upwards"] is False


def test_a_flat_image_stays_what_it_is(tmp_path):
    add(Frames(tmp_path), 0, torch.full((4, 6), 2.5))
    assert np.array_equal(read_frame(tmp_path, 0)[0]["image"], np.full((4, 6), 2.5, np.float32))


def test_frames_are_few_and_dense_at_first(tmp_path):
    frames = Frames(tmp_path)
    for step in range(0, 3000, 5):
        add(frames, step, torch.zeros(4, 6))
    steps = frame_steps(tmp_path)
    assert len(steps) == 200
    assert (steps[0], steps[-1]) == (0, 2995)
    place = np.diff(np.sqrt(steps))
    assert place.max() < 3 * np.sqrt(2995) / 200 + np.sqrt(5)  # nowhere is there a hole
    assert np.diff(steps)[:5].max() < np.diff(steps)[-50:].mean()


def test_large_frames_are_fewer_and_have_less_pixels(tmp_path, monkeypatch):
    monkeypatch.setattr(frames_file, "_LEAST", 3)
    monkeypatch.setattr(frames_file, "_MOST_BYTES", 2 * 24 * 5)
    frames = Frames(tmp_path)
    for step in range(30):
        add(frames, step, torch.zeros(4, 6))
    assert len(frame_steps(tmp_path)) == 5
    space = ImageSpace((40, 300, 300), is_complex=True)
    log = EventLog(tmp_path / "events.jsonl")
    Previews(tmp_path, space, log, 1.0).write(40, torch.zeros(space.shape, dtype=torch.complex64))
    log.close()
    values, _ = read_frame(tmp_path, 40)
    assert len(values) == 6
    assert sum(value.size for value in values.values()) <= PIXELS


def test_a_run_that_goes_back_forgets_the_frames_that_it_repeats(tmp_path):
    before = Frames(tmp_path)
    for step in (0, 10, 20, 30):
        add(before, step, torch.zeros(4, 6))
    (tmp_path / "previews" / "notes.txt").write_text("somebody's")
    add(Frames(tmp_path), 20, torch.ones(4, 6))
    assert frame_steps(tmp_path) == [0, 10, 20]
    assert read_frame(tmp_path, 20)[0]["image"].max() == 1
    assert (tmp_path / "previews" / "notes.txt").exists()


def test_frames_change_no_bit_and_the_last_is_the_result(whole, scan, tmp_path):
    words = ["reconstruct", str(scan), "--out", str(tmp_path / "run"), "--report", "none", "--sigma", "0.02"]
    assert main([*words, "--batch", "4", "--threads", "1", "--iterations", "30", "--preview", "0"]) == 0
    result = np.load(tmp_path / "run" / "result.npy")
    assert np.array_equal(result, np.load(whole / "result.npy"))
    assert frame_steps(tmp_path / "run") == []
    steps = frame_steps(whole)
    assert (steps[0], steps[-1]) == (0, 30)
    shown = [event.step for event in read_events(whole / "events.jsonl") if isinstance(event, Preview)]
    assert set(shown) <= set(steps)
    assert (shown[0], shown[-1]) == (0, 30)
    assert np.abs(read_frame(whole, 30)[0]["image"] - result).max() < 1e-4


def test_a_preview_of_a_small_image_takes_milliseconds(tmp_path: Path):
    log = EventLog(tmp_path / "events.jsonl")
    previews, image = Previews(tmp_path, ImageSpace((256, 256)), log, 1.0), torch.rand(256, 256)
    seconds = []
    for step in range(8):
        begun = time.thread_time()  # of the processor, which others may have meanwhile
        previews.write(step, image)
        seconds.append(time.thread_time() - begun)
    log.close()
    assert 0 < min(seconds) < 0.05  # 2 to 4 ms
