"""Views that are held out: no step sees them, the misfit on them is measured, a scan that grows keeps them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from effort import effort
from plugstream import BornModel, LeastSquares, open_scan
from plugstream.instruments.born import born_geometry
from plugstream.runs import commands
from plugstream.runs.events import Views
from plugstream.runs.measuring import MeasuredViews, usable_views
from plugstream.runs.replay import replay
from plugstream.scans import save_scan
from plugstream.settings import Settings
from plugstream.solver.verdict import has_settled
from small_run import main, same_run

WORDS = ["--sigma", "0.02", "--batch", "4", "--threads", "1", "--every", "5", "--hold-out", "5"]
HELD = [4, 9]  # of twelve views


def run(scan: Path, folder: Path, *words: str) -> list[float | None]:
    """The held-out misfit of a run."""
    assert main(["reconstruct", str(scan), "--out", str(folder), *WORDS, *words]) == 0
    return [event.values.get("held_out") for event in replay(folder / "events.jsonl").measured]


def test_no_step_sees_what_is_held_out_and_the_misfit_is_theirs(scan, tmp_path):
    misfit = run(scan, tmp_path / "run", "--iterations", "20")
    loaded = open_scan(scan).load()
    fidelity = LeastSquares(BornModel(born_geometry(loaded)), loaded.data)
    image = torch.from_numpy(np.load(tmp_path / "run" / "result.npy"))
    assert misfit[-1] == pytest.approx(float(fidelity.value(image, torch.tensor(HELD))), rel=1e-4)
    assert misfit[0] > 100 * misfit[-1]
    data = loaded.data.clone()
    data[HELD] *= 100
    save_scan(dataclasses.replace(loaded, data=data), tmp_path / "other.zarr")
    other = run(tmp_path / "other.zarr", tmp_path / "other", "--iterations", "20")
    assert np.array_equal(np.load(tmp_path / "run" / "result.npy"), np.load(tmp_path / "other" / "result.npy"))
    assert other[-1] > 100 * misfit[-1]


def test_a_stored_scan_and_a_run_that_goes_on_give_the_same(scan, tmp_path):
    run(scan, tmp_path / "whole", "--iterations", "20")
    run(scan, tmp_path / "stored", "--iterations", "20", "--in-memory", "0")
    same_run(tmp_path / "whole", tmp_path / "stored")
    run(scan, tmp_path / "parts", "--iterations", "10")
    assert main(["resume", str(tmp_path / "parts"), "--iterations", "20"]) == 0
    same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_run_ends_by_itself_when_the_misfit_falls_no_more_and_goes_on_to_the_bit(scan, tmp_path, monkeypatch):
    words = ["--iterations", "2000", "--settled", "3", "--checkpoint", "0", "--report", "none"]
    misfits = run(scan, tmp_path / "whole", *words)
    told = replay(tmp_path / "whole" / "events.jsonl")
    assert told.stop.reason == "the misfit on views that are held out falls no more"
    least = min(misfits[:-3])
    assert all(misfit >= 0.999 * least for misfit in misfits[-3:])
    assert not has_settled(misfits[:-1], 3)
    assert told.step < 1000
    with monkeypatch.context() as patch:
        due = commands.Requests.due
        patch.setattr(commands.Requests, "due", lambda self, k: k >= 12 or due(self, k))
        main(["reconstruct", str(scan), "--out", str(tmp_path / "parts"), *WORDS, *words])
    assert replay(tmp_path / "parts" / "events.jsonl").step < told.step
    for _ in range(effort(1, 2)):  # the second time there is nothing left to do
        assert main(["resume", str(tmp_path / "parts")]) == 0
        again = replay(tmp_path / "parts" / "events.jsonl")
        assert (again.step, again.stop.reason) == (told.step, told.stop.reason)
        files = [(tmp_path / name / "result.npy").read_bytes() for name in ("whole", "parts")]
        assert files[0] == files[1]


def test_a_misfit_has_settled_when_several_measurements_have_no_new_least_one():
    assert not has_settled([3.0, 2.0], 2)
    assert not has_settled([3.0, 2.0, 1.9], 1)
    assert has_settled([3.0, 2.0, 2.1, 1.999], 2)
    assert not has_settled([3.0, 2.0, 2.1, 1.99], 2)
    assert has_settled([1.0, float("nan")], 1)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--settled", "3"], "there are none; add --hold-out"),
        (["--settled", "3", "--hold-out", "5", "--follow"], "leave --settled out"),
        (["--settled", "3", "--hold-out", "5", "--search", "20"], "a search ends by itself"),
        (["--settled", "0", "--hold-out", "5"], "greater than or equal to 1"),
    ],
)
def test_what_cannot_settle_is_refused(scan, tmp_path, capsys, words, text):
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), "--sigma", "0.02", *words]) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("hold_out", [None, 2, 5, 40])
def test_which_views_are_held_out_does_not_change_as_a_scan_grows(hold_out):
    settings = Settings.model_validate({"monitor": {"hold_out": hold_out}})
    before: set[int] = set()
    for views in (1, 7, 12, 80):
        damaged = tuple(view for view in (3, 9) if view < views)
        usable = usable_views(Views(0, views, damaged, None, False), hold_out).tolist()
        where = MeasuredViews(None, settings, lambda damaged=damaged: Views(0, 0, damaged, None, True))
        held = where.held_out(LeastSquaresOf(views))
        held = [] if held is None else held.tolist()
        assert sorted([*usable, *held, *damaged]) == list(range(views))
        assert held == [
            view for view in range(views) if hold_out and (view + 1) % hold_out == 0 and view not in damaged
        ]
        assert before <= set(usable)
        before = set(usable)


class LeastSquaresOf:
    """What is asked of a fidelity here: its number of views."""

    def __init__(self, views: int) -> None:
        self.n_views = views


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--hold-out", "13"], "every 13th view is to be held out, but the scan has 12"),
        (
            ["--hold-out", "5", "--batch", "11"],
            "a batch of 11 views was asked for, but the scan has 10 without those held",
        ),
        (["--hold-out", "1"], "hold"),
    ],
)
def test_what_cannot_be_held_out_is_refused_before_anything_is_written(scan, tmp_path, capsys, words, told):
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), "--sigma", "0.02", *words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert told in lines[-1]
    assert list(tmp_path.iterdir()) == []
