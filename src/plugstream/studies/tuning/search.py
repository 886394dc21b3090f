"""Searches: one number by golden section or where a function changes sign, several settings by successive halving."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plugstream.base.errors import InputError
from plugstream.base.progress import within

Floats = NDArray[np.float64]

_GOLDEN = (math.sqrt(5) - 1) / 2
# What is less than this apart counts as equal in a search for a sign: a hundredth of a decibel.
_FLAT = 0.01


@dataclass(frozen=True)
class Best:
    """The largest scores: value and score of each of n problems, (n,), and the number of evaluations.

    edge: -1 if the best value is the least that was tried, 1 if it is the largest, and otherwise 0, (n,). At an edge
    the maximum may lie beyond.
    """

    value: Floats
    score: Floats
    evaluations: int
    edge: NDArray[np.int64]


@dataclass(frozen=True)
class Crossing:
    """Where a function changes sign, and how far from zero it is there.

    edge: 1 if it is negative up to the largest argument that was tried, -1 if it is positive at all of them, and
    otherwise 0. At an edge there is no crossing, and `value` is where it is nearest to zero.
    """

    value: float
    excess: float
    evaluations: int
    edge: int


def golden_section(
    objective: Callable[[Floats], ArrayLike],
    low: ArrayLike,
    high: ArrayLike,
    *,
    grid: int = 5,
    evaluations: int = 12,
    widenings: int = 0,
) -> Best:
    r"""Find the argument > 0 that gives the largest score, for n independent problems at a time.

    First `grid` arguments from low to high, in equal ratios, and up to `widenings` more beyond an end that is best.
    Then golden section between the neighbours of the best. Each evaluation has one argument for each problem, so that
    all problems can be run as one batch.

    If a score has a single maximum over log(argument), each evaluation after the first two of the second part divides
    its interval by 1.618; otherwise the result is the best value seen. NaN counts as the worst score.

    Arguments:
        objective: from n arguments, (n,), to n scores, (n,), larger being better.
        low, high: the range of each problem, (n,), or numbers for one problem, 0 < low < high.
        grid: arguments of the first part, at least 3. evaluations: of both parts together, without the widenings.
        widenings: how many arguments beyond the range may be tried, each one ratio of the grid further.
    Reference: Kiefer, Proc. Amer. Math. Soc. 4, 1953.
    """
    first, last = np.atleast_1d(np.asarray(low, dtype=float)), np.atleast_1d(np.asarray(high, dtype=float))
    if first.shape != last.shape or not bool(((first > 0) & (first < last) & np.isfinite(last)).all()):
        raise InputError(f"a search needs a range 0 < low < high, not from {low!r} to {high!r}")
    if grid < 3 or evaluations < grid:
        raise InputError(f"a search needs a grid of at least 3 and as many evaluations, not {grid} and {evaluations}")
    evaluated: list[tuple[Floats, Floats]] = []

    def ask(place: Floats) -> Floats:
        score = np.asarray(objective(np.exp(place)), dtype=float).reshape(place.shape)
        score = np.where(np.isnan(score), -np.inf, score)
        evaluated.append((place, score))
        return score

    a, b = np.log(first), np.log(last)
    width = (b - a) / (grid - 1)
    for part in np.linspace(0, 1, grid):
        ask(a + (b - a) * part)
    for _ in range(widenings):
        best = _best(evaluated)[0]
        down, up = best <= a, best >= b
        if not bool((down | up).any()):
            break
        a, b = np.where(down, a - width, a), np.where(up, b + width, b)
        ask(np.where(down, a, np.where(up, b, best)))  # a problem whose best is inside is asked for what it has
    lowest, highest = a, b
    best = _best(evaluated)[0]
    a, b = np.maximum(best - width, lowest), np.minimum(best + width, highest)
    remaining = evaluations - grid
    if remaining >= 2:
        c, d = b - _GOLDEN * (b - a), a + _GOLDEN * (b - a)
        at_c, at_d = ask(c), ask(d)
        for _ in range(remaining - 2):
            lower = at_c >= at_d  # the maximum lies below d
            a, b = np.where(lower, a, c), np.where(lower, d, b)
            new = np.where(lower, b - _GOLDEN * (b - a), a + _GOLDEN * (b - a))
            score = ask(new)
            c, d, at_c, at_d = (
                np.where(lower, new, d),
                np.where(lower, c, new),
                np.where(lower, score, at_d),
                np.where(lower, at_c, score),
            )
    elif remaining == 1:
        ask((a + b) / 2)
    place, score = _best(evaluated)
    edge = np.where(place <= lowest, -1, np.where(place >= highest, 1, 0))
    return Best(np.exp(place), score, len(evaluated), edge)


def _best(evaluated: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Place and score of the best evaluation of each problem, the first of equals."""
    table = np.stack([score for _, score in evaluated])
    first = table.argmax(0)[None]
    places = np.stack([place for place, _ in evaluated])
    return np.take_along_axis(places, first, 0)[0], np.take_along_axis(table, first, 0)[0]


