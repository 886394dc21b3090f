"""The part of the data that an image leaves unexplained, and the verdict on images that explain nothing."""

import csv

import numpy as np
import pytest
import torch

from plugstream import LeastSquares, LossFidelity, MatrixModel, Poisson
from plugstream.fidelity.misfit import compares_data, relative_misfits
from plugstream.solver.monitors import Misfit
from small_run import RUN, main

SCAN = ["--size", "16", "--views", "4", "--receivers", "16", "--radius", "0.4", "--frequencies", "6,9GHz"]


@pytest.fixture
def fidelity():
    rng = np.random.default_rng(4)
    data = rng.standard_normal((6, 5))
    data[3] = 0
    return LeastSquares(MatrixModel(list(rng.standard_normal((6, 5, 12))), (3, 4)), data, available=[0, 2, 3, 4])


def test_the_misfit_of_each_view_is_its_residual_over_its_data(fidelity):
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    found = relative_misfits(fidelity, x, [4, 0, 3])
    left = fidelity.model.forward(x, [4, 0, 3]) - fidelity.data([4, 0, 3])
    want = (left**2).sum(-1) / (fidelity.data([4, 0, 3]) ** 2).sum(-1)
    torch.testing.assert_close(found[:, :2], want[:, :2])
    assert found[:, 2].isnan().all()
    assert torch.equal(relative_misfits(fidelity, 0 * x)[:, [0, 1, 3]], torch.ones(2, 3, dtype=torch.float64))


def test_groups_are_measured_by_themselves(fidelity):
    monitor = Misfit(groups={"low": torch.tensor([0, 1]), "high": torch.tensor([2, 4]), "none": torch.tensor([5])})
    assert [quantity.name for quantity in monitor.measures] == ["misfit", "misfit low", "misfit high", "misfit none"]

    class Run:
        image, k = torch.randn(3, 4, dtype=torch.float64), 0

    algorithm = type("Algorithm", (), {"fidelity": fidelity})()
    found = monitor.begin(algorithm, Run, {})(algorithm, Run)
    each = relative_misfits(fidelity, Run.image)
    assert set(found) == {"misfit", "misfit low", "misfit high"}
    torch.testing.assert_close(found["misfit"], each[[0, 1, 3]].mean())
    torch.testing.assert_close(found["misfit high"], each[[1, 3]].mean())
    counts = LossFidelity(fidelity.model, torch.ones(6, 5), Poisson())
    assert compares_data(fidelity)
    assert not compares_data(counts)


def test_a_run_says_so_and_measures_every_frequency(tmp_path, capsys):
    scan = tmp_path / "scan.zarr"
    assert main(["simulate", str(scan), *SCAN]) == 0
    few = [*RUN, "--iterations", "40", "--every", "5", "--misfit"]
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "good"), *few, "--hop", "auto"]) == 0
    with (tmp_path / "good" / "history.csv").open() as file:
        rows = {(row["quantity"], int(row["step"])): float(row["value"]) for row in csv.DictReader(file)}
    for name in ("misfit", "misfit 6 GHz", "misfit 9 GHz"):  # of all views, also while the first stage has half of them
        assert rows[name, 0] == pytest.approx(1)
        assert rows[name, 40] < 0.01
    assert rows["misfit", 10] == pytest.approx((rows["misfit 6 GHz", 10] + rows["misfit 9 GHz", 10]) / 2, rel=1e-5)
    capsys.readouterr()
    # A bound that keeps the image at next to nothing: a fixed point, and no image of anything.
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "empty"), *few, "--high", "1e-4", "--low", "0"]) == 3
    told = capsys.readouterr().err
    assert "has the image arrived? explains nothing: the image leaves" in told
    assert "does the model explain the data? not explained" in told
    assert main(["watch", str(tmp_path / "empty")]) == 3
