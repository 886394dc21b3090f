"""How far an image is from the measurements under any loss: d(x) = mean over views of loss(H_i(x), y_i)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import cached_property, partial
from typing import NamedTuple, Self

import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.linalg import local_curvature
from plugstream.fidelity.abilities import Quadratic, Weights
from plugstream.fidelity.base import Measurements, ModelFidelity
from plugstream.fidelity.least_squares import LeastSquares
from plugstream.fidelity.losses import Loss, as_loss
from plugstream.models.base import Model, as_model
from plugstream.models.views import Views


class LossFidelity(ModelFidelity):
    r"""How badly an image explains measurements, by a loss after a model, linear or not.

    d(x) = (1/I) sum_i d_i(x),  d_i(x) = sum over the data of view i of loss(H_i(x), y_i),
    grad d_i(x) = J_i(x)^H loss'(H_i(x), y_i), with the real part of it where the image is real.

    d is convex where the loss is and the model is linear. Then L_i = c ||H_i||^2 with the loss's curvature c; for a
    nonlinear model no L is known, and steps are found on the way (`ProximalGradient`). No prox is known.

    Arguments:
        model: the forward map of each view, its predictions real or complex.
        data: as for `LeastSquares`; real for losses of intensities.
        loss: such as Poisson(), Huber(0.1), Amplitude().
        available, lipschitz_tol, lipschitz_most: as for `LeastSquares`.
    Reference: Sun, Wohlberg and Kamilov, Assumption 2.
    """

    loss: Loss
    norms: LeastSquares

    def __init__(
        self,
        model: Model,
        data: Tensor | Measurements,
        loss: Loss,
        *,
        available: Views = None,
        lipschitz_tol: float = 1e-2,
        lipschitz_most: int = 1000,
    ) -> None:
        model = as_model(model)
        self.loss = as_loss(loss).for_model(model)
        super().__init__(model, data, available=available)
        self.norms = norms_of(model, available, tol=lipschitz_tol, most=lipschitz_most)

    def with_views(self, model: Model, available: Views = None, *, lipschitz_max: float | None = None) -> Self:
        other = super().with_views(model, available, lipschitz_max=lipschitz_max)
        other.loss = self.loss.for_model(other.model)
        norms = self.norms
        other.norms = norms_of(model, available, tol=norms.lipschitz_tol, most=norms.lipschitz_most)
        return other

    def with_model(self, model: Model) -> Self:
        other = super().with_model(model)
        other.loss = self.loss.for_model(other.model)
        other.norms = self.norms.with_model(model)
        return other

    @property
    def convex(self) -> bool:
        """Whether d is a convex function of the image."""
        return self.linear and self.loss.is_convex(waves=self._waves)

    def _values_of(self, image: Tensor, block: Tensor | None) -> Tensor:
        terms = self.loss.value(self.model.forward(image, block), self.data(block), block)
        return self._sums(self.model.restrict(terms, block))

    def gradient(self, image: Tensor, views: Views = None, weights: Weights = None) -> Tensor:
        """grad d(x) over these views, the mean or the sum with these weights: (..., *image_shape) to the same."""
        self._check_batch(image)
        parts = []
        for block, w in self._parts(views, weights):
            prediction, pullback = self.model.linearize(image, block)
            slopes = self.loss.derivative(prediction, self.data(block), block)
            parts.append(pullback(self._spread(w) * self.model.restrict(slopes, block)))
        return functools.reduce(Tensor.add, parts)

    def quadratic(
        self, image: Tensor, views: Views = None, weights: Weights = None, at: Tensor | None = None
    ) -> Quadratic:
        """grad d(x) over these views, and v -> sum_i w_i Re(J_i^H loss'' J_i v) with the expected loss'' (`bend`)."""
        model, parts = self.model, list(self._parts(views, weights))
        assert at is None
        expand = functools.lru_cache(4)(partial(model.linearize, image))  # of more blocks none is seen again in time

        def pull(slopes: Callable[[Tensor, Tensor | None], Tensor]) -> Tensor:
            terms = ((expand(block), block, w) for block, w in parts)
            pulled = (back(self._spread(w) * model.restrict(slopes(p, b), b)) for (p, back), b, w in terms)
            return functools.reduce(torch.add, pulled)

        def curvature(v: Tensor) -> Tensor:
            return pull(lambda p, b: self.loss.bend(p, model.derivative(image, v, b), self.data(b), b))

        return pull(lambda p, b: self.loss.derivative(p, self.data(b), b)), curvature

    def slope_change(self, new: Tensor, old: Tensor, views: Views = None) -> Tensor:
        """loss'(new, y_i) - loss'(old, y_i) of these views: (..., B, *data_shape) twice to the same."""
        index, data = self._index(views), self.data(views)
        change = self.loss.derivative(new, data, index) - self.loss.derivative(old, data, index)
        return self.model.restrict(change, index)

    @cached_property
    def curvature(self) -> float:
        """The loss's bound for the data of all available views; infinite if it has none."""
        return self.curvature_of()

    @property
    def fit_curvature(self) -> float:
        """The second derivative of the loss where predictions are near the data, or its bound."""
        near = self.loss.fit_curvature(waves=self._waves)
        return near if math.isfinite(near) else self.curvature

    def _fit_derivative(self, prediction: Tensor, data: Tensor, views: Tensor | None) -> Tensor:
        slopes = self.loss.derivative(prediction, data, views)
        return slopes if self.fit_curvature == 1 else slopes / self.fit_curvature

    def curvature_of(self, views: Views = None) -> float:
        parts = self._parts(views, None)
        return max(self.loss.curvature(self.data(block), waves=self._waves) for block, _ in parts)

    @property
    def has_lipschitz(self) -> bool:
        """Whether L is known: for a linear model and a loss of bounded curvature."""
        return self.linear and (self._lipschitz_max is not None or math.isfinite(self.curvature))

    def local_lipschitz(self, image: Tensor, views: Views = None) -> float:
        """As of any model; by differences of gradients if the loss's curvature has no bound."""
        if math.isfinite(self.curvature):
            return super().local_lipschitz(image, views)
        x, ndim = image.reshape(-1, *self.image_shape)[0], len(self.image_shape)
        each = self.local_views(views).split(1)
        return max(local_curvature(functools.partial(self.gradient, views=view), x, ndim) for view in each)

    @property
    def lipschitz(self) -> float:
        """L of grad d: the curvature times that of least squares."""
        return self._bound() * self.norms.lipschitz

    @property
    def lipschitz_views(self) -> Tensor:
        """Every L_i, c ||H_i||^2: (views,), in double precision on the CPU."""
        return self._bound() * self.norms.lipschitz_views

    @property
    def lipschitz_max(self) -> float:
        """A bound of all L_i."""
        if self._lipschitz_max is None:
            self._lipschitz_max = self._bound() * self.norms.lipschitz_max
        return self._lipschitz_max

    def bound_lipschitz(self, views: Views = None, beyond: float = 0.0) -> float:
        """As `LeastSquares.bound_lipschitz`, times the loss's curvature for the data of these views."""
        curvature = self.curvature_of(views)
        return curvature * self.norms.bound_lipschitz(views, beyond / curvature if curvature > 0 else 0.0)

    def _bound(self) -> float:
        if not math.isfinite(self.curvature):
            raise InputError(f"the curvature of a {type(self.loss).__name__} loss has no bound, so there is no L")
        return self.curvature

    @property
    def _waves(self) -> bool:
        return self.model.data_dtype.is_complex

    @property
    def _stored_dtype(self) -> torch.dtype:
        return self.model.data_dtype.to_real() if self.loss.real_data else self.model.data_dtype

    def _checked(self, data: Tensor, views: Tensor | None) -> Tensor:
        checked = super()._checked(data, views)
        self.loss.check(checked)
        return checked


