"""Was the strength of the denoiser chosen by the data: what held-out views say about half of it and twice of it."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from plugstream.algorithms.sampling import Announcer, drawable
from plugstream.base.progress import report
from plugstream.solver.verdict.outcome import Answer

_FACTOR = 2.0  # between the three strengths
# Another sigma is better if its held-out misfit is less by this part, and by this many standard errors over views. A
# minimum shows where the misfits of both sides are together twice this part above it.
_BETTER, _ERRORS = 5e-3, 2.0
# By which powers of the factor the best sigma is away at most if this one agrees with the data, and at least if it does
# not: on the demo's image held-out data ask for 0.6 of the sigma whose image is nearest to the truth.
_NEAR, _AWAY = 0.5, 0.8
# Steps with each strength: a sixteenth of the run's; in a short run an eighth, up to 12; and at least 6.
_PART, _SHORT, _USUAL, _LEAST = 16, 8, 12, 6


@dataclass(frozen=True)
class StrengthProbe:
    """Held-out misfits after the same number of steps from one image: at sigma, at half of it and at twice.

    `errors` are standard errors over views of the differences of the last two from the first, zero if one view judges.
    """

    sigma: float
    present: float
    weaker: float
    stronger: float
    errors: tuple[float, float]

    @property
    def side(self) -> int | None:
        """Where the best sigma lies: -1 below, 1 above, 0 near, None if that cannot be told."""
        misfits = zip((self.weaker, self.stronger), self.errors, strict=True)
        weaker, stronger = (self.present - m > max(_BETTER * self.present, _ERRORS * error) for m, error in misfits)
        if min(self.weaker, self.present, self.stronger) <= 0:
            return None
        left, right = math.log(self.weaker / self.present), math.log(self.stronger / self.present)
        # The power of the factor at the minimum of a parabola through the three; infinite without one.
        power = (left - right) / (2 * (left + right)) if left + right > 0 else math.inf
        if abs(power) < _NEAR and left + right > 2 * _BETTER:
            return 0
        if abs(power) < _AWAY or not (weaker or stronger):
            return None
        return -1 if weaker and (not stronger or self.weaker <= self.stronger) else 1

    def answer(self) -> Answer:
        """In words."""
        numbers = f"held-out misfit {self.present:.4g} at sigma {self.sigma:.3g}, {self.weaker:.4g} at half of it and "
        numbers += f"{self.stronger:.4g} at twice"
        if self.side is None:
            return Answer("cannot be told", None, f"{numbers}; leave --sigma out to have it found")
        if self.side == 0:
            return Answer("agrees with the data", True, f"the best sigma is near this one: {numbers}", self.present)
        word, way = ("too strong", "below") if self.side < 0 else ("too weak", "above")
        text = f"the best sigma lies {way} this one: {numbers}; leave --sigma out to have it found"
        return Answer(word, False, text, self.present)


def found_strength(sigma: float, rounds: int, ratio: float, misfit: float | None, step: float | None = None) -> Answer:
    """The answer of a run that searched for sigma, or for the step that goes with it, by held-out data.

    Arguments: sigma; rounds of the search; ratio, the factor to which what was found is known; misfit of the last
    winner; step, where that was found.
    """
    what = f"sigma {sigma:.3g}" if step is None else f"the step {step:.3g} that goes with sigma {sigma:.3g}"
    text = f"{what} was found in {rounds} rounds, to a factor of {ratio:.2f}"
    text += "" if misfit is None else f", held-out misfit {misfit:.4g}"
    text += "; only with the run's other settings: --like takes all to another scan, 'plugstream info RUN' prints them"
    return Answer("chosen by the data", True, text, misfit)


@torch.no_grad()
def probe_strength(algorithm: Any, state: Any, judges: Tensor, *, steps: int) -> Answer:
    r"""Ask views that no step used whether another sigma would predict them better.

    From the image of a run the algorithm takes m steps with sigma, m with sigma / 2 and m with 2 sigma, all with the
    same views. The one with the least held-out misfit is nearest to the sigma that predicts best.

    Condition: as for a search (`SigmaRace`): the noise of held-out data is independent of the rest, and none of it was
    ever used, since an image does not forget what it was made from in so few steps. m steps show quick changes only, so
    an answer "agrees" is about a factor of two.

    Arguments: algorithm and state at the end of the run; judges, views that no step used; steps of the run, of which m
    is a sixteenth, or up to 12. Returns the answer; if none is possible, it says why.
    """
    _, sigma = algorithm.parameters(state.k + 1, state)
    if not sigma > 0:
        return Answer("not asked", None, "there is no denoising whose strength could be chosen")
    total = probe_length(steps)
    sampler = algorithm.sampler
    sampler = sampler.sampler if isinstance(sampler, Announcer) else sampler  # not to read ahead for the run
    sampler = drawable(sampler, state.k, algorithm.fidelity.available)
    counter = itertools.count(1)
    misfits = []
    for factor in (1.0, 1 / _FACTOR, _FACTOR):
        side, end = replace(algorithm, sigma=sigma * factor, lam=None, sampler=sampler), algorithm.renew(state)
        for _ in range(total // 3):
            end = side.step(end)
            report("checking sigma on held-out data", next(counter), total)
        values = algorithm.fidelity.values(end.image, judges).double()
        misfits.append(values.reshape(-1, values.shape[-1]).mean(0))
    present, weaker, stronger = (float(misfit.mean()) for misfit in misfits)
    if not all(map(math.isfinite, (present, weaker, stronger))):
        return Answer("not asked", None, "the misfit on held-out data is not finite")
    errors = (_standard_error(misfits[1] - misfits[0]), _standard_error(misfits[2] - misfits[0]))
    return StrengthProbe(sigma, present, weaker, stronger, errors).answer()


def probe_length(steps: int) -> int:
    """How many steps `probe_strength` takes after a run of so many."""
    return 3 * max(_LEAST, min(steps // _SHORT, max(_USUAL, steps // _PART)))


def _standard_error(differences: Tensor) -> float:
    """Of the mean over views; zero for one view."""
    n = len(differences)
    return float(differences.std()) / math.sqrt(n) if n > 1 else 0.0
