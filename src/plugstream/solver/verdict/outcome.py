"""Three answers on a run, each with its number and what to do: arrived, explained, chosen by the data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plugstream.algorithms.sampling import repeated_views
from plugstream.algorithms.variance import Plain
from plugstream.solver.verdict.arrival import Arrival

# An iteration whose distance ends above half of its start, and does not fall, leads nowhere.
_NOWHERE = 0.5
# A trend needs four measurements, and uses the last third of them, but at least six.
_FEWEST, _LAST, _PART = 4, 6, 3
_PAIRED = 1000  # measurements at most, of which all pairs are compared
# Kendall's score of a trend, in standard deviations at least: 5 % of the rows without a trend have a larger one.
_SIGNIFICANT = 1.6
# A run from a fixed point is stuck unless its distance falls below this part of the largest.
_STAYS = 0.1
# A distance rises if it is this many times what it was, and has a trend.
_RISEN = 2.0
# A misfit has fallen if it is below the least before it by more than this part.
_FALLEN = 1e-3


class Outcome(Enum):
    """How a run came out, the worst first: the verdict on several images is the one on the worst of them."""

    DIVERGED = "diverged"
    STUCK = "stuck at its start"
    UNEXPLAINED = "explains nothing"
    NOT_MEASURED = "not measured"
    RISING = "rising"
    MOVING = "still moving"
    HOVERING = "hovering"
    ARRIVED = "arrived"
    # Earlier names of two of them.
    CONVERGED = "arrived"  # noqa: PIE796
    FALLING = "still moving"  # noqa: PIE796


@dataclass(frozen=True)
class Answer:
    """An answer to one of the three questions.

    Arguments: word, in short, such as "explained"; good, None if that is not known; text, the answer with its number
    and what to do; number, None if there is none.
    """

    word: str
    good: bool | None
    text: str
    number: float | None = None

    def __str__(self) -> str:
        return f"{self.word}: {self.text}"

    def content(self) -> dict[str, Any]:
        """As an event stores it."""
        number = None if self.number is None or not math.isfinite(self.number) else float(f"{self.number:.6g}")
        return {"word": self.word, "good": self.good, "text": self.text, "number": number}


_NOT_ASKED = Answer("not asked", None, "nobody asked")


@dataclass(frozen=True)
class Verdict:
    """What a run says about itself: three answers, all of which a result that can be trusted needs.

    Has it arrived: `outcome`, `text` and `to_go`, what ten times as many steps would change, as a part of the image,
    None if that is not known. `explanation`: does the model explain the data. `strength`: was the strength of the
    denoiser chosen by the data. A fixed point says nothing about the last two: an image may be steady and wrong.
    """

    outcome: Outcome
    text: str
    to_go: float | None = None
    explanation: Answer = _NOT_ASKED
    strength: Answer = _NOT_ASKED

    @property
    def name(self) -> str:
        """The outcome in words, such as "still moving"."""
        return self.outcome.value

    @property
    def arrival(self) -> Answer:
        """The answer to the first question."""
        good = None if self.outcome is Outcome.NOT_MEASURED else self.outcome is Outcome.ARRIVED
        return Answer(self.name, good, self.text, None if self.to_go is None else 100 * self.to_go)

    @property
    def answers(self) -> dict[str, Answer]:
        """All three, by their questions."""
        return {
            "has the image arrived?": self.arrival,
            "does the model explain the data?": self.explanation,
            "was the strength chosen by the data?": self.strength,
        }

    @property
    def trusted(self) -> bool:
        """Whether all three answers are good."""
        return all(answer.good for answer in self.answers.values())

    def with_explanation(self, answer: Answer, *, nothing: bool = False) -> Verdict:
        """The verdict with this answer; `nothing` if the image explains nothing of the data.

        That is then the outcome, unless there is a worse one or the run has only begun.
        """
        if not nothing or self.to_go is None or self.outcome in (Outcome.DIVERGED, Outcome.STUCK):
            return replace(self, explanation=answer)
        return replace(self, outcome=Outcome.UNEXPLAINED, text=f"{answer.text}; {self}", explanation=answer)

    def content(self) -> dict[str, Any]:
        """As the event of a run's end stores it."""
        answers = {question: answer.content() for question, answer in self.answers.items()}
        return {"verdict": self.name, "trusted": self.trusted, "explanation": self.text, "answers": answers}

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


