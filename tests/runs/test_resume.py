"""Runs that stop and go on: real processes killed at random instants, interrupted, lengthened; to the bit."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import warm
from effort import effort, thorough
from plugstream import ProximalGradient, SoftThreshold, Uniform, solve
from plugstream.base.errors import InputError
from plugstream.runs.event_log import read_events
from plugstream.solver.monitors import Distance
from small_run import RUN, main, same_run, with_all_views

# Imports everything once and forks, so that a run begins in milliseconds and can be killed at any point of it; runs are
# begun, killed and resumed until they are done, one after another, until there were enough kills.
CRASHES = """
import itertools, os, random, shutil, signal, sys, time
import torch
torch.set_num_threads(1)
import plugstream.cli.resume, plugstream.cli.reconstruct, plugstream.runs.run, plugstream.scans.store, zarr
import matplotlib.backends.backend_agg, PIL.PngImagePlugin, tifffile
from scipy.special import j0
from plugstream.cli import main

scan, base, kills, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rng = random.Random(seed)
killed = 0
for number in itertools.count():
    folder = os.path.join(base, f"run-{number}")
    while True:
        begun = os.path.exists(os.path.join(folder, "run.json"))
        if not begun and os.path.exists(folder):
            shutil.rmtree(folder)
        child = os.fork()
        if child == 0:
            sys.stderr = open(os.devnull, "w")
            os._exit(main(["resume", folder] if begun else ["reconstruct", scan, "--out", folder, *sys.argv[5:]]))
        if killed < kills:
            time.sleep(rng.expovariate(1 / 0.15))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            killed += 1
        elif os.WEXITSTATUS(status) == 0:
            break
        else:
            sys.exit(f"the run ended with {os.WEXITSTATUS(status)}")
    if killed >= kills:
        break
