"""A model whose norms and normal products are computed by several processes together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from plugstream.models.base import Model, ModelBase, Views, all_views
from plugstream.models.wrapped import WrappedModel
from plugstream.shares import Shares

__all__ = ["SplitModel"]


class SplitModel(WrappedModel):
    """A model of which `normal`, `normal_each`, `squared_norms` and `squared_norm_bounds` are called by all processes.

    Each computes its own part, and every one has the whole result, which is that of the model: what depends on which
    views are looked at together, the random starts of Lanczos iterations, is as for one process. All else is the
    model's own, for the views that a process asks for.

    A model with `squared_norms` of its own, which need no products with images, is asked on every process, and what
    rank 0 found counts; `squared_norm_bounds` of its own, or of a non-negative model, are of each view by itself, hence
    shared.
    """

    def __init__(self, model: Model, shares: Shares) -> None:
        super().__init__(model)
        self.shares = shares

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        return self.whole.forward(image, views)

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        return self.whole.adjoint(data, views)

    def linearize(self, image: Tensor, views: Views = None) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return self.whole.linearize(image, views)

    def derivative(self, image: Tensor, direction: Tensor, views: Views = None) -> Tensor:
        return self.whole.derivative(image, direction, views)

    def linearized(self, at: Tensor | None = None) -> Model:
        return self.whole.linearized(at)

    def restrict(self, data: Tensor, views: Views = None) -> Tensor:
        return self.whole.restrict(data, views)

    def gradient(self, image: Tensor, data: Tensor, views: Views = None, weights: Tensor | None = None) -> Tensor:
        return self.whole.gradient(image, data, views, weights)

    def normal(self, views: Views = None, weights: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """x -> sum_i w_i Re(H_i^H H_i x), of which each process computes its part of the sum."""
        if self.shares.single:
            return self.whole.normal(views, weights)
        index = all_views(views, self.n_views)
        parts = {
            rows.start: self.whole.normal(index[rows], None if weights is None else weights[rows])
            for rows in self.shares.own(len(index))
            if rows.stop > rows.start
        }
        return lambda image: self.shares.sum(len(index), lambda rows: parts[rows.start](image), torch.zeros_like(image))

    def normal_each(self, images: Tensor, views: Tensor) -> Tensor:
        """Re(H_i^H H_i x_i), an image for each view, each computed by one process."""
        if len(views) < self.shares.group.size:
            return self.whole.normal_each(images, views)
        return self.shares.join(
            len(views), lambda rows: self.whole.normal_each(images[rows], views[rows]), images[:0], 0
        )

    def squared_norms(self, views: Tensor, tol: float) -> Tensor:
        if self.nonnegative:
            return self.squared_norm_bounds(views)
        if _inherits(self.whole, "squared_norms"):
            return self.shares.group.share(super().squared_norms(views, tol))
        return self.shares.group.share(self.whole.squared_norms(views, tol))

    def squared_norm_bounds(self, views: Tensor) -> Tensor:
        if _inherits(self.whole, "squared_norm_bounds") and not self.nonnegative:
            return self.shares.group.share(super().squared_norm_bounds(views))
        empty = torch.zeros(0, dtype=torch.float64)
        bounds = self.shares.join(len(views), lambda rows: self.whole.squared_norm_bounds(views[rows]), empty, 0)
        return self.shares.group.share(bounds)


def _inherits(model: Any, name: str) -> bool:
    """Whether a model has no such method of its own."""
    return getattr(type(model), name, None) is getattr(ModelBase, name)
