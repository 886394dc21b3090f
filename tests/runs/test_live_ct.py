"""A live tomographic scan: projections over ZeroMQ while the volume forms, killed and resumed. Real processes."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import warm
from plugstream.cli import main
from plugstream.runs.replay import replay
from plugstream.scans import open_scan
from plugstream.scans.send import send_scan
from streaming import acquiring
from waiting import wait_until

CONE = ["--instrument", "ct", "--beam", "cone", "--size", "14", "--slices", "6", "--views", "20", "--photons", "1e5"]
RUN = ["--report", "none", "--preview", "0", "--threads", "1", "--checkpoint", "0", "--iterations", "30"]
RUN += ["--sigma", "0.1", "--batch", "4", "--follow"]


def views_of(run: Path) -> int:
    log = run / "events.jsonl"
    found = replay(log).views if log.exists() else []
    return found[-1].views if found else 0


def last_step(run: Path) -> int:
    return max((int(file.stem.split("-")[1]) for file in (run / "checkpoints").glob("step-*.safetensors")), default=0)


def early_checkpoint(run: Path, keep: Path) -> int:
    """Copy the run's oldest checkpoint, which may be gone any moment, and return its step."""
    keep.mkdir()
    for _ in range(1000):
        for file in sorted((run / "checkpoints").glob("step-*.safetensors")):
            try:
                shutil.copyfile(file, keep / file.name)  # not its mode, when it may be gone
            except FileNotFoundError:
                continue
            return int(file.stem.split("-")[1])
        time.sleep(0.005)
    raise AssertionError("there was no checkpoint")


@pytest.mark.slow
def test_a_volume_forms_while_projections_come_and_is_resumed_to_the_bit(tmp_path: Path) -> None:
    source, live, out, early = (tmp_path / name for name in ("s.zarr", "live.zarr", "run", "early"))
    assert main(["simulate", str(source), *CONE]) == 0
    scan, gate = open_scan(source).load(), threading.Event()

    def hold(acknowledged: int) -> None:
        if acknowledged >= 12:  # the rest comes after the run was killed, however slow the machine
            assert gate.wait(60)

    with acquiring(live) as (receiver, address, _):
        sender = threading.Thread(target=send_scan, args=(scan, address), kwargs={"window": 1, "progress": hold})
        sender.start()
        try:
            words = [sys.executable, "-m", "plugstream", "reconstruct", str(live), "--out", str(out), *RUN]
            run = warm.Popen(words, stderr=subprocess.DEVNULL)
            wait_until(lambda: views_of(out) >= 8)
            step = early_checkpoint(out, early)
            wait_until(lambda: last_step(out) >= step + 5)
            run.send_signal(signal.SIGKILL)
            assert run.wait() == -signal.SIGKILL
            assert views_of(out) < 20  # it took steps before the scan had ended
            assert not (out / "result.npy").exists()
        finally:
            gate.set()
            sender.join(60)
        assert receiver.wait(60) == 0
    assert np.array_equal(open_scan(live).read().numpy(), scan.read().numpy())
    assert main(["resume", str(out)]) == 0
    past = replay(out / "events.jsonl")
    assert (past.views[-1].views, past.views[-1].ended) == (20, True)
    assert past.views[-1].step > step
    # Again from the early checkpoint: the log tells which views there were at each step.
    again = shutil.copytree(out, tmp_path / "again")
    shutil.rmtree(again / "checkpoints")
    shutil.copytree(early, again / "checkpoints")
    (again / "result.npy").unlink()
    assert main(["resume", str(again)]) == 0
    assert np.array_equal(np.load(again / "result.npy"), np.load(out / "result.npy"))
    assert replay(again / "events.jsonl").views == past.views
    image, truth = np.load(out / "result.npy"), scan.truth
    assert truth is not None
    assert np.linalg.norm(image - truth) < 0.9 * np.linalg.norm(truth)


def test_an_image_is_followed_too(tmp_path: Path) -> None:
    source, live, out = tmp_path / "s.zarr", tmp_path / "live.zarr", tmp_path / "run"
    flat = ["--instrument", "ct", "--beam", "fan", "--size", "16", "--views", "12"]
    assert main(["simulate", str(source), *flat]) == 0
    with acquiring(live) as (receiver, address, _):
        send_scan(open_scan(source).load(), address)
        assert main(["reconstruct", str(live), "--out", str(out), *RUN]) == 0
        assert receiver.wait(60) == 0
    assert np.load(out / "result.npy").shape == (16, 16)
