"""Online RED and SNORE against their formulas in NumPy, a solution in closed form, and themselves after a stop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from plugstream import RED, TV, FromFunction, InputError, LeastSquares, MatrixModel, SmoothFidelity, Uniform
from plugstream.base.draws import standard_normal
from plugstream.runs.parts import prepare
from plugstream.settings import resolve
from problems import dense, run


def shrink(z, sigma):
    return z / (1 + sigma)


LINEAR = FromFunction(shrink, averaged=0.5, takes_complex=True)


@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_the_formula(regression, noise):
    a, y = regression.model._stack.numpy(), regression.data().numpy()
    sampler = Uniform(2, seed=3)
    algorithm = RED(regression, LINEAR, sigma=0.2, sampler=sampler, tau="0.3L", noise=noise, seed=5)
    gamma, tau = 1 / regression.lipschitz_max, 0.3 * regression.lipschitz_max
    x = np.zeros(20)
    for k in range(8):
        views = sampler.draw(k, regression.available).views.numpy()
        g = sum(a[i].T @ (a[i] @ x - y[i]) for i in views) / 2
        n = standard_normal(5, k, (4, 5)).numpy().ravel()
        x = x - gamma * (g + tau * (x - (x + noise * 0.2 * n) / 1.2))
    np.testing.assert_allclose(run(algorithm, 8).image.numpy().ravel(), x, rtol=1e-12, atol=1e-13)


def test_the_authors_annealing_moves_sigma_and_weight_in_stairs(regression):
    """As their loop has it: both linear in the number of the stair, then the last pair; continued to the bit."""
    a, y = regression.model._stack.numpy(), regression.data().numpy()
    stairs, long, last = 4, 3, 5
    sampler, gamma = Uniform(2, seed=3), 1 / regression.lipschitz_max

    def anneal(first, end):
        return lambda k: first + (end - first) * min((k - 1) // long / stairs, 1.0)

    sigma, tau = anneal(0.4, 0.1), anneal(0.2, 3.0)
    algorithm = RED(regression, LINEAR, sigma=sigma, sampler=sampler, tau=tau, noise=1.0, seed=5)
    x, s, t = np.zeros(20), 0.0, 0.0
    for i in range(stairs * long + last):
        part = i / (stairs * long)
        if i < stairs * long and i % long == 0:
            s, t = 0.4 * (1 - part) + 0.1 * part, 0.2 * (1 - part) + 3.0 * part
        if i >= stairs * long:
            s, t = 0.1, 3.0
        views = sampler.draw(i, regression.available).views.numpy()
        g = sum(a[v].T @ (a[v] @ x - y[v]) for v in views) / 2
        n = standard_normal(5, i, (4, 5)).numpy().ravel()
        x = x - gamma * (g + t * (x - (x + s * n) / (1 + s)))
    whole = run(algorithm, stairs * long + last)
    np.testing.assert_allclose(whole.image.numpy().ravel(), x, rtol=1e-11, atol=1e-12)
    halves = run(replace(algorithm), stairs * long + last - 7, run(algorithm, 7))
    assert torch.equal(halves.image, whole.image)
    with pytest.raises(InputError, match="tau must be more than 0"):
        run(replace(algorithm, tau=lambda k: 2.0 - k), 3)


def test_it_finds_the_zero_of_its_gradient(regression):
    """For D = z / (1 + s) the fixed point solves (A^T A / I + tau s / (1 + s)) x = A^T y / I, and no step matters."""
    a, y = dense(regression)
    tau, share = 2.0, 0.2 / 1.2
    want = np.linalg.solve(a.T @ a / 5 + tau * share * np.eye(20), a.T @ y / 5)
    for step in ("1/L", "0.4/L"):
        algorithm = RED(regression, LINEAR, sigma=0.2, tau=tau, momentum="nesterov", restart="gradient", step_size=step)
        state = run(algorithm, 200)
        assert np.abs(state.image.numpy().ravel() - want).max() < 1e-5
        assert float(algorithm.residual(state)) < 1e-10
    away = replace(state, image=state.image + 0.1)
    gamma, _ = algorithm.parameters(1)
    g = (a.T @ (a @ (want + 0.1) - y)) / 5 + tau * share * (want + 0.1)
    assert float(algorithm.residual(away)) == pytest.approx(gamma**2 * float(g @ g), rel=1e-3)


def test_noise_has_the_mean_of_none(regression):
    """For a linear D the mean over the noise is RED: with a falling step SNORE comes to the same image."""
    plain = run(RED(regression, LINEAR, sigma=0.2, tau=2.0, momentum="nesterov", restart="gradient"), 200).image
    gamma = 1 / regression.lipschitz_max
    noisy = RED(regression, LINEAR, sigma=0.2, tau=2.0, noise=1.0, step_size=lambda k: gamma / (1 + k / 40))
    error, other = (float((run(replace(noisy, seed=seed), 250).image - plain).norm() / plain.norm()) for seed in (0, 1))
    assert max(error, other) < 0.2
    assert error != other


def test_the_noise_is_white_and_of_variance_one():
    n = standard_normal(2, 7, (300, 301)).numpy()
    assert abs(n.mean()) < 0.015
    assert abs(n.var() - 1) < 0.02
    assert abs((n[1:] * n[:-1]).mean()) < 0.015
    assert abs((n**4).mean() - 3) < 0.1
    assert np.array_equal(n, standard_normal(2, 7, (300, 301)).numpy())
    assert abs((n * standard_normal(2, 8, (300, 301)).numpy()).mean()) < 0.015
    assert standard_normal(0, 0, (3,)).shape == (3,)


def complex_problem() -> LeastSquares:
    rng = np.random.default_rng(1)
    matrices = rng.standard_normal((3, 8, 20)) + 1j * rng.standard_normal((3, 8, 20))
    model = MatrixModel(list(matrices), (4, 5), dtype=torch.complex128)
    return LeastSquares(model, rng.standard_normal((3, 8)) + 1j * rng.standard_normal((3, 8)))


def test_complex_images_have_noise_in_both_parts():
    algorithm = RED(complex_problem(), LINEAR, sigma=0.2, sampler=2, noise=1.0)
    noise = algorithm._noise(algorithm.init().image, 4)
    assert noise.is_complex()
    assert 0.3 < float(noise.real.std()) < 2
    assert not torch.equal(noise.real, noise.imag)
    whole, halves = run(algorithm, 4), run(algorithm, 2, run(algorithm, 2))
    assert torch.equal(whole.image, halves.image)


def test_several_images_are_each_as_alone(regression):
    many = run(RED(regression, TV(), sigma=0.2, sampler=2, noise=1.0), 3, None)
    start = torch.stack([torch.zeros(4, 5), torch.ones(4, 5)]).double()
    algorithm = RED(regression, TV(), sigma=0.2, sampler=2, noise=1.0)
    both = run(algorithm, 3, algorithm.init(start)).image
    torch.testing.assert_close(both[0], many.image, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lam": 0.1}, "RED weighs its prior by tau"),
        ({"sigma": 0.1, "tau": "L/2"}, "tau is 'L/2', not a number > 0 or a multiple of L such as 0.5L"),
        ({"sigma": 0.1, "tau": -1.0}, "tau must be more than 0"),
        ({"sigma": 0.1, "noise": -1.0}, "the noise before the denoiser must be 0 or more"),
    ],
)
def test_what_it_cannot_do_is_refused(regression, given, message):
    with pytest.raises(InputError, match=message):
        RED(regression, LINEAR, **given)


def test_a_multiple_of_an_unknown_l_is_refused():
    fidelity = SmoothFidelity([lambda x: (x**2).sum((-2, -1))], (4, 5))
    algorithm = RED(fidelity, LINEAR, sigma=0.1, step_size=0.1)
    with pytest.raises(InputError, match="give tau as a number"):
        algorithm.step(algorithm.init())


def test_the_command_refuses_lam():
    with pytest.raises(InputError, match="red weighs its prior by --tau; give --sigma, and leave --lam out"):
        prepare(resolve(None, [("algorithm", "name", "red"), ("algorithm", "lam", 0.1)]))
