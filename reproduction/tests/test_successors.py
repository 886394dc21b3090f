"""The table of what followed the paper, at a size of no meaning: every line runs, and calls and passes are counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from plugstream import RED, LeastSquares, solve
from reproduction.cells import FULL, OutOfTimeError, Scale, Store
from reproduction.paper import OTHER_INSTRUMENTS, Pictures, make_problem
from reproduction.results import Reproduction, successors_table, write
from reproduction.runs import Spec, make_denoiser, outcome, run
from reproduction.tables import BEFORE, calls_to_reach, successor_cells, successor_rows

TINY = Scale("tiny", None, 3, 2, 3, 3, 1, 4, 2, (3, 2))


@pytest.fixture(scope="module")
def problem():
    truth = torch.from_numpy(np.random.default_rng(0).random((1, 16, 16)).astype(np.float32))
    return make_problem(Pictures(("monarch",), truth, True))


@pytest.mark.parametrize(
    ("changes", "steps", "calls", "passes"),
    [
        ({}, 3, 3, 0.5),
        ({"equivariant": "mean"}, 3, 24, 0.5),
        ({"equivariant": "random"}, 3, 3, 0.5),
        ({"method": "proxskip", "options": (("denoise_probability", 1e-9),)}, 3, 0, 0.5),
        ({"method": "red", "options": (("tau", "0.2L"),), "views": None}, 2, 2, 2.0),
    ],
)
def test_calls_and_passes_are_counted(problem, changes, steps, calls, passes):
    spec = Spec(denoiser="soft", iterations=steps, **changes)
    cell = outcome(problem, run(problem, spec, [0.1]))
    assert cell["calls"] == [round(calls * k / steps) for k in range(steps + 1)]
    assert cell["passes_at"][-1] == cell["passes"] == pytest.approx(passes, abs=0.01)
    assert cell["passes_at"][0] == 0


def test_calls_to_reach_a_level_are_the_denoisers():
    snr = {"step": [0, 1, 2], "value": [[0.0], [20.0], [26.0]]}
    assert calls_to_reach({"history": {"snr": snr}}, 25) == 2
    assert calls_to_reach({"history": {"snr": snr}, "calls": [0, 0, 1]}, 25) == 1


@pytest.mark.parametrize(("instrument", "level", "calls"), [("born-2d", "25.85", 3), ("ct", "22.9", 2)])
def test_the_level_is_the_papers_or_that_of_the_first_line(instrument, level, calls):
    """Of another instrument than the paper's it is what the first line has at its end, less 0.1 dB."""

    def cell(*snr):
        history = {"step": [0, 1, 2, 3], "time": [0.0, 1.0, 2.0, 3.0], "value": [[value] for value in snr]}
        whole = {"iterations": 3, "passes": 3.0, "seconds": 3.0, "names": ["house"], "device": "cpu", "memory": "none"}
        counts = {"calls": [0, 1, 2, 3], "passes_at": [0.0, 1.0, 2.0, 3.0]}
        return {**whole, **counts, "snr": [snr[-1]], "history": {"snr": history}}

    table = successors_table({"first": cell(0, 20, 22, 23), "other": cell(0, 22.8, 22.95, 26)}, instrument)
    line = dict(zip(table.head, table.rows[1], strict=True))
    assert line[f"calls to {level} dB"] == line["passes to it"] == line["seconds to it"] == calls


def test_noise_before_a_denoiser_has_the_level_of_each_image():
    """Two images of one run end as RED by itself ends, each with its own sigma, for the denoiser and for the noise."""
    truth = torch.from_numpy(np.random.default_rng(1).random((2, 16, 16)).astype(np.float32))
    two = make_problem(Pictures(("monarch", "house"), truth, True))
    spec = Spec("snore", denoiser="soft", iterations=2, momentum="none", views=None, options=(("tau", "0.5L"),))
    got = run(two, spec, [0.05, 0.2]).image
    for i, sigma in enumerate((0.05, 0.2)):
        alone = LeastSquares(two.counted.model, two.fidelity.data()[i])
        red = RED(alone, make_denoiser("soft"), sigma=sigma, tau="0.5L", noise=1.0)
        torch.testing.assert_close(got[i], solve(red, torch.zeros(16, 16), iterations=2).image)


def test_cells_of_before_stay_known():
    """What a spec had before it had options tells the same cells apart."""
    assert set(Spec().about()).isdisjoint({"options", "equivariant"})
    spec = Spec(options=(("tau", "0.2L"),), equivariant="mean")
    assert Spec(**{**spec.about(), "options": [["tau", "0.2L"]]}) == spec  # as JSON has it


def test_lines_have_names_of_their_own():
    lines = successor_rows(FULL)
    assert len({line.name for line in lines}) == len(lines)
    assert [line.name for line in lines[: len(BEFORE)]] == list(BEFORE)


def test_an_opening_takes_no_calls(problem):
    spec = Spec("inexact-admm", denoiser="soft", iterations=3, opening=("tv", 2, 3.0), views=None)
    cell = outcome(problem, run(problem, spec, [0.1]))
    assert cell["calls"] == [0, 0, 0, 1]
    assert cell["passes_at"] == [1.0, 4.0, 7.0, 10.0]  # of the circulant one, and of each step n + 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["born-2d", *OTHER_INSTRUMENTS])
def test_every_line_runs(problem, name, tmp_path):
    work = Reproduction(problem, Store(tmp_path, lambda text: None), TINY)
    cells = successor_cells(work.measured_by(name), work.store, TINY)
    table = successors_table(cells, name)
    rows = successor_rows(TINY, name)
    assert [row[0] for row in table.rows] == [line.name for line in rows]
    assert all(len(row) == len(table.head) for row in table.rows)
    assert all(np.isfinite(float(row[1])) for row in table.rows)


def test_what_is_there_is_written_when_the_time_is_over(problem, tmp_path, monkeypatch):
    line = successor_rows(TINY)[0]
    store = Store(tmp_path / "cells", lambda text: None)
    successor_cells(problem, store, TINY, [line.name])
    work = Reproduction(problem, replace(store, deadline=0.0), TINY)
    monkeypatch.setattr(Reproduction, "measured_by", lambda self, name: problem)  # nothing is run, so nothing is built
    with pytest.raises(OutOfTimeError):
        write("successors", work, tmp_path)
    assert f"| {line.name} |" in (tmp_path / "successors.md").read_text()
