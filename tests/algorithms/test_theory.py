"""The bounds of the theory against the paper's formulas, and against runs on problems where they must hold."""

from __future__ import annotations

import math

import pytest
import torch

from effort import effort, thorough
from plugstream import InputError, LeastSquares, MatrixModel, SoftThreshold, fixed_point_distance
from plugstream.algorithms.theory import bound, corollary, fixed_point_map, gradient_variance

F64 = torch.float64


def problem(seed: int, views: int = 6) -> LeastSquares:
    rng = torch.Generator().manual_seed(seed)
    parts = [torch.randn(5, 12, generator=rng, dtype=F64) for _ in range(views)]
    return LeastSquares(MatrixModel(parts, (3, 4)), torch.randn(views, 5, generator=rng, dtype=F64))


def test_the_bounds_are_the_papers():
    assert bound(0.5, 2.0, 10) == pytest.approx(2 * 3 * 4 / 10)
    value = bound(0.25, 3.0, 7, gamma=0.1, nu=2.0, batch=4)
    assert value == pytest.approx(2 * 1.25 / 0.75 * (0.01 * 4 / 4 + 2 * 0.1 * 2 * 3 / 2 + 9 / 7))
    for case, gamma, batch, rate in (("a", 1 / 40, 1, 10), ("b", 1 / 4, 100, 10), ("c", 1 / 40, 100, 100)):
        got = corollary(case, 0.5, 3.0, 100, lipschitz=4.0, nu=2.0)
        assert got[0] == pytest.approx(gamma)
        assert got[1] == batch
        assert got[2] == pytest.approx(6 * (3 + 0.5) ** 2 / rate)


@pytest.mark.parametrize("case", ["a", "b", "c"])
@pytest.mark.parametrize("t", [1, 10, 1000])
def test_the_corollary_follows_from_the_proposition(case, t):
    gamma, batch, rate = corollary(case, 0.5, 3.0, t, lipschitz=4.0, nu=2.0)
    assert bound(0.5, 3.0, t, gamma=gamma, lipschitz=4.0, nu=2.0, batch=batch) <= rate * (1 + 1e-12)


@thorough
@pytest.mark.parametrize("seed", range(effort(1, 4)))
def test_proposition_2_holds_on_random_problems(seed):
    fidelity = problem(seed)
    gamma = 1 / fidelity.lipschitz
    x = torch.zeros(3, 4, dtype=F64)
    for _ in range(5_000):
        before, x = x, fixed_point_map(x, fidelity, SoftThreshold(), gamma, 0.1)
        if float((x - before).abs().max()) < 1e-15:
            break
    star, x = x, 5 * torch.randn(3, 4, generator=torch.Generator().manual_seed(seed), dtype=F64)
    start, total = float((x - star).norm()), 0.0
    for t in range(1, 200):
        total += float(fixed_point_distance(x, fidelity, SoftThreshold(), gamma, 0.1))
        assert total / t <= bound(0.5, start, t, gamma=gamma, lipschitz=fidelity.lipschitz)
        x = fixed_point_map(x, fidelity, SoftThreshold(), gamma, 0.1)


def test_the_variance_is_that_of_the_gradients():
    fidelity = problem(0)
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1), dtype=F64)
    each = torch.stack([fidelity.gradient(x, [i]) for i in range(6)])
    wanted = (each - each.mean(0)).square().sum((-2, -1)).mean(0)
    assert torch.allclose(gradient_variance(x, fidelity), wanted)
    # Unbiased over all pairs of views, and of minibatches of two it is the variance halved.
    pairs = [(i, j) for i in range(6) for j in range(i)]
    estimate = torch.stack([gradient_variance(x, fidelity, torch.tensor(p)) for p in pairs]).mean(0)
    assert torch.allclose(estimate, wanted)
    means = torch.stack([(each[i] + each[j]) / 2 for i in range(6) for j in range(6)])
    assert torch.allclose((means - each.mean(0)).square().sum((-2, -1)).mean(0), wanted / 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bound(1.0, 1.0, 1), "averaged"),
        (lambda: bound(0.5, -1.0, 1), "distance"),
        (lambda: bound(0.5, 1.0, 0), "t >= 1"),
        (lambda: bound(0.5, 1.0, 1, gamma=2.0, lipschitz=1.0), "beyond 1/L"),
        (lambda: bound(0.5, 1.0, 1, nu=1.0), "needs a step"),
        (lambda: corollary("d", 0.5, 1.0, 1, lipschitz=1.0, nu=0.0), "a, b and c"),
        (lambda: corollary("a", 0.5, 1.0, 1, lipschitz=math.nan, nu=0.0), "L > 0"),
    ],
)
def test_what_the_theory_does_not_cover_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
