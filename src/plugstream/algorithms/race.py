"""The strength of the denoiser, found while the image forms: two sigmas race on, and held-out views judge them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from plugstream.algorithms.abilities import AlgorithmAbilities, as_algorithm
from plugstream.algorithms.base import fidelity_at
from plugstream.base.arrays import Array
from plugstream.base.errors import InputError
from plugstream.denoisers.base import Denoiser
from plugstream.fidelity.least_squares import Fidelity
from plugstream.models.views import Views

__all__ = ["LEAST_STEPS", "RaceState", "SigmaRace"]

LEAST_STEPS = 20
"""So many steps a search for sigma takes at least."""

# By what the two sigmas of the first round differ from the one between them, which is the most, and where it is near
# enough to one.
_RATIO, _NEAR, _HASTY_NEAR = 2.0, 1.05, 1.1
# The way in is over when a part of it lowers the misfit by less than this part of what all of it has, or of the misfit
# where rounds grow; it takes one in so many steps at most.
_BEGUN, _WAY_IN = 0.1, 3
# A round by which the misfit falls by less than this part of it has brought nothing.
_STILL = 5e-3
# One in so many steps is the length of a round at first, and of a race that is in a hurry.
_SHARE, _HASTY_SHARE = 25, 20
# A lead that has shrunk to less than this part of it since the last look may turn. One that is less than the second
# part of that in the round before, in a round that went on, says that sigma is right as far as these sides tell.
_SHRUNK, _DRAWN = 0.9, 0.05
# After so many moves in one direction since it turned the sides go further apart again.
_STREAK = 3
# With a judge a lead of less than so many standard errors over views, of this many or more, is chance, if it is less
# than this part of e besides: from a sigma that is far off, larger ones lead the right way long before they are sure.
_ERRORS, _PAIRS, _TINY = 2, 3, 1e-3


@dataclass(frozen=True)
class RaceState:
    """Where a race is: `k` steps in all, and the image of the last of them.

    trunk: the state from which both sides of this round started. side: that of the side which is running; rival: that
    of the other. begun: whether the way in is over. used: steps of the race by now. place: those of the running side in
    this round, from the last look at both (`look`) to the next one (`goal`). weaker: whether the weaker side runs.
    length: steps of a side in this round, unless it goes on. sigma and ratio: the sides have sigma * ratio and sigma /
    ratio. turn: which way sigma moved last, 1 up, -1 down, 0 for neither yet; streak: how often it has moved that way
    since it turned. rounds: that are over. stronger: the misfit of the stronger side at this look; each: with a judge,
    that of each view. lead: that of the stronger side minus that of the weaker one at the look before. start: the
    misfit of the first image. misfit: of the winner of the last round. tried: the two misfits of the last round,
    stronger side first. ended: whether the search is over; `trunk` is then the winner, and `sigma` what was found.
    """

    k: int
    image: Tensor
    trunk: Any
    side: Any
    rival: Any
    sigma: float
    length: int
    goal: int
    ratio: float = _RATIO
    begun: bool = False
    used: int = 0
    place: int = 0
    look: int = 0
    weaker: bool = False
    turn: int = 0
    streak: int = 0
    rounds: int = 0
    stronger: float | None = None
    each: Tensor | None = None
    lead: float | None = None
    start: float | None = None
    misfit: float | None = None
    tried: tuple[float, float] | None = None
    ended: bool = False


@dataclass(frozen=True, eq=False)
class SigmaRace(AlgorithmAbilities):
    r"""Find sigma, on the data themselves and without repeating runs: two sides go on from one state, the better wins.

    The judge is

        e(x) = d(x) on views that no step uses, or, where views are few, on a part of each view's data (`judge`).

    The way in: steps with the sigma that it begins with, m at a time, until m of them lower e by less than a tenth of
    what all have. Until then the sides would only show which of them is quicker.

    A round: from one state the algorithm takes m steps with sigma r and, from the same state and with the same views, m
    steps with sigma / r. Both images are looked at after m / 2 steps and after m. Where the other side leads by then,
    or the lead has shrunk by a tenth, both go on for as many steps again, and so on. The side with the smaller e wins:
    its state is where the next round starts, whose m is at least half of what this one became. sigma moves by the
    factor r towards the winner; where that is another way than in the round before, r becomes sqrt(r) first, and from
    the third time on that it goes the same way since, r^2, 2 at most. In a round that went on, a lead of less than a
    twentieth of that in the round before is a draw: sigma stays, and r becomes sqrt(r). So is, with a judge of three or
    more views, a lead of less than a thousandth of e and less than twice its standard error over views: data that
    cannot tell two sigmas apart leave the one that there is. It ends when r is below 1.05 and e falls no more, or with
    its steps; the last move then counts half, since nothing tells whether it went too far.

    Where it is known about which sigma is right (`expected`), few photons or few views should not move it far. With a
    prior of log(sigma) about log(expected), of standard deviation s, and n views that judge, each unit of whose misfit
    is c of a negative log-likelihood, what is compared is

        e(x) + pull log(sigma / expected)^2 / 2,    pull = 1 / (c n s^2),

    so that sigma is the prior's where the views hardly tell, and theirs where they are many.

    Why two sides and not one that follows e: an image lags behind a sigma that changes, so that a falling sigma looks
    better than it is, and far too small a one is found. The two sides lag alike. Noise in the choice of views is the
    same for both, too, so that their difference is that of sigma.

    Why rounds go on: near its fixed point an image moves by sum_j (1 - rho_j^m) v_j in m steps with another sigma,
    every part at a rate of its own, so that the sides are apart by D(m) = sum_j (1 - rho_j^m) D_j in e. What counts is
    sum_j D_j. Parts that are quick are there at once; where slow ones oppose them and prevail, |D(m)| falls before the
    sign changes, which the looks find out. Slow parts that oppose nothing change no verdict.

    Rounds that grow (`growing`): a denoiser whose sigma is a level of noise, as of BM3D, lets pass what is below it,
    and the noise that a weaker side lets in gathers over tens of steps. Early on the weaker side looks as good as the
    stronger one or better, and no look shows that its lead will turn. So the way in goes on until m steps lower e by
    less than a tenth of it, and wherever sigma turns, m becomes twice as long. Fewer rounds fit in, so that the last
    one counts: where sigma turned in it, the best lies between its sigma and the one before, and the last move is not
    halved.

    Condition: e has one minimum over sigma, as a function of the images that are reached; the noise of the held-out
    views is independent of that of the others; slow parts that oppose the quick ones show within a round.
    docs/sigma-search.md has what was measured, and where it is wrong.

    Arguments:
        algorithm: whose sigma is looked for, with a number for a start; its fidelity has the held-out views, and does
            not draw them. held_out: their numbers, (n,), at least one. judge: the fidelity of data that steps leave out
            of these views, with `PartOfData(..., judge=True)`, which steps may then draw; without it, d is that of
            the algorithm. steps: of the way in and of both sides of all
            rounds together, at least `LEAST_STEPS`; m is a 25th of it at first, and at least 2. patient: for a start
            that may be right. From a sigma that is far too large every step counts, since the image of a nonlinear
            model may come to where it stays, which held-out views hardly show. Then there is no way in, no round goes
            on, there are ten of m = steps / 20 at most, sigma turns by all of r before r shrinks, and 1.1 is near
            enough. growing: whether rounds of a patient race grow, for denoisers whose sigma is a level of noise.
            expected: about which sigma is right, None where nobody knows; pull: how much that counts, as above.
    References: for the race, Jaderberg et al., GrowingViews Based Training, 2017, with a population of two; for the
    score, Stone, J. Royal Stat. Soc. B 36, 1974.
    """

    algorithm: Any
    held_out: Tensor
    steps: int = 250
    patient: bool = True
    judge: Fidelity | None = None
    growing: bool = False
    expected: float | None = None
    pull: float = 0.0

    def __post_init__(self) -> None:
        sigma = as_algorithm(self.algorithm).sigma
        if not isinstance(sigma, int | float) or not sigma > 0:
            raise InputError(f"a search starts from one sigma > 0 for all steps, not from {sigma!r}")
        if self.steps < LEAST_STEPS:
            raise InputError(f"a search for sigma takes at least {LEAST_STEPS} steps, not {self.steps}")
        if len(self.held_out) == 0:
            raise InputError("a search for sigma needs views to judge by; hold some out")
        if self.judge is not None:
            return
        drawn = torch.isin(self.held_out.cpu(), self.algorithm.fidelity.available.cpu())
        if bool(drawn.any()):
            raise InputError(
                f"view {int(self.held_out[drawn.nonzero()[0, 0]])} is held out, but steps may use it; take it out of "
                "the fidelity's available views"
            )

    @property
    def length(self) -> int:
        """m, the steps of a side in the first round."""
        return max(2, self.steps // _SHARE // 2 * 2) if self.patient else self.steps // _HASTY_SHARE

    @property
    def fidelity(self) -> Fidelity:
        """That of the algorithm."""
        fidelity: Fidelity = self.algorithm.fidelity
        return fidelity

    @property
    def denoiser(self) -> Denoiser:
        """That of the algorithm."""
        denoiser: Denoiser = self.algorithm.denoiser
        return denoiser

    def init(self, image: Array | None = None) -> RaceState:
        """The state before the first step, from an image (*image_shape), or from zero."""
        state, m, sigma = self.algorithm.init(image), self.length, float(self.algorithm.sigma)
        return RaceState(state.k, state.image, state, state, state, sigma, m, m, begun=not self.patient)

    @torch.no_grad()
    def step(self, state: RaceState) -> RaceState:
        """One step of the side that is running, and at its end what comes of it."""
        if state.ended:
            raise InputError("the search for sigma has ended; go on with the algorithm and the sigma that it found")
        if self.patient and state.start is None:
            first, _ = self._look(state.side)
            state = replace(state, start=first, misfit=first)
        side = self._side(state).step(state.side)
        gone = replace(state, k=state.k + 1, image=side.image, side=side, used=state.used + 1, place=state.place + 1)
        if gone.place < gone.goal:
            return gone
        misfit, each = self._look(side)
        if not gone.begun:
            return self._come_in(gone, misfit)
        if not gone.weaker:
            return replace(_swap(gone), stronger=misfit, each=each, weaker=True, place=gone.look)
        return self._compare(gone, misfit, each)

    def misfit(self, state: Any) -> Tensor:
        """e of a state's image, of this race or of one of its sides: (...)."""
        if self.judge is not None:
            return self.judge.value(state.image, self.held_out)
        side = state.side if isinstance(state, RaceState) else state
        return fidelity_at(self.algorithm, side).value(state.image, self.held_out)

    def _look(self, state: Any) -> tuple[float, Tensor | None]:
        """e of a state's image, and, with a judge, that of each view: (n,)."""
        if self.judge is None:
            return float(self.misfit(state).mean()), None
        each = self.judge.values(state.image, self.held_out)  # type: ignore[attr-defined]
        each = each.reshape(-1, each.shape[-1]).mean(0)
        return float(each.mean()), each

    def _come_in(self, state: RaceState, misfit: float) -> RaceState:
        """The state after m steps of the way in, by which the image has this misfit."""
        assert state.start is not None
        assert state.misfit is not None
        fell, whole = state.misfit - misfit, misfit if self.growing else state.start - misfit
        state = replace(state, misfit=misfit)
        if 0 < _BEGUN * whole <= fell and state.used + state.length <= self.steps // _WAY_IN:
            return replace(state, goal=state.place + state.length)
        return self._begin_round(replace(state, begun=True), state.side)

    def _begin_round(self, state: RaceState, trunk: Any) -> RaceState:
        """The state before a round from this trunk, which has what steps are left; the end where those are too few."""
        left = (self._limit(state) - state.used) // 2
        length = min(state.length, left // 2 * 2 if self.patient else left)
        if length < self.length and not state.ended:
            # Nothing tells any more whether the last move was too far.
            between = self.growing and state.streak == 0
            back = -state.turn / 2 if self.patient and not between else 0
            state = replace(state, sigma=state.sigma * state.ratio**back, ended=True)
        return replace(
            state,
            image=trunk.image,
            trunk=trunk,
            side=trunk,
            rival=trunk,
            place=0,
            look=0,
            goal=length // 2 if self.patient else length,
            length=length,
            weaker=False,
            stronger=None,
            each=None,
            lead=None,
        )

    def _compare(self, state: RaceState, misfit: float, each: Tensor | None) -> RaceState:
        """The state after a look at both sides, of which the weaker one has this misfit: the round goes on, or ends."""
        assert state.stronger is not None
        lead = state.stronger - misfit + self._handicap(state)
        unclear = state.lead is not None and (lead * state.lead < 0 or abs(lead) < _SHRUNK * abs(state.lead))
        longer = state.goal > state.length
        drawn = longer and state.tried is not None and abs(lead) < _DRAWN * abs(state.tried[0] - state.tried[1])
        room = state.used + 2 * state.goal <= self._limit(state)
        if self.patient and (state.lead is None or (unclear and room and not drawn)):
            return replace(_swap(state), weaker=False, lead=lead, look=state.goal, goal=2 * state.goal)
        chance = self.patient and state.each is not None and each is not None and _is_chance(state.each, each)
        return self._decide(state, misfit, lead, drawn=drawn or chance or lead == 0)

    def _limit(self, state: RaceState) -> int:
        """How many steps the way in and all rounds may take."""
        return self.steps if self.patient else _HASTY_SHARE * self.length

    def _handicap(self, state: RaceState) -> float:
        """By how much the sigma of the stronger side is less to be expected than that of the weaker one."""
        if self.expected is None or self.pull == 0:
            return 0.0
        # (a + b)^2 / 2 - (a - b)^2 / 2 for a the logarithm of sigma over the one that is expected, and b that of r.
        return self.pull * 2 * math.log(state.sigma / self.expected) * math.log(state.ratio)

    def _decide(self, state: RaceState, misfit: float, lead: float, *, drawn: bool) -> RaceState:
        """The state after a round, whose weaker side has this misfit, and the stronger side this much more."""
        assert state.stronger is not None
        up = lead < 0 or math.isnan(misfit)
        winner, best = (state.rival, state.stronger) if up else (state.side, misfit)
        move = 0 if drawn else 1 if up else -1
        turned = move * state.turn < 0 or move == 0
        streak = 0 if turned else state.streak + 1
        ratio = state.ratio**0.5 if turned else state.ratio
        if self.patient and streak >= _STREAK:
            ratio = min(_RATIO, ratio**2)
        length = max(self.length, state.goal // 4 * 2)
        if self.growing:
            length = max(length, 2 * state.length if turned else state.length)
        still = state.misfit is not None and not best < (1 - _STILL) * state.misfit
        after = replace(
            state,
            sigma=state.sigma * (ratio if self.patient else state.ratio) ** move,
            ratio=ratio,
            turn=move or state.turn,
            streak=streak,
            rounds=state.rounds + 1,
            length=length if self.patient else self.length,
            misfit=best,
            tried=(state.stronger, misfit),
            ended=ratio < (_NEAR if self.patient else _HASTY_NEAR) and still,
        )
        return self._begin_round(after, winner)

    def _side(self, state: RaceState) -> Any:
        """The algorithm with the sigma of the side that is running."""
        if not state.begun:
            return replace(self.algorithm, sigma=state.sigma)
        return replace(self.algorithm, sigma=state.sigma / state.ratio if state.weaker else state.sigma * state.ratio)

    def phase(self, state: RaceState) -> None:
        """None: its sides try other sigmas in turn."""
        return

    def parameters(self, k: int, state: RaceState | None = None) -> tuple[float, float]:
        """gamma and sigma of the next step, of the side that takes it; without a state, of the start."""
        if state is None:
            gamma, sigma = self.algorithm.parameters(k)
            return gamma, sigma
        found: tuple[float, float] = self._side(state).parameters(state.side.k + 1, state.side)
        return found

    def residual(self, state: RaceState, views: Views = None) -> Tensor:
        """||x - T(x)||^2 at the image of the side that is running, with its sigma: (...)."""
        side = replace(state.side, image=state.image)
        residual: Tensor = self._side(state).residual(side, views)
        return residual

    def fidelity_at(self, state: RaceState) -> Fidelity:
        """The fidelity with what the state has found of the model beside the image."""
        return fidelity_at(self.algorithm, state.side)

    def finish(self, state: RaceState, algorithm: Any | None = None) -> tuple[Any, Any]:
        """The algorithm with the sigma that was found, and the state to go on from with it.

        Arguments: state, of a race that has ended; algorithm, to go on with instead, on all views say.
        """
        goes_on = replace(self.algorithm if algorithm is None else algorithm, sigma=state.sigma)
        return goes_on, goes_on.renew(replace(state.trunk, k=state.k))


def _is_chance(one: Tensor, other: Tensor) -> bool:
    """Whether two misfits of the same views, (n,) each, differ by next to nothing, and less than they do by chance."""
    change = one.double() - other.double()
    if len(change) < _PAIRS or not float(change.mean().abs()) < _TINY * float(other.mean()):
        return False
    return bool(change.mean().abs() < _ERRORS * change.std() / math.sqrt(len(change)))


def _swap(state: RaceState) -> RaceState:
    """The state in which the other side runs."""
    return replace(state, side=state.rival, rival=state.side)