def largest_crossing(
    excess: Callable[[float], float],
    low: float,
    high: float,
    *,
    grid: int = 5,
    evaluations: int = 12,
    widenings: int = 0,
) -> Crossing:
    r"""Find where a function changes from below zero to above it: the last such place, if there are several.

    First `grid` arguments from low to high, in equal ratios. If the function is still negative at the largest, the
    range is widened upwards. Then bisection of log(argument) between the last negative one and its positive neighbour,
    until `evaluations` are used up. If none is negative, further arguments are tried beside the lowest value, beyond an
    end towards which the function falls, or beyond the upper end if it is flat. NaN counts as positive.

    Each bisection halves the bracket. The result is the end of the last one at which the function is nearer to zero.

    Arguments:
        excess: a function of an argument > 0. low, high: the range, 0 < low < high.
        grid: arguments of the first part, at least 3. evaluations: in all, without the widenings.
        widenings: how many arguments beyond the range may be tried, each one ratio of the grid further.
    """
    if not (0 < low < high < math.inf) or grid < 3 or evaluations < grid:
        raise InputError(f"a search needs 0 < low < high and a grid of at least 3, not {low}, {high} and {grid}")
    excesses: dict[float, float] = {}

    def ask(place: float) -> float:
        if place not in excesses:
            value = float(excess(math.exp(place)))
            excesses[place] = math.inf if math.isnan(value) else value
        return excesses[place]

    first, last = math.log(low), math.log(high)
    width = (last - first) / (grid - 1)
    for number in range(grid):
        ask(first + number * width)
    beyond = 0
    while beyond < widenings and ask(max(excesses)) < 0:
        beyond += 1
        ask(max(excesses) + width)
    if ask(max(excesses)) < 0:
        return Crossing(math.exp(max(excesses)), ask(max(excesses)), len(excesses), 1)
    while min(excesses.values()) >= 0:
        places = sorted(excesses)
        lowest = min(range(len(places)), key=lambda k: excesses[places[k]])
        falling = excesses[places[0]] < excesses[places[1]] - _FLAT
        flat = max(excesses.values()) - excesses[places[lowest]] < _FLAT
        if beyond < widenings and (flat or lowest == len(places) - 1 or (lowest == 0 and falling)):
            beyond += 1
            ask(places[0] - width if lowest == 0 and falling else places[-1] + width)
        elif len(excesses) - beyond < evaluations:  # halfway to the farther neighbour
            neighbours = places[max(lowest - 1, 0)], places[min(lowest + 1, len(places) - 1)]
            ask((places[lowest] + max(neighbours, key=lambda place: abs(place - places[lowest]))) / 2)
        else:
            return Crossing(math.exp(places[lowest]), excesses[places[lowest]], len(excesses), -1)
    below = max(place for place, value in excesses.items() if value < 0)
    above = min(place for place in excesses if place > below)
    while len(excesses) - beyond < evaluations:
        middle = (below + above) / 2
        below, above = (middle, above) if ask(middle) < 0 else (below, middle)
    nearer = below if -excesses[below] <= excesses[above] else above
    return Crossing(math.exp(nearer), excesses[nearer], len(excesses), 0)


def successive_halving(
    objective: Callable[[Any, int], float], candidates: Sequence[Any], *, budget: int, least: int = 1, eta: float = 3.0
) -> list[tuple[float, Any]]:
    """Find a good one among many settings without running each to its end.

    All candidates are scored with a small budget, the best 1/eta of them with eta times as much, and so on; the last
    few are scored with the full budget. Finds the best one if the best at the end are not the worst at the beginning.

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
    remaining = list(candidates)
    for number in range(rounds, -1, -1):
        iterations = max(least, round(budget / eta**number))
        with within("round", rounds - number, rounds + 1):
            scored = [(worst_if_nan(objective(candidate, iterations)), candidate) for candidate in remaining]
        scored.sort(key=lambda pair: -pair[0])  # stable
        remaining = [candidate for _, candidate in scored[: max(1, math.ceil(len(scored) / eta))]]
    return scored


def worst_if_nan(score: float) -> float:
    """A score, minus infinity for NaN: a run that failed is worse than any that did not."""
    return -math.inf if math.isnan(score) else float(score)
