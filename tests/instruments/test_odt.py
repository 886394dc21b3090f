"""Diffraction tomography by command: simulated, described, reconstructed, resumed; what cannot be is refused."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from plugstream import InputError, open_scan, snr
from plugstream.base.errors import PlugstreamWarning
from plugstream.cli import main
from plugstream.instruments.odt import ODT3D, ODTSimulation
from plugstream.models.ct_geometry import Voxels
from plugstream.models.odt_geometry import poses_of_rotation

CPU = torch.device("cpu")
QUICK = ["--report", "none", "--threads", "1"]


@pytest.mark.parametrize("scanning", ["rotation", "light"])
def test_a_cell_is_simulated_and_reconstructed(tmp_path, monkeypatch, capsys, scanning):
    monkeypatch.chdir(tmp_path)
    words = ["--size", "20", "--views", "16", "--scanning", scanning, "--input-snr", "40"]
    assert main(["simulate", "scan.zarr", "--instrument", "odt-3d", *words]) == 0
    assert main(["info", "scan.zarr"]) == 0
    said = capsys.readouterr().out
    assert ("light on the optical axis" if scanning == "rotation" else "light up to 35 degrees") in said
    assert "20 x 20 x 20 voxels of 1.6e-07 m" in said
    scan = open_scan("scan.zarr")
    assert scan.instrument.image.quantity == "permittivity contrast"
    assert scan.instrument.image.spacing == (1.6e-7,) * 3
    if scanning == "light":
        return
    run = ["reconstruct", "scan.zarr", "--sigma", "0.003", "--iterations", "12", "--out", "run", *QUICK]
    assert main(run) == 0
    result, truth = np.load("run/result.npy"), np.load("run/truth.npy")
    assert snr(result, truth, ndim=3) > 8.5
    assert main(["resume", "run", "--iterations", "14"]) == 0
    longer = ["14" if word == "12" else "whole" if word == "run" else word for word in run]
    assert main(longer) == 0
    assert np.array_equal(np.load("run/result.npy"), np.load("whole/result.npy"))


def made(**changes):
    usual = ODT3D(Voxels((8, 8, 8), 1.6e-7), 10, 12, 1.6e-7, 6.47e-7, 1.335, 1.0)
    return replace(usual, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"voxels": Voxels((8, 8), 1.6e-7)}, "voxels need three axes"),
        ({"approximation": "rytow"}, "born or rytov, not 'rytow'"),
        ({"camera_rows": 0}, "a camera has rows and columns"),
        ({"wavelength": float("nan")}, "wavelength must be > 0"),
        ({"medium": float("inf")}, "must be finite"),
    ],
)
def test_what_is_no_microscope_is_refused(changes, said):
    with pytest.raises(InputError, match=said):
        made(**changes)


def test_forgotten_units_and_coarse_voxels_are_noticed():
    poses = poses_of_rotation([0.0, 1.0])
    with pytest.raises(InputError, match="wavelengths wide, where a quarter is usual"):
        made(pixel=0.16).check_plausible()
    made().check_plausible()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made().warn_if_implausible({"poses": poses})
    with pytest.warns(PlugstreamWarning, match="half of these is usual"):
        made(voxels=Voxels((8, 8, 8), 6e-7)).warn_if_implausible({"poses": poses})
    with pytest.raises(InputError, match="view 1: its light is beyond the aperture"):
        made(aperture=0.2).check_views({"poses": np.stack([poses[0], np.vstack([poses[0, :3], [0.6, 0, 0.8]])])})


def test_an_image_that_absorbs_is_complex_and_a_large_one_refused():
    assert made(absorbing=True).image.is_complex
    model = made(absorbing=True).build_model({"poses": poses_of_rotation([0.3])}, 1, device=CPU, dtype=torch.float32)
    assert model.dtype == torch.complex64
    with pytest.raises(InputError, match="of memory"):
        made(voxels=Voxels((4096, 4096, 4096), 1.6e-7)).check_model(None, 1, device=CPU, dtype=torch.float32)
    with pytest.raises(InputError, match="of memory"):
        ODT3D.simulate_views(ODTSimulation(size=2048, views=10**6))


@pytest.mark.slow
def test_the_hl60_cell_has_a_nucleus_below_its_cytoplasm_and_predicts_views_left_out(
    shared_data, tmp_path, monkeypatch
):
    folder = shared_data / "odt"
    if not (folder / "series.h5").exists():
        pytest.skip(f"there is no {folder}")
    monkeypatch.chdir(tmp_path)
    assert main(["import", "odt", str(folder), "held.zarr", "--select", "5::20"]) == 0
    assert main(["import", "odt", str(folder), "few.zarr", "--omit", "5::10", "--count", "35"]) == 0
    assert main(["reconstruct", "few.zarr", "--sigma", "0.003", "--iterations", "40", "--out", "run", *QUICK]) == 0
    volume = np.load("run/result.npy")
    scan = open_scan("held.zarr")
    model = scan.instrument.build_model(scan.columns, scan.n_views, device=CPU, dtype=torch.float32)
    data = scan.read()
    assert float((model.forward(torch.from_numpy(volume)) - data).norm() / data.norm()) <= 0.03
    index = 1.335 * np.sqrt(1 + volume)
    places = np.argwhere(index > 1.345)
    radius = (3 * len(places) / (4 * np.pi)) ** (1 / 3)
    far = np.linalg.norm(np.indices(index.shape) - places.mean(0)[:, None, None, None], axis=0) / radius
    nucleus, cytoplasm = np.median(index[far < 0.35]), np.median(index[(far > 0.65) & (far < 0.85)])
    assert nucleus < cytoplasm - 0.003
    assert 1.350 < index[tuple(places.T)].mean() < 1.357
