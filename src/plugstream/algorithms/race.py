"""The strength of the denoiser, found while the image forms: two sigmas race, and held-out views judge them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from plugstream.algorithms.abilities import AlgorithmAbilities, as_algorithm
from plugstream.algorithms.base import fidelity_at
from plugstream.base.arrays import Array
from plugstream.base.errors import InputError
from plugstream.denoisers.base import Denoiser
from plugstream.fidelity.least_squares import Fidelity
from plugstream.models.views import Views

LEAST_STEPS = 20
"""The fewest steps of a search for sigma."""

# The ratio of both sigmas of the first round to the one between them, which is the largest, and where the search ends.
_RATIO, _NEAR, _HASTY_NEAR = 2.0, 1.05, 1.1
# The way in ends when m steps lower the misfit by less than this part of its total decrease, or of the misfit if rounds
# grow; it takes at most one in this many steps.
_BEGUN, _WAY_IN = 0.1, 3
# A round that lowers the misfit by less than this part has brought nothing.
_STILL = 5e-3
# The first round takes one in this many steps, and every round of a hasty race.
_SHARE, _HASTY_SHARE = 25, 20
# A lead that has shrunk to less than this part since the last look may turn. A lead below the second part of that in
# the round before, in a round that went on, is a draw.
_SHRUNK, _DRAW = 0.9, 0.05
# After this many moves in one direction the sides go further apart again.
_STREAK = 3
# With a judge of at least this many views, a lead below this many standard errors is chance if it is also below this
# part of e: far from the right sigma, leads point the right way long before they are significant.
_ERRORS, _PAIRS, _TINY = 2, 3, 1e-3


@dataclass(frozen=True)
class RaceState:
    """The state of a race: `k` steps in all, and the image of the last of them.

    trunk: the state from which both sides of this round started. side: that of the running side; rival: that of the
    other. begun: whether the way in is over. used: steps of the race so far. place: steps of the running side in this
    round, from the last look at both (`look`) to the next (`goal`). weaker: whether the weaker side runs. length: steps
    of a side in this round, unless it goes on. sigma, ratio: the sides have sigma * ratio and sigma / ratio. turn: the
    last move of sigma, 1 up, -1 down, 0 for none yet; streak: how often it moved that way since it turned. rounds:
    finished ones. stronger: the misfit of the stronger side at this look; each: that of each view, with a judge. lead:
    misfit of the stronger side minus that of the weaker one at the last look. start: misfit of the first image. misfit:
    that of the last winner. tried: both misfits of the last round, stronger side first. ended: whether the search is
    over; `trunk` is then the winner, and `sigma` the result.
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
    r"""Find sigma from the data in a single run: two sides continue from one state, and the better one wins.

    The judge is

        e(x) = d(x) on views that no step uses, or, if views are few, on a part of each view's data (`judge`).

    The way in: m steps at a time with the first sigma, until m of them lower e by less than a tenth of its total
    decrease. Before that the sides would only show which of them is quicker.

    A round: from one state the algorithm takes m steps with sigma r and, on the same views, m steps with sigma / r.
    Both images are compared after m / 2 and after m steps. If the lead has changed sides or shrunk by a tenth, both go
    on for as many steps again, and so on. The side with the smaller e wins and starts the next round, whose m is at
    least half of what this one became. sigma moves by the factor r towards the winner; if that reverses its direction,
    r becomes sqrt(r) first, and from the third move in one direction on r^2, at most 2. In a round that went on, a lead
    below a twentieth of that in the round before is a draw: sigma stays, and r becomes sqrt(r). So is, with a judge of
    three or more views, a lead below a thousandth of e and below twice its standard error over views. The search ends
    when r is below 1.05 and e falls no more, or with its steps; the last move is then halved.

    If the right sigma is known roughly (`expected`), few photons or few views should not move it far. With a prior of
    log(sigma) about log(expected), of standard deviation s, and n judging views, each unit of whose misfit is c of a
    negative log-likelihood, the sides are compared by

        e(x) + pull log(sigma / expected)^2 / 2,    pull = 1 / (c n s^2).

    Why two sides: an image lags behind a changing sigma, so that a falling sigma looks better than it is. The two sides
    lag alike, and the choice of views is the same for both.

    Why rounds go on: near its fixed point an image moves by sum_j (1 - rho_j^m) v_j in m steps with another sigma, so
    that the sides are D(m) = sum_j (1 - rho_j^m) D_j apart in e, while sum_j D_j counts. If slow parts oppose the quick
    ones and prevail, |D(m)| falls before its sign changes, as the comparisons show.

    Rounds that grow (`growing`): if sigma is a level of noise, as for BM3D, the noise that a weaker side lets in
    gathers over tens of steps, so it looks too good early on, and no comparison shows that its lead will turn. So the
    way in goes on until m steps lower e by less than a tenth of it, and m doubles whenever sigma turns. Fewer rounds
    fit in, so the last move is not halved if sigma turned in it.

    Condition: e has one minimum over sigma; the noise of the held-out views is independent of that of the others; slow
    parts that oppose the quick ones show within a round. docs/sigma-search.md has measurements and failures.

    Arguments:
        algorithm: with a number as its first sigma; its fidelity has the held-out views, but does not draw them.
        held_out: their numbers, (n,), at least one.
        steps: of the way in and of both sides of all rounds together, at least `LEAST_STEPS`; m is a 25th of it at
            first, at least 2.
        patient: False for a start that is far too large, where every step counts, since the image of a nonlinear model
            may get stuck, which held-out views hardly show: no way in, no round goes on, at most ten rounds of
            m = steps / 20, sigma turns by all of r before r shrinks, and 1.1 is near enough.
        judge: the fidelity of data that steps leave out of these views, with `PartOfData(..., judge=True)`; steps may
            then draw them. Without it, d is that of the algorithm.
        growing: whether rounds of a patient race grow, for denoisers whose sigma is a level of noise.
        expected: roughly the right sigma, None if not known. pull: how much that counts.
    References: for the race, Jaderberg et al., Population Based Training, 2017, with a population of two; for the
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
        usable = torch.isin(self.held_out.cpu(), self.algorithm.fidelity.available.cpu())
        if bool(usable.any()):
            raise InputError(
                f"view {int(self.held_out[usable.nonzero()[0, 0]])} is held out, but steps may use it; take it out of "
                "the fidelity's available views"
            )

    @property
    def length(self) -> int:
        """m, the steps of a side in the first round."""
        return max(2, self.steps // _SHARE // 2 * 2) if self.patient else self.steps // _HASTY_SHARE

    @property
    def fidelity(self) -> Fidelity:
        return cast(Fidelity, self.algorithm.fidelity)

    @property
    def denoiser(self) -> Denoiser:
        return cast(Denoiser, self.algorithm.denoiser)

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
        """The state after m steps of the way in, which gave this misfit."""
        assert state.start is not None
        assert state.misfit is not None
        fall, total = state.misfit - misfit, misfit if self.growing else state.start - misfit
        state = replace(state, misfit=misfit)
        if 0 < _BEGUN * total <= fall and state.used + state.length <= self.steps // _WAY_IN:
            return replace(state, goal=state.place + state.length)
        return self._begin_round(replace(state, begun=True), state.side)

    def _begin_round(self, state: RaceState, trunk: Any) -> RaceState:
        """The state before a round from this trunk, or the end if too few steps remain."""
        remaining = (self._limit(state) - state.used) // 2
        length = min(state.length, remaining // 2 * 2 if self.patient else remaining)
        if length < self.length and not state.ended:
            # The last move may have gone too far.
            between = self._grows(state) and state.streak == 0
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
        """The state after comparing both sides, with this misfit of the weaker one: the round goes on, or ends."""
        assert state.stronger is not None
        lead = state.stronger - misfit + self._handicap(state)
        unclear = state.lead is not None and (lead * state.lead < 0 or abs(lead) < _SHRUNK * abs(state.lead))
        longer = state.goal > state.length
        draw = longer and state.tried is not None and abs(lead) < _DRAW * abs(state.tried[0] - state.tried[1])
        room = state.used + 2 * state.goal <= self._limit(state)
        if self.patient and (state.lead is None or (unclear and room and not draw)):
            return replace(_swap(state), weaker=False, lead=lead, look=state.goal, goal=2 * state.goal)
        chance = self.patient and state.each is not None and each is not None and _is_chance(state.each, each)
        return self._decide(state, misfit, lead, draw=draw or chance or lead == 0)

    def _grows(self, state: RaceState) -> bool:
        """Whether rounds grow."""
        return self.growing

    def _limit(self, state: RaceState) -> int:
        """How many steps the way in and all rounds may take."""
        return self.steps if self.patient else _HASTY_SHARE * self.length

    def _handicap(self, state: RaceState) -> float:
        """How much less likely the sigma of the stronger side is than that of the weaker one."""
        if self.expected is None or self.pull == 0:
            return 0.0
        # (a + b)^2 / 2 - (a - b)^2 / 2 with a = log(sigma / expected) and b = log(r).
        return self.pull * 2 * math.log(state.sigma / self.expected) * math.log(state.ratio)

    def _decide(self, state: RaceState, misfit: float, lead: float, *, draw: bool) -> RaceState:
        """The state after a round with this misfit of the weaker side, and this much more of the stronger one."""
        assert state.stronger is not None
        up = lead < 0 or math.isnan(misfit)
        winner, best = (state.rival, state.stronger) if up else (state.side, misfit)
        move = 0 if draw else 1 if up else -1
        turned = move * state.turn < 0 or move == 0
        streak = 0 if turned else state.streak + 1
        ratio = state.ratio**0.5 if turned else state.ratio
        if self.patient and streak >= _STREAK:
            ratio = min(_RATIO, ratio**2)
        length = max(self.length, state.goal // 4 * 2)
        if self._grows(state):
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
        else:
            gamma, sigma = self._side(state).parameters(state.side.k + 1, state.side)
        return gamma, sigma

    def residual(self, state: RaceState, views: Views = None) -> Tensor:
        """||x - T(x)||^2 at the image of the running side, with its sigma: (...)."""
        side = replace(state.side, image=state.image)
        return cast(Tensor, self._side(state).residual(side, views))

    def fidelity_at(self, state: RaceState) -> Fidelity:
        return fidelity_at(self.algorithm, state.side)

    def finish(self, state: RaceState, algorithm: Any | None = None) -> tuple[Any, Any]:
        """The algorithm with the sigma found, and the state from which it continues.

        Arguments: state, of a race that has ended; algorithm, to continue with instead, on all views say.
        """
        final = replace(self.algorithm if algorithm is None else algorithm, sigma=state.sigma)
        return final, final.renew(replace(state.trunk, k=state.k))


def _is_chance(one: Tensor, other: Tensor) -> bool:
    """Whether two misfits of the same views, (n,) each, differ by almost nothing and insignificantly."""
    change = one.double() - other.double()
    if len(change) < _PAIRS or not float(change.mean().abs()) < _TINY * float(other.mean()):
        return False
    return bool(change.mean().abs() < _ERRORS * change.std() / math.sqrt(len(change)))


def _swap(state: RaceState) -> RaceState:
    """The state in which the other side runs."""
    return replace(state, side=state.rival, rival=state.side)
