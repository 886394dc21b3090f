"""The strength of the denoiser, found while the image forms: two sigmas race on, and held-out views judge them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from plugstream.algorithms.base import fidelity_at
from plugstream.arrays import Array
from plugstream.denoisers.base import Denoiser
from plugstream.errors import InputError
from plugstream.fidelity import Fidelity
from plugstream.models.base import Views

__all__ = ["ROUNDS", "RaceState", "SigmaRace"]

ROUNDS = 10
"""How many rounds a search has at most: five of them reach a sigma 32 times off, and the others come nearer."""

# By what the two sigmas of the first round differ from the one between them; the power that it is taken to whenever the
# search turns round; and where it is near enough to one.
_RATIO, _CALMING, _NEAR = 2.0, 0.5, 1.1
# A round by which the misfit falls by less than this part of it has brought nothing.
_STILL = 5e-3


@dataclass(frozen=True)
class RaceState:
    """Where a race is: `k` steps of both sides in all, and the image of the last of them.

    trunk: the state from which both sides of this round started. side: that of the side which is running. rival: that
    of the stronger side, once it has run. place: steps of this side in this round; weaker: whether it is the second.
    sigma and ratio: the sides have sigma * ratio and sigma / ratio. turn: which way sigma went last, 1 up, -1 down, 0
    for neither yet. rounds: that are over. stronger: the misfit of the stronger side in this round.
    misfit: of the winner of the last round. tried: the two misfits of the last round, stronger side first. ended:
    whether the search is over; `trunk` is then the winner, and `sigma` what was found.
    """

    k: int
    image: Tensor
    trunk: Any
    side: Any
    rival: Any
    sigma: float
    ratio: float = _RATIO
    place: int = 0
    weaker: bool = False
    turn: int = 0
    rounds: int = 0
    stronger: float | None = None
    misfit: float | None = None
    tried: tuple[float, float] | None = None
    ended: bool = False


@dataclass(frozen=True, eq=False)
class SigmaRace:
    r"""Find sigma, on the data themselves and without repeating runs: two sides go on from one state, the better wins.

    A round starts from a state, and lets the algorithm take m steps with sigma r and, from the same state and with the
    same views, m steps with sigma / r. Then

        e(x) = d(x) on views that no step uses

    is measured of both images. The side with the smaller e wins: its state is where the next round starts, its sigma is
    the next one in the middle, and where that is another direction than in the round before, r becomes sqrt(r). It ends
    after `ROUNDS` rounds, or when r is below 1.1 and e falls no more.

    Why two sides and not one that follows e: an image lags behind a sigma that changes, so that a falling sigma looks
    better than it is, and far too small a one is found. The two sides lag alike. Noise in the choice of views is the
    same for both, too, so that their difference is that of sigma.

    Condition: e has one minimum over sigma, as a function of the images that are reached; the noise of the held-out
    views is independent of that of the others. Within `m` steps from one image the sides must come apart the way they
    would in the end, which experience tells: docs/tuning.md has what was measured, and where it is wrong.

    Arguments:
        algorithm: whose sigma is looked for, with a number for a start; its fidelity has the held-out views, and does
            not draw them. held_out: their numbers, (n,), at least one. steps: of both sides and all rounds together,
            at least 2 * ROUNDS; m is a twentieth of it.
    References: for the race, Jaderberg et al., Population Based Training, 2017, with a population of two; for the
    score, Stone, J. Royal Stat. Soc. B 36, 1974.
    """

    algorithm: Any
    held_out: Tensor
    steps: int = 200

    def __post_init__(self) -> None:
        sigma = getattr(self.algorithm, "sigma", None)
        if not isinstance(sigma, int | float) or not sigma > 0:
            raise InputError(f"a search starts from one sigma > 0 for all steps, not from {sigma!r}")
        if self.steps < 2 * ROUNDS:
            raise InputError(f"a search for sigma takes at least {2 * ROUNDS} steps, not {self.steps}")
        if len(self.held_out) == 0:
            raise InputError("a search for sigma needs views to judge by; hold some out")
        drawn = torch.isin(self.held_out.cpu(), self.algorithm.fidelity.available.cpu())
        if bool(drawn.any()):
            raise InputError(
                f"view {int(self.held_out[drawn.nonzero()[0, 0]])} is held out, but steps may use it; take it out of "
                "the fidelity's available views"
            )

    @property
    def length(self) -> int:
        """m, the steps of a side in a round."""
        return self.steps // (2 * ROUNDS)

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
        state = self.algorithm.init(image)
        return RaceState(state.k, state.image, state, state, state, float(self.algorithm.sigma))

    @torch.no_grad()
    def step(self, state: RaceState) -> RaceState:
        """One step of the side that is running, and at its end what comes of it."""
        if state.ended:
            raise InputError("the search for sigma has ended; go on with the algorithm and the sigma that it found")
        side = self._side(state).step(state.side)
        gone = replace(state, k=state.k + 1, image=side.image, side=side, place=state.place + 1)
        if gone.place < self.length:
            return gone
        misfit = float(fidelity_at(self.algorithm, side).value(side.image, self.held_out).mean())
        if not state.weaker:
            return replace(gone, side=gone.trunk, rival=side, place=0, weaker=True, stronger=misfit)
        return self._judge(gone, misfit)

    def _judge(self, state: RaceState, misfit: float) -> RaceState:
        """The state after a round, whose weaker side has this misfit."""
        assert state.stronger is not None
        up = state.stronger < misfit or math.isnan(misfit)
        winner, best = (state.rival, state.stronger) if up else (state.side, misfit)
        turn = 1 if up else -1
        if misfit == state.stronger:  # sigma makes no difference, so it stays
            turn = 0
        sigma = state.sigma * state.ratio**turn
        ratio = state.ratio**_CALMING if turn * state.turn < 0 or turn == 0 else state.ratio
        rounds = state.rounds + 1
        still = state.misfit is not None and not best < (1 - _STILL) * state.misfit
        return replace(
            state,
            image=winner.image,
            trunk=winner,
            side=winner,
            rival=winner,
            sigma=sigma,
            ratio=ratio,
            place=0,
            weaker=False,
            turn=turn or state.turn,
            rounds=rounds,
            stronger=None,
            misfit=best,
            tried=(state.stronger, misfit),
            ended=rounds >= ROUNDS or (ratio < _NEAR and still),
        )

    def _side(self, state: RaceState) -> Any:
        """The algorithm with the sigma of the side that is running."""
        sigma = state.sigma / state.ratio if state.weaker else state.sigma * state.ratio
        return replace(self.algorithm, sigma=sigma)

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
