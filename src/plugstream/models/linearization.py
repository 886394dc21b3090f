"""A model that is not linear, near an image: its derivative there, which is a linear model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from plugstream.models.base import Model, ModelBase, Views

__all__ = ["Linearization", "linearized_model"]


def linearized_model(model: Model, at: Tensor | None = None) -> Model:
    """`model.linearized(at)`, also of a model that was written before there was such a method."""
    if hasattr(model, "linearized"):
        return model.linearized(at)
    if model.linear:
        return model
    zero = torch.zeros(model.image_shape, device=model.device, dtype=model.dtype)
    return Linearization(model, zero if at is None else at)


class Linearization(ModelBase):
    """The derivative J_i(at) of each view's prediction, v -> J_i(at) v, as a linear model.

    H_i(at + v) = H_i(at) + J_i(at) v + O(||v||^2), so that near `at` least squares with H are those with J(at) and the
    data y_i - H_i(at): its L, its back-projection and its prox are those of a linear model.

    Holds where the model can be differentiated; it needs its `derivative` and `linearize`.

    Arguments: model; at, an image (*image_shape).
    """

    def __init__(self, model: Model, at: Tensor) -> None:
        self.model = model
        self.at = at.to(device=model.device, dtype=model.dtype)
        self.n_views, self.image_shape, self.data_shape = model.n_views, model.image_shape, model.data_shape
        self.device, self.dtype, self.data_dtype = model.device, model.dtype, model.data_dtype
        self.channels = bool(getattr(model, "channels", False))

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        """J_i(at) v: (..., *image_shape) to (..., B, *data_shape)."""
        return self.model.derivative(self.at.expand_as(image), image.to(self.dtype), views).detach()

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        """The sum over views of Re(J_i(at)^H z_i): (..., B, *data_shape) to (..., *image_shape)."""
        lead = data.shape[: data.ndim - 1 - len(self.data_shape)]
        return self._pullback(self.at.expand(*lead, *self.image_shape), views)(data)

    def restrict(self, data: Tensor, views: Views = None) -> Tensor:
        return self.model.restrict(data, views)

    def normal(self, views: Views = None, weights: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """x -> sum_i w_i Re(J_i^H J_i x), with what the pullback at one image needs prepared once."""
        kept: dict[torch.Size, Callable[[Tensor], Tensor]] = {}

        def apply(image: Tensor) -> Tensor:
            if image.shape not in kept:
                kept[image.shape] = self._pullback(self.at.expand_as(image), views)
            data = self.forward(image, views)
            return kept[image.shape](data if weights is None else self.spread(weights) * data)

        return apply

    def _pullback(self, at: Tensor, views: Views) -> Callable[[Tensor], Tensor]:
        return self.model.linearize(at, views)[1]
