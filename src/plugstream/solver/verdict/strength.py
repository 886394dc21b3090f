"""Was the strength of the denoiser chosen by the data: what views that no step uses say of half and twice of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from plugstream.algorithms.sampling import All, Announcer
from plugstream.base.errors import InputError
from plugstream.base.progress import report
from plugstream.base.schedules import OverL
from plugstream.models.part import PartOfData
from plugstream.solver.verdict.outcome import Answer

__all__ = ["StrengthProbe", "found_strength", "probe_strength"]

# Every so many-th view judges, and of fewer views than this a part of each one's data, as in a search for sigma.
_EVERY, _MANY = 10, 25
# By what sigma is changed.
_FACTOR = 2.0
# Another sigma is better where held-out data misfits by less than this part of what it does, and by so many standard
# errors over views.
_BETTER, _ERRORS = 5e-3, 2.0
# The best sigma is said to lie elsewhere if it is farther than this part of the factor, as powers: held-out data does
# not tell it better (of the demo's image they ask for 0.6 of the sigma whose image is nearest to the truth).
_AWAY = 0.8
# An image that fits data so many times better where it was made from them follows their noise: p parameters that fit n
# data leave (n - p) of the noise there and about (n + p) elsewhere, so that this is p = n / 2.
_FOLLOWS = 3.0
# Misfits that differ by less than this part do not tell two strengths apart.
_ALIKE = 1e-3
# Steps of each side: one in so many of the run's, of a short run an eighth of them up to so many, and at least so many;
# half as many come before all of them.
_PART, _SHORT, _USUAL, _LEAST = 16, 8, 12, 6


@dataclass(frozen=True)
class StrengthProbe:
    """Held-out misfits, each after as many steps from one image: at sigma, at half of it and at twice.

    `errors` are standard errors over views of the differences of the last two from the first, zero where one view
    judges. `seen` is the misfit of the image that was made from those data, too, None where it was not.
    """

    sigma: float
    here: float
    weaker: float
    stronger: float
    errors: tuple[float, float]
    seen: float | None = None

    @property
    def follows_noise(self) -> bool:
        """Whether the image fits data far better that it was made from, which it has not forgotten yet."""
        return self.seen is not None and self.here > _FOLLOWS * self.seen

    @property
    def alike(self) -> bool:
        """Whether all three are the same, as where the denoiser leaves nothing of the data, or does nothing."""
        return max(abs(self.weaker - self.here), abs(self.stronger - self.here)) <= _ALIKE * self.here

    @property
    def side(self) -> int:
        """Where the best sigma lies: -1 below, 1 above, 0 where neither side is clearly better, or it is near."""
        if self.follows_noise:
            return 1
        gains = [self.here - self.weaker, self.here - self.stronger]
        clear = [
            gain > max(_BETTER * self.here, _ERRORS * error) for gain, error in zip(gains, self.errors, strict=True)
        ]
        if not any(clear):
            return 0
        if abs(self._best_power) < _AWAY:
            return 0
        return -1 if clear[0] and (not clear[1] or self.weaker <= self.stronger) else 1

    @property
    def _best_power(self) -> float:
        """Of the factor, at the minimum of a parabola through the logarithms of the three; infinite without one."""
        if min(self.weaker, self.here, self.stronger) <= 0:
            return math.inf
        weaker, stronger = math.log(self.weaker / self.here), math.log(self.stronger / self.here)
        return (weaker - stronger) / (2 * (weaker + stronger)) if weaker + stronger > 0 else math.inf

    def answer(self) -> Answer:
        """In words."""
        told = f"held-out misfit {self.here:.4g} at sigma {self.sigma:.3g}, {self.weaker:.4g} at half of it"
        told = f"{told} and {self.stronger:.4g} at twice"
        if self.follows_noise:
            told = (
                f"{told}; {self.seen:.4g} with the image that was made from these data, too, so that it follows noise"
            )
        elif self.alike:
            return Answer("cannot be told", None, f"sigma hardly matters: {told}; see what the data leaves unexplained")
        if self.side == 0:
            return Answer("agrees with the data", True, f"the best sigma is near this one: {told}", self.here)
        word, way = ("too strong", "below") if self.side < 0 else ("too weak", "above")
        text = f"the best sigma lies {way} this one: {told}; leave --sigma out, or say --search, to have it found"
        return Answer(word, False, text, self.here)


def found_strength(sigma: float, rounds: int, ratio: float, misfit: float | None) -> Answer:
    """The answer of a run that searched for sigma by held-out data.

    Arguments: sigma; rounds that it took; ratio, the factor between which it is known; misfit of the last winner.
    """
    judged = "" if misfit is None else f", held-out misfit {misfit:.4g}"
    within = f"to a factor of {ratio:.2f}"
    return Answer(
        "chosen by the data", True, f"sigma {sigma:.3g} was found in {rounds} rounds, {within}{judged}", misfit
    )


@torch.no_grad()
def probe_strength(algorithm: Any, state: Any, *, steps: int, seed: int = 0, held_out: Tensor | None = None) -> Answer:
    r"""Ask data that no step uses whether another sigma would predict it better.

    From the image of a run the algorithm goes on without every tenth view (or, of few views, without a tenth of each
    one's data), so that the image forgets them, for m / 2 steps. From there it takes m steps with sigma, m with
    sigma / 2 and m with 2 sigma, all with the same views. Whichever leaves the least of the held-out data is nearest to
    the sigma that predicts best. An image that follows noise does not forget it in so few steps, and is known by how
    much better it fitted those data before: three times and more.

    Condition: as for a search (`SigmaRace`): the noise of held-out data is independent of the rest. m steps show what
    is quick to change; slow parts that oppose it do not show, so that an answer "agrees" is about a factor of two.

    Arguments: algorithm and state that the run ended with; steps of the run, of which m is a sixteenth, or up to 12;
    seed, of the data that judge; held_out, views that no step used, where there are some: then nothing is forgotten.
    Returns the answer; it says why where none is possible.
    """
    _, sigma = algorithm.parameters(state.k + 1, state)
    if not sigma > 0:
        return Answer("not asked", None, "there is no denoising whose strength could be chosen")
    m = max(_LEAST, min(steps // _SHORT, max(_USUAL, steps // _PART)))
    own, judge, judges = _split(algorithm, seed, held_out)
    if len(judges) == 0:
        return Answer("not asked", None, "there is too little data to hold any out")
    announced = own.sampler
    sampler = announced.sampler if isinstance(announced, Announcer) else announced  # not to read ahead for the run
    own = replace(own, sigma=sigma, lam=None, sampler=sampler)
    try:
        own.sampler.draw(state.k, own.fidelity.available)
    except InputError:  # a batch of more views than that
        own = replace(own, sampler=All())
    seen = None if held_out is not None else float(judge.values(state.image, judges).double().mean())
    trunk, taken, whole = own.renew(state), 0, 3 * m + m // 2
    if held_out is None:
        for _ in range(m // 2):
            trunk, taken = own.step(trunk), taken + 1
            report("asking held-out data about sigma", taken, whole)
    misfits = []
    for factor in (1.0, 1 / _FACTOR, _FACTOR):
        side, now = replace(own, sigma=sigma * factor), trunk
        for _ in range(m):
            now, taken = side.step(now), taken + 1
            report("asking held-out data about sigma", taken, whole)
        each = judge.values(now.image, judges).double()
        misfits.append(each.reshape(-1, each.shape[-1]).mean(0))
    here, weaker, stronger = (float(one.mean()) for one in misfits)
    if not all(map(math.isfinite, (here, weaker, stronger))):
        return Answer("not asked", None, "the misfit on held-out data is not finite")
    errors = tuple(_standard_error(one - misfits[0]) for one in misfits[1:])
    return StrengthProbe(sigma, here, weaker, stronger, (errors[0], errors[1]), seen).answer()


def _split(algorithm: Any, seed: int, held_out: Tensor | None) -> tuple[Any, Any, Tensor]:
    """The algorithm on what steps use, the fidelity that judges, and its views."""
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
    """Of the mean over views, zero of one view."""
    n = len(differences)
    return float(differences.std()) / math.sqrt(n) if n > 1 else 0.0