"""


def crash(scan: Path, whole: Path, folder: Path, kills: int, seed: int) -> None:
    words = [sys.executable, "-c", CRASHES, str(scan), str(folder), str(kills), str(seed), *RUN]
    done = warm.run(words, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    runs = list(folder.glob("run-*"))
    assert runs
    for run in runs:
        same_run(run, whole)
        assert len(list((run / "checkpoints").iterdir())) == 2  # and nothing half-written
        assert not list(run.glob(".*.new"))


@thorough
def test_runs_killed_again_and_again_end_as_if_they_had_not_been(scan, whole, tmp_path):
    crash(scan, whole, tmp_path, kills=effort(8, 300), seed=0)


def test_a_run_can_be_lengthened(scan, whole, tmp_path):
    folder = tmp_path / "run"
    shorter = [*RUN[:-4], "--iterations", "12", "--checkpoint", "100"]
    assert main(["reconstruct", str(scan), "--out", str(folder), *shorter]) == 0
    assert main(["resume", str(folder), "--iterations", "30"]) == 0
    assert np.array_equal(np.load(folder / "result.npy"), np.load(whole / "result.npy"))


@pytest.mark.parametrize(
    "flags",
    [
        "--gradient saga --dtype float64",
        "--gradient svrg --momentum none --in-memory 0",
        "--restart gradient --denoiser ridge",
        "--restart residual --sampler all --dtype float64",
        "--algorithm admm --step 10/L --sampler epochs",
        "--denoiser bm3d --sampler shifted",
        "--denoiser tnrd --sampler importance --cost true",
        "--denoiser nlm --distance false --distance-limit 1e-9",
    ],
)
def test_every_algorithm_goes_on_to_the_bit(scan, tmp_path, flags):
    common = ["--sigma", "0.02", "--batch", "4", "--threads", "1", "--every", "4", *flags.split()]
    common = with_all_views(common) if "--sampler all" in flags else common
    for name, iterations in (("whole", 12), ("run", 8)):  # both are measured at step 8
        words = ["reconstruct", str(scan), "--out", str(tmp_path / name), *common, "--iterations", str(iterations)]
        assert main(words) == 0
    assert main(["resume", str(tmp_path / "run"), "--iterations", "12"]) == 0
    same_run(tmp_path / "run", tmp_path / "whole")


def test_a_schedule_over_all_iterations_stays_what_it_was_when_a_run_is_lengthened(scan, tmp_path):
    common = ["reconstruct", str(scan), *RUN[:-4], "--sigma-end", "0.01"]
    assert main([*common, "--out", str(tmp_path / "run"), "--iterations", "8"]) == 0
    assert main(["resume", str(tmp_path / "run"), "--iterations", "12"]) == 0
    steps = ["--iterations", "12", "--set", "algorithm.sigma_steps=8"]
    assert main([*common, "--out", str(tmp_path / "whole"), *steps]) == 0
    assert np.array_equal(np.load(tmp_path / "run" / "result.npy"), np.load(tmp_path / "whole" / "result.npy"))


def test_a_run_that_reached_its_distance_is_over(scan, tmp_path, capsys):
    """Also where it was killed after its last checkpoint, before it could say so."""
    folder = tmp_path / "run"
    limit = ["--distance-limit", "1e-4", "--iterations", "200"]
    assert main(["reconstruct", str(scan), "--out", str(folder), *RUN[:-4], *limit]) == 0
    first = np.load(folder / "result.npy")
    capsys.readouterr()
    assert main(["resume", str(folder)]) == 0
    assert "the distance to a fixed point fell below its limit" in capsys.readouterr().err
    assert np.array_equal(np.load(folder / "result.npy"), first)
    text = (folder / "settings.toml").read_text()
    (folder / "settings.toml").write_text(text.replace("distance_limit = 0.0001", "distance_limit = 1e-05"))
    assert main(["resume", str(folder)]) == 0
    steps = [event.step for event in read_events(folder / "events.jsonl") if event.kind == "stop"]
    assert steps[0] == steps[1] < steps[2]


def test_ctrl_c_leaves_a_run_that_goes_on(scan, whole, tmp_path):
    folder = tmp_path / "run"
    words = [sys.executable, "-m", "plugstream", "reconstruct", str(scan), "--out", str(folder), *RUN]
    process = warm.Popen(words, stderr=subprocess.PIPE, text=True)
    while not list((folder / "checkpoints").glob("step-*")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    if process.returncode == 130:  # else it was quicker than the signal
        assert f"next: plugstream resume {folder}\n" in said
        assert main(["resume", str(folder)]) == 0
    # It was measured once more where it stopped, so only the result is the same.
    assert np.array_equal(np.load(folder / "result.npy"), np.load(whole / "result.npy"))


@pytest.mark.parametrize("part", ["write_known", "write_results", "write_reports"])
def test_ctrl_c_outside_of_the_steps_says_how_to_go_on_too(scan, whole, tmp_path, monkeypatch, capsys, part):
    """Before the first, while the results are written, and when all is there."""

    def interrupt(*_):
        raise KeyboardInterrupt

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(f"plugstream.runs.execution.{part}", interrupt)
        assert main(["reconstruct", str(scan), "--out", str(folder), *RUN]) == 130
    assert capsys.readouterr().err.splitlines()[-2:] == ["interrupted", f"next: plugstream resume {folder}"]
    assert main(["resume", str(folder)]) == 0
    assert np.array_equal(np.load(folder / "result.npy"), np.load(whole / "result.npy"))


BUSY = """
import os, signal, time
from plugstream import FromFunction
calls, busy = 0, False
def stopped():
    def denoise(z):
        global calls, busy
        assert not busy, "the last call was never finished"
        calls, busy = calls + 1, True
        if calls == 8:
            os.kill(os.getpid(), signal.{name})
            time.sleep(0.05)
        busy = False
        return 0.9 * z
    return FromFunction(denoise)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_in_the_middle_of_a_step_waits_for_its_end(scan, tmp_path, name):
    """What is half done when an exception is thrown into it, an import for one, cannot be used again."""
    (tmp_path / "mine.py").write_text(BUSY.replace("{name}", name))
    words = ["reconstruct", str(scan), "--out", str(tmp_path / "run"), "--denoiser", f"{tmp_path / 'mine.py'}:stopped"]
    words = [sys.executable, "-m", "plugstream", *words, *RUN[:-2], "--checkpoint", "100"]
    done = warm.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 130, done.stderr
    assert "next: plugstream resume" in done.stderr
    (path,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert path.name == "step-00000007.safetensors"  # one call is for the distance at step 0
    (stop,) = (event for event in read_events(tmp_path / "run" / "events.jsonl") if event.kind == "stop")
    assert stop.reason == "it was interrupted"


def test_a_run_is_resumed_in_memory_to_the_bit(regression):
    algorithm = ProximalGradient(regression, SoftThreshold(), lam=0.1, sampler=Uniform(2))
    kept = []

    def keep(progress):
        if progress.state.k == 7:
            kept.append(progress.snapshot())

    whole = solve(algorithm, iterations=20, monitors=[Distance()], every=3, callbacks=[keep])
    reference = torch.as_tensor(kept[0].rows["distance"][0][2])
    again = solve(algorithm, resume=kept[0], iterations=13, monitors=[Distance(reference=reference)], every=3)
    assert torch.equal(whole.image, again.image)
    for name, series in whole.history.items():
        assert np.array_equal(series.step, again.history[name].step)
        assert np.array_equal(series.value, again.history[name].value)
    with pytest.raises(InputError, match="by 1 monitors"):
        solve(algorithm, resume=kept[0], iterations=1)
