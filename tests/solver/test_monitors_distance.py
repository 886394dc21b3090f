"""The distance to a fixed point is of the map that the algorithm iterates, half-quadratic splitting's too."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from plugstream import (
    ADMM,
    TV,
    Distance,
    InputError,
    LeastSquares,
    MatrixModel,
    ProximalGradient,
    SoftThreshold,
    Stop,
    Uniform,
    fixed_point_distance,
    solve,
)

F64 = torch.float64


@pytest.fixture
def fidelity() -> LeastSquares:
    generator = torch.Generator().manual_seed(3)
    matrices = torch.randn(6, 9, 20, generator=generator, dtype=F64)
    data = torch.randn(6, 9, generator=generator, dtype=F64)
    return LeastSquares(MatrixModel(list(matrices), (4, 5)), data, prox_tol=1e-13)


def splitting(fidelity: LeastSquares, dual: bool = False, **more: Any) -> ADMM:
    return ADMM(fidelity, SoftThreshold(), sigma=0.3, step_size=3 / fidelity.lipschitz, dual=dual, **more)


def test_half_quadratic_splitting_stops_by_its_own_distance(fidelity: LeastSquares) -> None:
    algorithm = splitting(fidelity)
    result = solve(algorithm, iterations=2000, every=5, distance_limit=1e-20)
    assert result.reason is Stop.DISTANCE
    moved = algorithm.step(result.state).image - result.image
    assert float(moved.norm()) < 1e-8
    # It is not a fixed point of P, by far: which map is measured matters.
    gamma, sigma = algorithm.parameters(1)
    of_p = fixed_point_distance(result.image, fidelity, SoftThreshold(), gamma, sigma)
    first = result.history["distance"].value[0]
    assert float(of_p) > 1e-3 * float(first)


def test_half_quadratic_splitting_against_the_map_from_dense_algebra(fidelity: LeastSquares) -> None:
    algorithm = splitting(fidelity)
    state = algorithm.init()
    for _ in range(3):
        state = algorithm.step(state)
    gamma, sigma = algorithm.parameters(4)
    for views in (None, torch.tensor([0, 2, 5])):
        stack = fidelity.model._stack if views is None else fidelity.model._stack[views]
        data = fidelity.data(views)
        normal = torch.eye(20, dtype=F64) + gamma * torch.einsum("bmn,bmk->nk", stack, stack) / len(stack)
        right = state.image.flatten() + gamma * torch.einsum("bmn,bm->n", stack, data) / len(stack)
        image = SoftThreshold()(torch.linalg.solve(normal, right).reshape(4, 5), sigma)
        expected = float((state.image - image).square().sum())
        assert float(algorithm.residual(state, views)) == pytest.approx(expected, rel=1e-9)


def test_with_all_views_the_distance_is_how_far_the_next_step_moves(fidelity: LeastSquares) -> None:
    hqs = splitting(fidelity)
    ista = ProximalGradient(fidelity, SoftThreshold(), sigma=0.1)
    for algorithm in (hqs, ista):
        state = algorithm.step(algorithm.step(algorithm.init()))
        ahead = algorithm.step(state)
        assert torch.equal(algorithm.residual(state), (state.image - ahead.image).square().sum((-2, -1)))


def test_a_start_of_its_own_and_a_schedule_count(fidelity: LeastSquares) -> None:
    """The parameters are those of the iteration to come."""
    algorithm = replace(splitting(fidelity), sigma=lambda k: 1.0 / k)
    state = algorithm.step(algorithm.init(torch.ones(2, 4, 5, dtype=F64)))
    ahead = algorithm.step(state)
    assert torch.equal(algorithm.residual(state), (state.image - ahead.image).square().sum((-2, -1)))


@pytest.mark.parametrize("dual", [True, None])
def test_the_distance_of_the_others_has_the_bits_it_had(fidelity: LeastSquares, dual: bool | None) -> None:
    algorithm: Any = ProximalGradient(fidelity, TV(), sigma=0.2, sampler=Uniform(2), momentum="nesterov")
    if dual:
        algorithm = ADMM(fidelity, TV(), sigma=0.2, step_size=1e-2)
    state = algorithm.init()
    for _ in range(3):
        state = algorithm.step(state)
    gamma, sigma = algorithm.parameters(4)
    for views in (None, torch.tensor([1, 3])):
        known = fixed_point_distance(state.image, fidelity, algorithm.denoiser, gamma, sigma, state.warm, views)
        assert torch.equal(algorithm.residual(state, views), known)
        measured = Distance(views=lambda _, views=views: views).begin(algorithm, state, {})(algorithm, state)
        assert torch.equal(measured["distance"], known)


@dataclass(frozen=True)
class Place:
    k: int
    image: Tensor


class Halving:
    """An algorithm of a user, x <- x / 2, without a residual."""

    def __init__(self, fidelity: LeastSquares) -> None:
        self.fidelity, self.denoiser = fidelity, SoftThreshold()

    def init(self, image: Tensor | None = None) -> Place:
        return Place(0, torch.ones(4, 5, dtype=F64) if image is None else image)

    def step(self, state: Place) -> Place:
        return Place(state.k + 1, state.image / 2)

    def parameters(self, k: int, state: object = None) -> tuple[float, float]:
        return 1.0, 0.0


class MeasuredHalving(Halving):
    def residual(self, state: Place, views: object = None) -> Tensor:
        return (state.image / 2).square().sum((-2, -1))


def test_an_algorithm_of_ones_own(fidelity: LeastSquares) -> None:
    plain: Any = Halving(fidelity)
    assert solve(plain, iterations=3).state.k == 3
    with pytest.raises(InputError, match=r"Halving has no residual\(state, views\).*give it one"):
        solve(plain, iterations=3, distance_limit=1e-3)
    own: Any = MeasuredHalving(fidelity)
    result = solve(own, iterations=100, every=1, distance_limit=1e-6)
    assert (result.reason, result.state.k) == (Stop.DISTANCE, 10)
