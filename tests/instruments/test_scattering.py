"""The instrument scattering-2d: scans are simulated, described, reconstructed and resumed by commands."""

import numpy as np
import pytest
import torch

from plugstream import BornGeometry, Grid, InputError, Scattering2D, ScatteringModel, born_geometry, open_scan
from plugstream.cli import main
from plugstream.images.simulated import disc
from plugstream.instruments.born import Born2D
from plugstream.instruments.scattering import ScatteringOptions, ScatteringSimulation

SMALL = ["--size", "24", "--views", "6", "--receivers", "20", "--discs", "0.01,0.02,0.04,0.8"]


@pytest.fixture(scope="module")
def scattered(tmp_path_factory):
    path = tmp_path_factory.mktemp("scattering") / "scan.zarr"
    assert main(["simulate", str(path), "--instrument", "scattering-2d", *SMALL]) == 0
    return path


def test_a_scan_is_simulated_and_described(scattered, capsys):
    scan = open_scan(scattered)
    assert isinstance(scan.instrument, Scattering2D)
    assert main(["info", str(scattered)]) == 0
    assert "multiple scattering by GMRES" in capsys.readouterr().out
    model = ScatteringModel(born_geometry(scan))
    clean = model.forward(torch.from_numpy(scan.truth))
    data = scan.read(None)
    assert 35 < 20 * float(torch.log10(clean.norm() / (data - clean).norm())) < 45  # 40 dB were asked for
    assert float(scan.truth.max()) == pytest.approx(0.8)
    assert main(["verify", str(scattered)]) == 0


def test_a_run_that_was_ended_goes_on_to_the_bit(scattered, tmp_path):
    run = ["--sigma", "0.05", "--low", "0", "--batch", "3", "--threads", "1", "--report", "none"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(["reconstruct", str(scattered), *run, "--iterations", "6", "--out", str(whole)]) == 0
    assert main(["reconstruct", str(scattered), *run, "--iterations", "3", "--out", str(parts)]) == 0
    assert main(["resume", str(parts), "--iterations", "6"]) == 0
    assert (whole / "result.npy").read_bytes() == (parts / "result.npy").read_bytes()
    assert np.load(whole / "backprojection.npy").any()


def test_options_reach_the_model_and_a_scan_may_grow():
    geometry = BornGeometry.rings(Grid((12, 12), 0.01), 0.06, views=4, receivers=9, radius=0.4)
    instrument, where = Scattering2D.of(geometry), {"device": torch.device("cpu"), "dtype": torch.float32}
    options = ScatteringOptions(tolerance=1e-2, max_iterations=7, method="dense")
    few = {"transmitters": geometry.transmitters[:2]}
    model = instrument.build_model(few, 2, options, **where)
    assert (model.tolerance, model.max_iterations, model.method) == (1e-2, 7, "dense")
    grown = instrument.build_model({"transmitters": geometry.transmitters}, 4, options, previous=model, **where)
    assert (grown.n_views, grown.tolerance) == (4, 1e-2)
    with pytest.raises(InputError, match="tolerance must be from 1e-05"):
        instrument.check_model(few, 2, ScatteringOptions(tolerance=1e-9), **where)
    assert instrument.difference(Born2D.of(geometry)) == "instrument"


def test_discs_are_averages_over_pixels():
    grid = Grid((40, 44), 0.01, (0.02, -0.01))
    covered = disc(grid, (0.013, -0.027), 0.11)
    assert covered.min() == 0
    assert covered.max() == pytest.approx(1)
    assert covered.sum() * 0.01**2 == pytest.approx(np.pi * 0.11**2, rel=1e-4)
    points = grid.points().reshape(40, 44, 2)
    center = (covered[..., None] * points).sum((0, 1)) / covered.sum()
    assert center == pytest.approx([0.013, -0.027], abs=1e-5)
    options = ScatteringSimulation(discs="0,0,0.08,1; 0.01,0,0.03,0.5", size=50, width=0.2)
    picture, y_axis = Scattering2D.simulated_picture(options, Grid((50, 50), 0.004))
    assert y_axis == "up"
    assert float(picture[25, 25]) == pytest.approx(0.5)  # a disc takes the place of what it lies in
    assert float(picture[25, 12]) == pytest.approx(1.0)


def test_pictures_are_averages_over_pixels(tmp_path):
    rows = np.random.default_rng(0).random((30, 36)).astype(np.float32)
    np.save(tmp_path / "picture.npy", rows)
    options = ScatteringSimulation(picture=str(tmp_path / "picture.npy"))
    picture, _ = Scattering2D.simulated_picture(options, Grid((10, 10), 0.02))
    assert np.allclose(picture, rows[:, 3:33].reshape(10, 3, 10, 3).mean((1, 3)), atol=1e-6)


@pytest.mark.parametrize("discs", ["", "1,2,3", "0,0,-1,1", "0,0,a,1", "0,nan,1,1"])
def test_discs_that_are_none_are_refused(discs, tmp_path, capsys):
    path = tmp_path / "scan.zarr"
    assert main(["simulate", str(path), "--instrument", "scattering-2d", "--discs", discs]) == 2
    assert "a disc " in capsys.readouterr().err
    assert not path.exists()
