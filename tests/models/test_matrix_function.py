"""Matrix and function models against plain linear algebra and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, strategies as st

from plugstream import FunctionModel, InputError, LeastSquares, MatrixModel, Model
from plugstream.models.base import as_model


def matrices(rng, kind: str, count: int, m: int, n: int):
    dense = rng.standard_normal((count, m, n))
    if kind.startswith("complex"):
        dense = dense + 1j * rng.standard_normal((count, m, n))
    if kind.endswith("scipy"):
        return [scipy.sparse.csr_matrix(a * (rng.random(a.shape) < 0.5)) for a in dense]
    if kind.endswith("sparse"):
        return [torch.from_numpy(a * (rng.random(a.shape) < 0.5)).to_sparse() for a in dense]
    return list(dense)


@given(
    kind=st.sampled_from(["dense", "complex dense", "sparse", "complex scipy", "scipy"]),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 4), st.integers(1, 4)),
    batch=st.lists(st.integers(1, 3), max_size=2),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_adjoint_and_dense_reference(kind, sizes, batch, seed, data):
    views, m, h, w = sizes
    rng = np.random.default_rng(seed)
    parts = matrices(rng, kind, views, m, h * w)
    model = MatrixModel(parts, (h, w))
    index = data.draw(st.one_of(st.none(), st.lists(st.integers(0, views - 1), min_size=1, max_size=6)))
    chosen = list(range(views)) if index is None else index
    arrays = [np.asarray(p.to_dense()) if isinstance(p, torch.Tensor) else p for p in parts]
    arrays = [a.toarray() if scipy.sparse.issparse(a) else a for a in arrays]
    x = rng.standard_normal((*batch, h, w))
    want = np.stack([x.reshape(*batch, -1) @ arrays[v].T for v in chosen], axis=-2)
    got = model.forward(torch.from_numpy(x), index)
    assert np.allclose(got.numpy(), want, rtol=1e-12, atol=1e-12)
    z = torch.randn(got.shape, dtype=got.dtype, generator=torch.Generator().manual_seed(seed))
    left = (got * z.conj()).sum((-2, -1)).real
    right = (torch.from_numpy(x) * model.adjoint(z, index)).sum((-2, -1))
    assert torch.allclose(left, right, rtol=1e-12, atol=1e-11)


def test_bad_matrices_are_refused():
    with pytest.raises(InputError, match="at least one matrix"):
        MatrixModel([])
    with pytest.raises(InputError, match="one shape"):
        MatrixModel([np.zeros((2, 3)), np.zeros((3, 3))])
    with pytest.raises(InputError, match="3 columns"):
        MatrixModel([np.zeros((2, 3))], (2, 2))
    with pytest.raises(InputError, match="all dense or all sparse"):
        MatrixModel([torch.zeros(2, 3), torch.eye(3)[:2].to_sparse()])


def test_a_linear_function_has_its_matrix_as_model():
    rng = np.random.default_rng(3)
    stack = torch.from_numpy(rng.standard_normal((4, 3, 6)) + 1j * rng.standard_normal((4, 3, 6)))
    reference = MatrixModel(list(stack), (2, 3))
    model = FunctionModel(
        lambda x, v: torch.einsum("bmn,...n->...bm", stack[v], x.flatten(-2).to(torch.complex128)),
        n_views=4,
        image_shape=(2, 3),
        data_shape=(3,),
        linear=True,
        dtype=torch.float64,
        data_dtype=torch.complex128,
    )
    assert isinstance(model, Model)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    views = [3, 1, 1]
    z = model.forward(x, views)
    assert torch.allclose(z, reference.forward(x, views), rtol=1e-13)
    assert torch.allclose(model.adjoint(z, views), reference.adjoint(z, views), rtol=1e-12)
    y = torch.randn(4, 3, dtype=torch.complex128)
    ours, theirs = LeastSquares(model, y, lipschitz_tol=1e-8), LeastSquares(reference, y, lipschitz_tol=1e-8)
    assert ours.lipschitz_max == pytest.approx(theirs.lipschitz_max, rel=1e-6)
    assert torch.allclose(ours.prox(x[0], 0.3), theirs.prox(x[0], 0.3), atol=1e-4)


def test_a_nonlinear_function_has_the_right_gradient():
    a = torch.randn(3, 4, 6, dtype=torch.float64)
    model = FunctionModel(
        lambda x, v: torch.sin(torch.einsum("bmn,...n->...bm", a[v], x.flatten(-2))) ** 2,
        n_views=3,
        image_shape=(2, 3),
        data_shape=(4,),
        dtype=torch.float64,
    )
    fidelity = LeastSquares(model, torch.randn(3, 4, dtype=torch.float64))
    x = torch.randn(2, 3, dtype=torch.float64)
    gradient = fidelity.gradient(x, [0, 2])
    numeric = torch.zeros_like(x)
    for i in range(2):
        for j in range(3):
            e = torch.zeros_like(x)
            e[i, j] = 1e-6
            numeric[i, j] = (fidelity.value(x + e, [0, 2]) - fidelity.value(x - e, [0, 2])) / 2e-6
    assert torch.allclose(gradient, numeric, rtol=1e-6, atol=1e-8)
    for what in (lambda: fidelity.lipschitz, lambda: fidelity.lipschitz_max, lambda: fidelity.prox(x, 1.0)):
        with pytest.raises(InputError, match="linear models only"):
            what()


def test_a_function_with_the_wrong_shape_or_no_gradient_is_refused():
    wrong = FunctionModel(lambda x, v: x, n_views=2, image_shape=(2, 2), data_shape=(3,))
    with pytest.raises(InputError, match=r"returned shape \(2, 2\), but should return \(2, 3\)"):
        wrong.forward(torch.zeros(2, 2))
    constant = FunctionModel(lambda x, v: torch.zeros(2, 3), n_views=2, image_shape=(2, 2), data_shape=(3,))
    with pytest.raises(InputError, match="not differentiable"):
        constant.adjoint(torch.zeros(2, 3))


def test_a_nonlinear_function_near_an_image_is_a_linear_model():
    a = torch.randn(5, 7, 6, dtype=torch.float64)
    model = FunctionModel(
        lambda x, views: torch.sin(torch.einsum("bmn,...n->...bm", a[views], x.flatten(-2))) + 1,
        n_views=5, image_shape=(2, 3), data_shape=(7,), dtype=torch.float64,
    )  # fmt: skip
    at, v = torch.randn(2, 3, dtype=torch.float64), torch.randn(4, 2, 3, dtype=torch.float64)
    near, z = model.linearized(at), torch.randn(4, 3, 7, dtype=torch.float64)
    views = [4, 0, 4]
    jacobian = torch.cos(torch.einsum("bmn,n->bm", a, at.flatten()))[..., None] * a
    want = torch.einsum("bmn,kn->kbm", jacobian[views], v.flatten(1))
    assert near.linear
    assert near.linearized() is near
    assert torch.allclose(near.forward(v, views), want)
    assert torch.allclose(near.adjoint(z, views).flatten(1), torch.einsum("bmn,kbm->kn", jacobian[views], z))
    assert torch.allclose(model.linearized().forward(v, views), torch.einsum("bmn,kn->kbm", a[views], v.flatten(1)))

    class Old:  # a model of somebody's, written before there was `linearized`
        def __getattr__(self, name):
            if name == "linearized":
                raise AttributeError(name)
            return getattr(model, name)

    assert torch.allclose(as_model(Old()).linearized(at).forward(v, views), want)
    # The back-projection is that of the derivative at zero, with the data less the prediction there.
    data = torch.randn(5, 7, dtype=torch.float64)
    linear = LeastSquares(model.linearized(), data - 1)
    assert torch.allclose(LeastSquares(model, data).backprojection(), linear.backprojection())