def judge(
    step: ArrayLike,
    distance: ArrayLike,
    relative: ArrayLike,
    *,
    arrivals: Sequence[Arrival] = (),
    failure: str | None = None,
    advice: str = "",
) -> Verdict:
    """Say whether a run has arrived, from how its image moved and how its distance to a fixed point went.

    With r the distance ||x - T(x)||^2 relative to its start, and what ten times as many steps would change in per cent
    of the image (`plugstream.solver.verdict.estimate_arrival`):

    | verdict | where |
    | --- | --- |
    | diverged | the run failed; or r ends above 1/2 and does not fall |
    | stuck at its start | every distance is 0, or the first one and r stays above 1/10: it is a fixed point |
    | rising | r, or what ten times as many steps would change, is twice what it was earlier, and no noise of batches |
    | arrived | ten times as many steps would change less than 1 % |
    | hovering | more, most of which is the noise of the views that each step draws |
    | still moving | more, and the image goes on in one direction; or r falls, and steps were too few to say how far |
    | not measured | nothing was, or too little |

    A distance alone never says "arrived": it is the squared length of a step, and short steps along slow directions add
    up. A trend is one where Kendall's test says so at 5 %, and log r changes by more than it scatters about its
    Theil-Sen line.

    Arguments:
        step: (n,) of the measurements. distance, relative: (n, ...), a value for each image.
        arrivals: of each image; none where steps were too few.
        failure: why the run failed, if it did.
        advice: what would lower a distance that hovers (`remedies`).
    References: Kendall, Biometrika 30, 1938; Theil, Proc. KNAW 53, 1950; Sen, J. Am. Stat. Assoc. 63, 1968.
    """
    if failure is not None:
        return Verdict(Outcome.DIVERGED, failure)
    steps = np.asarray(step, dtype=np.float64)
    if len(steps) == 0 and not arrivals:
        return Verdict(Outcome.NOT_MEASURED, "too few steps were taken to say how far the image still has to go")
    columns = -1 if len(steps) else len(arrivals)
    d = np.asarray(distance, dtype=np.float64).reshape(len(steps), columns)
    r = np.asarray(relative, dtype=np.float64).reshape(len(steps), columns)
    images = d.shape[1]
    arrival = list(arrivals) if len(arrivals) == images else [None] * images
    verdicts = [_judge_one(steps, d[:, i], r[:, i], arrival[i], advice) for i in range(images)]
    return _worst({f"image {i} of {images}": verdict for i, verdict in enumerate(verdicts)}, images > 1)


def worst_verdict(verdicts: Mapping[str, Verdict]) -> Verdict:
    """The verdict on the worst of several parts of an image, by their names.

    A part that stays at its start, as one without an object does, counts only if all do.
    """
    if not verdicts:
        return Verdict(Outcome.NOT_MEASURED, "no part of it has finished")
    moved = {name: one for name, one in verdicts.items() if one.outcome is not Outcome.STUCK} or verdicts
    return _worst(moved, len(verdicts) > 1)


def _worst(verdicts: Mapping[str, Verdict], named: bool) -> Verdict:
    """The worst verdict, the first of equals; `named` if its text should say whose it is."""
    order = list(Outcome)
    name = min(verdicts, key=lambda one: order.index(verdicts[one].outcome))
    worst = verdicts[name]
    return replace(worst, text=f"{name}: {worst.text}") if named and worst.outcome is not Outcome.ARRIVED else worst


def has_settled(values: Sequence[float], count: int) -> bool:
    """Whether none of the last `count` values is below the least before them by more than a thousandth of it.

    Batches make a misfit go up and down, so it takes several measurements to know that it has stopped falling.

    Arguments: values, in the order of measurement; count, at least 1.
    """
    before = values[:-count]
    return len(before) > 0 and not min(values[-count:]) < (1 - _FALLEN) * min(before)


def _judge_one(
    steps: NDArray[np.float64], d: NDArray[np.float64], r: NDArray[np.float64], arrival: Arrival | None, advice: str
) -> Verdict:
    if len(d) and not (math.isfinite(d[-1]) and math.isfinite(r[-1])):
        return Verdict(Outcome.NOT_MEASURED, "its distance to a fixed point is not finite, so nothing is known of it")
    if len(d) and not d.any():
        return Verdict(
            Outcome.STUCK, f"its distance to a fixed point is 0 from the start and nothing has moved: {_BACK}"
        )
    trend = _Trend.fit(steps, r)
    if len(d) and d[0] == 0 and trend.level > _STAYS and not trend.falls:
        return Verdict(
            Outcome.STUCK,
            f"its distance to a fixed point is 0 at the start, and only the noise of the batches moves it: {_BACK}",
        )
    if trend.measured and not trend.falls and min(trend.level, r[-1]) > _NOWHERE:
        return Verdict(
            Outcome.DIVERGED,
            f"its distance to a fixed point is {r[-1]:.2g} of its start after {int(steps[-1])} steps and does not "
            "fall; use a shorter step (at most 1/L) or a milder denoiser, or lift a bound that holds it",
        )
    to_go = None if arrival is None else arrival.to_go
    if trend.rises and not (arrival is not None and arrival.arrived):
        return Verdict(
            Outcome.RISING,
            f"its distance to a fixed point rises: {trend.best:.1e} of its start at step {trend.best_step}, and "
            f"{r[-1]:.1e} now, so that the image of then was nearer; {advice or _STEADY}",
            to_go,
        )
    if arrival is None:
        return _judge_without(r, trend)
    return _judge_arrival(arrival, advice)


