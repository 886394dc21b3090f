"""How views are cut among processes, how their results are put together, and a model that they compute together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.processes import Group
from plugstream.models.base import Model, ModelBase, WrappedModel
from plugstream.models.views import Views, all_views

T = TypeVar("T")


class Shares:
    """Cuts a list into parts of nearly equal length, in order, and gives each process a run of them.

    Without `shards` there are as many parts as processes, and their sum is an all-reduce. With `shards` there are that
    many parts, summed by a binary tree. If the number of processes divides that of parts, each process adds its own
    branch of the tree, and sends one tensor; otherwise it sends one for each part. The bits are the same either way.

    Arguments: group; shards, a power of two, or None.
    """

    def __init__(self, group: Group, shards: int | None = None) -> None:
        if shards is not None and (shards < 1 or shards & (shards - 1)):
            raise InputError(f"the number of shards must be a power of two, 1, 2, 4, ..., not {shards}")
        self.group, self.shards = group, shards

    @property
    def single(self) -> bool:
        """Whether one process has all in one part."""
        return self.group.size == 1 and self.shards in (None, 1)

    def own(self, count: int) -> list[slice]:
        """This process's parts of a list of `count`; some may be empty."""
        return self._parts(count, self.group.rank)

    def sum(self, count: int, part: Callable[[slice], Tensor], like: Tensor) -> Tensor:
        """The sum of `part` over all parts, the same on every process.

        Arguments: part, from a range of the list to a tensor; like, zeros of its shape and type, for empty parts.
        """
        own = self.own(count)

        def compute() -> list[Tensor]:
            return [part(rows).to(like.dtype).expand_as(like) if rows.stop > rows.start else like for rows in own]

        if self.shards is None:
            terms, failure = _attempt(compute, [like])
            return self.group.sum(terms[0], failure)
        size, shards = self.group.size, self.shards
        if shards % size == 0:
            branch, failure = _attempt(lambda: [tree_sum(compute())], [like])
            return tree_sum(list(self.group.gather(branch[0], failure)))
        most = max(len(self._numbers(rank)) for rank in range(size))
        terms, failure = _attempt(compute, [like] * len(own))
        rows = self.group.gather(torch.stack([*terms, *[like] * (most - len(terms))]), failure)
        return tree_sum([rows[rank, place] for rank in range(size) for place in range(len(self._numbers(rank)))])

    def join(self, count: int, part: Callable[[slice], Tensor], like: Tensor, axis: int) -> Tensor:
        """The results of `part`, one after the other along an axis: (..., count, ...) on every process.

        Arguments: like, of the result's shape and type but empty along the axis.
        """
        if self.single:
            return part(slice(0, count))
        runs = [self._run(count, rank) for rank in range(self.group.size)]
        most = max(stop - start for start, stop in runs)
        shape = [*like.shape[:axis], most, *like.shape[axis + 1 :]]

        def compute() -> Tensor:
            out, own = like.new_zeros(shape), self.own(count)
            for rows in own:
                if rows.stop > rows.start:
                    out.narrow(axis, rows.start - own[0].start, rows.stop - rows.start).copy_(part(rows))
            return out

        mine, failure = _attempt(compute, like.new_zeros(shape))
        rows = self.group.gather(mine, failure)
        return torch.cat([rows[rank].narrow(axis, 0, stop - start) for rank, (start, stop) in enumerate(runs)], axis)

    def max(self, count: int, part: Callable[[slice], float]) -> float:
        """The largest result of `part`, at least 0."""

        def compute() -> float:
            return max([part(rows) for rows in self.own(count) if rows.stop > rows.start], default=0.0)

        value, failure = _attempt(compute, 0.0)
        return self.group.max(value, failure)

    def _numbers(self, rank: int) -> range:
        """The numbers of a process's parts."""
        size = self.group.size
        if self.shards is None:
            return range(rank, rank + 1)
        return range(rank * self.shards // size, (rank + 1) * self.shards // size)

    def _parts(self, count: int, rank: int) -> list[slice]:
        parts = self.group.size if self.shards is None else self.shards
        return [slice(count * number // parts, count * (number + 1) // parts) for number in self._numbers(rank)]

    def _run(self, count: int, rank: int) -> tuple[int, int]:
        """Where a process's parts begin and end."""
        parts = self._parts(count, rank)
        return (parts[0].start, parts[-1].stop) if parts else (0, 0)


def tree_sum(terms: Sequence[Tensor]) -> Tensor:
    """The sum of a power of two of tensors, neighbours first: ((a + b) + (c + d)) + ...; the order is always this."""
    terms = list(terms)
    while len(terms) > 1:
        terms = [terms[k] + terms[k + 1] for k in range(0, len(terms), 2)]
    return terms[0]


def _attempt(compute: Callable[[], T], instead: T) -> tuple[T, BaseException | None]:
    """The result of a function, or `instead` and the error, which the next message passes on to all processes."""
    try:
        return compute(), None
    except Exception as error:
        return instead, error


class SplitModel(WrappedModel):
    """A model whose `normal`, `normal_each`, `squared_norms` and `squared_norm_bounds` all processes compute together.

    Each computes its part, and all get the model's result; random starts of Lanczos iterations are those of one
    process. Everything else is the model's own, for the views that a process asks for.

    `squared_norms` of a model's own need no products with images: every process computes them, and rank 0 counts.
    `squared_norm_bounds` of its own, or of a non-negative model, depend on each view alone, hence are shared.
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
        """x -> sum_i w_i Re(H_i^H H_i x); each process computes its part of the sum."""
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
    """Whether a model has this method from `ModelBase`."""
    return getattr(getattr(model, name), "__func__", None) is getattr(ModelBase, name)
