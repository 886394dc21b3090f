"""The table of what followed the paper, at a size of no meaning: every line runs, and calls and passes are counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plugstream.experiments import scale
from plugstream.experiments.beyond import calls_to_reach
from plugstream.experiments.cells import Store
from plugstream.experiments.report import successors_table
from plugstream.experiments.runs import Spec, outcome, run
from plugstream.experiments.setup import Pictures, make_problem
from plugstream.experiments.successors import BEFORE, successor_cells, successor_rows

TINY = scale.Scale("tiny", None, 3, 2, 3, 3, 1, 4, 2, (3, 2))


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


def test_cells_of_before_stay_known():
    """What a spec had before it had options tells the same cells apart."""
    assert set(Spec().about()).isdisjoint({"options", "equivariant"})
    spec = Spec(options=(("tau", "0.2L"),), equivariant="mean")
    assert Spec(**{**spec.about(), "options": [["tau", "0.2L"]]}) == spec  # as JSON has it


def test_lines_have_names_of_their_own():
    lines = successor_rows(scale.FULL)
    assert len({line.name for line in lines}) == len(lines)
    assert [line.name for line in lines[: len(BEFORE)]] == list(BEFORE)


@pytest.mark.slow
def test_every_line_runs(problem, tmp_path):
    cells = successor_cells(problem, Store(tmp_path, lambda text: None), TINY)
    table = successors_table(cells)
    assert [row[0] for row in table.rows] == [line.name for line in successor_rows(TINY)]
    assert all(len(row) == len(table.head) for row in table.rows)
    assert all(np.isfinite(float(row[1])) for row in table.rows)
    assert "| ProxSkip(10), shifted, p = 0.1 |" in table.markdown()
