"""SAGA, SVRG, restarts and half-quadratic splitting from the command line, stopped and resumed to the bit."""

from pathlib import Path

import numpy as np
import pytest
import torch

from plugstream import (
    ADMM,
    SVRG,
    BornGeometry,
    BornModel,
    Geometric,
    Grid,
    InputError,
    LeastSquares,
    save_scan,
    simulate,
)
from plugstream.instruments.born import born_geometry
from plugstream.runs.parts import prepare
from plugstream.runs.plan import plan
from plugstream.settings import resolve, to_toml
from small_run import main


@pytest.fixture(scope="module")
def scan():
    geometry = BornGeometry.rings(Grid((12, 12), 0.01), 0.06, views=8, receivers=10, radius=0.4)
    truth = torch.zeros(12, 12)
    truth[3:8, 4:9] = 1
    return simulate(BornModel(geometry), truth, snr=30)


EXAMPLES = Path(__file__).parents[2] / "examples" / "algorithms"
PROXSKIP, SPLITTING = f"{EXAMPLES}/proxskip.py:proxskip", f"{EXAMPLES}/gradient_splitting.py:splitting"
FALLING = ["--step", "100/L", "--step-end", "10/L", "--sigma-end", "0.01", "--sigma-steps", "5"]
OPENING = ["--opening", "tv", "--opening-steps", "5", "--denoiser", "nlm"]
VARIANTS = {
    "saga": ["--batch", "3", "--gradient", "saga", "--restart", "residual", "--step", "0.5/L"],
    "svrg": ["--batch", "3", "--gradient", "svrg", "--refresh", "0.4", "--restart", "gradient"],
    "hqs": ["--algorithm", "hqs", "--sampler", "all", *FALLING],
    "proxskip": ["--batch", "3", "--algorithm", PROXSKIP, "--denoise-probability", "0.4"],
    "red": ["--batch", "3", "--algorithm", "red", "--tau", "0.3L"],
    "equivariant": ["--batch", "3", "--equivariant", "random", "--denoiser", "nlm"],
    "ipa": ["--batch", "4", "--algorithm", "ipa", "--prox-parts", "2", "--step", "30/L"],
    "block-admm": ["--batch", "3", "--algorithm", "block-admm", "--step", "30/L"],
    "sgd-splitting": [
        "--batch",
        "3",
        "--algorithm",
        SPLITTING,
        "--inner-steps",
        "3",
    ],
    "inexact-admm": ["--batch", "3", "--algorithm", "inexact-admm", "--step", "30/L", *OPENING],
    "snore": ["--batch", "3", "--algorithm", "snore", "--injected-noise", "0.5"],
}


@pytest.mark.parametrize("name", VARIANTS)
def test_stopped_and_resumed_is_the_same_to_the_bit(scan, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    save_scan(scan, tmp_path / "scan.zarr")
    common = ["reconstruct", "scan.zarr", "--sigma", "0.03", *VARIANTS[name]]
    assert main([*common, "--iterations", "7", "--out", "whole"]) == 0
    assert main([*common, "--iterations", "4", "--out", "halves"]) == 0
    assert main(["resume", "halves", "--trust", "--iterations", "7"]) == 0
    whole, halves = (np.load(tmp_path / folder / "result.npy") for folder in ("whole", "halves"))
    assert np.array_equal(whole, halves)
    assert np.abs(whole).max() > 0.1


def test_settings_become_the_algorithm(scan):
    fidelity = LeastSquares(BornModel(born_geometry(scan)), scan.data)

    def made(*more, **values):
        return prepare(resolve(None, [*(("algorithm", k, v) for k, v in values.items()), *more])).algorithm(fidelity)

    hqs = made(
        name="hqs", sigma=0.2, sigma_end=0.02, step_size="100/L", step_size_end="1/L", sigma_steps=5, iterations=50
    )
    assert isinstance(hqs, ADMM)
    assert not hqs.dual
    pairs = np.array([hqs.parameters(k) for k in (1, 3, 5, 20)])
    assert pairs[:, 0] * fidelity.lipschitz_max == pytest.approx([100, 10, 1, 1])
    assert pairs[:, 1] == pytest.approx([0.2, 0.2 * 0.1**0.5, 0.02, 0.02])
    numbers = made(sigma=0.2, step_size=4.0, step_size_end=1.0, iterations=3)
    assert numbers.step_size == Geometric(4.0, 1.0, 3)
    svrg = ("gradient", "name", "svrg"), ("gradient", "refresh", 0.25)
    assert made(*svrg, sigma=1.0).gradient == SVRG(0.25)
    with pytest.raises(InputError, match=r"the gradient plain has no use for refresh; .* choose svrg"):
        made(svrg[1], sigma=1.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step_size": "1/L", "step_size_end": 3.0}, "both be numbers or multiples"),
        ({"step_size_end": "1/M"}, "cannot read the step"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(scan, values, message):
    settings = resolve(None, [("algorithm", "sigma", 0.1), *(("algorithm", k, v) for k, v in values.items())])
    with pytest.raises(InputError, match=message):
        plan(settings, scan)


@pytest.mark.parametrize("gradient", ["saga", "svrg"])
def test_a_growing_scan_is_refused(scan, gradient):
    given = [("algorithm", "sigma", 0.1), ("gradient", "name", gradient), ("scan", "follow", True)]
    with pytest.raises(InputError, match="cannot follow a scan that grows"):
        plan(resolve(None, given), scan)


@pytest.mark.parametrize("name", ["admm", "hqs", "ipa", "inexact-admm", "block-admm"])
def test_a_momentum_that_would_do_nothing_is_refused(name):
    chosen = ("algorithm", "name", name)
    with pytest.raises(InputError, match=f"^{name} has no momentum, so --momentum would do nothing; leave"):
        resolve(None, [chosen, ("momentum", "name", "bounded")])
    assert resolve(None, [chosen, ("momentum", "name", "none")]).momentum.name == "none"


def test_a_file_of_settings_says_a_momentum_that_nobody_asked_for(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text(to_toml(resolve(None, [("algorithm", "name", "admm"), ("algorithm", "sigma", 0.1)])))
    assert resolve(file).algorithm.name == "admm"


def test_a_search_with_an_opening_is_refused(scan, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    save_scan(scan, tmp_path / "scan.zarr")
    common = ["reconstruct", "scan.zarr", "--sigma", "0.03", "--batch", "3", "--opening", "soft", "--out", "run"]
    assert main([*common, "--search", "40"]) == 2
    assert "it is for one denoiser in all steps; leave --opening out" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()
