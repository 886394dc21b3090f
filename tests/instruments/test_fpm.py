"""Fourier ptychography by command: simulated, described, reconstructed, resumed; what cannot be is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from plugstream import InputError, open_scan, snr
from plugstream.cli import main
from plugstream.instruments.fpm import FPM, FPMSimulation, fitting_size
from plugstream.models.fpm_geometry import Microscope, light_directions, spiral

QUICK = ["--report-format", "none", "--threads", "1"]
SMALL = ["--size", "48", "--camera", "24", "--leds", "7", "--pitch", "5e-3", "--pixel", "1.6e-6"]


def test_a_smear_is_simulated_and_reconstructed_and_a_run_goes_on_to_the_bit(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "scan.zarr", "--instrument", "fpm", *SMALL, "--photons", "1e6"]) == 0
    assert main(["info", "scan.zarr"]) == 0
    said = capsys.readouterr().out
    assert "49, 9 in bright and 40 in dark field" in said
    assert "48 x 48 pixels of 8e-07 m" in said
    scan = open_scan("scan.zarr")
    assert scan.instrument.image.free_phase
    assert float(scan.read().sum((1, 2)).mean()) == pytest.approx(1e6, rel=1e-3)
    run = ["reconstruct", "scan.zarr", "--denoiser", "identity", "--sigma", "0", "--batch", "12", *QUICK]
    assert main([*run, "--iterations", "40", "--out", "run"]) == 0
    assert "follows how much the views of a batch overlap" in capsys.readouterr().err
    assert snr(np.load("run/result.npy"), np.load("run/truth.npy")) > 15
    assert main(["resume", "run", "--iterations", "44"]) == 0
    assert main([*run, "--iterations", "44", "--out", "whole"]) == 0
    assert np.array_equal(np.load("run/result.npy"), np.load("whole/result.npy"))
    assert main(["residual", "scan.zarr", "run"]) == 0
    assert float(capsys.readouterr().out.split()[0]) < 0.1


def made(**changes):
    return replace(FPM(16, 16, 64, 64, 1.8e-6, 6.3e-7, 0.1, distance=0.09), **changes)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: made(light=0.0), "light must be > 0"),
        (lambda: made(defocus=float("nan")), "defocus must be finite"),
        (lambda: made(pupil=np.ones((3, 3), np.complex64)), "the pupil is"),
        (lambda: made(image_rows=8), "at least as many pixels"),
        (lambda: made(pixel=1.8).check_plausible(), "are both in metres"),
        (lambda: made().check_plausible({"leds": np.array([[40.0, 0]])}), "is all in metres"),
        (lambda: made(distance=0.0).check_views({"leds": np.zeros((1, 2))}), "distance does not say"),
        (lambda: made().check_views({"waves": np.array([[3e7, 0]])}), "its light has no direction"),
        (lambda: made().check_views({"leds": np.zeros((1, 2)), "gains": np.zeros(1)}), "gains of views"),
        (lambda: FPM.simulate_views(FPMSimulation(camera=8192, leds=1001)), "memory"),
    ],
)
def test_what_cannot_be_is_refused(wrong, said):
    with pytest.raises(InputError, match=said):
        wrong()


def test_leds_and_the_wave_vectors_of_their_light_are_the_same_views():
    leds = spiral(9) * 4e-3
    waves = -2 * np.pi / 6.3e-7 * light_directions(leds, 0.09)
    scope = made()
    models = [
        scope.build_model(columns, 9, device=torch.device("cpu"), dtype=torch.float64)
        for columns in ({"leds": leds}, {"waves": waves})
    ]
    image = torch.randn(64, 64, dtype=torch.complex128)
    assert torch.allclose(models[0].forward(image), models[1].forward(image))


def test_the_smallest_image_has_all_detail_and_one_smaller_not():
    camera = Microscope((16, 16), 1.8e-6, 6.3e-7, 0.1, (16, 16))
    directions = light_directions(spiral(49) * 4e-3, 0.09)
    rows, columns = fitting_size(camera, directions)
    assert (rows % 16, rows) == (0, columns)
    columns_of = {"leds": spiral(49) * 4e-3}
    made(image_rows=rows, image_columns=columns).check_views(columns_of)
    with pytest.raises(InputError, match="finer detail"):
        made(image_rows=16, image_columns=16).check_views(columns_of)
