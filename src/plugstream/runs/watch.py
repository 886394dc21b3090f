"""Watch the theory while a run goes on: is each step nonexpansive, and what does Proposition 5 promise?

Its events are `Contradiction` where a step contradicts nonexpansiveness, `WatchTotals` before a checkpoint, for a run
that goes on from it, and at the end `TheoryTerms`, what the bound needs, with the conditions of the proposition that do
not hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from plugstream.algorithms import ADMM, ProximalGradient, State
from plugstream.algorithms.sampling import Announcer
from plugstream.algorithms.theory import bound
from plugstream.base.errors import InputError
from plugstream.denoisers.base import Denoiser, Sigma, Wrapper
from plugstream.runs.callbacks import Callback
from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Contradiction, Note, TheoryTerms, WatchTotals
from plugstream.runs.replay import History
from plugstream.settings import Settings
from plugstream.solver.result import Progress, Result

if TYPE_CHECKING:
    from plugstream.algorithms.pairs import Pair

# A contradiction is reported again when its factor is larger than all before by this much.
_AGAIN = 1.1
# Rounding in a gradient step, in units of the machine precision: sums over data and pixels.
_ROUNDINGS = 64.0


class Recorder(Wrapper):
    """A denoiser that does what another does, and records its first input and output since `take`."""

    def __init__(self, denoiser: Denoiser) -> None:
        super().__init__(denoiser)
        self.averaged, self.proximal = denoiser.averaged, denoiser.proximal
        if denoiser.value is not None:
            self.value = denoiser.value
        self._record: tuple[Tensor, Tensor, float] | None = None

    def rewrap(self, denoiser: Denoiser) -> Recorder:
        return Recorder(denoiser)

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        out, warm = self.denoiser.denoise(image, sigma, warm)
        if self._record is None:  # later ones are of what is measured after the step
            self._record = (image, out, float(sigma))
        return out, warm

    def take(self) -> tuple[Tensor, Tensor, float] | None:
        """The input, output and sigma since the last call."""
        record, self._record = self._record, None
        return record


@dataclass
class Watch(Callback):
    """Looks at every step of a run. `algorithm` is the run's with its denoiser recorded, which changes no bit."""

    algorithm: Any
    recorder: Recorder
    settings: Settings
    log: EventLog
    before: tuple[Tensor, Tensor, float] | None = None
    image: Tensor | None = None
    step: int | None = None
    steps: int = 0
    theta: float = 0.0
    reported: dict[str, float] = field(default_factory=dict)
    worst: dict[str, tuple[float, str]] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)

    @classmethod
    def over(cls, algorithm: ProximalGradient | ADMM | Any, settings: Settings, log: EventLog) -> Watch:
        """A watch over this algorithm."""
        recorder = Recorder(algorithm.denoiser)
        return cls(replace(algorithm, denoiser=recorder), recorder, settings, log)

    def save(self, step: int) -> None:
        self.log.add(WatchTotals(step, self.steps, self.theta))

    def restore(self, history: History) -> None:
        """Return to how it was; without the denoiser's last input, the first two steps are not compared."""
        if history.watched:
            last = history.watched[-1]
            self.steps, self.theta = last.steps, math.inf if last.theta is None else last.theta
        for event in history.contradictions:
            factor = math.inf if event.factor is None else event.factor
            views = None if event.views is None else list(event.views)
            self._count(event.part, factor, f"step {event.step} ({_words(views)})")

    def after_step(self, progress: Progress[State]) -> None:
        """Compare a step with the one before, while its views are still those that are available.

        The denoiser's inputs and outputs cost nothing; two gradients are computed where something is measured anyway.
        """
        state, self.algorithm = progress.state, progress.algorithm  # which is another where the scan has grown
        now = self.recorder.take()
        if state.k == self.step:
            return  # the last step is measured again
        self.step = state.k
        previous, self.image = self.image, state.image
        if state.k == 0 or now is None or previous is None:
            self.before = None
            return
        self.steps += 1
        if self.before is not None and self.before[2] == now[2]:
            from plugstream.algorithms.pairs import Pair, error_of  # with SciPy, which only watched runs need

            error = max(error_of(self.recorder.denoiser, z, out) for z, out, _ in (self.before, now))
            pair = Pair(now[0], self.before[0], now[1], self.before[1], error)
            self.theta = max(self.theta, pair.theta)
            if pair.lipschitz > 1:
                self._contradicted("denoiser", state.k, pair)
        self.before = now
        if progress.measured and isinstance(self.algorithm, ProximalGradient):
            pair = self._gradient_step(state, previous)
            if pair.lipschitz > 1:
                self._contradicted("gradient", state.k, pair)

    def end(self, result: Result[State]) -> None:
        """Say what was seen, and write down what the bound needs."""
        names = {"denoiser": "the denoiser", "gradient": "the gradient step"}
        for part, name in names.items():
            if part in self.worst:
                factor, where = self.worst[part]
                often = f"in {self.count[part]} of {self.steps} steps, most at {where}, by a factor of {factor:.4g}"
                text = f"theory: {name} enlarged distances {often}, so it is not nonexpansive"
                self.log.add(Note(f"{text}; {self._advice(part)}"))
        if not self.worst:
            self.log.add(Note(f"theory: none of {self.steps} steps contradicted nonexpansiveness"))
        averaged = self.recorder.averaged
        nu2 = float(result.history["nu2"].value.max()) if "nu2" in result.history else 0.0
        draws_all = self.settings.sampler.entry.facts.get("draws") == "all"
        self.log.add(
            TheoryTerms(
                step=result.state.k,
                theta=self.theta if averaged is None else averaged,
                proved=averaged is not None,
                gamma=self.algorithm.parameters(1, result.state)[0],
                batch=self.settings.sampler.views,
                nu=0.0 if draws_all else math.sqrt(max(0.0, nu2)),
                distance=float(torch.linalg.vector_norm(result.state.image)),  # from x^0 = 0
                unmet=tuple(self._unmet(result)),
            )
        )

    def _contradicted(self, part: str, k: int, pair: Pair) -> None:
        views = self._views(k)
        factor, theta = pair.lipschitz, pair.theta
        where = f"step {k} ({_words(views)})"
        self.log.add(Contradiction(k, None if views is None else tuple(views), part, factor, theta))
        if self._count(part, factor, where):
            took = {
                "denoiser": "the denoiser took its inputs of this step and the last",
                "gradient": "the gradient step on its views took the last two images",
            }[part]
            text = f"warning: {where} contradicts nonexpansiveness: {took} apart, by a factor of {factor:.4g}"
            self.log.add(Note(f"{text}; {self._advice(part)}"))

    def _count(self, part: str, factor: float, where: str) -> bool:
        """Count a contradiction, and say whether it is worth a note."""
        self.count[part] = self.count.get(part, 0) + 1
        if factor > self.worst.get(part, (0.0, ""))[0]:
            self.worst[part] = (factor, where)
        worse = factor - 1 > _AGAIN * (self.reported.get(part, 1.0) - 1)
        if worse:
            self.reported[part] = factor
        return worse

    def _advice(self, part: str) -> str:
        if part == "gradient":
            return "use a shorter step, at most 1/L"
        from plugstream.algorithms.pairs import damping_for

        damping = damping_for(self.theta)
        if damping is None:
            others = "a weaker sigma or a denoiser that is averaged by construction might (tv, ridge)"
            return f"no damping is enough; {others}"
        damping *= self.settings.denoiser.damping or 1.0
        return f"damped with theta = {damping:.2g} (--damping {damping:.2g}) it would agree with all steps seen"

    def _gradient_step(self, state: State, previous: Tensor) -> Pair:
        from plugstream.algorithms.pairs import Pair

        image = state.image
        gamma, _ = self.algorithm.parameters(state.k, state)
        batch = self._sampler().draw(state.k - 1, self.algorithm.fidelity.available)
        gradient = self.algorithm.fidelity.gradient
        with torch.no_grad():
            out = [x - gamma * gradient(x, batch.views, batch.weights) for x in (image, previous)]
        sizes = [float(x.norm()) for x in (image, previous, *out)]
        return Pair(image, previous, out[0], out[1], _ROUNDINGS * torch.finfo(image.dtype).eps * max(sizes))

    def _views(self, k: int) -> list[int] | None:
        """The views of step k, None for all; drawing them again gives the same ones."""
        views = self._sampler().draw(k - 1, self.algorithm.fidelity.available).views
        return None if views is None else [int(view) for view in views]

    def _sampler(self) -> Any:
        sampler = self.algorithm.sampler
        return sampler.sampler if isinstance(sampler, Announcer) else sampler  # not to announce a batch twice

    def _unmet(self, result: Result[State]) -> list[str]:
        """The conditions of Proposition 5 that do not hold, or are not known to."""
        a, s, momentum, gradient = (getattr(self.settings, n) for n in ("algorithm", "sampler", "momentum", "gradient"))
        uses = a.entry.facts.get("uses", ())
        fidelity, (gamma, _) = self.algorithm.fidelity, self.algorithm.parameters(1, result.state)
        tests = [
            (self.recorder.averaged is None, "the denoiser is not averaged by construction"),
            ("denoiser" in self.worst, "the denoiser is not nonexpansive"),
            (not a.entry.facts.get("proposition_5", False), f"the algorithm is {a.name}"),
            ("momentum" in uses and not momentum.entry.facts.get("plain", False), "momentum"),
            ("gradient" in uses and not gradient.entry.facts.get("plain", False), f"{gradient.name} gradients"),
            (s.entry.facts.get("draws") not in ("independent", "all"), f"the sampler is {s.name}"),
            (not fidelity.has_lipschitz, "no L is known"),
            (fidelity.has_lipschitz and gamma > (1 + 1e-6) / fidelity.lipschitz_max, "the step is beyond 1/L"),
            (
                any(getattr(a, name, None) is not None for name in ("sigma_end", "step_size_end", "changes")),
                "sigma or the step changes",
            ),
            (self.settings.scan.follow, "the scan grew"),
            (result.reason.failed, "the run diverged"),
        ]
        return [text for unmet, text in tests if unmet]


