"""Runs on scans of ptychography by commands: simulated, refined, judged on held-out views; live, killed and resumed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import numpy as np
import pytest

import warm
from plugstream.cli import main
from plugstream.runs.pages.report import _collect
from plugstream.runs.refined import read_refined
from plugstream.runs.replay import replay
from plugstream.scans import open_scan
from plugstream.scans.send import send_scan
from streaming import acquiring
from waiting import wait_until

SMALL = ["--instrument", "ptychography", "--frame", "16", "--across", "4", "--photons", "2000"]
RUN = ["--report", "none", "--preview", "0", "--threads", "1", "--iterations", "12"]
RUN += ["--sigma", "0.02", "--batch", "4", "--refine", "probe", "--probe-modes", "2"]
OFTEN = ["--checkpoint", "0"]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("ptychography") / "small.zarr"
    assert main(["simulate", str(path), *SMALL]) == 0
    return path


def last_step(run: Path) -> int:
    return max((int(file.stem.split("-")[1]) for file in (run / "checkpoints").glob("step-*.safetensors")), default=0)


def same(one: Path, other: Path) -> None:
    for name in ("result.npy", "refined-probe.npy"):
        assert np.array_equal(np.load(one / name), np.load(other / name)), name


def test_a_simulated_scan_holds_counts_of_its_truth(small):
    scan = open_scan(small)
    assert scan.dtype == np.uint16
    assert scan.read().shape == (16, 16, 16)
    mean = float(scan.read().double().sum((1, 2)).mean())
    assert 0.3 * 2000 < mean < 1.05 * 2000  # the object absorbs some of the light
    assert scan.truth.dtype == np.complex64
    assert np.allclose(scan.truth[0, 0], 1)  # free space, where no beam comes
    assert np.abs(scan.truth).min() < 0.9


def test_a_run_takes_what_the_instrument_advises_refines_and_is_judged(small, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["reconstruct", str(small), "--out", str(out), *RUN, "--hold-out", "8", "--every", "12"]) == 0
    told = capsys.readouterr().err
    assert "the step is overlap" in told
    settings = tomllib.loads((out / "settings.toml").read_text())
    assert (settings["loss"]["name"], settings["algorithm"]["step_size"]) == ("amplitude", "overlap")
    assert (settings["sampler"]["name"], settings["momentum"]["name"]) == ("epochs", "bounded")
    probe = read_refined(out)["probe"]
    assert probe.shape == (2, 16, 16)
    gram = probe.reshape(2, -1) @ probe.reshape(2, -1).conj().T
    assert abs(gram[0, 1]) < 1e-4 * gram[0, 0].real
    assert (out / "refined-probe.png").exists()
    measured = replay(out / "events.jsonl").measured
    assert measured[-1].values["held_out"] < 0.8 * measured[0].values["held_out"]
    shown = _collect(out)["pictures"]["refined-probe"]["panels"]
    assert [panel["shape"] for panel in shown] == [[2, 16, 16]] * 2
    capsys.readouterr()
    assert main(["residual", str(small), str(out), str(out / "result.npy")]) == 0
    residuals = {line.split()[1]: float(line.split()[0]) for line in capsys.readouterr().out.splitlines()}
    assert residuals[str(out)] < residuals[str(out / "result.npy")]  # which is with the scan's own probe


@pytest.mark.slow
def test_a_run_goes_on_to_the_bit_with_what_it_refined(small, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(["reconstruct", str(small), "--out", str(whole), *RUN, *OFTEN]) == 0
    assert main(["reconstruct", str(small), "--out", str(parts), *RUN, *OFTEN, "--changes", "5: stop"]) == 0
    assert last_step(parts) == 5
    assert main(["resume", str(parts)]) == 0
    same(whole, parts)


@pytest.mark.slow
def test_refinement_ends_within_its_limit_says_why_and_goes_on_to_the_bit(small, tmp_path, capsys):
    run = [*RUN, "--iterations", "90", "--every", "90", "--refine-steps", "80"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(["reconstruct", str(small), "--out", str(whole), *run, "--refine-tolerance", "0.3"]) == 0
    told = capsys.readouterr().err
    assert "probe: arrived at step " in told
    step = int(told.split("probe: arrived at step ")[1].split(",")[0])
    assert 32 < step < 80
    stop = ["--changes", f"{step - 3}: stop"]
    assert main(["reconstruct", str(small), "--out", str(parts), *run, "--refine-tolerance", "0.3", *stop]) == 0
    assert "probe: arrived" not in capsys.readouterr().err
    assert main(["resume", str(parts)]) == 0
    assert f"probe: arrived at step {step}" in capsys.readouterr().err
    same(whole, parts)
    assert main(["reconstruct", str(small), "--out", str(tmp_path / "short"), *run, "--refine-steps", "20"]) == 0
    told = capsys.readouterr().err
    assert "--refine-steps is a limit" in told
    assert "fixed at step 20, the limit, before they had arrived" in told


def test_what_cannot_refine_or_follow_the_overlap_says_so_in_one_line(small, scan, tmp_path, capsys):
    for place, words, message in (
        (small, ["--algorithm", "admm", "--refine", "probe"], "admm cannot refine anything beside the image"),
        (small, ["--gradient", "svrg", "--refine", "probe"], "remembers gradients of the model as it was"),
        (small, ["--refine", "pupil"], "no 'pupil' to refine"),
        (small, ["--refine-end", "0.1"], "--refine-end says how something is refined at last, and nothing is"),
        (small, ["--refine", "probe", "--refine-tolerance", "0.1"], "give --refine-steps"),
        (small, ["--loss", "gaussian"], "--loss amplitude or --loss poisson"),
        (scan, ["--step", "overlap"], "does not say how much views overlap"),
        (scan, ["--refine", "probe"], "nothing that can be"),
    ):
        out = tmp_path / "run"
        assert main(["reconstruct", str(place), "--out", str(out), "--sigma", "0.02", *words]) == 2
        assert message in capsys.readouterr().err.splitlines()[-1]
        assert not out.exists()


def test_a_scan_is_followed_with_the_instruments_step(small, tmp_path):
    live, out = tmp_path / "live.zarr", tmp_path / "run"
    with acquiring(live) as (receiver, address, _):
        send_scan(open_scan(small).load(), address)
        assert main(["reconstruct", str(live), "--out", str(out), *RUN, "--follow"]) == 0
        assert receiver.wait(60) == 0
    settings = tomllib.loads((out / "settings.toml").read_text())
    assert (settings["loss"]["name"], settings["algorithm"]["step_size"]) == ("amplitude", "overlap")
    assert np.load(out / "result.npy").dtype == np.complex64


@pytest.mark.slow
def test_a_live_scan_is_killed_and_resumed_to_the_bit(small, tmp_path):
    live, out, early = (tmp_path / name for name in ("live.zarr", "run", "early"))
    scan, gate = open_scan(small).load(), threading.Event()

    def hold(acknowledged: int) -> None:
        if acknowledged >= 10:  # the rest comes after the run was killed, however slow the machine
            assert gate.wait(60)

    def views() -> int:
        log = out / "events.jsonl"
        found = replay(log).views if log.exists() else []
        return found[-1].views if found else 0

    with acquiring(live) as (receiver, address, _):
        sender = threading.Thread(target=send_scan, args=(scan, address), kwargs={"window": 1, "progress": hold})
        sender.start()
        try:
            words = [sys.executable, "-m", "plugstream", "reconstruct", str(live), "--out", str(out), *RUN, "--follow"]
            words += [*OFTEN, "--instrument", "ptychography"]  # which options are of, while there is no scan yet
            run = warm.Popen(words, stderr=subprocess.DEVNULL)
            wait_until(lambda: views() >= 8 and last_step(out) >= 3)
            early.mkdir()
            for file in sorted((out / "checkpoints").glob("step-*.safetensors"))[-1:]:
                shutil.copyfile(file, early / file.name)
            step = last_step(out)
            wait_until(lambda: last_step(out) >= step + 5)
            run.send_signal(signal.SIGKILL)
            assert run.wait() == -signal.SIGKILL
            assert views() < 16
        finally:
            gate.set()
            sender.join(60)
        assert receiver.wait(60) == 0
    assert main(["resume", str(out)]) == 0
    again = shutil.copytree(out, tmp_path / "again")
    shutil.rmtree(again / "checkpoints")
    shutil.copytree(early, again / "checkpoints")
    for name in ("result.npy", "refined-probe.npy"):
        (again / name).unlink()
    assert main(["resume", str(again)]) == 0
    same(out, again)
    assert replay(out / "events.jsonl").views[-1].views == 16
