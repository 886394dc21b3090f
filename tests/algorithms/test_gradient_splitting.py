"""Splitting by gradients against its formula in NumPy, the fixed point of its map, and itself after a stop."""

import numpy as np
import pytest
import torch

from plugstream import FromFunction, GradientSplitting, InputError, ProximalGradient, ShiftedViews, SoftThreshold
from problems import dense, run

LINEAR = FromFunction(lambda z, s: z / (1 + s))


@pytest.mark.parametrize("momentum", ["none", "nesterov"])
def test_the_formula(regression, momentum):
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
    state = run(algorithm, 9)
    np.testing.assert_allclose(state.image.numpy().ravel(), x, rtol=1e-12, atol=1e-13)
    assert torch.equal(state.s, state.image)


def test_its_fixed_point_is_that_of_the_filtered_step(regression):
    """For D = z / (1 + s), no momentum and all views: (1 + s) x = x - W grad d(x), W = gamma sum (I - gamma H)^j."""
    a, y = dense(regression)
    gamma, inner, hessian = 1 / regression.lipschitz_max, 4, a.T @ a / 5
    w = gamma * sum(np.linalg.matrix_power(np.eye(20) - gamma * hessian, j) for j in range(inner))
    want = np.linalg.solve(0.2 * np.eye(20) + w @ hessian, w @ a.T @ y / 5)
    algorithm = GradientSplitting(regression, LINEAR, sigma=0.2, inner=inner)
    state = run(algorithm, 200 * inner)
    assert np.abs(state.image.numpy().ravel() - want).max() < 1e-10
    assert float(algorithm.residual(state)) < 1e-20


@pytest.mark.parametrize("momentum", ["none", "nesterov", "bounded"])
def test_the_residual_is_the_next_runs_move(regression, momentum):
    algorithm = GradientSplitting(regression, SoftThreshold(), sigma=0.2, momentum=momentum, inner=3)
    state = run(algorithm, 6)
    after = run(algorithm, 3, state)
    move = float(((after.image - state.image) ** 2).sum())
    assert float(algorithm.residual(state)) == pytest.approx(move, rel=1e-9)


def test_one_step_to_a_call_is_proximal_gradient(regression):
    one = run(GradientSplitting(regression, SoftThreshold(), sigma=0.1, sampler=2, inner=1), 7)
    assert torch.equal(one.image, run(ProximalGradient(regression, SoftThreshold(), sigma=0.1, sampler=2), 7).image)


@pytest.mark.parametrize("restart", ["none", "gradient"])
def test_two_and_three_steps_are_five(regression, restart):
    algorithm = GradientSplitting(
        regression, SoftThreshold(), sigma=0.1, sampler=2, momentum="nesterov", restart=restart, inner=3
    )
    assert torch.equal(run(algorithm, 5).image, run(algorithm, 3, run(algorithm, 2)).image)


def test_no_step_to_a_call_is_refused(regression):
    with pytest.raises(InputError, match="after at least one step, not 0"):
        GradientSplitting(regression, SoftThreshold(), sigma=0.1, inner=0)
