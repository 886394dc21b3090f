"""A fidelity whose views are shared among processes: the same numbers, but each process reads only its own part."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.linalg import broadcast_axes, inner, per_image, squared_norm
from plugstream.base.processes import Group
from plugstream.fidelity.abilities import OfModel, Quadratic, Weights
from plugstream.fidelity.by_loss import LossFidelity
from plugstream.fidelity.least_squares import LeastSquares
from plugstream.fidelity.shards import Shares, SplitModel
from plugstream.models.base import Model
from plugstream.models.views import Views, all_views

P = ParamSpec("P")
R = TypeVar("R")


def _unless_single(method: Callable[Concatenate[Sharded, P], R]) -> Callable[Concatenate[Sharded, P], R]:
    """A method of several parts; a process that has all views in one part asks `whole` instead."""

    @functools.wraps(method)
    def either(self: Sharded, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.shares.single:
            return cast(R, getattr(self.whole, method.__name__)(*args, **kwargs))
        return method(self, *args, **kwargs)

    return either


class Sharded(OfModel):
    r"""A fidelity whose work is shared among processes, each of which holds the same image.

    The gradient is a sum over views, grad d(x) = sum_i w_i grad d_i(x). Every rank reads the data of its part of the
    views, and the sums of all ranks are added (all-reduce): one image a step goes over the network, for any number of
    views. Values, pullbacks, changes of the gradient and the products of conjugate gradients are summed likewise;
    predictions, which SAGA remembers, are gathered. Samplers, algorithms and `solve` do not see it, so the draw is the
    same for any number of ranks.

    Another order of summation rounds differently, so one rank and several agree to about 1e-6. With `shards` the views
    are cut into this many parts for any number of ranks, and the parts are added in the order of a fixed binary tree:
    1, 2, 4 ... ranks then give the same bits, on processors of one kind with equally many threads. Small pieces of a
    batch cost time.

    Arguments:
        fidelity: `LeastSquares` or `LossFidelity`, of a linear model or not; it does not change.
        group: from `process_group()`.
        shards: a power of two, at least the number of working ranks; None: as many parts as ranks.
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
        # A copy that shares norms and normal products too: its L is that of one process, with less work.
        self.part = cast(Any, fidelity.with_model(SplitModel(fidelity.model, self.shares)))

    def with_views(self, model: Model, available: Views = None, *, lipschitz_max: float | None = None) -> Self:
        """As `ModelFidelity.with_views`."""
        other = self.whole.with_views(model, available, lipschitz_max=lipschitz_max)
        return type(self)(other, self.group, shards=self.shards)

    def own_parts(self, views: Views = None) -> list[Tensor]:
        """Those of the given views whose data this rank reads, in the pieces in which it reads them."""
        index = self._index(views)
        return [index[rows] for rows in self.shares.own(len(index)) if rows.stop > rows.start]

    @property
    def available(self) -> Tensor:
        return self.whole.available

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.whole.batch_shape

    @property
    def convex(self) -> bool:
        """Whether d is a convex function of the image."""
        return bool(self.whole.convex)

    def overlap(self, views: Views = None, weights: Weights = None) -> Tensor | None:
        """As `ModelFidelity.overlap`; it needs no data, so every rank computes it."""
        return self.whole.overlap(views, weights)

    @property
    def fit_curvature(self) -> float:
        return self.whole.fit_curvature

    def start_image(self) -> Tensor | None:
        return self.whole.start_image()

    def data(self, views: Views = None) -> Tensor:
        """The measurements of these views, read by this rank."""
        return self.whole.data(views)

    @_unless_single
    def value(self, image: Tensor, views: Views = None, weights: Weights = None) -> Tensor:
        """d(x) over these views, the mean or the sum with these weights: (..., *image_shape) to (...)."""
        like = torch.zeros(self._lead(image), dtype=self.dtype.to_real(), device=self.device)
        return self._sum(lambda own, w: self.part.value(image, own, w), views, weights, like)

    @_unless_single
    def values(self, image: Tensor, views: Views = None) -> Tensor:
        """d_i(x) of each of these views, each computed by one rank: (..., *image_shape) to (..., B)."""
        index, lead = self._index(views), self._lead(image)
        like = torch.zeros((*lead, 0), dtype=self.dtype.to_real(), device=self.device)
        return self.shares.join(len(index), lambda rows: self.part.values(image, index[rows]), like, len(lead))

    @_unless_single
    def gradient(self, image: Tensor, views: Views = None, weights: Weights = None) -> Tensor:
        """grad d(x) over these views, the mean or the sum with these weights: (..., *image_shape) to the same."""
        return self._sum(lambda own, w: self.part.gradient(image, own, w), views, weights, self._like(image))

    @_unless_single
    def gradient_change(self, image: Tensor, other: Tensor, views: Views = None, weights: Weights = None) -> Tensor:
        """grad d(x) - grad d(x') over these views."""
        like = self._like(image.expand(broadcast_axes(image.shape, other.shape)))
        return self._sum(lambda own, w: self.part.gradient_change(image, other, own, w), views, weights, like)

    @_unless_single
    def quadratic(
        self, image: Tensor, views: Views = None, weights: Weights = None, at: Tensor | None = None
    ) -> Quadratic:
        """As `LossFidelity.quadratic`, with gradient and products shared."""
        known: dict[tuple[int, ...], Quadratic] = {}

        def part(own: Tensor, w: Tensor) -> Quadratic:
            key = tuple(own.tolist())
            if key not in known:
                known[key] = self.part.quadratic(image, own, w, at)
            return known[key]

        g = self._sum(lambda own, w: part(own, w)[0], views, weights, self._like(image))
        return g, lambda v: self._sum(lambda own, w: part(own, w)[1](v), views, weights, self._like(v))

    @_unless_single
    def predict(self, image: Tensor, views: Views = None) -> Tensor:
        """H_i x of these views, each computed by one rank: (..., *image_shape) to (..., B, *data_shape)."""
        index, lead = all_views(views, self.n_views), image.shape[: image.ndim - len(self.image_shape)]
        like = torch.zeros((*lead, 0, *self.data_shape), dtype=self.data_dtype, device=self.device)
        return self.shares.join(len(index), lambda rows: self.part.predict(image, index[rows]), like, len(lead))

    @_unless_single
    def pullback(self, slopes: Tensor, views: Views = None) -> Tensor:
        """The sum over views of Re(H_i^H z_i), for a linear model: (..., B, *data_shape) to (..., *image_shape)."""
        index, axis = all_views(views, self.n_views), slopes.ndim - 1 - len(self.data_shape)
        like = torch.zeros((*slopes.shape[:axis], *self.image_shape), dtype=self.dtype, device=self.device)
        return self.shares.sum(len(index), lambda rows: self.part.pullback(_cut(slopes, axis, rows), index[rows]), like)

    def slope_change(self, new: Tensor, old: Tensor, views: Views = None) -> Tensor:
        """The loss's derivative at one prediction less that at another, both (..., B, *data_shape)."""
        if self.shares.single or not self.whole.slopes_need_data:
            return self.whole.slope_change(new, old, views)
        tail = len(self.data_shape) + 1
        lead = broadcast_axes(new.shape[:-tail], old.shape[:-tail], self.batch_shape)
        new, old = (slopes.expand(*lead, *slopes.shape[-tail:]) for slopes in (new, old))
        index, axis = self._index(views), len(lead)

        def part(rows: slice) -> Tensor:
            change: Tensor = self.part.slope_change(_cut(new, axis, rows), _cut(old, axis, rows), index[rows])
            return change

        return self.shares.join(len(index), part, _cut(new, axis, slice(0, 0)), axis)

    def prox(
        self, image: Tensor, gamma: float, views: Views = None, weights: Weights = None, start: Tensor | None = None
    ) -> Tensor:
        """As `LeastSquares.prox`, with every product shared; all ranks take the same steps on the same images."""
        if self.shares.single or not self.whole.has_prox:
            return self.whole.prox(image, gamma, views, weights, start)
        b = image - gamma * self.gradient(torch.zeros_like(image), views, weights)
        solution: Tensor = self.part.solve_prox(b, gamma, views, weights, image if start is None else start)
        return solution

    def backprojection(self, views: Views = None) -> Tensor:
        """As `ModelFidelity.backprojection`."""
        if self.shares.single or not self.linear:
            return self.whole.backprojection(views)
        index, ndim, model = self._index(views), len(self.image_shape), self.whole.model

        def pulled(rows: slice) -> Tensor:
            parts = self.part._parts(index[rows], None)
            return functools.reduce(Tensor.add, (model.adjoint(self.part.data(block), block) for block, _ in parts))

        like = torch.zeros((*self.batch_shape, *self.image_shape), dtype=self.dtype, device=self.device)
        g = self.shares.sum(len(index), pulled, like)
        energy = inner(g, self.part.model.normal(index, None)(g), ndim)
        return per_image(squared_norm(g, ndim) / energy.clamp_min(torch.finfo(self.dtype).tiny), ndim) * g

    @property
    def curvature(self) -> float:
        """The loss's bound for this data, of which every rank reads its own part; infinite if it has none."""
        return float(self._settled.curvature)

    @property
    def has_lipschitz(self) -> bool:
        """Whether L is known."""
        return self.linear and bool(self._bounded.has_lipschitz)

    @property
    def lipschitz(self) -> float:
        """L of grad d."""
        return float(self._settled.lipschitz)

    @property
    def lipschitz_views(self) -> Tensor:
        """Every L_i: (views,), in double precision on the CPU."""
        every: Tensor = self._settled.lipschitz_views
        return every

    @property
    def lipschitz_max(self) -> float:
        """A bound of all L_i."""
        return float(self._bounded.lipschitz_max)

    def bound_lipschitz(self, views: Views = None, beyond: float = 0.0) -> float:
        """As `LeastSquares.bound_lipschitz`."""
        curvature = self._curvature_of(self._index(views))
        return curvature * float(self.part.norms.bound_lipschitz(views, beyond / curvature if curvature > 0 else 0.0))

    def lipschitz_at_least(self, views: Views = None, weights: Weights = None, *, products: int = 8) -> float | None:
        bound: float | None = self.part.lipschitz_at_least(views, weights, products=products)
        return bound

    def local_lipschitz(self, image: Tensor, views: Views = None) -> float:
        """L at an image, the largest of a few views; each rank checks its own."""
        part, index = self._settled, self.whole.local_views(views)
        return self.shares.max(len(index), lambda rows: float(part.local_lipschitz(image, index[rows])))

    def _curvature_of(self, index: Tensor) -> float:
        if not self.whole.slopes_need_data:
            return self.whole.curvature
        return self.shares.max(len(index), lambda rows: float(self.part.curvature_of(index[rows])))

    @property
    def _settled(self) -> Any:
        """The fidelity of this rank's views, with the curvature of the loss for the data of all ranks."""
        if self.whole.slopes_need_data and "curvature" not in vars(self.part) and not self.shares.single:
            self.part.curvature = self._curvature_of(self.available)
        return self.part

    @property
    def _bounded(self) -> Any:
        """The same, but if the bound of all L_i was given, no data is read for it."""
        return self._settled if self.part._lipschitz_max is None else self.part

    def _sum(self, part: Callable[[Tensor, Tensor], Tensor], views: Views, weights: Weights, like: Tensor) -> Tensor:
        index = self._index(views)
        w = self.whole._factors(index, weights)
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
