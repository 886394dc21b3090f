"""Volumes and complex images through models, fidelities, algorithms and the solver, against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from effort import effort, thorough
from plugstream import ADMM, Identity, LeastSquares, MatrixModel, ProximalGradient, Uniform, solve
from plugstream.algorithms.theory import gradient_variance
from plugstream.base.linalg import conjugate_gradient, inner, largest_eigenvalue, norm, per_image, squared_norm
from plugstream.solver.monitors import SNR, Distance

SHAPES = [
    ((3, 4), torch.float64),
    ((2, 3, 2), torch.float64),
    ((3, 4), torch.complex128),
    ((2, 3, 2), torch.complex128),
]


def _problem(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[LeastSquares, np.ndarray, np.ndarray]:
    """A fidelity of five views, its stacked complex matrix (views * m, n) and its data (views * m,)."""
    rng = np.random.default_rng(3)
    n, views, m = int(np.prod(shape)), 5, 9
    matrices = rng.standard_normal((views, m, n)) + 1j * rng.standard_normal((views, m, n))
    data = rng.standard_normal((views, m)) + 1j * rng.standard_normal((views, m))
    model = MatrixModel(list(matrices), shape, dtype=dtype)
    fidelity = LeastSquares(model, torch.from_numpy(data), lipschitz_tol=1e-6, prox_tol=1e-13)
    return fidelity, matrices.reshape(-1, n), data.reshape(-1)


def _solution(matrix: np.ndarray, data: np.ndarray, is_complex: bool, ridge: float = 0.0) -> np.ndarray:
    """argmin over real or complex x of 1/2 ||A x - y||^2 + ridge/2 ||x||^2."""
    n = matrix.shape[1]
    if not is_complex:
        matrix, data = np.concatenate([matrix.real, matrix.imag]), np.concatenate([data.real, data.imag])
    return np.linalg.solve(matrix.conj().T @ matrix + ridge * np.eye(n), matrix.conj().T @ data)


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
def test_forward_and_adjoint_are_each_others(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    fidelity, _, _ = _problem(shape, dtype)
    x = torch.randn(2, *shape, dtype=dtype)
    z = torch.randn(2, 5, 9, dtype=torch.complex128)
    left = inner(fidelity.model.forward(x), z, 2)
    right = inner(x, fidelity.model.adjoint(z), len(shape))
    assert torch.allclose(left, right)
    assert left.dtype == torch.float64


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
def test_the_gradient_is_that_of_the_value(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    fidelity, _, _ = _problem(shape, dtype)
    x, direction = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)
    h = 1e-6
    slope = (fidelity.value(x + h * direction) - fidelity.value(x - h * direction)) / (2 * h)
    assert float(slope) == pytest.approx(float(inner(fidelity.gradient(x), direction, len(shape))), rel=1e-6)
    assert not fidelity.value(x).is_complex()


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
def test_lipschitz_constants_are_the_matrices(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    fidelity, matrix, _ = _problem(shape, dtype)
    each = matrix.reshape(5, 9, -1)
    if not dtype.is_complex:
        each = np.concatenate([each.real, each.imag], axis=1)
    exact = np.linalg.norm(each, 2, axis=(1, 2)) ** 2
    assert np.allclose(fidelity.lipschitz_views.numpy(), exact, rtol=1e-4)
    stacked = each.reshape(-1, each.shape[-1])
    assert fidelity.lipschitz == pytest.approx(np.linalg.norm(stacked, 2) ** 2 / 5, rel=1e-4)


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
def test_the_prox_solves_its_equation(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    fidelity, matrix, data = _problem(shape, dtype)
    x, gamma = torch.randn(shape, dtype=dtype), 0.3
    stacked = np.concatenate([matrix * np.sqrt(gamma / 5), np.eye(matrix.shape[1])])
    rhs = np.concatenate([data * np.sqrt(gamma / 5), x.flatten().numpy()])
    exact = _solution(stacked, rhs, dtype.is_complex)
    assert np.allclose(fidelity.prox(x, gamma).flatten().numpy(), exact, atol=1e-9)


ALGORITHMS = {
    "ista": {"momentum": "none"},
    "fista": {"momentum": "nesterov"},
    "restart": {"momentum": "nesterov", "restart": "gradient"},
    "residual": {"momentum": "nesterov", "restart": "residual"},
    "saga": {"gradient": "saga", "sampler": Uniform(2), "step_size": "0.3/L"},
    "svrg": {"gradient": "svrg", "sampler": Uniform(2), "step_size": "0.3/L"},
}


@thorough
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(("shape", "dtype"), effort(SHAPES[-1:], SHAPES[1:]))
def test_algorithms_reach_the_least_squares_image(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    fidelity, matrix, data = _problem(shape, dtype)
    algorithm = ProximalGradient(fidelity, Identity(), sigma=0.0, **ALGORITHMS[name])
    exact = torch.from_numpy(_solution(matrix, data, dtype.is_complex)).reshape(shape)
    few = 450 if "gradient" in ALGORITHMS[name] else 200
    result = solve(algorithm, iterations=effort(few, 1500), monitors=[Distance(), SNR(exact)], every=300)
    assert result.image.dtype == dtype
    assert float(norm(result.image - exact, len(shape))) < 1e-5 * float(norm(exact, len(shape)))
    assert result.history["distance"].value[-1] < 1e-8 * result.history["distance"].value[0]
    assert result.history["snr"].value[-1] > 90


@pytest.mark.parametrize(("shape", "dtype"), SHAPES[1:])
def test_admm_reaches_it_too_and_images_beside_it_change_nothing(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    fidelity, matrix, data = _problem(shape, dtype)
    algorithm = ADMM(fidelity, Identity(), sigma=0.0, step_size="10/L")
    exact = torch.from_numpy(_solution(matrix, data, dtype.is_complex)).reshape(shape)
    start = torch.randn(3, *shape, dtype=dtype)
    result = solve(algorithm, start, iterations=200)
    assert float(norm(result.image - exact, len(shape)).max()) < 1e-6 * float(norm(exact, len(shape)))


def test_the_variance_of_gradients_is_that_of_a_loop() -> None:
    fidelity, _, _ = _problem((2, 3, 2), torch.complex128)
    x = torch.randn(2, 3, 2, dtype=torch.complex128)
    each = torch.stack([fidelity.gradient(x, [i]) for i in range(5)])
    expected = float(squared_norm(each - each.mean(0), 3).mean())
    assert float(gradient_variance(x, fidelity)) == pytest.approx(expected)


def test_inner_products_are_real_and_over_the_images_axes() -> None:
    a, b = torch.randn(4, 2, 3, 5, dtype=torch.complex128), torch.randn(4, 2, 3, 5, dtype=torch.complex128)
    expected = (a.conj() * b).sum((-3, -2, -1)).real
    assert torch.allclose(inner(a, b, 3), expected)
    assert torch.allclose(inner(a.real, b, 3), (a.real * b.real).sum((-3, -2, -1)))
    assert torch.allclose(squared_norm(a, 3), inner(a, a, 3))
    assert torch.allclose(norm(a, 3) ** 2, squared_norm(a, 3))
    assert per_image(norm(a, 3), 3).shape == (4, 1, 1, 1)


def test_conjugate_gradients_and_lanczos_on_a_hermitian_operator() -> None:
    rng = np.random.default_rng(0)
    root = rng.standard_normal((12, 12)) + 1j * rng.standard_normal((12, 12))
    a = torch.from_numpy(root @ root.conj().T + np.eye(12))
    b = torch.randn(2, 2, 3, 2, dtype=torch.complex128)

    def apply(x: torch.Tensor) -> torch.Tensor:
        return (x.flatten(-3) @ a.T).reshape(x.shape)

    solution = conjugate_gradient(apply, b, tol=1e-10, ndim=3)
    assert torch.allclose(apply(solution.image), b, atol=1e-7)
    top = largest_eigenvalue(apply, torch.empty(2, 3, 2, dtype=torch.complex128), tol=1e-4, ndim=3)
    assert float(top) == pytest.approx(float(torch.linalg.eigvalsh(a)[-1]), rel=2e-4)
