"""PSNR and SSIM as monitors, equal to scikit-image's."""

from __future__ import annotations

import csv
import re

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

import plugstream as ps
from small_run import SMALL, main


def pictures(size: tuple[int, int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.random(size).cumsum(0).cumsum(1) % 1.0
    return truth + 0.1 * rng.standard_normal(size), truth


@pytest.mark.parametrize("size", [(11, 11), (40, 33), (64, 12)])
@pytest.mark.parametrize("peak", [1.0, 255.0, None])
def test_ssim_and_psnr_are_those_of_scikit_image(size, peak):
    image, truth = pictures(size)
    span = np.ptp(truth) if peak is None else peak
    theirs = structural_similarity(
        truth, image, data_range=span, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
    )
    assert float(ps.ssim(image, truth, peak)) == pytest.approx(theirs, rel=1e-10)
    assert float(ps.psnr(image, truth, peak)) == pytest.approx(
        peak_signal_noise_ratio(truth, image, data_range=span), rel=1e-12
    )


def test_several_images_are_each_judged_by_their_own_range():
    pairs = [pictures((20, 20), seed) for seed in range(3)]
    images = np.stack([scale * image for scale, (image, _) in zip((1, 10, 100), pairs, strict=True)])
    truths = np.stack([scale * truth for scale, (_, truth) in zip((1, 10, 100), pairs, strict=True)])
    for measure in (ps.ssim, ps.psnr):
        each = torch.stack([measure(image, truth) for image, truth in zip(images, truths, strict=True)])
        assert torch.allclose(measure(images, truths), each, rtol=1e-12)
    assert ps.ssim(truths, truths).allclose(torch.ones(3, dtype=torch.float64))
    assert ps.psnr(truths, truths).isposinf().all()


def test_psnr_of_complex_images_and_volumes():
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((5, 6, 7)) + 1j * rng.standard_normal((5, 6, 7))
    image = truth + 0.1j
    want = 20 * np.log10(np.abs(truth).max() / 0.1)
    assert float(ps.psnr(image, truth, ndim=3, phase="measured")) == pytest.approx(want)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ps.ssim(np.ones((10, 20)), np.ones((10, 20))), "at least 11 x 11"),
        (lambda: ps.ssim(np.ones((20, 20)) * 1j, np.ones((20, 20))), "real images"),
        (lambda: ps.psnr(np.ones((20, 20)), np.ones((20, 21))), "alike"),
        (lambda: ps.psnr(np.ones((20, 20)), np.ones((20, 20)), peak=0.0), "peak must be"),
        (lambda: ps.psnr(np.ones((20, 20)), np.ones((20, 20)), peak="one"), "peak must be"),
    ],
)
def test_what_cannot_be_compared_is_refused(call, words):
    with pytest.raises(ps.InputError, match=words):
        call()


def test_monitors_measure_what_the_functions_do():
    grid = ps.Grid((16, 16), 0.01)
    model = ps.BornModel(ps.BornGeometry.rings(grid, 0.05, views=6, receivers=12, radius=0.5))
    truth = torch.rand(16, 16)
    scan = ps.simulate(model, truth)
    algorithm = ps.ProximalGradient(ps.LeastSquares(model, scan.data), ps.TV(), sigma=0.02)
    result = ps.solve(algorithm, iterations=3, every=1, monitors=[ps.PSNR(truth, peak=1.0), ps.SSIM(truth.numpy())])
    assert result.history["psnr"].step.tolist() == [0, 1, 2, 3]
    assert result.history["psnr"].value[-1] == pytest.approx(float(ps.psnr(result.image, truth, 1.0)))
    assert result.history["ssim"].value[-1] == pytest.approx(float(ps.ssim(result.image, truth)))
    with pytest.raises(ps.InputError, match="SSIM needs them alike"):
        ps.solve(algorithm, iterations=1, monitors=[ps.SSIM(torch.ones(4, 4))])


def test_the_command_measures_them(tmp_path, capsys):
    words = ["demo", "--out", str(tmp_path / "run"), *SMALL, "--sigma", "0.01", "--iterations", "4", "--every", "2"]
    assert main([*words, "--psnr", "--ssim"]) == 0
    shown = capsys.readouterr().err
    assert re.search(r"PSNR +-?\d+\.\d\d dB", shown)
    assert re.search(r"SSIM -?\d\.\d{4}", shown)
    with (tmp_path / "run" / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    last = {row["quantity"]: float(row["value"]) for row in rows if row["step"] == "4"}
    image, truth = (np.load(tmp_path / "run" / f"{name}.npy") for name in ("result", "truth"))
    assert last["psnr"] == pytest.approx(float(ps.psnr(image, truth)), rel=1e-5)
    assert last["ssim"] == pytest.approx(float(ps.ssim(image, truth)), rel=1e-5)


def test_without_a_truth_they_are_refused_before_anything_is_written(scan, tmp_path, capsys):
    stored = ps.open_scan(scan).load()
    bare = ps.MemoryScan(stored.data, ps.born_geometry(stored))
    ps.save_scan(bare, tmp_path / "bare.zarr")
    words = ["reconstruct", str(tmp_path / "bare.zarr"), "--sigma", "0.01", "--out", str(tmp_path / "run"), "--ssim"]
    assert main(words) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert "--ssim" in error[-1]
    assert "truth" in error[-1]
    assert not (tmp_path / "run").exists()
