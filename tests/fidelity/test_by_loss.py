"""Losses after models: gradients by autograd, L as a majorizer, SAGA and SVRG, and steps that are found without L."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import Tensor

from effort import effort, thorough
from plugstream import FunctionModel, Identity, LeastSquares, MatrixModel, ProximalGradient, Stop, Uniform, solve
from plugstream.base.errors import InputError
from plugstream.base.linalg import inner, norm
from plugstream.fidelity.by_loss import LossFidelity, make_fidelity
from plugstream.fidelity.losses import Amplitude, Gaussian, Huber, Loss, Poisson

SHAPE = (2, 3)


def _matrices(seed: int = 0, *, waves: bool = False) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    real = rng.uniform(0.1, 1.0, (4, 9, 6)) + 2 * np.eye(9, 6)  # so that few steps are enough
    return list(real + 1j * rng.standard_normal(real.shape)) if waves else list(real)


def _counts(model: MatrixModel, scale: float = 20.0) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    truth = scale * torch.rand(SHAPE, generator=generator, dtype=torch.float64)
    clean = model.forward(truth.to(model.dtype))
    return torch.poisson(clean.abs() ** 2 if clean.is_complex() else clean, generator=generator)


CASES: list[tuple[Loss, bool]] = [
    (Gaussian(weights=torch.linspace(0.5, 2.0, 9, dtype=torch.float64)), False),
    (Huber(3.0), False),
    (Poisson(0.5, 1.0), False),
    (Poisson(0.0, 0.05), True),
    (Amplitude(), True),
]


def _fidelity(loss: Loss, waves: bool) -> LossFidelity:
    dtype = torch.complex128 if waves else torch.float64
    model = MatrixModel(_matrices(waves=waves), SHAPE, dtype=dtype)
    return LossFidelity(model, _counts(model, 2.0 if waves else 20.0), loss, lipschitz_tol=1e-4)


@pytest.mark.parametrize(("loss", "waves"), CASES)
def test_the_gradient_is_that_of_the_value(loss: Loss, waves: bool) -> None:
    fidelity = _fidelity(loss, waves)
    x = torch.rand(2, *SHAPE, dtype=torch.float64) + 0.1
    x = (x + 0.3j).to(fidelity.dtype) if waves else x
    point = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(fidelity.value(point, [0, 2]).sum(), point)
    assert torch.allclose(fidelity.gradient(x, [0, 2]), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("loss", "waves"), CASES)
def test_the_lipschitz_constant_majorizes_every_view(loss: Loss, waves: bool) -> None:
    fidelity = _fidelity(loss, waves)
    assert fidelity.convex == loss.is_convex(waves=waves)
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        x, y = (torch.randn(SHAPE, generator=generator, dtype=fidelity.dtype) for _ in range(2))
        for view in range(4):
            bound = fidelity.value(x, [view]) + inner(fidelity.gradient(x, [view]), y - x)
            bound = bound + fidelity.lipschitz_max / 2 * norm(y - x) ** 2
            assert float(fidelity.value(y, [view])) <= float(bound) + 1e-9


def test_a_gaussian_loss_is_least_squares() -> None:
    model = MatrixModel(_matrices(), SHAPE)
    data, x = torch.randn(4, 9, dtype=torch.float64), torch.randn(SHAPE, dtype=torch.float64)
    plain, general = LeastSquares(model, data), LossFidelity(model, data, Gaussian())
    assert isinstance(make_fidelity(model, data, Gaussian()), LeastSquares)
    assert isinstance(make_fidelity(model, data, Huber(1.0)), LossFidelity)
    assert torch.allclose(general.value(x, [1, 3]), plain.value(x, [1, 3]))
    assert torch.allclose(general.gradient(x, [1, 3]), plain.gradient(x, [1, 3]))
    assert general.lipschitz_max == pytest.approx(plain.lipschitz_max)


WEIGHED = Gaussian(weights=torch.linspace(0.5, 2.0, 9, dtype=torch.float64))


@thorough
@pytest.mark.parametrize(
    ("loss", "gradient"),
    effort(
        [(Huber(3.0), "saga"), (WEIGHED, "plain"), (WEIGHED, "svrg")],
        [(loss, gradient) for loss in (Huber(3.0), WEIGHED) for gradient in ("plain", "saga", "svrg")],
    ),
)
def test_algorithms_reach_the_minimum_that_scipy_finds(loss: Loss, gradient: str) -> None:
    fidelity = _fidelity(loss, False)
    options: dict[str, Any] = {"momentum": "nesterov"} if gradient == "plain" else {
        "gradient": gradient, "sampler": Uniform(2)
    }  # fmt: skip
    result = solve(ProximalGradient(fidelity, Identity(), sigma=0.0, **options), iterations=effort(400, 3000))

    def function(x: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.from_numpy(x).reshape(SHAPE)
        return float(fidelity.value(point)), fidelity.gradient(point).flatten().numpy()

    best = optimize.minimize(function, np.zeros(6), jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-12})
    assert float(fidelity.value(result.image)) <= best.fun + 1e-5 * abs(best.fun)


def _nonlinear(data: Tensor | None = None) -> tuple[FunctionModel, Tensor]:
    """Saturating measurements, tanh(A_i x), whose gradient at zero is not zero; the truth."""
    stack = torch.from_numpy(np.stack(_matrices(5))) - 0.5  # of both signs, so that few steps go far
    truth = torch.linspace(0.05, 0.6, 6, dtype=torch.float64).reshape(SHAPE)

    def function(image: Tensor, views: Tensor) -> Tensor:
        return torch.tanh(torch.einsum("bmn,...n->...bm", stack[views], image.flatten(-2)))

    model = FunctionModel(function, n_views=4, image_shape=SHAPE, data_shape=(9,), dtype=torch.float64)
    return model, truth


def test_the_derivative_of_a_function_is_that_of_differences() -> None:
    model, x = _nonlinear()
    v, h = torch.randn(SHAPE, dtype=torch.float64), 1e-6
    expected = (model.forward(x + h * v) - model.forward(x - h * v)) / (2 * h)
    assert torch.allclose(model.derivative(x, v), expected, atol=1e-8)


def test_the_local_constant_is_the_jacobians() -> None:
    model, x = _nonlinear()
    fidelity = LeastSquares(model, model.forward(x))
    jacobian = torch.autograd.functional.jacobian(lambda z: model.forward(z), x).reshape(4, 9, 6)
    exact = max(float(torch.linalg.matrix_norm(j, 2)) ** 2 for j in jacobian)
    assert exact <= fidelity.local_lipschitz(x) * 1.001 <= 1.1 * exact
    assert not fidelity.has_lipschitz


@thorough
@pytest.mark.parametrize(
    ("gradient", "sampler"),
    [("plain", None), ("svrg", Uniform(2)), *effort([], [("plain", Uniform(2)), ("svrg", None)])],
)
def test_a_step_is_found_where_no_constant_is_known(sampler: Any, gradient: str) -> None:
    model, truth = _nonlinear()
    fidelity = LeastSquares(model, model.forward(truth))
    options = {} if sampler is None else {"sampler": sampler}
    algorithm = ProximalGradient(fidelity, Identity(), sigma=0.0, gradient=gradient, **options)
    result = solve(algorithm, iterations=effort(120, 4000))
    assert float(norm(result.image - truth)) < 1e-3 * float(norm(truth))
    found = result.state.lipschitz
    assert found is not None
    assert algorithm.parameters(5, result.state)[0] == pytest.approx(1 / found)
    # Two runs of half the steps are one run, with the step that was found.
    half = solve(algorithm, iterations=20)
    again = solve(algorithm, state=half.state, iterations=20)
    whole = solve(algorithm, iterations=40)
    for field in fields(whole.state):
        a, b = getattr(again.state, field.name), getattr(whole.state, field.name)
        assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


def test_a_constant_that_is_far_too_small_is_corrected_on_the_way() -> None:
    """x^4 has no curvature at zero, so the first estimate allows a step that would diverge."""
    model = FunctionModel(
        lambda image, views: (image.flatten(-2) ** 2).unsqueeze(-2).expand(*image.shape[:-2], len(views), 6),
        n_views=3, image_shape=SHAPE, data_shape=(6,), dtype=torch.float64,
    )  # fmt: skip
    fidelity = LeastSquares(model, torch.full((3, 6), 4.0, dtype=torch.float64))
    start = torch.full(SHAPE, 1e-3, dtype=torch.float64)
    algorithm = ProximalGradient(fidelity, Identity(), sigma=0.0)
    first = algorithm.init(start).lipschitz
    result = solve(algorithm, start, iterations=300)
    assert torch.allclose(result.image, torch.full(SHAPE, 2.0, dtype=torch.float64), atol=1e-6)
    assert result.state.lipschitz is not None
    assert first is not None
    assert result.state.lipschitz > 100 * first


def test_losses_without_meaning_here_are_refused() -> None:
    model = MatrixModel(_matrices(), SHAPE)
    with pytest.raises(InputError, match="counts"):
        LossFidelity(model, -torch.ones(4, 9, dtype=torch.float64), Poisson())
    fidelity = LossFidelity(model, torch.ones(4, 9, dtype=torch.float64), Huber(1.0))
    with pytest.raises(InputError, match="prox"):
        fidelity.prox(torch.zeros(SHAPE, dtype=torch.float64), 0.1)
    assert math.isfinite(fidelity.curvature)


def test_derivatives_of_functions_of_complex_images() -> None:
    """z -> |z|^2 e^{i Im z}, neither real nor holomorphic: its derivative is linear over the reals only."""
    model = FunctionModel(
        lambda image, views: (image.abs() ** 2 * torch.exp(1j * image.imag)).flatten(-2).unsqueeze(-2),
        n_views=1, image_shape=SHAPE, data_shape=(6,), dtype=torch.complex128, data_dtype=torch.complex128,
    )  # fmt: skip
    x, v = (torch.randn(SHAPE, dtype=torch.complex128) for _ in range(2))
    h = 1e-6
    expected = (model.forward(x + h * v) - model.forward(x - h * v)) / (2 * h)
    assert torch.allclose(model.derivative(x, v), expected, atol=1e-7)
    _, pullback = model.linearize(x)
    z = torch.randn(1, 6, dtype=torch.complex128)
    assert float(inner(model.derivative(x, v), z)) == pytest.approx(float(inner(v, pullback(z))))


class _Source:
    """Data that is read view by view, as a scan on a disk is."""

    def __init__(self, data: Tensor) -> None:
        self.data, self.n_views = data, len(data)

    def read(self, views: Tensor | None = None) -> Tensor:
        return self.data if views is None else self.data[views]


def test_streamed_data_without_meaning_is_refused_when_it_is_read() -> None:
    model = MatrixModel(_matrices(), SHAPE)
    data = torch.ones(4, 9, dtype=torch.float64)
    data[2] = -1
    fidelity = LossFidelity(model, _Source(data), Poisson())
    fidelity.gradient(torch.ones(SHAPE, dtype=torch.float64), [0, 1])
    with pytest.raises(InputError, match="counts"):
        fidelity.gradient(torch.ones(SHAPE, dtype=torch.float64), [2])


def test_constants_follow_a_fidelity_that_grows() -> None:
    matrices = [scale * a for scale, a in zip((1.0, 1.0, 1.0, 5.0), _matrices(), strict=True)]
    data = torch.ones(4, 9, dtype=torch.float64)
    data[3] = 9
    few, all_views = (MatrixModel(matrices[:n], SHAPE) for n in (3, 4))
    fidelity = LossFidelity(few, _Source(data), Poisson())
    assert fidelity.lipschitz_max == pytest.approx(LossFidelity(few, data[:3], Poisson()).lipschitz_max)
    grown = fidelity.with_views(all_views)
    assert len(fidelity.available) == 3
    assert grown.lipschitz_max == pytest.approx(LossFidelity(all_views, data, Poisson()).lipschitz_max)


@dataclass(frozen=True)
class Quartic:
    """|p - y|^4 / 4, whose curvature has no bound."""

    real_data = False

    def is_convex(self, *, waves: bool = False) -> bool:
        return True

    def value(self, prediction: Tensor, data: Tensor, views: Tensor | None = None) -> Tensor:
        return (prediction - data).abs() ** 4 / 4

    def derivative(self, prediction: Tensor, data: Tensor, views: Tensor | None = None) -> Tensor:
        return (prediction - data).abs() ** 2 * (prediction - data)

    def curvature(self, data: Tensor | None = None, *, waves: bool = False) -> float:
        return math.inf

    def check(self, data: Tensor) -> None:
        return


@pytest.mark.slow
def test_a_step_is_found_for_a_loss_without_a_bound_of_its_curvature() -> None:
    model = MatrixModel(_matrices(), SHAPE)
    truth = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(SHAPE)
    fidelity = LossFidelity(model, model.forward(truth), Quartic())
    assert not fidelity.has_lipschitz
    with pytest.raises(InputError, match="Quartic loss has no bound"):
        _ = fidelity.lipschitz_max
    hessian = max(
        float(torch.linalg.eigvalsh(torch.autograd.functional.hessian(lambda z, v=v: fidelity.value(z, [v]), truth * 0)
                                    .reshape(6, 6)).max()) for v in range(4)
    )  # fmt: skip
    assert fidelity.local_lipschitz(0 * truth) == pytest.approx(hessian, rel=0.08)
    result = solve(ProximalGradient(fidelity, Identity(), sigma=0.0), iterations=400)
    assert result.reason is Stop.ITERATIONS
    assert float(fidelity.value(result.image)) < 0.05 * float(fidelity.value(0 * truth))


@pytest.mark.parametrize("loss", [Poisson(floor=0.05), Amplitude(), Gaussian()], ids=lambda loss: type(loss).__name__)
def test_a_nonlinear_model_of_a_complex_volume_needs_no_step(loss: Loss) -> None:
    """Waves through a volume that bends them a little, of which intensities are counted."""
    shape, generator = (3, 4, 5), torch.Generator().manual_seed(6)
    stack = torch.randn(6, 40, 60, generator=generator, dtype=torch.complex128) / 8

    def function(image: Tensor, views: Tensor) -> Tensor:
        flat = (image + 0.1 * image * image.abs().square()).flatten(-3)
        return torch.einsum("bmn,...n->...bm", stack[views], flat)

    model = FunctionModel(function, n_views=6, image_shape=shape, data_shape=(40,), dtype=torch.complex128)
    truth = torch.randn(shape, generator=generator, dtype=torch.complex128)
    waves = model.forward(truth)
    data = waves if isinstance(loss, Gaussian) else waves.abs().square()
    fidelity = make_fidelity(model, data, loss)
    start = truth + 0.3 * torch.randn(shape, generator=generator, dtype=torch.complex128)
    algorithm = ProximalGradient(fidelity, Identity(), sigma=0.0, sampler=Uniform(3))
    result = solve(algorithm, start, iterations=150)
    assert result.reason is Stop.ITERATIONS
    assert float(fidelity.value(result.image)) < 0.25 * float(fidelity.value(start))


def test_the_batchs_gradient_is_computed_once_a_step() -> None:
    model, truth = _nonlinear()
    fidelity = LeastSquares(model, model.forward(truth))
    calls = 0
    gradient = fidelity.gradient

    def counted(*arguments: Any, **keywords: Any) -> Tensor:
        nonlocal calls
        calls += 1
        return gradient(*arguments, **keywords)

    fidelity.gradient = counted  # type: ignore[method-assign]
    solve(ProximalGradient(fidelity, Identity(), sigma=0.0, sampler=Uniform(2)), iterations=7)
    assert calls == 7
