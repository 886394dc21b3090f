"""Views of several kinds in one model: all that a model has, against the stacked matrices of its groups."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plugstream import FunctionModel, InputError, LeastSquares, MatrixModel
from plugstream.models.grouped import GroupedModel

SHAPE = (3, 4)
GROUP = [1, 0, 1, 2, 1, 0]  # of six views: two of the first model, three of the second, one of the third
BATCHES = [None, [4], [3, 0, 0, 5, 2, 1, 0], [1, 5], [0, 2, 4], [5, 1]]


def matrices() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal((count, 5, 12)) + 1j * rng.standard_normal((count, 5, 12)) for count in (2, 3, 1)]


@pytest.fixture(params=[False, True], ids=["plain", "gains"])
def both(request: pytest.FixtureRequest) -> tuple[GroupedModel, MatrixModel]:
    """The grouped model, and the one matrix model of the same views."""
    gains = np.array([2.0, 0.5, 3.0, 1.0, 0.25, 4.0]) if request.param else None
    own, places = matrices(), [0, 0, 0]
    rows = []
    for view, number in enumerate(GROUP):
        rows.append(own[number][places[number]] * (1.0 if gains is None else gains[view]))
        places[number] += 1
    grouped = GroupedModel([MatrixModel(list(one), SHAPE) for one in own], GROUP, gains)
    return grouped, MatrixModel(rows, SHAPE)


def numbers(*shape: int, waves: bool = False) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.complex128 if waves else torch.float64)


@pytest.mark.parametrize("views", BATCHES, ids=str)
def test_everything_is_that_of_the_views_stacked_in_their_order(both, views):
    grouped, stacked = both
    count = 6 if views is None else len(views)
    x, v, y = numbers(2, *SHAPE), numbers(2, *SHAPE), numbers(2, count, 5, waves=True)
    weights = torch.rand(count, dtype=torch.float64) + 0.1
    close = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(grouped.forward(x, views), stacked.forward(x, views), **close)
    torch.testing.assert_close(grouped.adjoint(y, views), stacked.adjoint(y, views), **close)
    torch.testing.assert_close(grouped.derivative(x, v, views), stacked.derivative(x, v, views), **close)
    torch.testing.assert_close(grouped.restrict(y, views), y, **close)
    prediction, pullback = grouped.linearize(x, views)
    torch.testing.assert_close(prediction, stacked.forward(x, views), **close)
    torch.testing.assert_close(pullback(y), stacked.adjoint(y, views), **close)
    for w in (None, weights):
        torch.testing.assert_close(grouped.gradient(x, y, views, w), stacked.gradient(x, y, views, w), **close)
        torch.testing.assert_close(grouped.gradient(x, y[0], views, w), stacked.gradient(x, y[0], views, w), **close)
        torch.testing.assert_close(grouped.normal(views, w)(x), stacked.normal(views, w)(x), **close)
    index = torch.arange(6) if views is None else torch.tensor(views)
    images = numbers(count, *SHAPE)
    torch.testing.assert_close(grouped.normal_each(images, index), stacked.normal_each(images, index), **close)
    norms = stacked.squared_norms(index, 1e-8)
    torch.testing.assert_close(grouped.squared_norms(index, 1e-8), norms, rtol=1e-6, atol=0)
    assert (grouped.squared_norm_bounds(index) >= norms * (1 - 1e-6)).all()


def test_fidelities_find_the_same_solution_and_the_same_lipschitz_constants(both):
    grouped, _ = both
    y = numbers(6, 5, waves=True)
    one, other = (LeastSquares(model, y, lipschitz_tol=1e-8, prox_tol=1e-12) for model in both)
    assert one.lipschitz == pytest.approx(other.lipschitz, rel=1e-6)
    assert one.lipschitz_max == pytest.approx(other.lipschitz_max, rel=1e-6)
    x = numbers(*SHAPE)
    torch.testing.assert_close(one.prox(x, 0.3), other.prox(x, 0.3), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(one.backprojection(), other.backprojection(), rtol=1e-10, atol=1e-12)
    assert grouped.linear
    assert grouped.linearized(x) is grouped


def test_groups_that_are_not_linear_have_their_derivatives(both):
    """y = a (A x)^2 of two groups: gradient and derivative against finite differences."""
    rng = np.random.default_rng(5)
    a = [torch.from_numpy(rng.standard_normal((2, 4, 12))) for _ in range(2)]

    def squares(matrix: torch.Tensor) -> FunctionModel:
        def function(x: torch.Tensor, views: torch.Tensor) -> torch.Tensor:
            return torch.einsum("vmn,...n->...vm", matrix[views], x.flatten(-2)).square()

        return FunctionModel(function, n_views=2, image_shape=SHAPE, data_shape=(4,), dtype=torch.float64)

    model = GroupedModel([squares(one) for one in a], [1, 0, 0, 1], [1.0, 2.0, 0.5, 3.0])
    assert not model.linear
    x, v, y, views = numbers(*SHAPE), numbers(*SHAPE), numbers(3, 4), [3, 1, 0]
    step = 1e-6
    change = (model.forward(x + step * v, views) - model.forward(x - step * v, views)) / (2 * step)
    torch.testing.assert_close(model.derivative(x, v, views), change, rtol=1e-7, atol=1e-7)
    slope = (model.gradient(x, y, views) * v).sum()

    def value(image: torch.Tensor) -> torch.Tensor:
        return (model.forward(image, views) - y).square().sum() / 2

    torch.testing.assert_close(slope, (value(x + step * v) - value(x - step * v)) / (2 * step), rtol=1e-7, atol=1e-7)


def test_what_does_not_fit_is_refused():
    models = [MatrixModel(list(one), SHAPE) for one in matrices()]
    with pytest.raises(InputError, match="at least one model"):
        GroupedModel([], [])
    with pytest.raises(InputError, match=r"which of 3 models.*\[2, 3, 1\]"):
        GroupedModel(models, [0, 0, 1, 1, 1, 1])
    with pytest.raises(InputError, match="6 numbers > 0"):
        GroupedModel(models, GROUP, [1, 1, 1, 1, 1, 0])
    with pytest.raises(InputError, match="agree in image_shape"):
        GroupedModel([models[0], MatrixModel(list(matrices()[1]), (4, 3))], [0, 0, 1, 1, 1])
    with pytest.raises(InputError, match="view 6 does not exist"):
        GroupedModel(models, GROUP).forward(numbers(*SHAPE), [6])
