"""Watch the theory while a run goes on: does each step do what it asks for, and what does Proposition 5 promise?

Three events tell of it: `Contradiction` where a step contradicts nonexpansiveness, `WatchTotals` before a checkpoint,
so that a run which goes on from it tells of all its steps, and at the end `TheoryTerms`, what the bound needs, with
the conditions of the proposition that do not hold.
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

__all__ = ["Theory", "Watch", "theory_of"]

# A contradiction is told again when its factor is larger than all before by this much.
_AGAIN = 1.1
# Rounding in a gradient step, in units of the machine precision: sums over data and pixels.
_ROUNDINGS = 64.0


class Recorder(Wrapper):
    """A denoiser that hands on what another does, and keeps the first input and output since it was last asked."""

    def __init__(self, denoiser: Denoiser) -> None:
        super().__init__(denoiser)
        self.averaged, self.proximal = denoiser.averaged, denoiser.proximal
        if denoiser.value is not None:
            self.value = denoiser.value
        self._kept: tuple[Tensor, Tensor, float] | None = None

    def rewrap(self, denoiser: Denoiser) -> Recorder:
        return Recorder(denoiser)

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        out, warm = self.denoiser.denoise(image, sigma, warm)
        if self._kept is None:  # later ones are not the step's, but of what is measured after it
            self._kept = (image, out, float(sigma))
        return out, warm

    def take(self) -> tuple[Tensor, Tensor, float] | None:
        """The input, output and sigma since the last call."""
        kept, self._kept = self._kept, None
        return kept


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
    told: dict[str, float] = field(default_factory=dict)
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
        """Be as the run was when it was saved at the step that its log says it goes on from.

        The denoiser's last input is not known any more, so the pair of the steps before and after is not looked at.
        """
        if history.watched:
            last = history.watched[-1]
            self.steps, self.theta = last.steps, math.inf if last.theta is None else last.theta
        for event in history.contradictions:
            factor = math.inf if event.factor is None else event.factor
            views = None if event.views is None else list(event.views)
            self._count(event.part, factor, f"step {event.step} ({_words(views)})")

    def after_step(self, progress: Progress[State]) -> None:
        """After a step, when its views are still those that are available: compare it with the one before.

        A step that was looked at already, as the last is again when it has been measured, does not count twice.

        The denoiser's inputs of two steps and its outputs are a pair as any other, and cost nothing. A gradient step on
        the same views at the last two images costs two gradients, and is taken where something is measured anyway.
        """
        state, self.algorithm = progress.state, progress.algorithm  # which is another where the scan has grown
        now = self.recorder.take()
        if state.k == self.step:
            return  # what the denoiser did since is of a measurement
        self.step = state.k
        previous, self.image = self.image, state.image
        if state.k == 0 or now is None or previous is None:
            self.before = None
            return
        self.steps += 1
        if self.before is not None and self.before[2] == now[2]:
            from plugstream.algorithms.pairs import (
                Pair,  # with SciPy: only runs that are watched need it
                error_of,
            )

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
                text = (
                    f"theory: {name} enlarged distances in {self.count[part]} of {self.steps} steps, most at {where}, "
                )
                text += f"by a factor of {factor:.4g}, so it is not nonexpansive"
                self.log.add(Note(f"{text}; {self._advice(part)}"))
        if not self.worst:
            self.log.add(Note(f"theory: none of {self.steps} steps contradicted nonexpansiveness"))
        known = self.recorder.averaged
        theta = known if known is not None else self.theta
        nu2 = result.history["nu2"].value if "nu2" in result.history else torch.zeros(1).numpy()
        whole = self.settings.sampler.entry.facts.get("draws") == "all"
        self.log.add(
            TheoryTerms(
                step=result.state.k,
                theta=theta,
                proved=known is not None,
                gamma=self.algorithm.parameters(1, result.state)[0],
                batch=self.settings.sampler.views,
                nu=0.0 if whole else math.sqrt(max(0.0, float(nu2.max()))),
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
            of = "its inputs of this step and the last" if part == "denoiser" else "the last two images"
            name = "the denoiser" if part == "denoiser" else "the gradient step on its views"
            text = f"warning: {where} contradicts nonexpansiveness: {name} took {of} apart, by a factor of {factor:.4g}"
            self.log.add(Note(f"{text}; {self._advice(part)}"))

    def _count(self, part: str, factor: float, where: str) -> bool:
        """Count a contradiction, and say whether it is worth telling."""
        self.count[part] = self.count.get(part, 0) + 1
        if factor > self.worst.get(part, (0.0, ""))[0]:
            self.worst[part] = (factor, where)
        tell = factor - 1 > _AGAIN * (self.told.get(part, 1.0) - 1)
        if tell:
            self.told[part] = factor
        return tell

    def _advice(self, part: str) -> str:
        if part == "gradient":
            return "use a shorter step, at most 1/L"
        from plugstream.algorithms.pairs import damping_for

        damping = damping_for(self.theta)
        if damping is None:
            return (
                "no damping is enough; a weaker sigma or a denoiser that is averaged by construction might (tv, ridge)"
            )
        damping *= self.settings.denoiser.damping or 1.0
        return f"damped with theta = {damping:.2g} (--damping {damping:.2g}) it would agree with all steps seen"

    def _gradient_step(self, state: State, previous: Tensor) -> Pair:
        from plugstream.algorithms.pairs import Pair

        image = state.image
        gamma, _ = self.algorithm.parameters(state.k, state)
        batch = self._sampler().draw(state.k - 1, self.algorithm.fidelity.available)
        with torch.no_grad():
            out = [
                x - gamma * self.algorithm.fidelity.gradient(x, batch.views, batch.weights) for x in (image, previous)
            ]
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
