"""SAGA, SVRG, restarts and half-quadratic splitting: unbiased by enumeration, exact where plain PnP-SGD stalls."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from effort import effort, thorough
from plugstream import (
    ADMM,
    SAGA,
    SVRG,
    TV,
    All,
    Epochs,
    Identity,
    Importance,
    InputError,
    LeastSquares,
    MatrixModel,
    ProximalGradient,
    SmoothFidelity,
    SoftThreshold,
    Uniform,
)
from plugstream.algorithms.sampling import Batch
from plugstream.algorithms.variance import Memory
from plugstream.base.draws import coin
from problems import dense, run

F64 = torch.float64


@pytest.fixture
def strongly_convex() -> LeastSquares:
    """Six views of 16 rows on an image of 3 x 4, noisy, so that no image explains all views at once."""
    rng = np.random.default_rng(3)
    model = MatrixModel(list(rng.standard_normal((6, 16, 12))), (3, 4))
    return LeastSquares(model, torch.from_numpy(rng.standard_normal((6, 16))), lipschitz_tol=1e-6, prox_tol=1e-12)


def solution(fidelity: LeastSquares) -> torch.Tensor:
    a, y = dense(fidelity)
    return torch.from_numpy(np.linalg.lstsq(a, y, rcond=None)[0].reshape(fidelity.image_shape))


def wandered(estimator, fidelity, steps=7):
    """A memory that has seen several images, and the image it is asked about."""
    generator = torch.Generator().manual_seed(1)
    shape = fidelity.image_shape
    memory = estimator.begin(fidelity, torch.randn(shape, generator=generator, dtype=F64))
    for step in range(steps):
        image = torch.randn(shape, generator=generator, dtype=F64)
        _, memory = estimator.estimate(
            fidelity, image, Uniform(2, 9).draw(step, torch.arange(fidelity.n_views)), memory, step
        )
    return memory, torch.randn(shape, generator=generator, dtype=F64)


@pytest.mark.parametrize("estimator", [SAGA(), SVRG(1e-9)])
def test_the_mean_over_every_batch_is_the_full_gradient(strongly_convex, estimator):
    """All 6^2 equally likely pairs, and with uneven probabilities, weighed by how likely each is."""
    memory, image = wandered(estimator, strongly_convex)
    want = strongly_convex.gradient(image)
    pairs = list(itertools.product(range(6), repeat=2))
    some = [estimator.estimate(strongly_convex, image, Batch(torch.tensor(p)), memory, 0)[0] for p in pairs]
    assert torch.allclose(torch.stack(some).mean(0), want, atol=1e-12)
    assert max(float((g - want).abs().max()) for g in some) > 0.1  # and it is random, not the full gradient itself

    p = torch.tensor([1.0, 2, 3, 4, 5, 6], dtype=F64) / 21
    total = torch.zeros_like(image)
    for i, j in pairs:
        weights = torch.tensor([1 / (2 * 6 * p[i]), 1 / (2 * 6 * p[j])], dtype=F64)
        g, _ = estimator.estimate(strongly_convex, image, Batch(torch.tensor([i, j]), weights), memory, 0)
        total += p[i] * p[j] * g
    assert torch.allclose(total, want, atol=1e-12)


def test_saga_is_what_its_formula_with_a_table_of_gradients_gives(strongly_convex):
    """The textbook's table of images, kept here, against predictions, over repeats and uneven weights."""
    generator = torch.Generator().manual_seed(5)
    image = torch.randn(3, 4, generator=generator, dtype=F64)
    memory = SAGA().begin(strongly_convex, image)
    assert memory.kept.shape == (6, 16)  # data, not images
    one = [strongly_convex.gradient(image, [i]) for i in range(6)]
    for step, views in enumerate([[0, 0], [3, 1], [5, 5], [2, 3], [0, 4]]):
        image = torch.randn(3, 4, generator=generator, dtype=F64)
        weights = None if step % 2 else torch.tensor([0.3, 0.9], dtype=F64)
        factors = [0.5, 0.5] if weights is None else weights.tolist()
        want = torch.stack(one).mean(0)
        for view, factor in zip(views, factors, strict=True):
            want = want + factor * (strongly_convex.gradient(image, [view]) - one[view])
        for view in views:
            one[view] = strongly_convex.gradient(image, [view])
        got, memory = SAGA().estimate(strongly_convex, image, Batch(torch.tensor(views), weights), memory, step)
        assert torch.allclose(got, want, atol=1e-12)
        assert torch.allclose(memory.mean, torch.stack(one).mean(0), atol=1e-12)


