"""The algorithms of examples/algorithms against their formulas in NumPy; ProxSkip against the lasso's solution, too.

tests/algorithms/test_variants_command.py runs and resumes them by their files.
"""

from pathlib import Path

import numpy as np
import pytest

from plugstream import FromFunction, InputError, ProximalGradient, ShiftedViews, SoftThreshold, Uniform
from plugstream.base.draws import Stream, coin
from plugstream.base.user_code import load_from_file
from problems import dense, run

EXAMPLES = Path(__file__).parents[2] / "examples" / "algorithms"
ProxSkip = load_from_file(f"{EXAMPLES / 'proxskip.py'}:ProxSkip")
GradientSplitting = load_from_file(f"{EXAMPLES / 'gradient_splitting.py'}:GradientSplitting")
LINEAR = FromFunction(lambda z, s: z / (1 + s))


def test_proxskip_is_its_formula(regression):
    """Algorithm 1 of the paper, written in NumPy for the batches and coins that were drawn."""
    a, y = regression.model._stack.numpy(), regression.data().numpy()
    sampler = Uniform(2, seed=3)
    algorithm = ProxSkip(regression, LINEAR, sigma=0.2, sampler=sampler, probability=0.4, seed=5)
    gamma, p = 1 / regression.lipschitz_max, 0.4
    x = h = np.zeros(20)
    calls = 0
    for k in range(12):
        views = sampler.draw(k, regression.available).views.numpy()
        v = x - gamma * (sum(a[i].T @ (a[i] @ x - y[i]) for i in views) / 2 - h)
        if coin(5, k, p, Stream.DENOISER):
            x, calls = (v - gamma / p * h) / 1.2, calls + 1
        else:
            x = v
        h = h + p / gamma * (x - v)
    state = run(algorithm, 12)
    assert 1 < calls < 11
    assert sum(algorithm.calls_denoiser(k) for k in range(1, 13)) == calls
    np.testing.assert_allclose(state.image.numpy().ravel(), x, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(state.shift.numpy().ravel(), h, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("momentum", ["none", "bounded"])
def test_proxskip_finds_what_ista_finds_with_a_fifth_of_the_calls(regression, momentum):
    """With lam, the minimiser of d + lam r whatever p is; there h is the gradient, and the distance is zero."""
    fista = ProximalGradient(regression, SoftThreshold(), lam=0.1, momentum="nesterov", restart="gradient")
    minimiser = run(fista, 100).image
    algorithm = ProxSkip(regression, SoftThreshold(), lam=0.1, momentum=momentum, probability=0.2, step_size="1.8/L")
    state = run(algorithm, 300)
    assert float((state.image - minimiser).abs().max()) < 1e-4
    assert float((state.shift - regression.gradient(minimiser)).abs().max()) < 1e-3
    assert float(algorithm.residual(state)) < 1e-5
    assert 45 < sum(algorithm.calls_denoiser(k) for k in range(1, 301)) < 75


@pytest.mark.parametrize("momentum", ["none", "nesterov"])
def test_splitting_is_its_formula(regression, momentum):
    a, y = regression.model._stack.numpy(), regression.data().numpy()
    sampler = ShiftedViews(2)
    algorithm = GradientSplitting(regression, LINEAR, sigma=0.2, sampler=sampler, momentum=momentum, inner=3)
    gamma, x = 1 / regression.lipschitz_max, np.zeros(20)
    for outer in range(3):
        before, s, q = x, x, 1.0
        for k in range(3 * outer, 3 * outer + 3):
            views = sampler.draw(k, regression.available).views.numpy()
            z = s - gamma * sum(a[i].T @ (a[i] @ s - y[i]) for i in views) / 2
            rising = (1 + np.sqrt(1 + 4 * q * q)) / 2 if momentum == "nesterov" else 1.0
            s, q, before = z + (q - 1) / rising * (z - before), rising, z
        x = before / 1.2
    np.testing.assert_allclose(run(algorithm, 9).image.numpy().ravel(), x, rtol=1e-12, atol=1e-13)


def test_the_fixed_point_of_splitting_is_that_of_the_filtered_step(regression):
    """For D = z / (1 + s), no momentum and all views: (1 + s) x = x - W grad d(x), W = gamma sum (I - gamma H)^j."""
    a, y = dense(regression)
    gamma, inner, hessian = 1 / regression.lipschitz_max, 4, a.T @ a / 5
    w = gamma * sum(np.linalg.matrix_power(np.eye(20) - gamma * hessian, j) for j in range(inner))
    want = np.linalg.solve(0.2 * np.eye(20) + w @ hessian, w @ a.T @ y / 5)
    algorithm = GradientSplitting(regression, LINEAR, sigma=0.2, inner=inner)
    state = run(algorithm, 200 * inner)
    assert np.abs(state.image.numpy().ravel() - want).max() < 1e-10
    assert float(algorithm.residual(state)) < 1e-20


@pytest.mark.parametrize(("algorithm", "wrong"), [(ProxSkip, {"probability": 1.5}), (GradientSplitting, {"inner": 0})])
def test_what_makes_no_sense_is_refused(regression, algorithm, wrong):
    with pytest.raises(InputError, match=r"must lie in \(0, 1\], not 1.5|after at least one step, not 0"):
        algorithm(regression, SoftThreshold(), sigma=0.1, **wrong)