def _judge_arrival(arrival: Arrival, advice: str) -> Verdict:
    change = f"ten times as many steps would change the image by about {_percent(arrival.to_go)}"
    if arrival.arrived:
        return Verdict(Outcome.ARRIVED, change, arrival.to_go)
    if arrival.rises:
        least = f"{_percent(arrival.least)} earlier in the run, so that more steps lead away"
        return Verdict(Outcome.RISING, f"{change}, and {least}; {advice or _STEADY}", arrival.to_go)
    if arrival.hovers:
        text = f"{change}, most of which is no progress: it moves by {_percent(arrival.hover)} about its mean"
        return Verdict(Outcome.HOVERING, f"{text}; {advice}" if advice else text, arrival.to_go)
    return Verdict(Outcome.MOVING, f"{change}; {_MORE}", arrival.to_go)


def _judge_without(r: NDArray[np.float64], trend: _Trend) -> Verdict:
    """The verdict by the distance alone, which can say that an image moves, but not that it has arrived."""
    if r[-1] == 0:
        return Verdict(Outcome.ARRIVED, "its distance to a fixed point is 0", 0.0)
    if trend.falls or (1 < len(r) < _FEWEST and r[-1] < r[-2]):
        return Verdict(
            Outcome.MOVING,
            f"its distance to a fixed point is {r[-1]:.1e} of its start and falls, over too few steps to say how far "
            f"the image has to go; {_MORE}",
        )
    return Verdict(
        Outcome.NOT_MEASURED,
        f"its distance to a fixed point is {r[-1]:.1e} of its start; too few steps were taken to say how far the image "
        "still has to go",
    )


def _percent(part: float) -> str:
    """A part in per cent, to two digits: 12 %, 0.34 %."""
    percent = 100 * part
    return f"{percent:.2g} %" if percent < 100 else f"{percent:.0f} %" if percent < 1e4 else "its own size or more"


_BACK = (
    "the gradient is zero there, or a bound or a large sigma leads back to it; start from another image, lift the "
    "bound or lower sigma"
)
_MORE = "more iterations bring it nearer to a fixed point"
_STEADY = "a shorter step, bounded momentum or more views a step keep it from that"


@dataclass(frozen=True)
class _Trend:
    """How a distance went: its level over the last third, whether it falls there, whether it rises, its least value.

    `measured` is whether there are enough measurements to say.
    """

    measured: bool = False
    level: float = 0.0
    falls: bool = False
    rises: bool = False
    best: float = 0.0
    best_step: int = 0

    @classmethod
    def fit(cls, steps: NDArray[np.float64], r: NDArray[np.float64]) -> _Trend:
        usable = np.isfinite(r) & (r > 0)
        steps, r = steps[usable], r[usable]
        if len(r) == 0:
            return cls()
        size = max(_LAST, len(r) // _PART)
        level = float(np.median(r[-size:]))
        if len(r) < _FEWEST:
            return cls(level=level)
        falls = _slope(steps[-size:], r[-size:]) < 0
        # The earlier window of as many measurements in which it was least.
        begins = range(len(r) - 2 * size, -1, -max(1, size // 2))
        lows = [(float(np.median(r[begin : begin + size])), begin) for begin in begins]
        low, begin = min(lows, default=(math.inf, 0))
        rises = level > _RISEN * low and _slope(steps[begin:], r[begin:]) > 0
        least = int(np.argmin(r))
        return cls(True, level, falls, rises, float(r[least]), int(steps[least]))


def _slope(steps: NDArray[np.float64], values: NDArray[np.float64]) -> float:
    """The Theil-Sen slope of log10 of positive values if it is more than chance, and otherwise 0."""
    if len(steps) > _PAIRED:  # pairs of all would take the square of a long run
        spread = np.linspace(0, len(steps) - 1, _PAIRED).astype(int)
        steps, values = steps[spread], values[spread]
    n = len(steps)
    if n < 2:
        return 0.0
    y = np.log10(values)
    i, j = np.triu_indices(n, 1)
    slope = float(np.median((y[j] - y[i]) / (steps[j] - steps[i])))
    rest = y - slope * steps
    scatter = 1.4826 * float(np.median(np.abs(rest - np.median(rest))))
    score = abs(float(np.sign(y[j] - y[i]).sum()))
    deviations = (score - 1) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    change = abs(slope) * float(steps[-1] - steps[0])
    return slope if deviations >= _SIGNIFICANT and change > scatter else 0.0


def remedies(algorithm: Any) -> str:
    """Why the image of an algorithm hovers, and what would help, in words."""
    match repeated_views(algorithm.sampler):
        case "few":
            return "each step takes the same few views and the others pull elsewhere: all views would lower it"
        case "all":
            return (
                "the denoiser is not accurate or not steady enough: a smaller tol, damping or a shorter step may lower "
                "it"
            )
    ways = ["a larger batch", "a shorter step"]
    if isinstance(algorithm.gradient, Plain):
        ways.append("SAGA or SVRG")
    momentum = algorithm.momentum
    if momentum not in ("none", "bounded", "tapered") and not hasattr(momentum, "limit"):
        ways.append("momentum 'bounded'")
    return f"that is the noise floor of the batches: {', '.join(ways)} or all views would lower it"
