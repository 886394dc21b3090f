"""How far an image is from the measurements under any loss: d(x) = mean over views of loss(H_i(x), y_i)."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.linalg import local_curvature
from plugstream.fidelity.base import Measurements, ModelFidelity
from plugstream.fidelity.least_squares import LeastSquares
from plugstream.fidelity.losses import Loss, as_loss
from plugstream.models.base import Model, as_model
from plugstream.models.views import Views

__all__ = ["DataFidelity", "LossFidelity", "is_least_squares", "make_fidelity", "norms_of"]


class LossFidelity(ModelFidelity):
    r"""How badly an image explains measurements, by a loss after a model, linear or not.

    d(x) = (1/I) sum_i d_i(x),  d_i(x) = sum over the data of view i of loss(H_i(x), y_i),
    grad d_i(x) = J_i(x)^H loss'(H_i(x), y_i), with the real part of it where the image is real.

    d is convex where the loss is and the model is linear. Then L_i = c ||H_i||^2 with the loss's curvature c; for a
    nonlinear model no L is known, and steps are found on the way (`ProximalGradient`). There is no prox.

    Arguments:
        model: the forward map of each view, its predictions real or complex.
        data: as for `LeastSquares`. Of losses that compare intensities with waves it is real.
        loss: such as Poisson(), Huber(0.1), Amplitude().
        available, lipschitz_tol, lipschitz_most: as for `LeastSquares`.
    Reference: Sun, Wohlberg and Kamilov, Assumption 2.
    """

    loss: Loss

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
        self._norms = LeastSquares(
            model,
            _Unread(model.n_views),
            available=available,
            lipschitz_tol=lipschitz_tol,
            lipschitz_most=lipschitz_most,
        )

    def with_views(self, model: Model, available: Views = None, *, lipschitz_max: float | None = None) -> Self:
        """As `ModelFidelity.with_views`, with the norms of that model; the curvature is asked of the new data."""
        other = super().with_views(model, available, lipschitz_max=lipschitz_max)
        other.loss = self.loss.for_model(other.model)
        other._norms = LeastSquares(
            model,
            _Unread(model.n_views),
            available=available,
            lipschitz_tol=self._norms.lipschitz_tol,
            lipschitz_most=self._norms.lipschitz_most,
        )
        return other

    def with_parameters(self, parameters: Mapping[str, Tensor]) -> Self:
        """As `ModelFidelity.with_parameters`; the loss is bound to that model."""
        other = super().with_parameters(parameters)
        other.loss = self.loss.for_model(other.model)
        other._norms = self._norms.with_parameters(parameters)
        return other

    @property
    def convex(self) -> bool:
        """Whether d is a convex function of the image."""
        return self.linear and self.loss.is_convex(waves=self._waves)

    def value(self, image: Tensor, views: Views = None, weights: Tensor | None = None) -> Tensor:
        """d(x) over these views, the mean or the sum with the given weights: (..., *image_shape) to (...)."""
        self._check_batch(image)
        total = torch.zeros((), device=self.device, dtype=self.dtype.to_real())
        for some, w in self._parts(views, weights):
            terms = self.model.restrict(self.loss.value(self.model.forward(image, some), self.data(some), some), some)
            total = total + (self._sums(terms) * w).sum(-1)
        return total

    def values(self, image: Tensor, views: Views = None) -> Tensor:
        """d_i(x) of each of these views: (..., *image_shape) to (..., B)."""
        self._check_batch(image)
        each = []
        for some, _ in self._parts(views, None):
            terms = self.loss.value(self.model.forward(image, some), self.data(some), some)
            each.append(self._sums(self.model.restrict(terms, some)))
        return torch.cat(each, -1)

    def gradient(self, image: Tensor, views: Views = None, weights: Tensor | None = None) -> Tensor:
        """grad d(x) over these views, the mean or the sum with the given weights: (..., *image_shape) to the same."""
        self._check_batch(image)
        parts = []
        for some, w in self._parts(views, weights):
            prediction, pullback = self.model.linearize(image, some)
            slopes = self.loss.derivative(prediction, self.data(some), some)
            parts.append(pullback(self._spread(w) * self.model.restrict(slopes, some)))
        return functools.reduce(Tensor.add, parts)

    def gradient_change(
        self, image: Tensor, other: Tensor, views: Views = None, weights: Tensor | None = None
    ) -> Tensor:
        """grad d(x) - grad d(x') over these views."""
        return self.gradient(image, views, weights) - self.gradient(other, views, weights)

    def slope_change(self, new: Tensor, old: Tensor, views: Views = None) -> Tensor:
        """loss'(new, y_i) - loss'(old, y_i) of these views: (..., B, *data_shape) twice to the same."""
        index, data = self._index(views), self.data(views)
        change = self.loss.derivative(new, data, index) - self.loss.derivative(old, data, index)
        return self.model.restrict(change, index)

    def prox(
        self,
        image: Tensor,
        gamma: float,
        views: Views = None,
        weights: Tensor | None = None,
        start: Tensor | None = None,
    ) -> Tensor:
        """Refused: only least squares has a prox here."""
        raise InputError(f"the prox of a {type(self.loss).__name__} loss is not known; use a proximal gradient method")

    @cached_property
    def curvature(self) -> float:
        """The loss's bound for this data, over all views that are available; infinite where it has none."""
        return self.curvature_of()

    @property
    def fit_curvature(self) -> float:
        """The second derivative of the loss where predictions are near the data; its bound where it says no other."""
        own = self.loss.fit_curvature(waves=self._waves)
        return own if math.isfinite(own) else self.curvature

    def _fit_derivative(self, prediction: Tensor, data: Tensor, views: Tensor | None) -> Tensor:
        slopes = self.loss.derivative(prediction, data, views)
        return slopes if self.fit_curvature == 1 else slopes / self.fit_curvature

    def curvature_of(self, views: Views = None) -> float:
        """The loss's bound for the data of these views."""
        parts = self._parts(views, None)
        return max(self.loss.curvature(self.data(some), waves=self._waves) for some, _ in parts)

    @property
    def has_lipschitz(self) -> bool:
        """Whether L is known: of a linear model with a loss whose curvature has a bound."""
        return self.linear and (self._lipschitz_max is not None or math.isfinite(self.curvature))

    def local_lipschitz(self, image: Tensor, views: Views = None) -> float:
        """L at an image, as of any model; from differences of gradients where the loss's curvature has no bound."""
        if math.isfinite(self.curvature):
            return super().local_lipschitz(image, views)
        x, ndim = image.reshape(-1, *self.image_shape)[0], len(self.image_shape)
        each = self._looked_at(views).split(1)
        return max(local_curvature(functools.partial(self.gradient, views=view), x, ndim) for view in each)

    @property
    def lipschitz(self) -> float:
        """L of grad d: the curvature times that of least squares."""
        return self._bound() * self._norms.lipschitz

    @property
    def lipschitz_views(self) -> Tensor:
        """Every L_i, c ||H_i||^2: (views,), in double precision on the CPU."""
        return self._bound() * self._norms.lipschitz_views

    @property
    def lipschitz_max(self) -> float:
        """A bound of all L_i."""
        if self._lipschitz_max is None:
            self._lipschitz_max = self._bound() * self._norms.lipschitz_max
        return self._lipschitz_max

    def bound_lipschitz(self, views: Views = None) -> float:
        """As `LeastSquares.bound_lipschitz`, times the loss's curvature for the data of these views."""
        return self.curvature_of(views) * self._norms.bound_lipschitz(views)

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
        """The data of these views, of which the loss refuses what it has no meaning for, wherever it is read from."""
        checked = super()._checked(data, views)
        self.loss.check(checked)
        return checked


DataFidelity = LeastSquares | LossFidelity
"""How far an image is from measurements, by any loss."""


class _Unread:
    """Data of which only the number of views is asked: least squares for the norms of a model."""

    def __init__(self, n_views: int) -> None:
        self.n_views = n_views

    def read(self, views: Tensor | None = None) -> Tensor:
        raise AssertionError("the norms of a model need no data")


def is_least_squares(loss: Loss) -> bool:
    """Whether a loss is 1/2 |prediction - datum|^2, whose curvature is 1 whatever the data."""
    return as_loss(loss).plain


def norms_of(model: Model, available: Views = None) -> LeastSquares:
    """Least squares without data, for what depends on the model alone: L of a view is ||H_i||^2.

    Arguments: available, the views that count; all if not given.
    """
    return LeastSquares(model, _Unread(model.n_views), available=available)


def make_fidelity(
    model: Model, data: Tensor | Measurements, loss: Loss | None = None, *, available: Views = None
) -> DataFidelity:
    """The fidelity of a model, data and loss: least squares, which is faster and has a prox, where it is that.

    Of intensities of waves a loss that compares those is needed.
    """
    model, loss = as_model(model), None if loss is None else as_loss(loss)
    if model.intensities and not (loss is not None and loss.real_data):
        raise InputError("the data are intensities of waves, which --loss amplitude or --loss poisson compares")
    if loss is None or is_least_squares(loss):
        return LeastSquares(model, data, available=available)
    return LossFidelity(model, data, loss, available=available)
