"""IPA and block ADMM against their formulas in NumPy, the solution of a dense problem, and themselves after a stop."""

import numpy as np
import pytest
import torch

from plugstream import (
    ADMM,
    All,
    BlockADMM,
    FromFunction,
    IncrementalADMM,
    InputError,
    LeastSquares,
    ShiftedViews,
    SoftThreshold,
    Uniform,
)
from problems import dense, run


@pytest.fixture
def exact(regression):
    """The same problem with a prox to machine precision."""
    return LeastSquares(regression.model, regression.data(), prox_tol=1e-14)


def prox(a, y, v, gamma, weights):
    """argmin_z 1/2 ||z - v||^2 + gamma sum_i w_i 1/2 ||A_i z - y_i||^2, as a dense system."""
    normal = sum(w * m.T @ m for m, w in zip(a, weights, strict=True))
    right = sum(w * m.T @ d for m, d, w in zip(a, y, weights, strict=True))
    return np.linalg.solve(np.eye(20) + gamma * normal, v + gamma * right)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_the_formula_of_ipa(exact, parts):
    a, y = exact.model._stack.numpy(), exact.data().numpy()
    sampler = Uniform(4, seed=2)
    algorithm = IncrementalADMM(
        exact, FromFunction(lambda z, s: z / (1 + s)), sigma=0.3, step_size=0.2, sampler=sampler, parts=parts
    )
    x = s = np.zeros(20)
    for k in range(6):
        views = np.array_split(sampler.draw(k, exact.available).views.numpy(), parts)
        z = sum(len(i) / 4 * prox(a[i], y[i], x - s, 0.2, [1 / len(i)] * len(i)) for i in views)
        x = (z + s) / 1.3
        s = s + z - x
    state = run(algorithm, 6)
    np.testing.assert_allclose(state.image.numpy().ravel(), x, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(state.s.numpy().ravel(), s, rtol=1e-9, atol=1e-10)


def test_the_formula_of_blocks(exact):
    """Five views in blocks of 3 and 2, of which the larger weighs more."""
    a, y = exact.model._stack.numpy(), exact.data().numpy()
    sampler = Uniform(3, seed=2)
    algorithm = BlockADMM(exact, FromFunction(lambda z, s: z / (1 + s)), sigma=0.3, step_size=0.2, sampler=sampler)
    x, z, s, seen = np.zeros(20), np.zeros((2, 20)), np.zeros((2, 20)), set()
    for k in range(7):
        j = int(sampler.draw(k, exact.available).views[0]) % 2
        views = np.arange(5)[j::2]
        z[j] = prox(a[views], y[views], x - s[j], 0.2, [2 / 5] * len(views))
        s[j] += z[j] - x
        seen.add(j)
        x = np.mean([z[i] + s[i] for i in sorted(seen)], 0) / 1.3
    assert seen == {0, 1}
    state = run(algorithm, 7)
    np.testing.assert_allclose(state.image.numpy().ravel(), x, rtol=1e-9, atol=1e-10)
    assert state.used.sum() == 7


def test_blocks_have_no_floor_and_ipa_has_one(exact):
    """For D = z / (1 + s), P's fixed point solves (gamma A^T A / I + s) x = gamma A^T y / I."""
    a, y = dense(exact)
    gamma, sigma = 0.2, 0.3
    want = np.linalg.solve(gamma * a.T @ a / 5 + sigma * np.eye(20), gamma * a.T @ y / 5)
    common = {"sigma": sigma, "step_size": gamma, "sampler": ShiftedViews(2)}
    denoiser = FromFunction(lambda z, s: z / (1 + s))

    def error(kind, steps):
        algorithm = kind(exact, denoiser, **common)
        state = run(algorithm, steps)
        return np.abs(state.image.numpy().ravel() - want).max(), float(algorithm.residual(state))

    blocks, distance = error(BlockADMM, 85)
    assert blocks < 1e-4
    assert distance < 1e-7
    assert error(IncrementalADMM, 15)[0] > 1e-2


def test_with_all_views_they_are_admm(exact):
    """One block is ADMM with the denoiser first: what it denoises next is what ADMM's prox would be given."""
    common = {"sigma": 0.3, "step_size": 0.2, "sampler": All()}
    ipa = run(IncrementalADMM(exact, SoftThreshold(), **common), 5)
    assert torch.equal(ipa.image, run(ADMM(exact, SoftThreshold(), **common), 5).image)
    block, admm = (run(kind(exact, SoftThreshold(), **common), 25) for kind in (BlockADMM, ADMM))
    torch.testing.assert_close(block.image, admm.image, rtol=1e-4, atol=1e-5)


def test_two_and_two_steps_are_four_for_several_images(exact):
    start = torch.stack([torch.zeros(4, 5), torch.ones(4, 5)]).double()
    algorithm = BlockADMM(exact, SoftThreshold(), sigma=0.3, step_size=0.2, sampler=2)
    whole, halves = (
        run(algorithm, 4, algorithm.init(start)),
        run(algorithm, 2, run(algorithm, 2, algorithm.init(start))),
    )
    assert whole.z.shape == (2, 3, 4, 5)
    assert torch.equal(whole.image, halves.image)
    alone = run(algorithm, 4, algorithm.init(start[1]))
    torch.testing.assert_close(whole.image[1], alone.image, rtol=1e-9, atol=1e-10)


def test_no_part_is_refused(exact):
    with pytest.raises(InputError, match="at least one part"):
        IncrementalADMM(exact, SoftThreshold(), sigma=0.1, sampler=4, parts=0)
