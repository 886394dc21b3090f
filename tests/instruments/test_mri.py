"""MRI by command: simulated, described, reconstructed, resumed; what cannot be is refused."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from plugstream import InputError, open_scan, snr
from plugstream.base.errors import PlugstreamWarning
from plugstream.cli import main
from plugstream.instruments.mri import MRI, MRIOptions
from plugstream.instruments.mri_simulation import MRISimulation, ring_coils
from plugstream.models.ct_geometry import Voxels
from plugstream.models.kspace import centered_voxels
from plugstream.scans.baselines.first_image import form_image, relative_residual, scan_model

CPU = torch.device("cpu")
SPLITTING = f"{Path(__file__).parents[2]}/examples/algorithms/gradient_splitting.py:splitting"
QUICK = ["--report", "none", "--threads", "1"]


@pytest.mark.parametrize("trajectory", ["radial", "spiral", "cartesian"])
def test_a_phantom_is_simulated_and_described(tmp_path, monkeypatch, capsys, trajectory):
    monkeypatch.chdir(tmp_path)
    words = ["--size", "24", "--trajectory", trajectory, "--acceleration", "2", "--coils", "3"]
    assert main(["simulate", "scan.zarr", "--instrument", "mri", *words]) == 0
    assert main(["info", "scan.zarr"]) == 0
    said = capsys.readouterr().out
    assert ("on the grid of an FFT" if trajectory == "cartesian" else "off the grid") in said
    scan = open_scan("scan.zarr")
    assert scan.instrument.image.is_complex
    assert not scan.instrument.image.free_phase
    assert scan.n_views == {"radial": 19, "spiral": 6, "cartesian": 12}[trajectory]


def test_a_phantom_is_reconstructed_and_resumed_to_the_bit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--size", "16", "--acceleration", "1", "--coils", "2", "--input-snr", "40"]
    assert main(["simulate", "scan.zarr", "--instrument", "mri", *words]) == 0
    run = ["reconstruct", "scan.zarr", "--density", "1", "--batch", "5", "--sigma", "0.005", "--out", "run", *QUICK]
    assert main([*run, "--iterations", "6"]) == 0
    assert main(["resume", "run", "--iterations", "8"]) == 0
    result, truth = np.load("run/result.npy"), np.load("run/truth.npy")
    assert np.iscomplexobj(result)
    assert snr(result, truth) > 3
    assert main([*("whole" if word == "run" else word for word in run), "--iterations", "8"]) == 0
    assert np.array_equal(result, np.load("whole/result.npy"))


def made(**changes):
    usual = MRI(centered_voxels((8, 10), 1e-3), 2, 16, coil_maps=ring_coils((8, 10), 2))
    return replace(usual, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"coils": 0}, "coils and samples"),
        ({"coil_maps": None}, "2 coils need coil_maps"),
        ({"coil_maps": np.ones((2, 1, 8, 8), np.complex64)}, "must be"),
        ({"stack": True}, "three axes"),
    ],
)
def test_what_is_no_instrument_is_refused(changes, said):
    with pytest.raises(InputError, match=said):
        made(**changes)


def test_forgotten_units_are_noticed():
    instrument, path = made(), np.full((3, 16, 2), 400.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        instrument.warn_if_implausible({"trajectory": path})
    with pytest.warns(PlugstreamWarning, match="cycles a pixel"):
        instrument.warn_if_implausible({"trajectory": 2 * path})
    with pytest.raises(InputError, match="in 1/m"):
        instrument.check_plausible({"trajectory": 1000 * path})
    with pytest.raises(InputError, match="NaN"):
        instrument.check_views({"trajectory": path * np.nan})


def test_a_stack_falls_apart_into_slices():
    options = MRISimulation(size=16, slices=4, coils=2, acceleration=1)
    made = MRI.simulate_views(options)
    assert made.instrument.data_shape == (4, 2, 32)
    model = made.instrument.build_model(made.columns, made.n_views, device=CPU, dtype=torch.float64)
    x = torch.from_numpy(made.truth).to(model.dtype)
    block = made.instrument.block(made.columns, 1, 3)
    part = block.instrument.build_model(made.columns, made.n_views, device=CPU, dtype=torch.float64)
    assert torch.allclose(part.forward(x[1:3]), model.forward(x)[:, block.rows])
    whole = replace(made.instrument, voxels=Voxels((16, 16), 1e-3), stack=False, coil_maps=ring_coils((16, 16), 2))
    assert whole.block(made.columns, 0, 1) is None


def test_density_makes_the_adjoint_nearly_the_inverse():
    """Fully sampled, weighed by density: H^H H x is about x where x is smooth, and not without."""
    made = MRI.simulate_views(MRISimulation(size=32, coils=1, acceleration=0.8, phase=0))
    build = made.instrument.build_model
    y, x = np.mgrid[-1:1:32j, -1:1:32j]
    smooth = torch.from_numpy(np.exp(-6 * (x**2 + y**2))).to(torch.complex64)
    weighed = build(made.columns, made.n_views, MRIOptions(density=1), device=CPU, dtype=torch.float32)
    plain = build(made.columns, made.n_views, device=CPU, dtype=torch.float32)
    assert snr(weighed.normal()(smooth), smooth) > 12
    assert snr(plain.normal()(smooth) / plain.normal()(smooth).abs().max(), smooth) < 5
    data = torch.ones((made.n_views, *weighed.data_shape), dtype=torch.complex64)
    assert torch.allclose(
        weighed.convert(data).abs().square()[:, 0], torch.from_numpy(made.instrument.sample_density(made.columns))
    )


def test_advice_follows_the_batch():
    """With few views a step sigma goes with the root of their share; the step follows the overlap in k-space."""
    instrument = made()
    every = {(a.section, a.key, a.sigma): a.value for a in instrument.advise(20, None)}
    few = {(a.section, a.key, a.sigma): a.value for a in instrument.advise(20, 5)}
    assert every["algorithm", "step_size", None] == few["algorithm", "step_size", None] == "overlap"
    assert every["algorithm", "sigma", "weight"] == "6%"
    assert few["algorithm", "sigma", "weight"] == "3%"
    assert few["sampler", "name", None] == "epochs"
    assert few["momentum", "name", None] == "bounded"


@pytest.fixture
def brain(shared_data, tmp_path):
    """A real slice at an eighth of k-space without a tenth of its samples, and how well an image explains those."""
    file = str(shared_data / "mri" / "cartesian_ksp.npy")
    kept, held = str(tmp_path / "kept.zarr"), str(tmp_path / "held.zarr")
    assert main(["import", "mri", file, kept, "--leave-out", "0.1"]) == 0
    assert main(["import", "mri", file, held, "--leave-out", "0.1", "--held-out"]) == 0
    scan = open_scan(held)
    model = scan_model(scan)
    return kept, lambda image: relative_residual(scan, image, model)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("denoiser", ["tv", "bm3d"])
def test_a_real_brain(brain, tmp_path, denoiser):
    """Held-out samples: priors against CG-SENSE at its best iteration, and a tenth of the samples a step against all.

    With few samples a step TV comes after each, and step and sigma fall; BM3D comes after each pass (docs/mri.md).
    """
    kept, left = brain
    curve = []
    form_image(open_scan(kept), "cg-sense", iterations=14, look=lambda k, x, _: curve.append(left(x)))
    few = {
        "tv": ["--step", "overlap", "--step-end", "0.3 overlap", "--sigma", "1.9%", "--sigma-end", "1.04%"],
        "bm3d": ["--algorithm", SPLITTING, "--inner-steps", "10", "--momentum", "none", "--sigma", "1.2%"],
    }[denoiser]
    found = []
    for name, words in (
        ("all", ["--sampler", "all", "--iterations", "40"]),
        ("few", ["--batch", "2", "--iterations", "800", *few]),
    ):
        run = ["reconstruct", kept, "--out", str(tmp_path / name), "--denoiser", denoiser, "--every", "800"]
        assert main([*run, *words, *QUICK]) == 0
        found.append(left(torch.from_numpy(np.load(tmp_path / name / "result.npy"))))
    assert 0.33 < min(curve) < 0.38
    assert found[0] < {"tv": 0.75, "bm3d": 0.72}[denoiser] * min(curve)
    assert found[1] < 1.01 * found[0]
