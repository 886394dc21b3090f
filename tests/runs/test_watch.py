"""Runs that watch the theory: what they warn of is so, what they suggest helps, and watching changes nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plugstream import Uniform
from plugstream.algorithms.theory import bound
from plugstream.runs.event_log import read_events
from plugstream.runs.replay import replay
from plugstream.runs.watch import theory_of
from small_run import main, with_all_views

BACKWARDS = """
import torch
from plugstream import FromFunction
def backwards():
    return FromFunction(lambda z: -1.4 * z)
def louder():
    return FromFunction(lambda z: 1.3 * z)
"""


@pytest.fixture
def run(scan, tmp_path):
    def reconstruct(name: str, *flags: str, watch: bool = True) -> tuple[int, Path]:
        words = ["reconstruct", str(scan), "--sigma", "0.05", "--momentum", "none", "--batch", "4", "--threads", "1"]
        words += ["--out", str(tmp_path / name), *flags, *(["--watch-theory"] if watch else [])]
        return main(with_all_views(words) if "all" in flags else words), tmp_path / name

    return reconstruct


def events(folder: Path, kind: str) -> list[Any]:
    return [event for event in read_events(folder / "events.jsonl") if event.kind == kind]


def notes(folder: Path) -> str:
    return "\n".join(event.text for event in events(folder, "note"))


def test_a_run_within_the_theory_stays_below_its_bound(run):
    status, folder = run("tv", "--iterations", "30", "--every", "1")
    assert status == 0
    assert "none of 30 steps contradicted nonexpansiveness" in notes(folder)
    theory = theory_of(replay(folder / "events.jsonl"))
    assert theory.unmet == []
    assert theory.t == list(range(1, 31))
    distances = [event.values["distance"] for event in replay(folder / "events.jsonl").measured]
    assert np.allclose(theory.average, np.cumsum(distances[:-1]) / np.arange(1, 31))
    assert all(mean < limit for mean, limit in zip(theory.average, theory.bounds, strict=True))
    (told,) = events(folder, "theory")
    length = float(np.linalg.norm(np.load(folder / "result.npy")))
    nu = math.sqrt(max(event.values["nu2"] for event in replay(folder / "events.jsonl").measured))
    wanted = bound(0.5, length, 30, gamma=told.gamma, nu=nu, batch=4)
    assert theory.bounds[-1] == pytest.approx(wanted, rel=1e-4)


def test_watching_does_not_change_a_bit(run):
    words = ["--iterations", "12", "--denoiser", "bm3d", "--sampler", "uniform"]
    _, watched = run("a", *words)
    _, plain = run("b", *words, watch=False)
    assert np.array_equal(np.load(watched / "result.npy"), np.load(plain / "result.npy"))
    assert theory_of(replay(plain / "events.jsonl")) is None


def test_an_expansive_denoiser_is_named_with_views_and_step_and_the_damping_helps(run, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(BACKWARDS)
    mine = ["--denoiser", f"{tmp_path / 'mine.py'}:backwards", "--low", "none", "--iterations", "20"]
    _, folder = run("worse", *mine)
    found = events(folder, "contradiction")
    assert found[0].step == 2
    assert {event.part for event in found} == {"denoiser"}
    assert all(event.factor == pytest.approx(1.4, rel=1e-3) for event in found)
    assert all(event.theta == pytest.approx(1.2, rel=1e-3) for event in found)
    for event in found:
        assert event.views == tuple(Uniform(4, 0).draw(event.step - 1, torch.arange(12)).views.tolist())
    views = ", ".join(map(str, found[0].views))
    assert f"warning: step 2 (views {views}) contradicts nonexpansiveness: the denoiser" in capsys.readouterr().err
    told = notes(folder)
    assert "enlarged distances in 19 of 20 steps" in told
    damping = told.rsplit("--damping ", 1)[1].split(")")[0]
    assert 0.8 / 1.2 < float(damping) < 1 / 1.2
    _, damped = run("better", *mine, "--damping", damping)
    assert events(damped, "contradiction") == []
    assert "the denoiser is not averaged by construction" in events(damped, "theory")[0].unmet


def test_a_diverging_run_is_explained_and_no_damping_promised_where_none_helps(run, tmp_path):
    (tmp_path / "mine.py").write_text(BACKWARDS)
    mine = ["--denoiser", f"{tmp_path / 'mine.py'}:louder", "--low", "none", "--iterations", "400"]
    status, folder = run("louder", *mine, "--step", "0.01/L")
    assert status == 1
    assert "no damping is enough" in notes(folder)
    assert "the run diverged" in events(folder, "theory")[0].unmet
    assert json.loads((folder / "events.jsonl").read_text().splitlines()[-1])["failed"]


def test_a_step_too_long_is_told_from_a_bad_denoiser(run):
    _, folder = run("long", "--step", "3/L", "--iterations", "12", "--every", "2")
    found = events(folder, "contradiction")
    assert found
    assert {event.part for event in found} == {"gradient"}
    assert "use a shorter step" in notes(folder)
    assert "the step is beyond 1/L" in theory_of(replay(folder / "events.jsonl")).unmet


def test_conditions_that_do_not_hold_are_named(run):
    _, folder = run("m", "--momentum", "nesterov", "--sampler", "epochs", "--iterations", "6")
    assert theory_of(replay(folder / "events.jsonl")).unmet == ["momentum", "the sampler is epochs"]
    _, folder = run("admm", "--algorithm", "admm", "--sampler", "all", "--iterations", "4")
    assert theory_of(replay(folder / "events.jsonl")).unmet == ["the algorithm is admm"]


def test_a_resumed_run_tells_the_whole(run):
    _, folder = run("r", "--iterations", "10", "--every", "1")
    assert main(["resume", str(folder), "--iterations", "16"]) == 0
    theory = theory_of(replay(folder / "events.jsonl"))
    assert theory.t == list(range(1, 17))
    assert torch.isfinite(torch.tensor(theory.bounds)).all()


def test_what_was_seen_before_a_stop_counts(run, tmp_path):
    (tmp_path / "mine.py").write_text(BACKWARDS)
    mine = ["--denoiser", f"{tmp_path / 'mine.py'}:backwards", "--low", "none", "--every", "1"]
    _, whole = run("whole", *mine, "--iterations", "12")
    _, folder = run("stopped", *mine, "--iterations", "6")
    before = len(notes(folder).splitlines())
    # With --trust, since the denoiser is code; status 1, since its distance to a fixed point grows.
    assert main(["resume", str(folder), "--iterations", "12", "--trust"]) == 1
    later = notes(folder).splitlines()[before:]
    assert not [text for text in later if "warning" in text]  # the factor is no larger than what was told
    # The pair of steps 6 and 7 is missing, since what the denoiser was given in step 6 is not kept.
    assert f"enlarged distances in {12 - 1 - 1} of 12 steps" in later[-1]
    assert events(whole, "theory")[0].theta == pytest.approx(events(folder, "theory")[-1].theta, rel=1e-4)
    assert np.array_equal(np.load(whole / "result.npy"), np.load(folder / "result.npy"))


def test_the_largest_theta_of_a_stopped_run_is_of_all_its_steps(run):
    _, folder = run("bm3d", "--denoiser", "bm3d", "--iterations", "8")
    assert main(["resume", str(folder), "--iterations", "9"]) == 0
    first, last = events(folder, "theory")
    assert last.theta == first.theta > 0  # one step more, and no pair with it


@pytest.mark.parametrize("every", [1, 4, 100])
def test_as_many_steps_as_were_taken(scan: Path, tmp_path: Path, every: int) -> None:
    """It counts steps, not looks: the last step is looked at again when it has been measured."""
    out = tmp_path / "run"
    words = ["reconstruct", str(scan), "--out", str(out), "--sigma", "0.05", "--batch", "4", "--threads", "1"]
    assert main([*words, "--iterations", "10", "--every", str(every), "--watch-theory", "--momentum", "none"]) == 0
    events = list(read_events(out / "events.jsonl"))
    assert [event.steps for event in events if event.kind == "watched"][-1] == 10
    assert any("none of 10 steps" in event.text for event in events if event.kind == "note")