@thorough
@pytest.mark.parametrize(
    ("gradient", "sampler"),
    effort(
        [("saga", Uniform(1, 2)), ("svrg", Epochs(2, 2))],
        list(itertools.product(["saga", "svrg"], [Uniform(1, 2), Epochs(2, 2)])),
    ),
)
def test_variance_reduction_converges_linearly_where_plain_stalls(strongly_convex, gradient, sampler):
    want = solution(strongly_convex)

    def errors(kind, rounds):
        algorithm = ProximalGradient(
            strongly_convex, Identity(), sigma=0, step_size="1/3L", sampler=sampler, gradient=kind
        )
        state, out = algorithm.init(), []
        for _ in range(rounds):
            state = run(algorithm, 100, state)
            out.append(float((state.image - want).norm()))
        return out

    plain, reduced = errors("plain", 1), errors(gradient, 4)
    assert min(plain) > 1e-3  # the floor of Proposition 5
    assert reduced[-1] < 1e-9
    # Linear: each 100 steps divide the error by about the same, large factor until rounding.
    assert all(after < before / 50 or after < 1e-9 for before, after in itertools.pairwise(reduced))


@pytest.mark.parametrize("gradient", ["saga", "svrg"])
def test_with_a_prox_they_reach_the_minimiser_that_all_views_reach(strongly_convex, gradient):
    batch = run(
        ProximalGradient(strongly_convex, SoftThreshold(), lam=0.3, momentum="nesterov"), effort(200, 1000)
    ).image
    assert 0 < int((batch == 0).sum()) < batch.numel()
    online = ProximalGradient(
        strongly_convex, SoftThreshold(), lam=0.3, step_size="1/3L", sampler=Uniform(2, 4), gradient=gradient
    )
    assert torch.allclose(run(online, effort(400, 1500)).image, batch, atol=1e-9)


def test_svrg_takes_any_fidelity_and_saga_says_that_it_does_not(strongly_convex):
    smooth = SmoothFidelity(
        [lambda x, i=i: strongly_convex.value(x, [i]) for i in range(6)],
        (3, 4),
        lipschitz=strongly_convex.lipschitz_max,
        gradients=[lambda x, i=i: strongly_convex.gradient(x, [i]) for i in range(6)],
        dtype=F64,
    )
    common = {"sigma": 0, "step_size": "1/3L", "sampler": Uniform(2, 1), "gradient": SVRG(0.3, 8)}
    a = run(ProximalGradient(smooth, Identity(), **common), 50).image
    b = run(ProximalGradient(strongly_convex, Identity(), **common), 50).image
    assert torch.allclose(a, b, atol=1e-12)
    with pytest.raises(InputError, match="SAGA keeps predictions"):
        ProximalGradient(smooth, Identity(), sigma=0, gradient="saga").init()


def test_only_available_views_count(strongly_convex):
    """With two views missing, the mean is over the other four, from any image."""
    some = LeastSquares(strongly_convex.model, strongly_convex.data(), available=torch.tensor([0, 2, 3, 5]))
    algorithm = ProximalGradient(
        some, Identity(), sigma=0, step_size="1/3L", sampler=Uniform(1, 3), gradient="saga", momentum="none"
    )
    a, y = (part.reshape(6, 16, -1)[[0, 2, 3, 5]].reshape(64, -1) for part in dense(strongly_convex))
    want = np.linalg.lstsq(a, y[:, 0], rcond=None)[0].reshape(3, 4)
    got = run(algorithm, 800, algorithm.init(torch.ones(3, 4, dtype=F64))).image
    assert np.abs(got.numpy() - want).max() < 1e-8


def every_variant(fidelity):
    for gradient in ("plain", "saga", SVRG(0.3, 7)):
        for restart in ("none", "gradient", "residual"):
            samplers = (All(), Uniform(2, 5), Importance(2, fidelity.lipschitz_views, 5))
            for sampler in effort(samplers[1:] if restart == "residual" else samplers[:2], samplers):
                yield ProximalGradient(
                    fidelity,
                    TV(tol=1e-3),
                    sigma=0.2,
                    sampler=sampler,
                    momentum="chambolle-dossal" if restart == "gradient" else "nesterov",
                    gradient=gradient,
                    restart=restart,
                )
    yield ADMM(fidelity, TV(tol=1e-3), sigma=0.2, step_size="5/L", dual=False)


@thorough
def test_two_and_two_steps_are_four_to_the_bit_and_states_stay_as_they_are(strongly_convex):
    for algorithm in every_variant(strongly_convex):
        middle = run(algorithm, 3)
        kept = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in vars(middle).items()}
        whole, halves = run(algorithm, 6), run(algorithm, 3, middle)
        for f in dataclasses.fields(whole):
            for a, b in ((getattr(whole, f.name), getattr(halves, f.name)), (kept[f.name], getattr(middle, f.name))):
                assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, (algorithm, f.name)


