"""The algorithms against independent solvers, the paper's propositions, and themselves after a stop."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from effort import effort, thorough
from plugstream import (
    ADMM,
    SNR,
    TV,
    All,
    Clip,
    Damping,
    Epochs,
    FixedViews,
    Geometric,
    Identity,
    Importance,
    InputError,
    LeastSquares,
    OverL,
    PlugstreamWarning,
    Power,
    ProximalGradient,
    ShiftedViews,
    SmoothFidelity,
    SoftThreshold,
    Uniform,
    fixed_point_distance,
    fixed_point_map,
    solve,
)
from plugstream.base.schedules import parse_step
from problems import dense, run

F64 = torch.float64


def lasso(fidelity: LeastSquares, lam: float) -> np.ndarray:
    """min 1/(2I) ||Ax - y||^2 + lam ||x||_1 by coordinate descent, written here, to machine precision."""
    a, y = dense(fidelity)
    return _lasso(a.tobytes(), y.tobytes(), a.shape, lam, fidelity.n_views).reshape(fidelity.image_shape).copy()


@functools.cache
def _lasso(matrix: bytes, data: bytes, shape: tuple[int, int], lam: float, views: int) -> np.ndarray:
    a, y = np.frombuffer(matrix).reshape(shape), np.frombuffer(data)
    x, norms = np.zeros(a.shape[1]), (a**2).sum(0) / views
    for _ in range(5000):
        before = x.copy()
        for j in range(len(x)):
            slope = a[:, j] @ (y - a @ x + a[:, j] * x[j]) / views
            x[j] = np.sign(slope) * max(abs(slope) - lam, 0) / norms[j]
        if np.abs(x - before).max() < 1e-15:
            break
    return x


def settle(algorithm, most, still=1e-10):
    """The state after as many steps, or when a hundred of them no longer move the image by as much as `still`."""
    state = algorithm.init()
    for _ in range(most // 100):
        before, state = state.image, run(algorithm, 100, state)
        if float((state.image - before).abs().max()) < still:
            break
    return state


@thorough
@pytest.mark.parametrize("lam", effort([0.3], [0.02, 0.3]))
@pytest.mark.parametrize("momentum", ["none", "nesterov", "chambolle-dossal"])
def test_ista_and_fista_reach_the_lasso(regression, lam, momentum):
    want = lasso(regression, lam)
    assert 0 < (want == 0).sum() < want.size or lam < 0.1
    algorithm = ProximalGradient(regression, SoftThreshold(), lam=lam, momentum=momentum)
    got = settle(algorithm, 8000).image.numpy()
    assert np.abs(got - want).max() < 1e-7


@thorough
@pytest.mark.parametrize(
    ("lam", "step"),
    effort([(0.3, "10/L"), (0.02, 0.7)], [(lam, step) for lam in (0.02, 0.3) for step in ("1/L", "10/L", 0.7)]),
)
def test_admm_reaches_the_lasso_for_any_step(regression, lam, step):
    algorithm = ADMM(regression, SoftThreshold(), lam=lam, step_size=step)
    got = settle(algorithm, 3000).image.numpy()
    assert np.abs(got - lasso(regression, lam)).max() < 1e-7


def test_fista_is_faster_than_ista(regression):
    want = torch.from_numpy(lasso(regression, 0.02))
    plain, fast = (
        float((run(ProximalGradient(regression, SoftThreshold(), lam=0.02, momentum=m), 60).image - want).norm())
        for m in ("none", "nesterov")
    )
    assert fast < plain / 2


def test_least_squares_without_a_prior(regression):
    a, y = dense(regression)
    want = np.linalg.lstsq(a, y, rcond=None)[0].reshape(4, 5)
    got = settle(ProximalGradient(regression, Identity(), sigma=0.0, momentum="nesterov"), 4000).image
    assert np.abs(got.numpy() - want).max() < 1e-8


def test_proposition_1_fixed_points_of_a_prox_are_minimisers(regression):
    """With D = prox_{gamma r}: the minimiser of d + r is a fixed point of P, and a random image is not."""
    lam = 0.1
    minimiser = torch.from_numpy(lasso(regression, lam))
    for multiple in (0.1, 1.0, 1.9):
        gamma = multiple / regression.lipschitz_max
        distance = fixed_point_distance(minimiser, regression, SoftThreshold(), gamma, np.sqrt(gamma * lam))
        assert float(distance) < 1e-25
    away = minimiser + 0.1 * torch.randn(4, 5, dtype=F64)
    assert float(fixed_point_distance(away, regression, SoftThreshold(), gamma, np.sqrt(gamma * lam))) > 1e-6


@pytest.mark.slow
def test_proposition_1_with_tv_against_a_general_minimiser(regression):
    """d + lam TV (smoothed by 1e-14 under the root) minimised by L-BFGS, from SciPy, as far as it goes."""
    a, y = dense(regression)
    lam, views = 0.2, 5

    def cost(v):
        x = torch.tensor(v.reshape(4, 5), requires_grad=True)
        down, across = torch.zeros(4, 5, dtype=F64), torch.zeros(4, 5, dtype=F64)
        down[:-1], across[:, :-1] = x[1:] - x[:-1], x[:, 1:] - x[:, :-1]
        tv = torch.sqrt(down**2 + across**2 + 1e-14).sum()
        f = ((torch.from_numpy(a) @ x.flatten() - torch.from_numpy(y)) ** 2).sum() / (2 * views) + lam * tv
        f.backward()
        return float(f.detach()), x.grad.numpy().ravel()

    best = minimize(cost, np.zeros(20), jac=True, method="L-BFGS-B", options={"maxiter": 20000, "ftol": 1e-16})
    algorithm = ProximalGradient(regression, TV(tol=1e-6, max_iterations=20000), lam=lam, momentum="nesterov")
    got = run(algorithm, 300).image.numpy().ravel()
    assert cost(got)[0] <= best.fun + 1e-6
    assert np.abs(got - best.x).max() < 1e-3


def test_proposition_3_ista_and_admm_have_the_same_fixed_points(regression):
    """For a denoiser that is averaged but no prox: a rotation mixed with a shrinkage, Jacobian not symmetric."""
    q, _ = torch.linalg.qr(torch.randn(20, 20, dtype=F64, generator=torch.Generator().manual_seed(2)))
    turn = Damping(lambda z, s: (z.flatten() @ q).reshape(z.shape), 0.4, nonexpansive=True)
    assert not torch.allclose(q, q.T)
    gamma = 1 / regression.lipschitz_max
    ista = settle(ProximalGradient(regression, turn, sigma=1.0, step_size=gamma), 4000, still=1e-12).image
    admm = settle(ADMM(regression, turn, sigma=1.0, step_size=gamma), 4000, still=1e-12).image
    assert float(fixed_point_distance(ista, regression, turn, gamma, 1.0)) < 1e-20
    assert torch.allclose(ista, admm, atol=1e-8)


@thorough
def test_pnp_sgd_reaches_the_batch_solution_where_every_view_agrees():
    """Without noise all views share a solution, the gradient noise vanishes there, and PnP-SGD gets there exactly."""
    rng = np.random.default_rng(1)
    from plugstream import MatrixModel

    model = MatrixModel(list(rng.standard_normal((8, 5, 12))), (3, 4))  # so well posed that a few hundred steps do
    truth = torch.from_numpy(rng.random((3, 4)))
    fidelity = LeastSquares(model, model.forward(truth))
    every = (Uniform(2), Epochs(2), ShiftedViews(2), Importance(2, fidelity.lipschitz_views))
    for sampler in effort(every[1:2], every):
        state = settle(ProximalGradient(fidelity, Clip(Identity()), sigma=0.0, step_size="1/L", sampler=sampler), 3500)
        assert float((state.image - truth).abs().max()) < 1e-6


def every_algorithm(fidelity):
    samplers = [
        All(),
        FixedViews([0, 3]),
        Uniform(2, 5),
        Epochs(2, 5),
        ShiftedViews(2),
        Importance(2, fidelity.lipschitz_views, 5),
    ]
    momenta = ["none", "nesterov", "chambolle-dossal", lambda k, q: 1 + k / 4]
    for number, sampler in enumerate(samplers):
        for momentum in effort([momenta[number % 4]], momenta):
            yield ProximalGradient(
                fidelity, TV(tol=1e-3), sigma=Geometric(0.5, 0.1, 4), sampler=sampler, momentum=momentum
            )
        yield ADMM(fidelity, TV(tol=1e-3), lam=Power(0.3), step_size=OverL(Power(2.0)), sampler=sampler)


@thorough
def test_two_and_two_steps_are_four_to_the_bit(regression):
    count = 0
    for algorithm in every_algorithm(regression):
        whole = run(algorithm, 4)
        halves = run(algorithm, 2, run(algorithm, 2))
        for f in dataclasses.fields(whole):
            a, b = getattr(whole, f.name), getattr(halves, f.name)
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, (algorithm, f.name)
        count += 1
    assert count == effort(12, 30)


@thorough
def test_states_are_frozen_and_steps_pure(regression):
    for algorithm in every_algorithm(regression):
        state = run(algorithm, 2)
        before = {f.name: getattr(state, f.name) for f in dataclasses.fields(state)}
        copies = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in before.items()}
        first, second = algorithm.step(state), algorithm.step(state)
        assert torch.equal(first.image, second.image)
        for name, value in copies.items():
            kept = getattr(state, name)
            assert torch.equal(kept, value) if isinstance(value, torch.Tensor) else kept == value
        with pytest.raises(dataclasses.FrozenInstanceError):
            state.k = 5


def test_images_of_a_batch_do_not_meet():
    """Three images measured by one model, reconstructed together, are what they are alone."""
    rng = np.random.default_rng(4)
    from plugstream import MatrixModel

    model = MatrixModel(list(rng.standard_normal((5, 6, 20))), (4, 5))
    y = torch.from_numpy(rng.standard_normal((3, 5, 6)))

    def last(data, shape):
        fidelity = LeastSquares(model, data)
        algorithm = ProximalGradient(fidelity, SoftThreshold(), sigma=0.1, sampler=Uniform(2), momentum="nesterov")
        return run(algorithm, 30, algorithm.init(torch.zeros(shape, dtype=F64))).image

    together = last(y, (3, 4, 5))
    for b in range(3):
        assert torch.allclose(together[b], last(y[b], (4, 5)), atol=1e-12)


def test_one_step_is_the_formula(regression):
    """x^1, s^1 and x^2 written out from Algorithm 5, with a known batch."""
    a, y = dense(regression)
    a, y = a.reshape(5, 6, 20), y.reshape(5, 6)
    gamma, sigma = 0.01, 0.3

    def gradient(s, views):
        return sum(a[v].T @ (a[v] @ s - y[v]) for v in views) / len(views)

    def shrink(z):
        return np.sign(z) * np.maximum(np.abs(z) - sigma**2, 0)

    x0 = np.linspace(-1, 1, 20)
    x1 = shrink(x0 - gamma * gradient(x0, [0, 2]))
    q1 = (1 + np.sqrt(5)) / 2
    s1 = x1  # q_0 = 1, so the first step has no momentum
    x2 = shrink(s1 - gamma * gradient(s1, [1, 3]))
    q2 = (1 + np.sqrt(1 + 4 * q1**2)) / 2
    s2 = x2 + (q1 - 1) / q2 * (x2 - x1)
    algorithm = ProximalGradient(
        regression, SoftThreshold(), sigma=sigma, step_size=gamma, sampler=ShiftedViews(2), momentum="nesterov"
    )
    state = run(algorithm, 2, algorithm.init(torch.from_numpy(x0.reshape(4, 5))))
    assert np.allclose(state.image.numpy().ravel(), x2, atol=1e-14)
    assert np.allclose(state.s.numpy().ravel(), s2, atol=1e-14)
    assert state.q == pytest.approx(q2)


def test_sigma_does_not_depend_on_the_step_and_lam_does(regression):
    gammas = [0.5, 2.0]
    fixed = [ProximalGradient(regression, Identity(), sigma=0.3, step_size=g).parameters(1)[1] for g in gammas]
    tied = [ProximalGradient(regression, Identity(), lam=0.5, step_size=g).parameters(1)[1] for g in gammas]
    assert fixed == [0.3, 0.3]
    assert tied == pytest.approx([0.5, 1.0])


@pytest.mark.parametrize(
    ("text", "multiple"),
    [
        ("1/L", 1),
        ("1/4L", 0.25),
        ("1/(16L)", 1 / 16),
        ("0.5/L", 0.5),
        (" 1.9 / L ", 1.9),
        ("2e-1/L", 0.2),
        ("1/(4*L)", 0.25),
    ],
)
def test_steps_as_people_write_them(text, multiple):
    assert parse_step(text).multiple == pytest.approx(multiple)


@pytest.mark.parametrize("text", ["L", "1/M", "", "1/0L", "abc/L", "1/L/L", "1"])
def test_unreadable_steps_are_refused(text):
    with pytest.raises(InputError, match="cannot read the step"):
        parse_step(text)


def test_schedules():
    schedule = Geometric(1.0, 0.01, 3)
    assert [schedule(k) for k in (1, 2, 3, 9)] == pytest.approx([1, 0.1, 0.01, 0.01])
    assert [Power(2.0)(k) for k in (1, 4)] == pytest.approx([2, 1])


def test_a_long_step_is_warned_of(regression):
    with pytest.warns(PlugstreamWarning, match="beyond 2 / L"):
        ProximalGradient(regression, Identity(), sigma=0, step_size="2.5/L", sampler=Uniform(1)).init()
    # All views together allow more than the worst of them: between the two bounds there is nothing to warn of.
    between = 2.1 / regression.lipschitz_max
    assert between < 2 / regression.lipschitz
    ProximalGradient(regression, Identity(), sigma=0, step_size=between).init()


class Needs9(Identity):
    min_size = 9


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: ProximalGradient(f, Identity()), "either sigma"),
        (lambda f: ProximalGradient(f, Identity(), sigma=1, lam=1), "either sigma"),
        (lambda f: ProximalGradient(f, Identity(), sigma=1, momentum="heavy"), "no momentum 'heavy'"),
        (lambda f: ProximalGradient(f, Identity(), sigma=1, momentum=3), "momentum is 3, not a name or a function"),
        (lambda f: ProximalGradient(f, Identity(), sigma=1, step_size=-1.0).init(), "step must be a number > 0"),
        (lambda f: ProximalGradient(f, Identity(), sigma=-1).init(), "sigma must be a number >= 0"),
        (lambda f: ProximalGradient(f, Needs9(), sigma=1).init(), "image is 4 x 5, but the denoiser needs at least 9"),
        (lambda f: ADMM(f, Identity(), sigma=1).init(torch.zeros(3, 3)), "first image has shape"),
        (lambda f: ADMM(f, Identity(), sigma=1).init(torch.full((4, 5), np.nan)), "first image holds NaN"),
        (lambda f: ProximalGradient(f, Identity(), sigma=1, sampler=FixedViews([9])).init(), "view 9 was asked for"),
    ],
)
def test_bad_settings_are_refused_before_work_starts(regression, make, message):
    with pytest.raises(InputError, match=message):
        make(regression)


def test_proposition_4s_functions_can_be_run():
    """The Huber counterexample: a bounded denoiser, and PnP-ISTA that runs away by sigma sqrt(c) - gamma a step."""
    huber = SmoothFidelity(
        [lambda x: torch.where(x.abs() <= 1, x * x / 2, x.abs() - 0.5).sum((-2, -1))], (1, 1), lipschitz=1.0, dtype=F64
    )
    away = ProximalGradient(huber, lambda z, s: z + s * torch.sign(z), sigma=0.8, step_size=0.5)
    state = run(away, 100, away.init(torch.full((1, 1), 2.0, dtype=F64)))
    assert float(state.image) >= 2.0 + 100 * (0.8 - 0.5) - 1e-9
    stays = dataclasses.replace(away, sigma=0.3)
    assert float(run(stays, 100, stays.init(torch.full((1, 1), 2.0, dtype=F64))).image) < 2.0


def test_fixed_point_map_is_p(regression):
    x = torch.randn(4, 5, dtype=F64)
    gamma = 0.02
    want = SoftThreshold()(x - gamma * regression.gradient(x), 0.3)
    assert torch.equal(fixed_point_map(x, regression, SoftThreshold(), gamma, 0.3), want)


def test_snr_is_in_decibels(regression):
    truth = torch.ones(4, 5, dtype=F64)
    result = solve(ProximalGradient(regression, Identity(), sigma=0), truth * 1.1, iterations=0, monitors=[SNR(truth)])
    assert float(result.history["snr"].value[0]) == pytest.approx(20)
