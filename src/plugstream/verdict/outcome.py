"""Whether a result can be trusted, told from the history of its distance to a fixed point."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plugstream.algorithms.variance import Plain
from plugstream.sampling import All, FixedViews

__all__ = ["Outcome", "Verdict", "has_settled", "judge", "judge_misfit", "remedies", "worst_verdict"]

# The distance is a squared length: below 1e-8 of its start, one step moves the image by less than 1e-4 of what the
# first one did. Below 1e-6 it has converged too, unless it halves over the last measurements: then what it is still
# doing may well be seen, as it is in the first fifty steps of `plugstream demo`.
_TINY, _SMALL, _HALVED = 1e-8, 1e-6, math.log10(2)
# An iteration whose distance ends above half of its start, and does not fall, leads nowhere.
_NOWHERE = 0.5
# How many measurements a trend needs, and how many of the last ones are looked at: a third, but at least six.
_FEWEST, _LAST, _PART = 4, 6, 3
# Kendall's score, in standard deviations, from which a trend is one: 5 % of the rows without any have a larger one.
_SIGNIFICANT = 1.6
# A fall of less than this part of the whole one, in decades, has levelled off; where r goes as 1/k it is 3 to 10 %.
_LEVELLED = 0.01
# A run from a fixed point that stays within this part of the farthest it came has not left it.
_LEFT = 0.1
# A misfit that is less than the least before it by no more than this part has not fallen.
_FALLEN = 1e-3
# The part of the data that an image leaves unexplained from which on it explains nothing.
_UNEXPLAINED = 0.9


class Outcome(Enum):
    """How a run came out."""

    CONVERGED = "converged"
    FALLING = "still falling"
    HOVERING = "hovering"
    DIVERGED = "diverged"
    STUCK = "stuck at its start"
    UNEXPLAINED = "explains nothing"
    NOT_MEASURED = "not measured"


# The verdict on several images is the one on the worst of them.
_WORST = (
    Outcome.DIVERGED,
    Outcome.STUCK,
    Outcome.UNEXPLAINED,
    Outcome.NOT_MEASURED,
    Outcome.HOVERING,
    Outcome.FALLING,
    Outcome.CONVERGED,
)


@dataclass(frozen=True)
class Verdict:
    """Whether a result can be trusted: how the run came out, and a sentence that says why and what to do."""

    outcome: Outcome
    text: str

    @property
    def name(self) -> str:
        """The outcome in words, such as "still falling"."""
        return self.outcome.value

    @property
    def trusted(self) -> bool:
        """Whether the image is one that the algorithm seeks; all others say why they may not be."""
        return self.outcome is Outcome.CONVERGED

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


def judge(
    step: ArrayLike,
    distance: ArrayLike,
    relative: ArrayLike,
    *,
    failure: str | None = None,
    advice: str = "",
    partial: bool = False,
) -> Verdict:
    """Say from the measurements of a run whether its result can be trusted.

    With r the distance ||x - T(x)||^2 relative to its start, over the last third of the measurements (at least six):

    | verdict | where |
    | --- | --- |
    | diverged | the run failed; or r ends above 1/2 and does not fall |
    | stuck at its start | every distance is 0, or the first one and r stays above 1/10: it is a fixed point |
    | not measured | there are fewer than four measurements and r does not fall, or it is not finite |
    | converged | r <= 1e-8; or r <= 1e-6 and it does not halve |
    | still falling | r falls |
    | hovering | r does neither |

    r falls where Kendall's test of a trend says so at 5 %, and log r by more than it scatters about its Theil-Sen line
    and by more than 1 % of what it fell in all, short of which it has levelled off.

    Arguments:
        step: (n,) of the measurements. distance, relative: (n, ...), a value for each image.
        failure: why the run failed, if it did.
        advice: what would lower a distance that hovers, as `remedies` says it.
        partial: whether it was measured on some of the views only, which has a floor of its own.
    References: Kendall, Biometrika 30, 1938; Theil, Proc. KNAW 53, 1950; Sen, J. Am. Stat. Assoc. 63, 1968.
    """
    if failure is not None:
        return Verdict(Outcome.DIVERGED, failure)
    steps = np.asarray(step, dtype=np.float64)
    if len(steps) == 0:
        return Verdict(
            Outcome.NOT_MEASURED, "its distance to a fixed point was not measured, so nothing is known of it"
        )
    d = np.asarray(distance, dtype=np.float64).reshape(len(steps), -1)
    r = np.asarray(relative, dtype=np.float64).reshape(len(steps), -1)
    advices = [advice, "it is measured on some of the views, which has a floor of its own" if partial else ""]
    verdicts = [_judge_one(steps, d[:, i], r[:, i], advices) for i in range(d.shape[1])]
    number = min(range(len(verdicts)), key=lambda i: _WORST.index(verdicts[i].outcome))
    worst = verdicts[number]
    if len(verdicts) == 1 or worst.outcome is Outcome.CONVERGED:
        return worst
    return Verdict(worst.outcome, f"image {number} of {len(verdicts)}: {worst.text}")


def worst_verdict(verdicts: Mapping[str, Verdict]) -> Verdict:
    """The verdict on parts of an image together, by their names: that on the worst.

    A part that stays at its start, as one without an object does, is taken into account where all do.
    """
    moved = {name: one for name, one in verdicts.items() if one.outcome is not Outcome.STUCK} or dict(verdicts)
    if not moved:
        return Verdict(Outcome.NOT_MEASURED, "no part of it has finished")
    name = min(moved, key=lambda one: _WORST.index(moved[one].outcome))
    worst = moved[name]
    if len(verdicts) == 1 or worst.outcome is Outcome.CONVERGED:
        return worst
    return Verdict(worst.outcome, f"{name}: {worst.text}")


def has_settled(values: Sequence[float], count: int) -> bool:
    """Whether none of the last `count` values is below the least of those before, by more than a thousandth of it.

    Batches make a misfit go up and down, so that it takes several measurements to know that it falls no more.

    Arguments: values, in the order in which they were measured; count, at least 1.
    """
    before = values[:-count]
    return len(before) > 0 and not min(values[-count:]) < (1 - _FALLEN) * min(before)


def judge_misfit(verdict: Verdict, misfit: float, *, linear: bool) -> Verdict:
    """The verdict on a run whose image leaves this part of the data unexplained (`plugstream.misfit`).

    An image of zero leaves all of it, 1. From 0.9 on it explains nothing, and where its distance to a fixed point has
    settled that is the verdict: it is a fixed point, but no image of the object. Where it still falls the run has
    perhaps only begun, and the sentence says so.

    Arguments: linear, whether the model is; one that is not may be stuck in a wrong minimum, at zero say.
    """
    if not misfit >= _UNEXPLAINED or verdict.outcome is Outcome.DIVERGED:
        return verdict
    nothing = f"the image explains nothing of the data: it leaves {misfit:.0%} unexplained, and an empty one all of it"
    ways = "lower sigma, lift a bound, and look at the units of all lengths"
    advice = ways if linear else f"begin with lower frequencies (--hop auto), {ways}"
    if verdict.outcome in (Outcome.CONVERGED, Outcome.HOVERING):
        return Verdict(Outcome.UNEXPLAINED, f"{nothing}; {advice}, unless the data is all noise")
    return Verdict(verdict.outcome, f"{verdict.text}; so far {nothing}")


def _judge_one(
    steps: NDArray[np.float64], d: NDArray[np.float64], r: NDArray[np.float64], advices: list[str]
) -> Verdict:
    if not (math.isfinite(d[-1]) and math.isfinite(r[-1])):
        return Verdict(Outcome.NOT_MEASURED, "its distance to a fixed point is not finite, so nothing is known of it")
    if not d.any():
        return Verdict(
            Outcome.STUCK,
            f"its distance to a fixed point is 0 from the start and nothing has moved: {_BACK}",
        )
    if r[-1] <= _TINY:
        return Verdict(Outcome.CONVERGED, f"its distance to a fixed point is {r[-1]:.1e} of its start")
    usable = np.isfinite(r) & (r > 0)
    steps, r = steps[usable], r[usable]
    last = slice(-max(_LAST, len(r) // _PART), None)
    trend = _Trend.of(steps[last], r[last])
    level, span = float(np.median(r[last])), int(steps[-1] - steps[last][0])
    if len(r) < _FEWEST:
        if len(r) > 1 and r[-1] < r[-2]:
            return Verdict(Outcome.FALLING, f"its distance to a fixed point is {r[-1]:.1e} of its start and {_MORE}")
        count = f"{len(r)} time{'' if len(r) == 1 else 's'}"
        return Verdict(Outcome.NOT_MEASURED, f"its distance to a fixed point was measured {count}, too few to tell")
    if max(level, r[-1]) <= _SMALL and trend.fall < _HALVED:
        return Verdict(Outcome.CONVERGED, f"its distance to a fixed point is {r[-1]:.1e} of its start and stays there")
    if trend.falls and trend.fall > _LEVELLED * math.log10(r.max() / r[-1]):
        return Verdict(
            Outcome.FALLING,
            f"its distance to a fixed point is {r[-1]:.1e} of its start, {10**trend.fall:.3g} times less than "
            f"{span} steps before, and {_MORE}",
        )
    if d[0] == 0 and level > _LEFT:
        return Verdict(
            Outcome.STUCK,
            f"its distance to a fixed point is 0 at the start, and only the noise of the batches moves it: {_BACK}",
        )
    if min(level, r[-1]) > _NOWHERE:
        return Verdict(
            Outcome.DIVERGED,
            f"its distance to a fixed point is {r[-1]:.2g} of its start after {int(steps[-1])} steps and does not "
            "fall; use a shorter step (at most 1/L) or a milder denoiser, or lift a bound that holds it",
        )
    text = f"its distance to a fixed point stays about {level:.1e} of its start"
    best = int(np.argmin(r))
    if r[best] < level / 10:
        text += f", after {r[best]:.1e} at step {int(steps[best])}"
    return Verdict(Outcome.HOVERING, "; ".join([text, *(advice for advice in advices if advice)]))


_BACK = (
    "the gradient is zero there, or a bound or a large sigma leads back to it; start from another image, lift the "
    "bound or lower sigma"
)
_MORE = "more iterations would bring it nearer"


@dataclass(frozen=True)
class _Trend:
    """By how many decades a quantity falls from the first step to the last, and whether that is more than chance."""

    fall: float
    falls: bool

    @classmethod
    def of(cls, steps: NDArray[np.float64], values: NDArray[np.float64]) -> _Trend:
        n = len(steps)
        if n < 2:
            return cls(0.0, False)
        y = np.log10(values)
        i, j = np.triu_indices(n, 1)
        slope = float(np.median((y[j] - y[i]) / (steps[j] - steps[i])))
        rest = y - slope * steps
        scatter = 1.4826 * float(np.median(np.abs(rest - np.median(rest))))
        score = float(np.sign(y[i] - y[j]).sum())
        deviations = (score - 1) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
        fall = -slope * float(steps[-1] - steps[0])
        return cls(fall, deviations >= _SIGNIFICANT and fall > scatter)


def remedies(algorithm: Any) -> str:
    """What keeps the distance of an algorithm from falling, and what would lower it, in words."""
    sampler = getattr(algorithm, "sampler", All())
    while hasattr(sampler, "sampler"):  # one that only announces what another draws
        sampler = sampler.sampler
    if isinstance(sampler, FixedViews):
        return "each step takes the same few views and the others pull elsewhere: all views would lower it"
    if isinstance(sampler, All):
        return (
            "the denoiser is not accurate or not steady enough: a smaller tol, damping or a shorter step may lower it"
        )
    ways = ["a larger batch", "a shorter step"]
    if isinstance(getattr(algorithm, "gradient", None), Plain):
        ways.append("SAGA or SVRG")
    momentum = getattr(algorithm, "momentum", "none")
    if momentum not in ("none", "bounded", "tapered") and not hasattr(momentum, "limit"):
        ways.append("momentum 'bounded'")
    return f"that is the noise floor of the batches: {', '.join(ways)} or all views would lower it"
