"""Steps repeated from a run's checkpoint: what is said of them is so, what is suggested helps, nothing is written."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from plugstream.cli.resume import reopen_run
from plugstream.runs.replay import replay
from plugstream.runs.run import at_checkpoint
from plugstream.studies.certificates.run_steps import certify_steps
from small_run import content, main, with_all_views

MINE = """
from plugstream import FromFunction
def backwards():
    return FromFunction(lambda z: -1.4 * z)
def louder():
    return FromFunction(lambda z: 1.3 * z)
"""


@pytest.fixture
def run(scan, tmp_path):
    def reconstruct(name: str, *flags: str, status: int = 0) -> Path:
        words = ["reconstruct", str(scan), "--sigma", "0.05", "--momentum", "none", "--batch", "4", "--threads", "1"]
        words += ["--sampler", "uniform"] * ("--sampler" not in flags)
        words += ["--iterations", "10", "--out", str(tmp_path / name), *flags]
        assert main(with_all_views(words) if "all" in flags else words) == status
        return tmp_path / name

    return reconstruct


def certified(folder: Path, steps: int = 20) -> str:
    scan, planned, _, _ = reopen_run(folder, trust=True)
    with at_checkpoint(scan, planned, folder) as (settings, algorithm, state):
        return "\n".join(certify_steps(algorithm, state, settings, steps))


def test_steps_within_the_theory_stay_below_its_bound_and_are_those_of_the_run(run, capsys):
    folder = run("tv", "--every", "1")
    before = content(folder)
    assert main(["certify", "--run", str(folder), "--steps", "7"]) == 0
    assert content(folder) == before
    first, second, third = capsys.readouterr().out.splitlines()  # and no condition that does not hold
    assert first == "7 steps were repeated from step 10 on"
    assert second == "none of 7 steps contradicted nonexpansiveness"
    assert "if x* is the last image: theta 0.5 (proved), nu" in third
    mean, limit = (float(re.search(rf"{word} ([\d.e+-]+)", third)[1]) for word in ("is", "allows"))
    assert 0 < mean < limit
    assert main(["resume", str(folder), "--iterations", "17"]) == 0
    distances = [event.values["distance"] for event in replay(folder / "events.jsonl").measured]
    assert mean == pytest.approx(np.mean(distances[10:17]), rel=1e-3)


def test_an_expansive_denoiser_is_named_with_its_views_and_the_damping_helps(run, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    mine = ["--denoiser", f"{tmp_path / 'mine.py'}:backwards", "--low", "none"]
    said = certified(run("worse", *mine))
    assert re.search(
        r"the denoiser .* in 19 of 20 steps, most at step \d+ \(views [\d, ]+\), by a factor of 1.4,", said
    )
    assert "has no bound for it: theta 1.2 (the largest measured)" in said
    assert "does not apply: the denoiser is not nonexpansive; the denoiser is not averaged by construction" in said
    assert "the gradient step" not in said
    damping = said.partition("--damping ")[2].partition(")")[0]
    assert 0.8 / 1.2 < float(damping) < 1 / 1.2
    assert "none of 20 steps contradicted" in certified(run("better", *mine, "--damping", damping))
    louder = ["--denoiser", f"{tmp_path / 'mine.py'}:louder", "--low", "none", "--step", "0.01/L"]
    assert "no damping is enough" in certified(run("louder", *louder, "--iterations", "400", status=1))


@pytest.mark.filterwarnings("ignore::plugstream.base.errors.PlugstreamWarning")
def test_a_step_too_long_is_told_from_a_bad_denoiser(run):
    said = certified(run("long", "--step", "3/L"))
    assert "the gradient step enlarged distances" in said
    assert "use a shorter step" in said
    assert "the denoiser enlarged" not in said
    assert said.endswith("does not apply: the step is beyond 1/L")


def test_conditions_that_do_not_hold_are_named(run):
    said = certified(run("m", "--momentum", "nesterov", "--sampler", "epochs"), 3)
    assert said.endswith("does not apply: momentum; the sampler is epochs")
    said = certified(run("admm", "--algorithm", "admm", "--sampler", "all"), 3)
    assert said.endswith("nu 0\nProposition 5 does not apply: the algorithm is admm")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--run", "RUN", "--sigma", "0.1"], "give only --steps and --trust"),
        (["--run", "RUN", "--denoiser", "tv"], "give only --steps and --trust"),
        (["--run", "RUN", "--steps", "0"], "--steps must be at least 1"),
        (["--run", "nowhere"], "nowhere is not the folder of a run"),
        (["--steps", "3", "--sigma", "0.1"], "--steps is for --run"),
    ],
)
def test_what_does_not_go_together_is_refused(flags, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["certify", *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_denoiser_that_is_drawn_in_each_step_is_refused(run, capsys):
    folder = run("turned", "--equivariant", "random", "--denoiser", "nlm")
    assert main(["certify", "--run", str(folder)]) == 2
    assert "steps of one denoiser are compared" in capsys.readouterr().err