DataFidelity = LeastSquares | LossFidelity
"""How far an image is from measurements, by any loss."""


class _Unread(NamedTuple):
    """Data that is never read."""

    n_views: int

    def read(self, views: Tensor | None = None) -> Tensor:
        raise AssertionError("the norms of a model need no data")


def is_least_squares(loss: Loss) -> bool:
    """Whether a loss is 1/2 |prediction - datum|^2."""
    return as_loss(loss).plain


def norms_of(model: Model, available: Views = None, *, tol: float = 1e-2, most: int | None = None) -> LeastSquares:
    """Least squares without data, for the norms of a model: L of a view is ||H_i||^2.

    Arguments: available, the views that count; all if not given. tol, most: `lipschitz_tol` and `lipschitz_most`.
    """
    data = _Unread(model.n_views)
    return LeastSquares(model, data, available=available, lipschitz_tol=tol, lipschitz_most=most)


def make_fidelity(
    model: Model, data: Tensor | Measurements, loss: Loss | None = None, *, available: Views = None
) -> DataFidelity:
    """The fidelity of a model, data and loss: `LeastSquares`, which is faster and has a prox, if the loss is that.

    Intensities of waves need a loss of intensities.
    """
    model, loss = as_model(model), None if loss is None else as_loss(loss)
    if model.intensities and not (loss is not None and loss.real_data):
        raise InputError("the data are intensities of waves, which --loss amplitude or --loss poisson compares")
    if loss is None or is_least_squares(loss):
        return LeastSquares(model, data, available=available)
    return LossFidelity(model, data, loss, available=available)
