"""The distance to a fixed point of a scan that is read as it goes: on a few views, and the right ones."""

import csv

import numpy as np
import pytest
import torch

from plugstream import BornModel, LeastSquares, open_scan
from plugstream.instruments.born import born_geometry
from plugstream.runs import measuring
from plugstream.runs.parts import prepare
from plugstream.settings import resolve
from small_run import main

WORDS = ["--sigma", "0.02", "--batch", "4", "--iterations", "6", "--every", "3", "--cost", "true", "--denoiser", "bm3d"]


def measured(folder):
    with (folder / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {row["quantity"]: float(row["value"]) for row in rows if row["step"] == "6"}


@pytest.mark.parametrize(
    ("words", "views"),
    [
        (["--in-memory", "0", "--measured-views", "5"], [0, 2, 4, 7, 9]),
        (["--measured-views", "5"], [0, 2, 4, 7, 9]),
        (["--in-memory", "0", "--measured-views", "500"], range(12)),
        (["--in-memory", "0"], [0, 3, 6, 9]),  # of a scan that is larger than what is kept in memory
        ([], range(12)),
    ],
)
def test_distance_and_cost_are_those_of_the_views_that_are_told(scan, tmp_path, monkeypatch, capsys, words, views):
    monkeypatch.setattr(measuring, "_VIEWS", 40)
    monkeypatch.setattr(measuring, "_BYTES", 0)
    folder = tmp_path / "run"
    assert main(["reconstruct", str(scan), "--out", str(folder), *WORDS, *words]) == 0
    told = f"the distance is measured on {len(views)} evenly spaced views of 12" in capsys.readouterr().err
    assert told == (len(views) < 12)
    whole = open_scan(scan).load()
    # The problem with these views alone, with the step that all of them had.
    some = LeastSquares(BornModel(born_geometry(whole).with_views(np.array(views))), whole.data[list(views)])
    algorithm = prepare(resolve(folder / "settings.toml")).algorithm(
        LeastSquares(BornModel(born_geometry(whole)), whole.data)
    )
    gamma, sigma = algorithm.parameters(7)
    image = torch.from_numpy(np.load(folder / "result.npy"))
    moved = algorithm.denoiser.denoise(image - gamma * some.gradient(image), sigma)[0]
    found = measured(folder)
    assert found["distance"] == pytest.approx(float((image - moved).square().sum()), rel=1e-3)
    assert found["fidelity"] == pytest.approx(float(some.value(image)), rel=1e-4)
