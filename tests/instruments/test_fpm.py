"""Fourier ptychography by command: simulated, described, reconstructed, resumed; what cannot be is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from plugstream import InputError, MemoryScan, open_scan, save_scan, snr
from plugstream.cli import main
from plugstream.instruments.fpm import FPM
from plugstream.instruments.fpm_simulation import FPMSimulation
from plugstream.models.fpm_geometry import Microscope, fitting_size, light_directions, spiral

QUICK = ["--report", "none", "--threads", "1"]
SMALL = ["--picture", "cells", "--phase-picture", "cells", "--size", "48", "--camera", "24"]
SMALL += ["--leds", "7", "--pitch", "5e-3", "--pixel", "1.6e-6"]


def test_a_smear_is_simulated_described_and_reconstructed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "scan.zarr", "--instrument", "fpm", *SMALL, "--photons", "1e6"]) == 0
    assert main(["info", "scan.zarr"]) == 0
    said = capsys.readouterr().out
    assert "49, 9 in bright and 40 in dark field" in said
    assert "48 x 48 pixels of 8e-07 m" in said
    scan = open_scan("scan.zarr")
    assert scan.instrument.image.free_phase
    assert scan.instrument.light == pytest.approx(1e6 / 24**2)
    run = ["reconstruct", "scan.zarr", "--denoiser", "identity", "--sigma", "0", "--batch", "12", *QUICK]
    assert main([*run, "--iterations", "24", "--out", "run"]) == 0
    assert "follows how much the views of a batch overlap" in capsys.readouterr().err
    assert snr(np.load("run/result.npy"), np.load("run/truth.npy")) > 12
    assert main(["residual", "scan.zarr", "run"]) == 0
    assert float(capsys.readouterr().out.split()[0]) < 0.1


def test_who_says_that_nothing_is_refined_is_not_asked_for_what_was_advised(tmp_path, monkeypatch, capsys):
    """`--refine none` takes the advised steps of refining away as well, and a search for sigma begins."""
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "known.zarr", "--instrument", "fpm", *SMALL, "--leds", "5", "--photons", "1e6"]) == 0
    known = open_scan("known.zarr")
    save_scan(
        MemoryScan(known.read(), replace(known.instrument, calibrated=False), columns=dict(known.columns)), "s.zarr"
    )
    capsys.readouterr()
    assert main(["reconstruct", "s.zarr", "--search", "20", "--iterations", "22", "--out", "no", *QUICK]) == 2
    assert "use --refine none, or use --search none" in capsys.readouterr().err
    search = ["--search", "20", "--refine", "none", "--iterations", "22"]
    assert main(["reconstruct", "s.zarr", *search, "--out", "run", *QUICK]) == 0
    assert "search for it" in capsys.readouterr().err
    assert not list((tmp_path / "run").glob("refined-*"))


@pytest.mark.slow
def test_an_uncalibrated_microscope_is_refined_before_denoising_and_a_run_goes_on_to_the_bit(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "known.zarr", "--instrument", "fpm", *SMALL, "--photons", "1e6"]) == 0
    known = open_scan("known.zarr")
    scan = MemoryScan(known.read(), replace(known.instrument, calibrated=False), columns=dict(known.columns))
    save_scan(scan, "scan.zarr")
    run = ["reconstruct", "scan.zarr", "--batch", "12", "--iterations", "8", *QUICK]
    assert main([*run, "--refine-steps", "6", "--out", "run", "--checkpoint", "0"]) == 0
    said = capsys.readouterr().err
    assert "pupil, gains, leds are found along with the image" in said
    found = {name: np.load(f"run/refined-{name}.npy") for name in ("pupil", "gains", "leds")}
    assert found["gains"].shape == (49, 3)
    assert (tmp_path / "run" / "refined-pupil.png").exists()
    assert main([*run[:5], "5", *run[6:], "--refine-steps", "6", "--out", "short"]) == 0
    assert main(["resume", "short", "--iterations", "8"]) == 0
    assert np.array_equal(np.load("run/result.npy"), np.load("short/result.npy"))
    for name, values in found.items():
        assert np.array_equal(values, np.load(f"short/refined-{name}.npy"))
    assert main([*run[:5], "6", *run[6:], "--refine-steps", "6", "--out", "refined"]) == 0
    for name, values in found.items():  # which stay as they are from then on
        assert np.array_equal(values, np.load(f"refined/refined-{name}.npy"))
    assert main(["residual", "scan.zarr", "run", "refined"]) == 0
    assert "bright field, 9 views" in capsys.readouterr().out
    assert main([*run[:4], "--refine-steps", "6", "--refine", "none", "--out", "no"]) == 2
    assert "add --refine" in capsys.readouterr().err


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


def test_there_is_advice_before_there_are_views():
    assert made().advise(0, None)


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


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("colour", "dark", "beyond"), [("red", 0.075, 0.09), ("green", 0.085, 0.10)])
def test_the_blood_smear_predicts_views_left_out_with_nothing_set_by_hand(
    shared_data, tmp_path, monkeypatch, capsys, colour, dark, beyond
):
    file = shared_data / "fpm" / f"bloodsmear_{colour}.mat"
    if not file.exists():
        pytest.skip(f"there is no {file}")
    monkeypatch.chdir(tmp_path)
    assert main(["import", "fpm", str(file), "seen.zarr", "--omit", "5::10"]) == 0
    assert main(["import", "fpm", str(file), "held.zarr", "--select", "5::10"]) == 0
    assert main(["reconstruct", "seen.zarr", "--out", "run", *QUICK]) == 0
    assert "refine_steps = 144" in Path("run/settings.toml").read_text()  # sixteen times round, 25 views a step
    assert "pupil, gains, leds: arrived at step" in capsys.readouterr().err
    leds = np.load("run/refined-leds.npy")
    assert leds[2] == pytest.approx(0.0147, abs=0.002)  # one array of LEDs, in one place, for both colours
    assert np.abs(leds[:2]).max() < 1.2
    assert main(["residual", "held.zarr", "run"]) == 0
    found = [float(line.split()[0]) for line in capsys.readouterr().out.splitlines()[1:]]
    assert found[0] <= 0.045
    assert found[1] <= dark
    assert found[2] <= beyond
