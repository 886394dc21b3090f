"""Fidelities and the linear algebra below them, against dense matrices, autograd and closed forms."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st

from plugstream import BornModel, InputError, LeastSquares, MatrixModel, PlugstreamWarning, SmoothFidelity
from plugstream.base.linalg import conjugate_gradient, largest_eigenvalue
from plugstream.base.processes import Group
from plugstream.fidelity.sharded import Sharded
from problems import dense

F64 = torch.float64


def test_value_is_the_mean_over_views(regression):
    a, y = dense(regression)
    x = torch.randn(4, 5, dtype=F64)
    each = 0.5 * ((a @ x.numpy().ravel() - y) ** 2).reshape(5, 6).sum(1)
    assert float(regression.value(x)) == pytest.approx(each.mean(), rel=1e-12)
    assert float(regression.value(x, [3, 3, 1])) == pytest.approx(each[[3, 3, 1]].mean(), rel=1e-12)
    weights = torch.tensor([0.5, 2.0], dtype=F64)
    assert float(regression.value(x, [0, 4], weights)) == pytest.approx(0.5 * each[0] + 2 * each[4], rel=1e-12)


def test_views_that_count_less(regression):
    """Every sum has the factors, once, in one part or several: values, gradients, their changes and the prox."""
    a, y = dense(regression)
    less = np.array([1.0, 0.2, 1.0, 0.5, 1.0])
    rows = np.repeat(less, 6)[:, None] / 5
    x, other = torch.randn(2, 4, 5, dtype=F64)
    flat = x.numpy().ravel()
    for fidelity in (regression.weigh(less), Sharded(regression.weigh(less), Group(), shards=4)):
        assert float(fidelity.value(x)) == pytest.approx(float(0.5 * rows[:, 0] @ (a @ flat - y) ** 2), rel=1e-12)
        gradient = (a * rows).T @ (a @ flat - y)
        assert np.allclose(fidelity.gradient(x).numpy().ravel(), gradient, rtol=1e-12)
        change = (a * rows).T @ a @ (flat - other.numpy().ravel())
        assert np.allclose(fidelity.gradient_change(x, other).numpy().ravel(), change, rtol=1e-12)
        want = np.linalg.solve(np.eye(20) + 3 * (a * rows).T @ a, flat + 3 * (a * rows).T @ y)
        assert np.allclose(fidelity.prox(x, 3.0).numpy().ravel(), want, rtol=1e-8, atol=1e-9)
        part = fidelity.gradient(x, [1, 3], torch.tensor([2.0, 4.0], dtype=F64)).numpy().ravel()
        two = np.repeat([0, 2 * 0.2, 0, 4 * 0.5, 0], 6)[:, None]
        assert np.allclose(part, (a * two).T @ (a @ flat - y), rtol=1e-12)
        assert fidelity.lipschitz_max >= regression.lipschitz_max


@given(seed=st.integers(0, 100), batch=st.lists(st.integers(1, 3), max_size=1), complex_=st.booleans())
def test_gradient_is_autograds(seed, batch, complex_):
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.complex128 if complex_ else F64
    stack = torch.randn(4, 3, 6, dtype=dtype, generator=generator)
    model = MatrixModel(list(stack), (2, 3))
    y = torch.randn(*batch, 4, 3, dtype=dtype, generator=generator)
    fidelity = LeastSquares(model, y)
    x = torch.randn(*batch, 2, 3, dtype=F64, generator=generator, requires_grad=True)
    views = [2, 0, 2]
    residual = torch.einsum("bmn,...n->...bm", stack[views], x.flatten(-2).to(dtype)) - y[..., views, :]
    loss = residual.abs().square().sum() / 6
    (want,) = torch.autograd.grad(loss, x)
    assert torch.allclose(fidelity.gradient(x.detach(), views), want, rtol=1e-12, atol=1e-12)


@given(gamma=st.floats(1e-3, 1e3), seed=st.integers(0, 50), warm=st.booleans())
def test_prox_is_the_direct_solution(regression, gamma, seed, warm):
    a, y = dense(regression)
    x = torch.randn(3, 4, 5, dtype=F64, generator=torch.Generator().manual_seed(seed))
    views = 5
    got = regression.prox(x, gamma, start=torch.randn_like(x) if warm else None)
    lhs = np.eye(20) + gamma / views * a.T @ a
    want = np.linalg.solve(lhs, (x.numpy().reshape(3, 20) + gamma / views * (a.T @ y)).T).T
    assert np.allclose(got.numpy().reshape(3, 20), want, rtol=1e-8, atol=1e-9)


def test_prox_from_its_solution_takes_no_step(regression):
    x = torch.randn(4, 5, dtype=F64)
    answer = regression.prox(x, 2.0)
    regression.prox_iterations = 0
    again = regression.prox(x, 2.0, start=answer)
    assert torch.equal(again, answer)


def test_lipschitz_constants_are_the_eigenvalues(regression):
    a, _ = dense(regression)
    whole = np.linalg.eigvalsh(a.T @ a / 5)[-1]
    each = [np.linalg.norm(b, 2) ** 2 for b in a.reshape(5, 6, 20)]
    assert whole <= regression.lipschitz <= whole * (1 + 3e-6)
    assert np.allclose(regression.lipschitz_views.numpy(), each, rtol=3e-6)
    assert regression.lipschitz_max == pytest.approx(max(each), rel=3e-6)


@given(seed=st.integers(0, 30))
def test_lipschitz_of_complex_data_is_for_real_images(seed):
    generator = torch.Generator().manual_seed(seed)
    stack = torch.randn(2, 3, 6, dtype=torch.complex128, generator=generator)
    fidelity = LeastSquares(
        MatrixModel(list(stack), (2, 3)), torch.zeros(2, 3, dtype=torch.complex128), lipschitz_tol=1e-4
    )
    want = max(np.linalg.eigvalsh((a.conj().T @ a).real.numpy())[-1] for a in stack)
    assert want * (1 - 1e-9) <= fidelity.lipschitz_max <= want * (1 + 1.1e-4)


def test_lipschitz_is_computed_once(regression, monkeypatch):
    first = regression.lipschitz, regression.lipschitz_max
    monkeypatch.setattr(regression, "model", None)
    assert (regression.lipschitz, regression.lipschitz_max) == first


@given(
    values=st.lists(st.floats(0, 10), min_size=1, max_size=12),
    tol=st.sampled_from([1e-1, 1e-2, 1e-4]),
    seed=st.integers(0, 100),
)
@example(values=[5.0, 6.0, 1.75, 9.87890625, 4.0, 9.8828125, 0.0, 0.0, 1.0, 1.5, 8.0, 2.0], tol=1e-4, seed=0)
@example(values=[0.0, 0.0, 5.403287296175518e-224], tol=0.1, seed=0)
def test_largest_eigenvalue_keeps_its_promise(values, tol, seed):
    q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values), len(values))))
    matrix = torch.from_numpy(q @ np.diag(values) @ q.T)
    got = float(
        largest_eigenvalue(
            lambda v: (v.flatten() @ matrix).reshape(v.shape), torch.empty(1, len(values), dtype=F64), tol=tol
        )
    )
    top = max(values)
    assert top * (1 - tol) - 1e-12 <= got <= top * (1 + tol) * (1 + 1e-9) + 1e-12


@given(seed=st.integers(0, 50))
def test_conjugate_gradients_treat_images_apart(seed):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(6, 6, dtype=F64, generator=generator)
    matrix = root @ root.T + torch.eye(6, dtype=F64)

    def apply(x):
        return (x.flatten(-2) @ matrix).reshape(x.shape)

    b = torch.randn(3, 2, 3, dtype=F64, generator=generator) * torch.tensor([1.0, 1e-6, 1e6], dtype=F64)[:, None, None]
    b[1] = 0 if seed % 2 else b[1]
    solution = conjugate_gradient(apply, b, tol=1e-10)
    want = torch.linalg.solve(matrix, b.flatten(-2).T).T.reshape(b.shape)
    assert torch.allclose(
        solution.image / b.abs().amax((1, 2), keepdim=True).clamp_min(1e-300),
        want / b.abs().amax((1, 2), keepdim=True).clamp_min(1e-300),
        atol=1e-8,
    )
    assert solution.residual <= 1e-10


def test_conjugate_gradients_say_when_they_fall_short():
    with pytest.warns(PlugstreamWarning, match="stopped after 1 iterations"):
        conjugate_gradient(lambda x: x * torch.tensor([[1.0, 50.0]]), torch.ones(1, 2), max_iterations=1)


def test_backprojection_is_the_best_multiple_of_the_adjoint(regression):
    a, y = dense(regression)
    g = a.T @ y
    best = (a @ g) @ y / ((a @ g) @ (a @ g))
    assert np.allclose(regression.backprojection().numpy().ravel(), best * g, rtol=1e-10)


def test_bad_data_is_refused(regression):
    model = regression.model
    with pytest.raises(InputError, match=r"data has shape \(4, 6\)"):
        LeastSquares(model, torch.zeros(4, 6))
    y = torch.zeros(5, 6)
    y[3, 2] = float("inf")
    with pytest.raises(InputError, match="view 3 of the data holds NaN or infinity"):
        LeastSquares(model, y)
    with pytest.raises(InputError, match="weights have shape"):
        regression.gradient(torch.zeros(4, 5, dtype=F64), [0, 1], torch.ones(3))


def test_nan_at_a_masked_receiver_does_no_harm(small_geometry):
    mask = np.ones((7, 9), dtype=bool)
    mask[4, 1] = False
    geometry = replace(small_geometry, mask=mask)
    y = torch.randn(7, 9, dtype=torch.complex128)
    clean = y.clone()
    clean[4, 1] = 0
    y[4, 1] = complex("nan")
    model = BornModel(geometry, dtype=F64)
    x = torch.randn(12, 10, dtype=F64)
    with_nan, without = LeastSquares(model, y), LeastSquares(model, clean)
    assert torch.equal(with_nan.gradient(x), without.gradient(x))
    assert torch.equal(with_nan.value(x), without.value(x))


def huber(x):
    return torch.where(x.abs() <= 1, x * x / 2, x.abs() - 0.5).sum((-2, -1))


def test_smooth_fidelity_is_the_mean_of_its_functions():
    shifts = [0.0, 2.0, -1.0]
    functions = [lambda x, s=s: huber(x - s) for s in shifts]
    automatic = SmoothFidelity(functions, (1, 3), lipschitz=1.0, dtype=F64)
    by_hand = SmoothFidelity(
        functions, (1, 3), lipschitz=1.0, dtype=F64, gradients=[lambda x, s=s: (x - s).clamp(-1, 1) for s in shifts]
    )
    x = torch.tensor([[[-3.0, 0.2, 1.4]], [[0.0, 5.0, -0.5]]], dtype=F64)
    want = sum(huber(x - s) for s in shifts) / 3
    assert torch.allclose(automatic.value(x), want)
    assert torch.allclose(automatic.gradient(x), by_hand.gradient(x))
    assert torch.allclose(automatic.gradient(x, [1, 1]), (x - 2).clamp(-1, 1))
    weights = torch.tensor([0.1, 0.7], dtype=F64)
    want = 0.1 * (x + 1).clamp(-1, 1) + 0.7 * x.clamp(-1, 1)
    assert torch.allclose(by_hand.gradient(x, [2, 0], weights), want)


@given(gamma=st.floats(0.01, 20), start=st.floats(-10, 10))
def test_smooth_prox_of_huber_has_a_closed_form(gamma, start):
    fidelity = SmoothFidelity([huber], (1, 1), lipschitz=1.0, dtype=F64, prox_tol=1e-10)
    got = float(fidelity.prox(torch.full((1, 1), start, dtype=F64), gamma))
    shrunk = start / (1 + gamma)
    want = shrunk if abs(shrunk) <= 1 else start - gamma * np.sign(start)
    assert got == pytest.approx(want, abs=1e-8)


def test_smooth_fidelity_without_l_says_so():
    fidelity = SmoothFidelity([huber], (1, 1))
    with pytest.raises(InputError, match="no Lipschitz constant"):
        fidelity.lipschitz_max  # noqa: B018
    with pytest.raises(InputError, match="at least one function"):
        SmoothFidelity([], (1, 1))
    with pytest.raises(InputError, match="2 functions, but 1 gradients"):
        SmoothFidelity([huber, huber], (1, 1), gradients=[huber])
