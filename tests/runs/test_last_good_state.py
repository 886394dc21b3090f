"""Whatever ends a run, its last good state is kept as a checkpoint, and `resume` goes on from it."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from plugstream import open_scan
from plugstream.algorithms import ProximalGradient
from plugstream.base.errors import InputError
from plugstream.cli.faults import BUG
from plugstream.denoisers.tv import TV
from plugstream.runs.checkpoints import Checkpoints
from plugstream.runs.event_log import read_events
from plugstream.runs.replay import replay
from plugstream.scans.chunks import ChunkReader, encode_shard
from plugstream.scans.layout import Layout
from plugstream.scans.places import LocalFiles
from plugstream.solver.monitors import SNR
from small_run import main, same_run

RUN = ["--sigma", "0.02", "--batch", "2", "--threads", "1", "--iterations", "30", "--every", "5"]
STREAMED = ["--set", "scan.in_memory=0", "--sampler", "uniform", "--measured-views", "1"]


def spoil(scan: Path, view: int, value: complex = complex("nan")) -> None:
    """Give a receiver of a view another value, with checksums that agree with it."""
    layout, views = Layout.parse((scan / "data" / "zarr.json").read_bytes())
    rows = ChunkReader(LocalFiles(scan), "data", layout).read(np.arange(views)).copy()
    rows[view, 3] = value
    (scan / "data" / layout.file(0)).write_bytes(b"".join(encode_shard(layout, rows)))


def first_draw(view: int) -> int:
    """Steps that a run takes before it draws a view."""
    from plugstream.algorithms.sampling import Uniform

    return next(k for k in range(1000) if view in Uniform(2, 0).draw(k, torch.arange(12)).views.tolist())


def last_checkpoint(folder: Path) -> int:
    files = Checkpoints(folder / "checkpoints", {}).files()
    return int(files[0].stem.removeprefix("step-")) if files else 0


def reconstruct(scan: Path, folder: Path, *more: str) -> int:
    return main(["reconstruct", str(scan), "--out", str(folder), *RUN, *STREAMED, *more])


@pytest.fixture(scope="module")
def whole(scan, tmp_path_factory) -> Path:
    """A run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert reconstruct(scan, folder) == 0
    return folder


@pytest.fixture
def late() -> tuple[int, int]:
    """A view that is drawn late, and the steps before that; view 0 is measured on, and so is not it."""
    steps, view = max((first_draw(view), view) for view in range(1, 12))
    assert steps >= 5
    return view, steps


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_nan_in_a_streamed_scan_keeps_every_step_before_it(scan, whole, tmp_path, capsys, late, value):
    view, steps = late
    bad = shutil.copytree(scan, tmp_path / "bad.zarr")
    spoil(bad, view, complex(value))
    assert reconstruct(bad, tmp_path / "run") == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"view {view} of the scan cannot be read: it holds NaN or infinity" in said
    assert "--skip-damaged" in said
    assert last_checkpoint(tmp_path / "run") == steps
    stop = list(read_events(tmp_path / "run" / "events.jsonl"))[-1]
    assert (stop.kind, stop.step, stop.failed) == ("stop", steps, True)
    assert "NaN" in stop.reason
    # Without the view it goes on from there, and leaves it out.
    assert main(["resume", str(tmp_path / "run"), "--skip-damaged"]) == 0
    said = capsys.readouterr().err
    assert f"going on from step {steps}" in said
    assert f"1 damaged views are left out: {view}" in said
    assert np.isfinite(np.load(tmp_path / "run" / "result.npy")).all()
    # With the data as it should be, it is the run that nothing had happened to.
    assert reconstruct(bad, tmp_path / "again") == 2
    spoil(bad, view, complex(np.asarray(open_scan(scan).read(torch.tensor([view])))[0, 3]))
    assert main(["resume", str(tmp_path / "again")]) == 0
    same_run(tmp_path / "again", whole)


def test_a_scan_with_nan_can_be_skipped_from_the_start_wherever_it_is_read(scan, tmp_path, capsys):
    bad = shutil.copytree(scan, tmp_path / "bad.zarr")
    spoil(bad, 4)
    assert main(["reconstruct", str(bad), "--out", str(tmp_path / "memory"), *RUN]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "view 4" in said
    assert "--skip-damaged" in said
    assert not (tmp_path / "memory").exists()
    assert reconstruct(bad, tmp_path / "run", "--skip-damaged") == 0


class Stumble:
    """A denoiser's or monitor's method that fails the n-th time it is called."""

    def __init__(self, method, calls: int, error: Exception) -> None:
        self.method, self.left, self.error = method, calls, error

    def __call__(self, *words, **named):
        self.left -= 1
        if self.left == 0:
            raise self.error
        return self.method(*words, **named)


@pytest.mark.parametrize(
    ("where", "error", "said"),
    [
        ("step", OSError(5, "Input/output error"), "Input/output error"),
        ("step", MemoryError(), "not enough memory"),
        ("step", RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "not enough memory"),
        ("step", InputError("the denoiser was given nonsense"), "nonsense"),
        ("monitor", OSError(5, "Input/output error"), "Input/output error"),
        ("monitor", InputError("the denoiser was given nonsense"), "nonsense"),
    ],
)
def test_any_error_after_some_steps_keeps_them(scan, whole, tmp_path, monkeypatch, capsys, error, said, where):
    if where == "step":
        method = ProximalGradient.step
        stumble = Stumble(method, 18, error)
        monkeypatch.setattr(ProximalGradient, "step", lambda self, state: stumble(self, state))
        steps = 17
    else:
        begin = SNR.begin
        stumble = Stumble(lambda measure, *now: measure(*now), 4, error)

        def faulty(self, algorithm, state, past):
            measure = begin(self, algorithm, state, past)
            return lambda *now: stumble(measure, *now)

        monkeypatch.setattr(SNR, "begin", faulty)
        steps = 14  # the measurement after step 15 fails, so step 15 is taken again
    assert reconstruct(scan, tmp_path / "run") == 2
    monkeypatch.undo()
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert said in last
    assert last_checkpoint(tmp_path / "run") == steps
    stop = list(read_events(tmp_path / "run" / "events.jsonl"))[-1]
    assert (stop.kind, stop.step, stop.failed) == ("stop", steps, True)
    assert main(["resume", str(tmp_path / "run")]) == 0
    same_run(tmp_path / "run", whole)
    assert [e.step for e in replay(tmp_path / "run" / "events.jsonl").measured] == [0, 5, 10, 15, 20, 25, 30]


def test_a_mistake_of_ours_keeps_the_steps_too(scan, tmp_path, monkeypatch):
    method = TV.denoise
    stumble = Stumble(method, 12, ZeroDivisionError("oh"))
    monkeypatch.setattr(TV, "denoise", lambda self, *words: stumble(self, *words))
    assert reconstruct(scan, tmp_path / "run", "--set", "monitor.distance=false") == BUG
    monkeypatch.undo()
    assert last_checkpoint(tmp_path / "run") == 11
    assert json.loads((tmp_path / "run" / "events.jsonl").read_text().splitlines()[-1])["failed"]
    assert main(["resume", str(tmp_path / "run")]) == 0


def test_an_error_before_the_first_step_leaves_no_checkpoint_and_says_why(scan, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ProximalGradient, "step", Stumble(None, 1, MemoryError()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reconstruct(scan, tmp_path / "run") == 2
    assert "not enough memory" in capsys.readouterr().err
    assert last_checkpoint(tmp_path / "run") == 0
    monkeypatch.undo()
    assert main(["resume", str(tmp_path / "run")]) == 0
