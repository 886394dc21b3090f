"""Which views the next step uses: pure functions of (seed, step, available views).

Samplers remember nothing, so a run that was stopped, resumed or split over machines draws the same views. Random
numbers are the raw words of Philox, a counter-based generator, at counter = step: they do not depend on NumPy's version
or on the draws of earlier steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.draws import draw_words
from plugstream.base.errors import InputError
from plugstream.models.views import evenly_spaced


class Batch(NamedTuple):
    """The views of a step and the factor of each one's gradient (None: 1 / number of views).

    Views are indices, repeats allowed, or None for all that are available.
    """

    views: Tensor | None
    weights: Tensor | None = None


class Sampler(Protocol):
    """Chooses the views of a step.

    One whose steps all use the same views may declare it: `repeats` is then "all" (of them) or "few".
    """

    def draw(self, step: int, available: Tensor) -> Batch:
        """The batch of step `step` (0 is the first) when these views are available: their indices, (n,), ascending."""


def as_sampler(sampler: Any) -> Sampler:
    """A sampler; a number B is Uniform(B), B independent views a step."""
    if isinstance(sampler, int | np.integer) and not isinstance(sampler, bool):
        return Uniform(int(sampler))
    if isinstance(sampler, type) or not callable(getattr(sampler, "draw", None)):
        names = "All(), Uniform(B), Epochs(B), ShiftedViews(B), FixedViews(views), Importance(B, p)"
        raise InputError(f"a sampler must be one of {names} or a number B of views a step, not {sampler!r}")
    return cast(Sampler, sampler)


def repeated_views(sampler: Sampler) -> str:
    """Which views all steps of a sampler share: "all", a "few", or "" for none; what it declares as `repeats`."""
    return str(getattr(sampler, "repeats", ""))


def drawable(sampler: Sampler, step: int, available: Tensor) -> Sampler:
    """The sampler if it can draw from these views, and otherwise `All`.

    Fixed views may not be among them; most samplers draw from any number of views, some of them repeatedly.
    """
    try:
        sampler.draw(step, available)
    except InputError:
        return All()
    return sampler


@dataclass(frozen=True)
class All:
    """Every view in every step: the batch algorithms."""

    repeats: ClassVar = "all"

    def draw(self, step: int, available: Tensor) -> Batch:
        return Batch(None)


@dataclass(frozen=True)
class FixedViews:
    """The same few views in every step: a batch algorithm on part of the data (the paper's PnP-FISTA(10))."""

    repeats: ClassVar = "few"

    views: Sequence[int]

    def draw(self, step: int, available: Tensor) -> Batch:
        views = torch.as_tensor(self.views, dtype=torch.int64)
        missing = ~torch.isin(views, available)
        if bool(missing.any()):
            first = int(views[missing][0])
            raise InputError(f"view {first} was asked for, but is not among the {len(available)} views available")
        return Batch(views)


@dataclass(frozen=True)
class _Places:
    """A sampler of `batch` views by their places among those available."""

    batch: int

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InputError(f"a batch needs at least one view, not {self.batch}")

    def draw(self, step: int, available: Tensor) -> Batch:
        return Batch(available[torch.from_numpy(self._places(step, _count(available)))])

    def _places(self, step: int, n: int) -> NDArray[np.int64]:
        raise NotImplementedError


@dataclass(frozen=True)
class Uniform(_Places):
    """Independent, uniformly distributed views, with replacement: the paper's PnP-SGD.

    E[mean of B gradients] is the full gradient, with variance nu^2 / B (Assumption 2d).
    """

    seed: int = 0

    def _places(self, step: int, n: int) -> NDArray[np.int64]:
        # Fractions of 53 bits times n: the bias is at most n / 2^53.
        return (_fractions(self.seed, step, self.batch) * n).astype(np.int64)


@dataclass(frozen=True)
class Epochs(_Places):
    """Every view once before any comes again, shuffled for each epoch.

    The steps cut an endless row of shuffled epochs into batches, so a batch may take the end of one epoch and the start
    of the next; each of its places is uniformly distributed, hence unbiased, whether or not B divides n.
    """

    seed: int = 0

    def _places(self, step: int, n: int) -> NDArray[np.int64]:
        places = range(step * self.batch, (step + 1) * self.batch)
        return np.array([_order(self.seed, p // n, n)[p % n] for p in places])


@dataclass(frozen=True)
class ShiftedViews(_Places):
    """B evenly spaced views, all moved on by one in each step: what the paper's authors ran.

    Not random: a single step is biased, but over n consecutive steps every view has been used B times. For views
    on a circle each batch sees the object from all sides, which in practice beats independent draws.

        >>> import torch, plugstream as ps
        >>> sampler = ps.ShiftedViews(3)
        >>> [sampler.draw(step, torch.arange(12)).views.tolist() for step in (0, 1)]
        [[0, 4, 8], [1, 5, 9]]
    """

    offset: int = 0

    def _places(self, step: int, n: int) -> NDArray[np.int64]:
        return (evenly_spaced(self.batch, n) + step + self.offset) % n


@dataclass(frozen=True, eq=False)
class Importance(_Places):
    """Independent views drawn with given probabilities, each gradient divided by its own so as to stay unbiased.

    P(i) = p_i, weights 1 / (B n p_i): E[sum_b w_b grad d_{i_b}] = (1/n) sum_i grad d_i for any p > 0. With
    p_i proportional to L_i the step may go by the mean of the L_i instead of their maximum.

    Arguments: probabilities, (views,), positive, of any scale; those of the available views are rescaled.
    Reference: Needell, Srebro and Ward, Mathematical Programming 155, 2016.
    """

    probabilities: Sequence[float] | Tensor
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        p = torch.as_tensor(self.probabilities, dtype=torch.float64)
        if p.ndim != 1 or not bool((torch.isfinite(p) & (p > 0)).all()):
            raise InputError("importance probabilities must be a list of numbers > 0, one for each view")

    def draw(self, step: int, available: Tensor) -> Batch:
        p = np.asarray(self.probabilities, dtype=np.float64)
        n = _count(available)
        if (last := int(available.max())) >= len(p):
            raise InputError(f"there are {last + 1} views, but importance probabilities for {len(p)}")
        p = p[available.numpy()]
        edges = np.cumsum(p)
        uniform = _fractions(self.seed, step, self.batch)
        index = np.minimum(np.searchsorted(edges, uniform * edges[-1], side="right"), n - 1)
        weights = torch.from_numpy(edges[-1] / (self.batch * n * p[index]))
        return Batch(available[torch.from_numpy(index)], weights)


@dataclass(frozen=True, eq=False)
class OnceEach:
    """Draws what another sampler draws, but every view once if there are fewer than a batch.

    A scan that is still running, or ended early, may have fewer. The mean over three views is what a batch of ten from
    them approximates, at less cost.

    Arguments: sampler; batch, how many views it draws.
    """

    sampler: Sampler
    batch: int

    @property
    def repeats(self) -> str:
        return repeated_views(self.sampler)

    def draw(self, step: int, available: Tensor) -> Batch:
        return self.sampler.draw(step, available) if _count(available) >= self.batch else Batch(available)


@dataclass(frozen=True, eq=False)
class Announcer:
    """Draws what another sampler draws, and announces the views of this step and the next ones.

    A draw depends only on seed, step and available views, so the data can be read ahead; if more views become available
    meanwhile, later steps are announced again. Draws are kept until their step, so that each step draws once.

    Arguments: sampler; tell, called with a list of views, soonest first; ahead, how many steps after this one.
    """

    sampler: Sampler
    tell: Callable[[list[Tensor]], None]
    ahead: int = 2
    _last: list[tuple[Tensor, dict[int, Batch]]] = field(default_factory=list, init=False, repr=False)

    @property
    def repeats(self) -> str:
        return repeated_views(self.sampler)

    def draw(self, step: int, available: Tensor) -> Batch:
        steps = range(step, step + self.ahead + 1)
        earlier = self._last[0][1] if self._last and self._last[0][0] is available else {}
        draws = {k: earlier[k] if k in earlier else self.sampler.draw(k, available) for k in steps}
        self._last[:] = [(available, draws)]
        batches = list(draws.values())
        if batches[0].views is not None:
            self.tell([batch.views for batch in batches if batch.views is not None])
        return batches[0]


@lru_cache(maxsize=2)  # this epoch and the next, into which a batch and those announced after it may reach
def _order(seed: int, epoch: int, n: int) -> NDArray[np.int64]:
    return np.argsort(draw_words(seed, epoch, n), kind="stable")


def _fractions(seed: int, step: int, count: int) -> NDArray[Any]:
    """Uniform numbers in [0, 1): the top 53 bits of random words."""
    return (draw_words(seed, step, count) >> np.uint64(11)) * 2.0**-53


def _count(available: Tensor) -> int:
    if len(available) < 1:
        raise InputError("there are no views to draw from")
    return len(available)
