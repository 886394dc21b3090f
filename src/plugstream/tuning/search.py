"""Searches: one number by golden section, several settings by successive halving. They compare scores, nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plugstream.errors import InputError

__all__ = ["Best", "golden_section", "successive_halving", "worst_if_nan"]

Floats = NDArray[np.float64]

_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Best:
    """Where the largest scores were found: value and score of each of n problems, (n,), and how often it was asked."""

    value: Floats
    score: Floats
    evaluations: int


def golden_section(
    objective: Callable[[Floats], ArrayLike],
    low: ArrayLike,
    high: ArrayLike,
    *,
    grid: int = 5,
    evaluations: int = 12,
) -> Best:
    r"""Find the argument > 0 that gives the largest score, for n independent problems at a time.

    First `grid` arguments from low to high, in equal ratios; then golden section between the neighbours of the best.
    Each evaluation asks for one argument of each problem, so that all problems can be run as one batch.

    If a score has a single maximum over log(argument), each evaluation after the first two of the second part divides
    the interval that holds it by 1.618; otherwise the result is the best that was seen, whatever the shape, and
    beyond that nothing is promised. NaN counts as the worst score.

    Arguments:
        objective: from n arguments, (n,), to n scores, (n,), larger being better.
        low, high: the range of each problem, (n,), or numbers for one problem, 0 < low < high.
        grid: arguments of the first part, at least 3. evaluations: of both parts together.
    Reference: Kiefer, Proc. Amer. Math. Soc. 4, 1953.
    """
    first, last = np.atleast_1d(np.asarray(low, dtype=float)), np.atleast_1d(np.asarray(high, dtype=float))
    if first.shape != last.shape or not bool(((first > 0) & (first < last) & np.isfinite(last)).all()):
        raise InputError(f"a search needs a range 0 < low < high, not from {low!r} to {high!r}")
    if grid < 3 or evaluations < grid:
        raise InputError(f"a search needs a grid of at least 3 and as many evaluations, not {grid} and {evaluations}")
    seen: list[tuple[Floats, Floats]] = []

    def ask(place: Floats) -> Floats:
        score = np.asarray(objective(np.exp(place)), dtype=float).reshape(place.shape)
        score = np.where(np.isnan(score), -np.inf, score)
        seen.append((place, score))
        return score

    a, b = np.log(first), np.log(last)
    places = [a + (b - a) * part for part in np.linspace(0, 1, grid)]
    scores = np.stack([ask(place) for place in places])
    at = scores.argmax(0)
    width = (b - a) / (grid - 1)
    a, b = a + width * np.maximum(at - 1, 0), a + width * np.minimum(at + 1, grid - 1)
    left = evaluations - grid
    if left >= 2:
        c, d = b - _GOLDEN * (b - a), a + _GOLDEN * (b - a)
        at_c, at_d = ask(c), ask(d)
        for _ in range(left - 2):
            lower = at_c >= at_d  # the maximum lies below d
            a, b = np.where(lower, a, c), np.where(lower, d, b)
            new = np.where(lower, b - _GOLDEN * (b - a), a + _GOLDEN * (b - a))
            got = ask(new)
            c, d, at_c, at_d = (
                np.where(lower, new, d),
                np.where(lower, c, new),
                np.where(lower, got, at_d),
                np.where(lower, at_c, got),
            )
    elif left == 1:
        ask((a + b) / 2)
    table = np.stack([score for _, score in seen])
    best = table.argmax(0)
    chosen = np.take_along_axis(np.stack([place for place, _ in seen]), best[None], 0)[0]
    return Best(np.exp(chosen), np.take_along_axis(table, best[None], 0)[0], len(seen))


def successive_halving(
    objective: Callable[[Any, int], float],
    candidates: Sequence[Any],
    *,
    budget: int,
    least: int = 1,
    eta: float = 3.0,
) -> list[tuple[float, Any]]:
    """Find a good one among many settings without running each to its end.

    All candidates are scored with a small budget, the best 1/eta of them with eta times as much, and so on until few
    are left, which are scored with the full budget. Finds the best one if a candidate that is among the best at the
    end is not among the worst at the beginning.

    Arguments:
        objective: from a candidate and a budget (iterations, say) to a score, larger being better.
        budget: of the last round. least: no round gets less. eta: how many times fewer candidates in the next, > 1.
    Returns (score, candidate) of the last round, best first; ties in the order given.
    Reference: Jamieson and Talwalkar, AISTATS 2016.
    """
    if not candidates or not eta > 1 or not 1 <= least <= budget:
        raise InputError("successive halving needs candidates, eta > 1 and 1 <= least <= budget")
    rounds = 0
    while len(candidates) / eta ** (rounds + 1) >= 1 and budget / eta ** (rounds + 1) >= least:
        rounds += 1
    left = list(candidates)
    for number in range(rounds, -1, -1):
        given = max(least, round(budget / eta**number))
        scored = [(worst_if_nan(objective(candidate, given)), candidate) for candidate in left]
        scored.sort(key=lambda pair: -pair[0])  # stable
        left = [candidate for _, candidate in scored[: max(1, math.ceil(len(scored) / eta))]]
    return scored


def worst_if_nan(score: float) -> float:
    """A score, minus infinity for NaN: a run that failed is worse than any that did not."""
    return -math.inf if math.isnan(score) else float(score)
