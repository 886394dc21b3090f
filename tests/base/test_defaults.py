"""Objects of one's own, written on none of our base classes, work wherever ours do."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import plugstream as ps
from plugstream.base.defaults import with_defaults
from plugstream.models.base import as_model


class Base:
    size = 1

    @property
    def twice(self) -> int:
        return 2 * self.size

    def add(self, number: int) -> int:
        return self.twice + number


@dataclass(frozen=True)
class Own:
    size: int = 5


def test_what_an_object_has_counts_and_the_rest_is_the_base_class() -> None:
    own = with_defaults(Own(), Base)
    assert (own.size, own.twice, own.add(1)) == (5, 10, 11)
    assert isinstance(own, Base)
    assert isinstance(own, Own)
    assert type(own).__name__ == "Own"
    assert replace(own, size=6) == Own(6)
    assert copy.deepcopy(own).twice == 10
    assert with_defaults(own, Base) is own
    with pytest.raises(AttributeError, match="other"):
        own.other  # noqa: B018


A = torch.randn(6, 12, 16, generator=torch.Generator().manual_seed(0))


class PlainModel:
    """What `Model` asks for at least, and nothing of what has a default."""

    n_views, image_shape, data_shape, linear = 6, (4, 4), (12,), True
    device, dtype, data_dtype = torch.device("cpu"), torch.float32, torch.float32

    def forward(self, image, views=None):
        rows = A if views is None else A[views]
        return torch.einsum("bmn,...n->...bm", rows, image.flatten(-2))

    def adjoint(self, data, views=None):
        rows = A if views is None else A[views]
        return torch.einsum("bmn,...bm->...n", rows, data).unflatten(-1, (4, 4))


class PlainFidelity:
    """Functions of an image, without any of what a model brings."""

    def __init__(self) -> None:
        inner = ps.LeastSquares(PlainModel(), PlainModel().forward(torch.ones(4, 4)))
        for name in ("n_views", "available", "image_shape", "device", "dtype", "linear", "data_shape", "data_dtype"):
            setattr(self, name, getattr(inner, name))
        self.value, self.gradient, self.has_lipschitz = inner.value, inner.gradient, True
        self.lipschitz, self.lipschitz_max = inner.lipschitz, inner.lipschitz_max


@dataclass(frozen=True)
class PlainState:
    k: int
    image: torch.Tensor


@dataclass(frozen=True, eq=False)
class PlainAlgorithm:
    fidelity: Any
    denoiser: Any

    def init(self, image=None):
        return PlainState(0, torch.zeros(self.fidelity.image_shape))

    def step(self, state):
        gradient = self.fidelity.gradient(state.image)
        return PlainState(state.k + 1, state.image - gradient / self.fidelity.lipschitz)

    def parameters(self, k, state=None):
        return 1 / self.fidelity.lipschitz, 0.0


def test_a_model_of_ones_own_has_every_ability_by_default() -> None:
    model: Any = as_model(PlainModel())
    assert (model.nonnegative, model.channels, model.intensities) == (False, False, False)
    assert (model.describe(), model.overlap(), model.parameters) == ("", None, {})
    assert model.linearized() is model
    assert ps.check_adjoint(model) < 1e-5


def test_plain_classes_are_solved_as_ours_are() -> None:
    truth = torch.ones(4, 4)
    data = PlainModel().forward(truth)
    for fidelity in (ps.LeastSquares(PlainModel(), data), PlainFidelity()):
        known = ps.ProximalGradient(fidelity, ps.Identity(), sigma=0.0)
        assert torch.allclose(ps.solve(known, iterations=60).image, truth, atol=0.05)
        own = PlainAlgorithm(fidelity, ps.Identity())
        result = ps.solve(own, iterations=60, monitors=[ps.Cost()])
        assert float(result.history["cost"].value[-1]) < 1e-2
        assert not result.reason.failed
        with pytest.raises(ps.InputError, match="PlainAlgorithm has no residual"):
            ps.solve(own, iterations=1, monitors=[ps.Distance()])


def test_a_loss_of_ones_own_needs_no_more_than_the_page_says() -> None:
    class Squares:
        def is_convex(self, *, waves=False):
            return True

        def value(self, prediction, data, views=None):
            return (prediction - data) ** 2

        def derivative(self, prediction, data, views=None):
            return 2 * (prediction - data)

        def curvature(self, data=None, *, waves=False):
            return 2.0

        def check(self, data):
            return

    fidelity = ps.LossFidelity(PlainModel(), PlainModel().forward(torch.ones(4, 4)), Squares())
    assert (fidelity.fit_curvature, fidelity.loss.real_data, fidelity.loss.nats) == (2.0, False, None)
    assert ps.check_gradient(fidelity) < 1e-2
