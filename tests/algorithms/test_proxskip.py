"""ProxSkip against its formula in NumPy, the lasso's solution, and itself after a stop."""

import numpy as np
import pytest
import torch

from plugstream import SVRG, FromFunction, InputError, ProximalGradient, ProxSkip, SoftThreshold, Uniform
from plugstream.base.draws import Stream, coin
from problems import run


def test_the_formula(regression):
    """Algorithm 1 of the paper, written in NumPy for the batches and coins that were drawn."""
    a = regression.model._stack.numpy()
    y = regression.data().numpy()
    sampler = Uniform(2, seed=3)
    algorithm = ProxSkip(
        regression, FromFunction(lambda z, s: z / (1 + s)), sigma=0.2, sampler=sampler, probability=0.4, seed=5
    )
    gamma, p = 1 / regression.lipschitz_max, 0.4
    x = h = np.zeros(20)
    calls = 0
    for k in range(12):
        views = sampler.draw(k, regression.available).views.numpy()
        g = sum(a[i].T @ (a[i] @ x - y[i]) for i in views) / 2
        v = x - gamma * (g - h)
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


@pytest.fixture
def minimiser(regression):
    """Of d + 0.1 ||x||_1, by FISTA."""
    return run(
        ProximalGradient(regression, SoftThreshold(), lam=0.1, momentum="nesterov", restart="gradient"), 100
    ).image


@pytest.mark.parametrize("momentum", ["none", "bounded"])
def test_it_finds_what_ista_finds_with_a_fifth_of_the_calls(regression, minimiser, momentum):
    """With lam, the minimiser of d + lam r whatever p is; there h is the gradient, and the distance is zero."""
    algorithm = ProxSkip(regression, SoftThreshold(), lam=0.1, momentum=momentum, probability=0.2, step_size="1.8/L")
    state = run(algorithm, 300)
    assert float((state.image - minimiser).abs().max()) < 1e-4
    assert float((state.shift - regression.gradient(minimiser)).abs().max()) < 1e-3
    assert float(algorithm.residual(state)) < 1e-5
    calls = sum(algorithm.calls_denoiser(k) for k in range(1, 301))
    assert 45 < calls < 75


@pytest.mark.slow
def test_reduced_variance_takes_the_floor_away(regression, minimiser):
    def error(gradient):
        algorithm = ProxSkip(
            regression, SoftThreshold(), lam=0.1, sampler=2, probability=0.3, gradient=gradient, step_size="0.5/L"
        )
        return float((run(algorithm, 2500).image - minimiser).norm())

    assert error(SVRG(0.2, seed=1)) < 0.1 * error("plain")


def test_with_every_call_it_is_proximal_gradient(regression):
    """p = 1: D(x - gamma g), for the shift drops out."""
    sampler = Uniform(2, seed=1)
    every = run(ProxSkip(regression, SoftThreshold(), sigma=0.1, sampler=sampler, probability=1.0), 9)
    plain = run(ProximalGradient(regression, SoftThreshold(), sigma=0.1, sampler=sampler), 9)
    torch.testing.assert_close(every.image, plain.image, rtol=1e-12, atol=1e-13)


def test_two_and_two_steps_are_four(regression):
    algorithm = ProxSkip(
        regression, SoftThreshold(), sigma=0.1, sampler=2, probability=0.5, momentum="bounded", restart="gradient"
    )
    whole, halves = run(algorithm, 4), run(algorithm, 2, run(algorithm, 2))
    assert torch.equal(whole.image, halves.image)
    assert torch.equal(whole.shift, halves.shift)


def test_full_passes_and_calls_are_drawn_apart():
    """SVRG's coin and this one have the same seed and step, and nothing else in common."""
    pairs = [(coin(0, k, 0.5), coin(0, k, 0.5, Stream.DENOISER)) for k in range(400)]
    same = sum(one == other for one, other in pairs)
    assert 150 < same < 250


@pytest.mark.parametrize("p", [0.0, 1.5, float("nan")])
def test_what_is_no_probability_is_refused(regression, p):
    with pytest.raises(InputError, match="the probability of a denoiser call must lie in"):
        ProxSkip(regression, SoftThreshold(), sigma=0.1, probability=p)