@thorough
@pytest.mark.parametrize(
    ("gradient", "restart"),
    effort(
        [("plain", "gradient"), ("saga", "residual"), (SVRG(0.3, 7), "none"), ("saga", "gradient")],
        list(itertools.product(["plain", "saga", SVRG(0.3, 7)], ["none", "gradient", "residual"])),
    ),
)
def test_images_of_a_batch_do_not_meet(gradient, restart):
    rng = np.random.default_rng(4)
    model = MatrixModel(list(rng.standard_normal((5, 6, 20))), (4, 5))
    y = torch.from_numpy(rng.standard_normal((3, 5, 6)))

    def last(data):
        fidelity = LeastSquares(model, data)
        algorithm = ProximalGradient(
            fidelity,
            SoftThreshold(),
            sigma=0.1,
            sampler=Uniform(2),
            momentum="nesterov",
            gradient=gradient,
            restart=restart,
        )
        return run(algorithm, 12)

    together = last(y)
    for b in range(3):
        alone = last(y[b])
        assert torch.allclose(together.image[b], alone.image, atol=1e-12)
        if restart != "none":
            assert float(together.began[b]) == float(alone.began)


@thorough
@pytest.mark.parametrize(
    ("restart", "momentum"),
    effort(
        [("gradient", "nesterov"), ("residual", "chambolle-dossal")],
        list(itertools.product(["gradient", "residual"], ["nesterov", "chambolle-dossal"])),
    ),
)
def test_restarts_make_acceleration_linear_on_an_ill_conditioned_problem(restart, momentum):
    rng = np.random.default_rng(0)
    q, _ = np.linalg.qr(rng.standard_normal((20, 20)))
    smallest, steps = effort((0.1, 350), (0.02, 3000))
    model = MatrixModel([q * np.geomspace(1, smallest, 20)], (4, 5))
    fidelity = LeastSquares(model, torch.from_numpy(rng.standard_normal((1, 20))), lipschitz_tol=1e-6)
    want = solution(fidelity)

    def error(restart):
        algorithm = ProximalGradient(fidelity, Identity(), sigma=0, momentum=momentum, restart=restart)
        state = run(algorithm, steps)
        return float((state.image - want).norm() / want.norm()), state

    restarted, state = error(restart)
    assert float(state.began) > 0  # it did begin anew
    assert restarted < 1e-8
    assert restarted < error("none")[0] / 100


def test_half_quadratic_splitting_minimises_with_the_moreau_envelope(strongly_convex):
    """Its fixed point against gradient descent on the envelope, whose gradient is I - prox, written here."""
    gamma, sigma = 0.3, 0.2
    got = run(ADMM(strongly_convex, SoftThreshold(), sigma=sigma, step_size=gamma, dual=False), 500).image
    a, y = dense(strongly_convex)
    matrix = np.linalg.inv(np.eye(12) + gamma / 6 * a.T @ a)
    x = np.zeros(12)
    for _ in range(5000):
        prox = matrix @ (x + gamma / 6 * a.T @ y)
        v = x - 0.5 * (x - prox)
        x = np.sign(v) * np.maximum(np.abs(v) - 0.5 * sigma**2, 0)
    assert np.abs(got.numpy().ravel() - x).max() < 1e-8
    assert 0 < (x == 0).sum() < 12


def test_coins_fall_as_often_as_they_should_and_the_same_every_time():
    falls = [coin(3, step, 0.2) for step in range(5_000)]
    assert falls == [coin(3, step, 0.2) for step in range(5_000)]
    assert abs(np.mean(falls) - 0.2) < 4 * np.sqrt(0.2 * 0.8 / 5_000)
    assert all(coin(0, step, 1.0) for step in range(100))
    assert not any(coin(0, step, 0.0) for step in range(100))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: ProximalGradient(f, Identity(), sigma=1, gradient="sag"), "no gradient 'sag'"),
        (lambda f: ProximalGradient(f, Identity(), sigma=1, restart="often"), "no restart 'often'"),
        (lambda f: SVRG(0.0), "must lie in"),
        (lambda f: SVRG(1.5), "must lie in"),
    ],
)
def test_mistakes_are_told_in_a_line(strongly_convex, make, message):
    with pytest.raises(InputError, match=message):
        make(strongly_convex)


def test_plain_remembers_nothing(strongly_convex):
    state = run(ProximalGradient(strongly_convex, Identity(), sigma=0, sampler=Uniform(2)), 2)
    assert Memory(state.kept, state.mean) == Memory(None, None)
