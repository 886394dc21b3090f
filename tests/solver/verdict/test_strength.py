"""Whether the strength was chosen by the data: held-out data say on which side of sigma the best one lies."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plugstream import TV, LeastSquares, MatrixModel, ProximalGradient, solve
from plugstream.solver.verdict import StrengthProbe, found_strength, probe_strength

TRUTH = torch.zeros(16, 16, dtype=torch.float64)
TRUTH[2:8, 3:12], TRUTH[10:14, 5:9] = 1.0, 0.5


def make_problem(views: int) -> LeastSquares:
    """A blocky image, seen by 240 noisy numbers."""
    rng = np.random.default_rng(5)
    matrices = rng.standard_normal((views, 240 // views, 256)) / 16
    data = matrices @ TRUTH.numpy().ravel() + 0.1 * rng.standard_normal((views, 240 // views))
    return LeastSquares(MatrixModel(list(matrices), (16, 16)), torch.from_numpy(data))


def probe(problem, lam, steps=100):
    judges = torch.arange(2, 30, 5)
    used = problem.with_views(problem.model, torch.tensor([view for view in range(30) if view not in judges]))
    algorithm = ProximalGradient(used, TV(), lam=lam, momentum="nesterov")
    result = solve(algorithm, iterations=steps)
    before = result.state.image.clone()
    answer = probe_strength(algorithm, result.state, judges, steps=steps)
    assert torch.equal(result.state.image, before)
    return answer, result.image


@pytest.mark.parametrize("steps", [60, 200])
def test_no_answer_is_wrong_over_four_decades(steps):
    """Never the wrong side, and never agreement where a fourth or four times as much would be 3 dB better."""
    problem, factors = make_problem(30), 10.0 ** np.arange(-2, 2.01, 0.5)
    found = [probe(problem, 0.002 * factor, steps) for factor in factors]
    errors = [float((image - TRUTH).square().sum()) for _, image in found]
    words, best = [answer.word for answer, _ in found], int(np.argmin(errors))
    for n, word in enumerate(words):
        near = errors[max(0, n - 2) : n + 3]  # of lam a factor of 10, of sigma of 3
        assert word != "too strong" or n > best, (words, errors)
        assert word != "too weak" or n < best, (words, errors)
        assert word != "agrees with the data" or errors[n] < 2 * min(near), (words, errors)
    assert words[-1] == "too strong" or found[-1][0].good is None
    assert "too strong" in words
    assert "too weak" in words
    assert "agrees with the data" in words or steps > 60  # after which both sides are worse by less than chance


def test_no_denoising_is_not_asked():
    algorithm = ProximalGradient(make_problem(30), TV(), sigma=0.0)
    assert probe_strength(algorithm, algorithm.init(), torch.arange(3), steps=10).good is None


def test_a_side_is_better_by_more_than_chance_and_half_a_per_cent():
    assert StrengthProbe(1.0, 1.0, 0.99, 1.02, (0.001, 0.001)).side == -1
    assert StrengthProbe(1.0, 1.0, 0.99, 1.02, (0.01, 0.01)).side is None
    assert StrengthProbe(1.0, 1.0, 0.999, 1.0015, (0.0, 0.0)).side is None  # sigma hardly matters
    assert StrengthProbe(1.0, 1.0, 1.02, 1.03, (0.0, 0.0)).side == 0
    assert StrengthProbe(1.0, 1.0, 1.01, 0.9, (0.01, 0.01)).side == 1
    assert StrengthProbe(1.0, 1.0, 0.8, 0.9, (0.01, 0.01)).side == -1
    assert StrengthProbe(1.0, 1.0, 0.98, 1.18, (0.001, 0.001)).side is None  # the best is at 2^-0.62 of it


def test_what_a_search_found_is_chosen_by_the_data():
    answer = found_strength(0.02, 7, 1.04, 0.5)
    assert answer.good
    assert "sigma 0.02 was found in 7 rounds" in answer.text
