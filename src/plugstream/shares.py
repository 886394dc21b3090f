"""How a list of views is cut among processes, and how their results become one again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from plugstream.errors import InputError
from plugstream.ranks import Group

__all__ = ["Shares", "tree_sum"]

T = TypeVar("T")


class Shares:
    """Cuts a list into parts of nearly equal length, in order, and gives each process a run of them.

    Without `shards` there are as many parts as processes, and their sum is an all-reduce. With them there are always so
    many parts, and sums are those of a binary tree over the parts. Where the number of processes divides that of parts
    each adds up its own branch of the tree, and only one tensor a process goes over the network; otherwise every part's
    does. The bits are the same either way.

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
        """The sum over all parts of what `part` says of each: the same on every process.

        Arguments: part, from a range of the list to a tensor; like, zeros of its shape and type, for parts that are
        empty.
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
        """What `part` says of each range, one after the other along an axis: (..., count, ...) on every process.

        Arguments: like, of the result's shape and type but with nothing along the axis.
        """
        if self.single:
            return part(slice(0, count))
        runs = [self._run(count, rank) for rank in range(self.group.size)]
        most = max(stop - start for start, stop in runs)
        shape = [*like.shape[:axis], most, *like.shape[axis + 1 :]]

        def compute() -> Tensor:
            out, start = like.new_zeros(shape), 0
            for rows in self.own(count):
                if rows.stop > rows.start:
                    length = rows.stop - rows.start
                    out.narrow(axis, start, length).copy_(part(rows))
                    start += length
            return out

        mine, failure = _attempt(compute, like.new_zeros(shape))
        rows = self.group.gather(mine, failure)
        return torch.cat([rows[rank].narrow(axis, 0, stop - start) for rank, (start, stop) in enumerate(runs)], axis)

    def max(self, count: int, part: Callable[[slice], float]) -> float:
        """The largest of what `part` says of each range, at least 0."""

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
    """What a function returns, or something instead and why; all processes are told by the message that follows."""
    try:
        return compute(), None
    except Exception as error:
        return instead, error