def _words(views: list[int] | None) -> str:
    if views is None:
        return "all views"
    first = ", ".join(map(str, views[:6]))
    return f"view {first}" if len(views) == 1 else f"views {first}{', ...' if len(views) > 6 else ''}"


@dataclass(frozen=True)
class Theory:
    """What the report draws: the mean distance over the first t steps, the bound, unmet conditions, contradictions.

    Each measurement of ||x - P(x)||^2 stands for the steps until the next; measured at every step it is exact.
    """

    t: list[int]
    average: list[float]
    bounds: list[float] | None
    unmet: list[str]
    contradictions: list[int]


def theory_of(history: History) -> Theory | None:
    """What a run tells of the theory, None where it was not watched."""
    if history.terms is None:
        return None
    ts, averages, total = [], [], 0.0
    for (step, value), (after, _) in pairwise(history.points().get("distance", [])):
        total += value * (after - step)
        if after > step:
            ts.append(after)
            averages.append(total / after)
    contradictions = [event.step for event in history.contradictions]
    return Theory(ts, averages, _bounds(history.terms, ts), list(history.terms.unmet), contradictions)


def _bounds(terms: TheoryTerms, ts: list[int]) -> list[float] | None:
    """Proposition 5's bound at each t; None where there is no theta below 1 to put into it."""
    theta, gamma, nu, distance = terms.theta, terms.gamma, terms.nu, terms.distance
    if theta is None or gamma is None or nu is None or distance is None or not theta < 1:
        return None
    try:
        return [bound(max(theta, 1e-6), distance, t, gamma=gamma, nu=nu, batch=terms.batch or 1) for t in ts]
    except InputError:
        return None
