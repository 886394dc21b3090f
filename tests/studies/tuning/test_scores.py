"""The discrepancy principle finds sigma where the residual passes the noise for the last time, not at any peak."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from effort import effort, thorough
from plugstream import BornGeometry, BornModel, Grid, InputError, LeastSquares, simulate, solve
from plugstream.instruments.born import born_geometry
from plugstream.runs.parts import prepare
from plugstream.settings import resolve
from plugstream.solver.monitors import snr
from plugstream.studies.tuning import discrepancy_score, largest_crossing, residual_excess
from plugstream.studies.tuning.scan import Search, tune_scan


def small_scan(picture, level):
    geometry = BornGeometry.rings(Grid((32, 32), 0.18 / 32), 6 * 0.18 / 32, views=30, receivers=48, radius=1.6)
    return simulate(BornModel(geometry), picture, snr=level)


@pytest.fixture
def load(shared_data):
    from PIL import Image

    def picture(name):
        image = (
            Image.open(shared_data / "paper-images" / f"{name}.png").convert("L").resize((32, 32), Image.Resampling.BOX)
        )
        return torch.from_numpy(np.array(image)).float() / 255

    return picture


def settings(**more):
    values = {"name": "pgm", "iterations": 30, **more}
    return resolve(None, [("algorithm", k, v) for k, v in values.items()] + [("sampler", "batch", 6)])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no sigma that was tried")  # the noise of small batches keeps it above, at 30 dB
@thorough
@pytest.mark.parametrize(
    ("name", "level"),
    effort([("house", 20.0), ("foreman", 30.0)], [(n, s) for n in ("house", "foreman") for s in (20.0, 30.0)]),
)
def test_it_comes_within_a_decibel_of_the_best_sigma(load, tmp_path, name, level):
    """With six of thirty views a step the residual is the noise's at small sigma too, where the image is 4 dB worse.

    The maximum of the old score was there: 4.3 dB (house) and 5.2 dB (foreman) below the best at 20 dB.
    """
    scan = small_scan(load(name), level)
    fidelity = LeastSquares(BornModel(born_geometry(scan)), scan.data)
    truth = torch.from_numpy(scan.truth)

    def judge(sigma):
        image = solve(prepare(settings(sigma=float(sigma))).algorithm(fidelity), iterations=30).image
        return float(snr(image, truth)), float(residual_excess(fidelity, image, level))

    best = max(judge(sigma)[0] for sigma in np.geomspace(5e-3, 0.3, effort(7, 12)))
    if level == 20:
        poor, excess = judge(1e-3)
        assert poor < best - 4
        assert abs(excess) < 0.1
    blind = dataclasses.replace(scan, truth=None)
    plan = Search(by="discrepancy", noise=level, evaluations=10)
    tuned, score = tune_scan(blind, settings(), plan, tmp_path / "j.jsonl")
    reached, left = judge(tuned.algorithm.sigma)
    assert reached > best - 1.0
    assert score == pytest.approx(-abs(left), abs=1e-6)


@pytest.mark.parametrize("level", [5.0, 20.0, 40.0])
def test_the_true_image_leaves_the_noise(level):
    """Its residual is the noise: 0 dB up to the correlation of noise and data, where it was -0.04 dB and -1.2 dB."""
    excesses = []
    for seed in range(8):
        geometry = BornGeometry.rings(Grid((16, 16), 0.01), 0.06, views=12, receivers=24, radius=0.4)
        scan = simulate(BornModel(geometry), torch.rand(16, 16), snr=level, seed=seed)
        fidelity = LeastSquares(BornModel(geometry), scan.data)
        truth = torch.from_numpy(scan.truth)
        excesses.append(float(residual_excess(fidelity, truth, level)))
        assert float(discrepancy_score(fidelity, truth, level)) == -abs(excesses[-1])
    # ||y||^2 differs from ||Hx||^2 + ||e||^2 by 2 <Hx, e>, whose variance is 4 ||Hx||^2 ||e||^2 / (2 x 288).
    chance = 10 / math.log(10) * 2 * math.sqrt(10 ** (-level / 10) / (2 * 288))
    assert abs(np.mean(excesses)) < 4 * chance / math.sqrt(len(excesses)) + 1e-3


@given(zero=st.floats(1e-3, 0.5), slope=st.floats(0.1, 5.0), dip=st.floats(-0.5, 0.5))
def test_the_last_crossing_is_found(zero, slope, dip):
    """A function that rises through zero once, and far below it may be anything near zero; 20 evaluations."""

    def excess(sigma):
        far = math.log(sigma / zero)
        return slope * math.tanh(far) if far > -1 else min(dip, -1e-3)

    found = largest_crossing(excess, 5e-4, 0.1, evaluations=20, widenings=2)
    assert found.edge == 0
    assert abs(math.log(found.value / zero)) < math.log(200) / 4 / 2**10
    assert found.excess == excess(found.value)


def test_the_larger_of_two_crossings_is_taken():
    """Positive at small sigma, where a run hovers or has not converged, negative between, positive above."""
    found = largest_crossing(lambda s: math.log(s / 1e-3) * math.log(s / 0.05), 5e-4, 0.4, evaluations=30)
    assert found.value == pytest.approx(0.05, rel=1e-4)
    narrow = largest_crossing(lambda s: math.log(s / 0.02) * math.log(s / 0.03), 5e-4, 0.4, evaluations=40)
    assert narrow.value == pytest.approx(0.03, rel=1e-3)  # between two places of the grid


def test_no_crossing_is_said_and_the_nearest_taken():
    below = largest_crossing(lambda s: -1.0 - 1 / s, 1e-3, 0.1, widenings=3)
    assert below.edge == 1
    assert below.value == pytest.approx(0.1 * 100 ** (3 / 4))
    above = largest_crossing(lambda s: 1 + math.log(s / 0.02) ** 2, 1e-3, 0.1, evaluations=20)
    assert above.edge == -1
    assert above.value == pytest.approx(0.02, rel=0.02)
    failed = largest_crossing(lambda s: math.nan, 1e-3, 0.1, evaluations=8, widenings=2)
    assert failed.edge == -1
    assert failed.evaluations == 8
    down = largest_crossing(lambda s: math.log(s / 1e-5), 1e-3, 0.1, evaluations=20, widenings=8)
    assert down.value == pytest.approx(1e-5, rel=1e-3)


@pytest.mark.parametrize("noise", [5000.0, -1000.0, 301.0])
def test_noise_that_data_cannot_have_is_refused(noise):
    with pytest.raises(InputError, match="data cannot have an input SNR"):
        Search(by="discrepancy", noise=noise)
