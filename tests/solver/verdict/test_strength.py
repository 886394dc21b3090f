"""Whether the strength was chosen by the data: held-out data say on which side of sigma the best one lies."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plugstream import TV, LeastSquares, MatrixModel, ProximalGradient, solve
from plugstream.solver.verdict import StrengthProbe, found_strength, probe_strength


def make_problem(views: int) -> LeastSquares:
    """A blocky image, seen by 240 noisy numbers."""
    rng = np.random.default_rng(5)
    truth = np.zeros((16, 16))
    truth[2:8, 3:12], truth[10:14, 5:9] = 1.0, 0.5
    matrices = rng.standard_normal((views, 240 // views, 256)) / 16
    data = matrices @ truth.ravel() + 0.1 * rng.standard_normal((views, 240 // views))
    return LeastSquares(MatrixModel(list(matrices), (16, 16)), torch.from_numpy(data))


@pytest.fixture(scope="module", params=[30, 6], ids=["views", "data"])
def problem(request) -> LeastSquares:
    """Thirty views, or six, which are too few to hold any out."""
    return make_problem(request.param)


def probe(problem, lam):
    algorithm = ProximalGradient(problem, TV(), lam=lam, momentum="nesterov")
    result = solve(algorithm, iterations=100)
    before = result.state.image.clone()
    answer = probe_strength(algorithm, result.state, steps=100)
    assert torch.equal(result.state.image, before)
    return answer


def test_far_too_strong_and_far_too_weak_are_told_apart(problem):
    assert probe(problem, 0.12).word == "too strong"
    assert probe(problem, 1e-4).word == "too weak"
    assert probe(problem, 2.0).good is None  # which leaves nothing but a mean, as half of it does


def test_about_the_best_sigma_agrees_with_the_data():
    problem = make_problem(30)
    best = probe(problem, 0.002)
    assert best.word == "agrees with the data"
    assert best.good


def test_no_denoising_and_no_data_are_not_asked(problem):
    algorithm = ProximalGradient(problem, TV(), sigma=0.0)
    assert probe_strength(algorithm, algorithm.init(), steps=10).good is None


def test_a_side_is_better_by_more_than_chance_and_half_a_per_cent():
    assert StrengthProbe(1.0, 1.0, 0.99, 1.02, (0.001, 0.001)).side == -1
    assert StrengthProbe(1.0, 1.0, 0.99, 1.02, (0.01, 0.01)).side == 0
    assert StrengthProbe(1.0, 1.0, 0.999, 1.02, (0.0, 0.0)).side == 0
    assert StrengthProbe(1.0, 1.0, 1.01, 0.9, (0.01, 0.01)).side == 1
    assert StrengthProbe(1.0, 1.0, 0.8, 0.9, (0.01, 0.01)).side == -1
    assert StrengthProbe(1.0, 1.0, 0.98, 1.18, (0.001, 0.001)).side == 0  # the best is at 2^-0.62 of it


def test_what_a_search_found_is_chosen_by_the_data():
    answer = found_strength(0.02, 7, 1.04, 0.5)
    assert answer.good
    assert "sigma 0.02 was found in 7 rounds" in answer.text
