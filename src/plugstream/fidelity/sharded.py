"""A fidelity whose views are shared among processes: the same numbers, each process reading only its own part."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, Self, cast

import torch
from torch import Tensor

from plugstream.base.arrays import accept_arrays
from plugstream.base.errors import InputError
from plugstream.base.linalg import broadcast_axes, conjugate_gradient, inner, per_image, squared_norm
from plugstream.base.processes import Group
from plugstream.fidelity.abilities import FidelityAbilities
from plugstream.fidelity.by_loss import LossFidelity
from plugstream.fidelity.least_squares import LeastSquares
from plugstream.fidelity.shards import Shares, SplitModel
from plugstream.models.base import Model
from plugstream.models.views import Views, all_views

__all__ = ["Sharded"]


class Sharded(FidelityAbilities):
    r"""A fidelity whose work is shared among processes, each of which holds the same image.

    The gradient is a sum over views, grad d(x) = sum_i w_i grad d_i(x). Every rank takes a part of the views and of
    their weights, reads the data of these alone, and the sums of all ranks are added up (all-reduce): one image a step
    goes over the network, whatever the number of views. Values, pullbacks, changes of the gradient and the products of
    conjugate gradients likewise; predictions, which SAGA remembers, are gathered. Samplers, algorithms and `solve` know
    nothing of it, so that the draw is the same for any number of ranks.

    Sums of another order round otherwise, so that one rank and several agree to about 1e-6. With `shards` the views are
    cut into so many parts, whatever the number of ranks, and the sums of parts added in the order of a fixed binary
    tree: 1, 2, 4 ... ranks then give the same bits, on processors of one kind and with as many threads each. A batch is
    worked on in smaller pieces then, which costs time where they are small.

    Arguments:
        fidelity: `LeastSquares` or `LossFidelity`, of a linear model or not, which stays as it is.
        group: from `process_group()`.
        shards: a power of two, at least the number of ranks that are to work; None: as many parts as ranks.
    Reference: for the sums, Dean et al., NeurIPS 2012 (synchronous data parallelism); Thakur, Rabenseifner and Gropp,
    Int. J. High Perform. Comput. Appl. 19, 2005 (all-reduce).
    """

    whole: LeastSquares | LossFidelity = None  # type: ignore[assignment]  # of one process

    def __init__(self, fidelity: LeastSquares | LossFidelity, group: Group, *, shards: int | None = None) -> None:
        if not isinstance(fidelity, LeastSquares | LossFidelity):
            raise InputError(f"a {type(fidelity).__name__} cannot be shared; use LeastSquares or LossFidelity")
        self.whole, self.group, self.shards = fidelity, group, shards
        self.model, self.loss = fidelity.model, fidelity.loss
        self.shares = Shares(group, shards)
        # A copy whose norms and normal products are shared, too: L is then found as by one process, with less work.
        self.part = cast(Any, copy.copy(fidelity))
        self.part.model = SplitModel(fidelity.model, self.shares)
        if isinstance(fidelity, LossFidelity):
            self.part._norms = copy.copy(fidelity._norms)
            self.part._norms.model = self.part.model

    def with_views(self, model: Model, available: Views = None, *, lipschitz_max: float | None = None) -> Self:
        """As `ModelFidelity.with_views`: that of a scan that has grown, or with other views of it."""
        other = self.whole.with_views(model, available, lipschitz_max=lipschitz_max)
        return type(self)(other, self.group, shards=self.shards)

    def own_parts(self, views: Views = None) -> list[Tensor]:
        """The views among these whose data this rank reads, in the pieces that it reads them in."""
        index = self._index(views)
        return [index[rows] for rows in self.shares.own(len(index)) if rows.stop > rows.start]

    @property
    def n_views(self) -> int:
        return self.whole.n_views

    @property
    def available(self) -> Tensor:
        return self.whole.available

    @property
    def image_shape(self) -> tuple[int, ...]:
        return self.whole.image_shape

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.whole.batch_shape

    @property
    def channels(self) -> bool:
        return self.whole.channels

    @property
    def device(self) -> torch.device:
        return self.whole.device

    @property
    def dtype(self) -> torch.dtype:
        return self.whole.dtype

    @property
    def linear(self) -> bool:
        return self.whole.linear

    @property
    def convex(self) -> bool:
        """Whether d is a convex function of the image."""
        return bool(self.whole.convex)

    @property
    def data_shape(self) -> tuple[int, ...]:
        return self.whole.data_shape

    @property
    def data_dtype(self) -> torch.dtype:
        return self.whole.data_dtype

    def overlap(self, views: Views = None, weights: Tensor | None = None) -> Tensor | None:
        """As `ModelFidelity.overlap`, which every rank finds by itself, since it needs no data."""
        return self.whole.overlap(views, weights)

    @property
    def fit_curvature(self) -> float:
        """The second derivative of the loss where predictions are near the data."""
        return self.whole.fit_curvature

    def start_image(self) -> Tensor | None:
        """The image to begin with where nobody gives one."""
        return self.whole.start_image()

    def data(self, views: Views = None) -> Tensor:
        """The measurements of these views, which this rank reads by itself."""
        return self.whole.data(views)

    @accept_arrays
    def value(self, image: Tensor, views: Views = None, weights: Tensor | None = None) -> Tensor:
        """d(x) over these views, the mean or the sum with the given weights: (..., *image_shape) to (...)."""
        if self.shares.single:
            return self.whole.value(image, views, weights)
        like = torch.zeros(self._lead(image), dtype=self.dtype.to_real(), device=self.device)
        return self._sum(lambda some, w: self.part.value(image, some, w), views, weights, like)

    @accept_arrays
    def values(self, image: Tensor, views: Views = None) -> Tensor:
        """d_i(x) of each of these views, each computed by one rank: (..., *image_shape) to (..., B)."""
        if self.shares.single:
            return self.whole.values(image, views)
        index, lead = self._index(views), self._lead(image)
        like = torch.zeros((*lead, 0), dtype=self.dtype.to_real(), device=self.device)
        return self.shares.join(len(index), lambda rows: self.part.values(image, index[rows]), like, len(lead))

    @accept_arrays
    def gradient(self, image: Tensor, views: Views = None, weights: Tensor | None = None) -> Tensor:
        """grad d(x) over these views, the mean or the sum with the given weights: (..., *image_shape) to the same."""
        if self.shares.single:
            return self.whole.gradient(image, views, weights)
        return self._sum(lambda some, w: self.part.gradient(image, some, w), views, weights, self._like(image))

    @accept_arrays
    def gradient_change(
        self, image: Tensor, other: Tensor, views: Views = None, weights: Tensor | None = None
    ) -> Tensor:
        """grad d(x) - grad d(x') over these views."""
        if self.shares.single:
            return self.whole.gradient_change(image, other, views, weights)
        like = self._like(image.expand(broadcast_axes(image.shape, other.shape)))
        return self._sum(lambda some, w: self.part.gradient_change(image, other, some, w), views, weights, like)

    @accept_arrays
    def predict(self, image: Tensor, views: Views = None) -> Tensor:
        """H_i x of these views, each computed by one rank: (..., *image_shape) to (..., B, *data_shape)."""
        if self.shares.single:
            return self.whole.predict(image, views)
        index, lead = all_views(views, self.n_views), image.shape[: image.ndim - len(self.image_shape)]
        like = torch.zeros((*lead, 0, *self.data_shape), dtype=self.data_dtype, device=self.device)
        return self.shares.join(len(index), lambda rows: self.part.predict(image, index[rows]), like, len(lead))

    @accept_arrays
    def pullback(self, slopes: Tensor, views: Views = None) -> Tensor:
        """The sum over views of Re(H_i^H z_i), for a linear model: (..., B, *data_shape) to (..., *image_shape)."""
        if self.shares.single:
            return self.whole.pullback(slopes, views)
        index, axis = all_views(views, self.n_views), slopes.ndim - 1 - len(self.data_shape)
        like = torch.zeros((*slopes.shape[:axis], *self.image_shape), dtype=self.dtype, device=self.device)
        return self.shares.sum(len(index), lambda rows: self.part.pullback(_cut(slopes, axis, rows), index[rows]), like)

    def slope_change(self, new: Tensor, old: Tensor, views: Views = None) -> Tensor:
        """How much the loss's derivative changes between two predictions; only least squares needs no data for it."""
        if self.shares.single or isinstance(self.whole, LeastSquares):
            return self.whole.slope_change(new, old, views)
        tail = len(self.data_shape) + 1
        lead = broadcast_axes(new.shape[:-tail], old.shape[:-tail], self.batch_shape)
        new, old = (slopes.expand(*lead, *slopes.shape[-tail:]) for slopes in (new, old))
        index, axis = self._index(views), len(lead)

        def part(rows: slice) -> Tensor:
            change: Tensor = self.part.slope_change(_cut(new, axis, rows), _cut(old, axis, rows), index[rows])
            return change

        return self.shares.join(len(index), part, _cut(new, axis, slice(0, 0)), axis)

    @accept_arrays
    def prox(
        self,
        image: Tensor,
        gamma: float,
        views: Views = None,
        weights: Tensor | None = None,
        start: Tensor | None = None,
    ) -> Tensor:
        """argmin_z 1/2 ||z - x||^2 + gamma d(z), by conjugate gradients of which every product is shared.

        As `LeastSquares.prox`. All ranks take the same number of steps, since they hold the same images.
        """
        whole = self.whole
        if self.shares.single or not isinstance(whole, LeastSquares) or not whole.linear:
            return whole.prox(image, gamma, views, weights, start)  # which says where there is none
        b = image - gamma * self.gradient(torch.zeros_like(image), views, weights)
        index = self._index(views)
        normal = self.part.model.normal(index, whole._weights(index, weights))
        return conjugate_gradient(
            lambda z: z + gamma * normal(z),
            b,
            start=(image if start is None else start).expand_as(b),
            tol=whole.prox_tol,
            max_iterations=whole.prox_iterations,
            ndim=len(self.image_shape),
        ).image

    def backprojection(self, views: Views = None) -> Tensor:
        """The simplest image of the data, as `ModelFidelity.backprojection`."""
        if self.shares.single or not self.linear:
            return self.whole.backprojection(views)  # which says where there is none
        index, ndim, model = self._index(views), len(self.image_shape), self.whole.model

        def pulled(rows: slice) -> Tensor:
            parts = self.part._parts(index[rows], None)
            return functools.reduce(Tensor.add, (model.adjoint(self.part.data(some), some) for some, _ in parts))

        like = torch.zeros((*self.batch_shape, *self.image_shape), dtype=self.dtype, device=self.device)
        g = self.shares.sum(len(index), pulled, like)
        energy = inner(g, self.part.model.normal(index, None)(g), ndim)
        return per_image(squared_norm(g, ndim) / energy.clamp_min(torch.finfo(self.dtype).tiny), ndim) * g

    @property
    def curvature(self) -> float:
        """The loss's bound for this data, of which every rank reads its own part; infinite where it has none."""
        return float(self._settled.curvature)

    @property
    def has_lipschitz(self) -> bool:
        """Whether L is known, as of one process."""
        return self.linear and bool(self._bounded.has_lipschitz)

    @property
    def lipschitz(self) -> float:
        """L of grad d, as of one process."""
        return float(self._settled.lipschitz)

    @property
    def lipschitz_views(self) -> Tensor:
        """Every L_i: (views,), in double precision on the CPU."""
        found: Tensor = self._settled.lipschitz_views
        return found

    @property
    def lipschitz_max(self) -> float:
        """A bound of all L_i."""
        return float(self._bounded.lipschitz_max)

    def bound_lipschitz(self, views: Views = None) -> float:
        """A bound of the L_i of these views, as `LeastSquares.bound_lipschitz`."""
        if not isinstance(self.whole, LossFidelity):
            return float(self.part.bound_lipschitz(views))
        index = self._index(views)
        curvature = self.shares.max(len(index), lambda rows: float(self.part.curvature_of(index[rows])))
        return curvature * float(self.part._norms.bound_lipschitz(views))

    def lipschitz_at_least(
        self, views: Views = None, weights: Tensor | None = None, *, products: int = 8
    ) -> float | None:
        """As `LeastSquares.lipschitz_at_least`; no other fidelity has it."""
        bound: float | None = self.part.lipschitz_at_least(views, weights, products=products)
        return bound

    def local_lipschitz(self, image: Tensor, views: Views = None) -> float:
        """L at an image, the largest of a few views, of which each rank looks at its own."""
        part, index = self._settled, self.whole._looked_at(views)
        return self.shares.max(len(index), lambda rows: float(part.local_lipschitz(image, index[rows])))

    @property
    def _settled(self) -> Any:
        """The fidelity of this rank's views, which knows the curvature of the loss for the data of all ranks."""
        if isinstance(self.whole, LossFidelity) and "curvature" not in vars(self.part) and not self.shares.single:
            index = self.available
            self.part.curvature = self.shares.max(len(index), lambda rows: float(self.part.curvature_of(index[rows])))
        return self.part

    @property
    def _bounded(self) -> Any:
        """The same; where the bound of all L_i was given, nothing has to be read for it."""
        return self._settled if self.part._lipschitz_max is None else self.part

    def _sum(
        self,
        part: Callable[[Tensor, Tensor], Tensor],
        views: Views,
        weights: Tensor | None,
        like: Tensor,
    ) -> Tensor:
        index = self._index(views)
        w = self.whole._weights(index, weights)
        return self.shares.sum(len(index), lambda rows: part(index[rows], w[rows]), like)

    def _index(self, views: Views) -> Tensor:
        return self.available if views is None else all_views(views, self.n_views)

    def _lead(self, image: Tensor) -> tuple[int, ...]:
        self.whole._check_batch(image)
        return broadcast_axes(image.shape[: image.ndim - len(self.image_shape)], self.batch_shape)

    def _like(self, image: Tensor) -> Tensor:
        return torch.zeros((*self._lead(image), *self.image_shape), dtype=self.dtype, device=self.device)


def _cut(tensor: Tensor, axis: int, rows: slice) -> Tensor:
    return tensor.narrow(axis, rows.start, rows.stop - rows.start)
