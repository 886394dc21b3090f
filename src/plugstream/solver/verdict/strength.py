"""Was the strength of the denoiser chosen by the data: what held-out data say about half of it and twice of it."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from plugstream.algorithms.sampling import Announcer, drawable
from plugstream.base.progress import report
from plugstream.base.schedules import OverL
from plugstream.models.part import PartOfData
from plugstream.solver.verdict.outcome import Answer

# Every tenth view judges; with fewer views than this, a part of each view's data, as in a search for sigma.
_EVERY, _MANY = 10, 25
_FACTOR = 2.0  # between the three strengths
# Another sigma is better if its held-out misfit is less by this part, and by this many standard errors over views.
_BETTER, _ERRORS = 5e-3, 2.0
# The best sigma lies elsewhere if it is farther than this power of the factor: held-out data cannot say more (on the
# demo's image they ask for 0.6 of the sigma whose image is nearest to the truth).
_AWAY = 0.8
# An image that fits its own data this many times better than held-out data follows their noise: p parameters that fit n
# data leave (n - p) of the noise there and about (n + p) elsewhere, so this is p = n / 2.
_FOLLOWS = 3.0
# Misfits that differ by less than this part do not distinguish two strengths.
_SAME = 1e-3
# Steps with each strength: a sixteenth of the run's; in a short run an eighth, up to 12; and at least 6. Half as many
# come before all of them.
_PART, _SHORT, _USUAL, _LEAST = 16, 8, 12, 6


@dataclass(frozen=True)
class StrengthProbe:
    """Held-out misfits after the same number of steps from one image: at sigma, at half of it and at twice.

    `errors` are standard errors over views of the differences of the last two from the first, zero if one view judges.
    `own` is the misfit of the run's image if it was made from those data, too, and otherwise None.
    """

    sigma: float
    present: float
    weaker: float
    stronger: float
    errors: tuple[float, float]
    own: float | None = None

    @property
    def follows_noise(self) -> bool:
        """Whether the image fits the data that it was made from far better than held-out data."""
        return self.own is not None and self.present > _FOLLOWS * self.own

    @property
    def same(self) -> bool:
        """Whether sigma makes no difference, as for a denoiser that removes everything or nothing."""
        return max(abs(self.weaker - self.present), abs(self.stronger - self.present)) <= _SAME * self.present

    @property
    def side(self) -> int:
        """Where the best sigma lies: -1 below, 1 above, 0 if it is near or neither side is clearly better."""
        if self.follows_noise:
            return 1
        misfits = zip((self.weaker, self.stronger), self.errors, strict=True)
        weaker, stronger = (self.present - m > max(_BETTER * self.present, _ERRORS * error) for m, error in misfits)
        if not (weaker or stronger) or abs(self._best_power) < _AWAY:
            return 0
        return -1 if weaker and (not stronger or self.weaker <= self.stronger) else 1

    @property
    def _best_power(self) -> float:
        """The power of the factor at the minimum of a parabola through the three logarithms; infinite without one."""
        if min(self.weaker, self.present, self.stronger) <= 0:
            return math.inf
        weaker, stronger = math.log(self.weaker / self.present), math.log(self.stronger / self.present)
        return (weaker - stronger) / (2 * (weaker + stronger)) if weaker + stronger > 0 else math.inf

    def answer(self) -> Answer:
        """In words."""
        numbers = f"held-out misfit {self.present:.4g} at sigma {self.sigma:.3g}, {self.weaker:.4g} at half of it and "
        numbers += f"{self.stronger:.4g} at twice"
        if self.follows_noise:
            numbers += f"; {self.own:.4g} with the image that was made from these data, too, so that it follows noise"
        elif self.same:
            text = f"sigma hardly matters: {numbers}; see what the data leaves unexplained"
            return Answer("cannot be told", None, text)
        if self.side == 0:
            return Answer("agrees with the data", True, f"the best sigma is near this one: {numbers}", self.present)
        word, way = ("too strong", "below") if self.side < 0 else ("too weak", "above")
        text = f"the best sigma lies {way} this one: {numbers}; leave --sigma out, or use --search 250, to find it"
        return Answer(word, False, text, self.present)


def found_strength(sigma: float, rounds: int, ratio: float, misfit: float | None, step: float | None = None) -> Answer:
    """The answer of a run that searched for sigma, or for the step that goes with it, by held-out data.

    Arguments: sigma; rounds of the search; ratio, the factor to which what was found is known; misfit of the last
    winner; step, where that was found.
    """
    what = f"sigma {sigma:.3g}" if step is None else f"the step {step:.3g} that goes with sigma {sigma:.3g}"
    text = f"{what} was found in {rounds} rounds, to a factor of {ratio:.2f}"
    text += "" if misfit is None else f", held-out misfit {misfit:.4g}"
    return Answer("chosen by the data", True, text, misfit)


@torch.no_grad()
def probe_strength(algorithm: Any, state: Any, *, steps: int, seed: int = 0, held_out: Tensor | None = None) -> Answer:
    r"""Ask data that no step uses whether another sigma would predict it better.

    From the image of a run the algorithm continues for m / 2 steps without every tenth view (or without a tenth of each
    view's data, if there are few), so that the image forgets them. From there it takes m steps with sigma, m with
    sigma / 2 and m with 2 sigma, all with the same views. The one with the least held-out misfit is nearest to the
    sigma that predicts best. An image that follows noise does not forget it in so few steps; it shows by having fitted
    those data three times better before.

    Condition: as for a search (`SigmaRace`): the noise of held-out data is independent of the rest. m steps show quick
    changes only, so an answer "agrees" is about a factor of two.

    Arguments: algorithm and state at the end of the run; steps of the run, of which m is a sixteenth, or up to 12;
    seed, of the data that judge; held_out, views that no step used, if any: then nothing needs to be forgotten.
    Returns the answer; if none is possible, it says why.
    """
    _, sigma = algorithm.parameters(state.k + 1, state)
    if not sigma > 0:
        return Answer("not asked", None, "there is no denoising whose strength could be chosen")
    m = max(_LEAST, min(steps // _SHORT, max(_USUAL, steps // _PART)))
    reduced, judge, judges = _split(algorithm, seed, held_out)
    if len(judges) == 0:
        return Answer("not asked", None, "there is too little data to hold any out")
    sampler = reduced.sampler
    sampler = sampler.sampler if isinstance(sampler, Announcer) else sampler  # not to read ahead for the run
    sampler = drawable(sampler, state.k, reduced.fidelity.available)
    reduced = replace(reduced, sigma=sigma, lam=None, sampler=sampler)
    own = None if held_out is not None else float(judge.values(state.image, judges).double().mean())
    counter, total = itertools.count(1), probe_length(steps, held_out=held_out is not None)

    def advance(factor: float, start: Any, count: int) -> Any:
        side = replace(reduced, sigma=sigma * factor)
        for _ in range(count):
            start = side.step(start)
            report("checking sigma on held-out data", next(counter), total)
        return start

    trunk = advance(1.0, reduced.renew(state), 0 if held_out is not None else m // 2)
    misfits = []
    for factor in (1.0, 1 / _FACTOR, _FACTOR):
        values = judge.values(advance(factor, trunk, m).image, judges).double()
        misfits.append(values.reshape(-1, values.shape[-1]).mean(0))
    present, weaker, stronger = (float(misfit.mean()) for misfit in misfits)
    if not all(map(math.isfinite, (present, weaker, stronger))):
        return Answer("not asked", None, "the misfit on held-out data is not finite")
    errors = (_standard_error(misfits[1] - misfits[0]), _standard_error(misfits[2] - misfits[0]))
    return StrengthProbe(sigma, present, weaker, stronger, errors, own).answer()


def probe_length(steps: int, *, held_out: bool = False) -> int:
    """How many steps `probe_strength` takes after a run of so many; held_out, whether views were held out from it."""
    m = max(_LEAST, min(steps // _SHORT, max(_USUAL, steps // _PART)))
    return 3 * m + (0 if held_out else m // 2)


def _split(algorithm: Any, seed: int, held_out: Tensor | None) -> tuple[Any, Any, Tensor]:
    """The algorithm without the data that judge, the fidelity of those data, and its views."""
    fidelity = algorithm.fidelity
    if held_out is not None:
        return algorithm, fidelity, held_out
    views = fidelity.available
    by_l = isinstance(algorithm.step_size, OverL) and fidelity.has_lipschitz
    bound = fidelity.lipschitz_max if by_l else None
    if len(views) >= _MANY:
        out = torch.zeros(len(views), dtype=torch.bool)
        out[_EVERY // 2 :: _EVERY] = True
        part = fidelity.with_views(fidelity.model, views[~out], lipschitz_max=bound)
        return replace(algorithm, fidelity=part), fidelity, views[out]
    model = fidelity.model
    part = fidelity.with_views(PartOfData(model, seed), views, lipschitz_max=bound)
    judge = fidelity.with_views(PartOfData(model, seed, judge=True), views, lipschitz_max=bound)
    return replace(algorithm, fidelity=part), judge, views


def _standard_error(differences: Tensor) -> float:
    """Of the mean over views; zero for one view."""
    n = len(differences)
    return float(differences.std()) / math.sqrt(n) if n > 1 else 0.0
