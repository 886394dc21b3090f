"""The denoiser, chosen while sigma is found: once sigma is about right, others start from the same image."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from plugstream.algorithms.race import RaceState, SigmaRace
from plugstream.arrays import Array
from plugstream.denoisers.base import Denoiser
from plugstream.errors import InputError

__all__ = ["DenoiserRace", "HeatState", "Rival"]

# By what the sides of a round differ from sigma where a rival has won, whose own best sigma nobody has looked for yet.
_RATIO = 2**0.5
# An entrant of the heat takes so many times the steps of a side in the first round.
_LENGTHS = 2


@dataclass(frozen=True)
class Rival:
    """A denoiser that may take the place of the race's own: its name, itself, and its sigma over that of the other."""

    name: str
    denoiser: Denoiser
    factor: float = 1.0


@dataclass(frozen=True)
class HeatState(RaceState):
    """Where a race is that chooses the denoiser, too.

    entrant: which denoiser runs in the heat, 0 for the race's own, None before and after it. heat: the misfits of those
    that have run. leader: which of them is ahead; its state is `rival` while the heat goes on. final: whether sigma was
    found before it. choice: which denoiser the rounds have, that of the leader once the heat is over (`decided`).
    """

    entrant: int | None = None
    heat: tuple[float, ...] = ()
    leader: int = 0
    final: bool = False
    choice: int = 0
    decided: bool = False


@dataclass(frozen=True, eq=False)
class DenoiserRace(SigmaRace):
    r"""Find sigma and the denoiser: a race for sigma that holds one heat of denoisers on its way.

    When sigma turns for the first time, or else with the last round, it is right within a factor of two. From the image
    there each denoiser takes 2 m steps, the race's own with sigma and the i-th rival with c_i sigma, on the same views.
    e is the misfit on data that no step uses, as of `SigmaRace`. The rival with the least e wins if

        e < (1 - margin) e_own,

    and the race's own denoiser else. The rounds of a rival go on from its image, with r = sqrt(2). Those of the race's
    own go on from where the heat began, so that they are those of the race for sigma alone, to the bit.

    Why a margin: with noisy data e is nearly all noise, the same for all, and which of two good denoisers has the
    smaller one is chance. The one that is best on the average should then stay; docs/sigma-search.md has what was
    measured.

    Condition: sigma means the same to all of them, a level of noise or the weight of a prior, so that c_i hardly
    depends on the data.

    Arguments: as of `SigmaRace`, whose `steps` do not count those of the heat; rivals, at least one; margin, as above.
    """

    rivals: tuple[Rival, ...] = ()
    margin: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rivals:
            raise InputError("a race of denoisers needs a rival of the algorithm's own")
        if not 0 <= self.margin < 1:
            raise InputError(f"the margin by which a rival must win is from 0 to 1, not {self.margin}")

    @property
    def heat_steps(self) -> int:
        """The steps of one entrant of the heat."""
        return _LENGTHS * self.length

    def init(self, image: Array | None = None) -> HeatState:
        """The state before the first step, from an image (*image_shape), or from zero."""
        state = super().init(image)
        return HeatState(**{field.name: getattr(state, field.name) for field in fields(state)})

    @torch.no_grad()
    def step(self, state: RaceState) -> RaceState:
        """One step of the side or the entrant that is running, and at its end what comes of it."""
        assert isinstance(state, HeatState)
        if state.entrant is None:
            return super().step(state)
        side = self._side(state).step(state.side)
        gone = replace(state, k=state.k + 1, image=side.image, side=side, place=state.place + 1)
        return gone if gone.place < gone.goal else self._judge(gone, self._look(side)[0])

    def _judge(self, state: HeatState, misfit: float) -> RaceState:
        """The state after an entrant of the heat has come to an image of this misfit."""
        assert state.entrant is not None
        number, heat = state.entrant, (*state.heat, misfit)
        best = min(_known((1 - self.margin) * heat[0]), _known(heat[state.leader]))
        ahead = number == 0 or misfit < best
        if ahead:
            state = replace(state, leader=number, rival=state.side)
        state = replace(state, heat=heat)
        if number < len(self.rivals):
            fresh = replace(state.trunk, warm=None)  # a warm start is of the denoiser that made it
            return replace(state, entrant=number + 1, side=fresh, image=fresh.image, place=0)
        return self._close_heat(state)

    def _close_heat(self, state: HeatState) -> RaceState:
        """The state before the round that comes after the heat, of the denoiser that has won it."""
        number = state.leader
        over = replace(state, entrant=None, decided=True, choice=number, ended=state.final)
        if number == 0:
            return super()._begin_round(over, state.trunk)
        sigma, misfit = state.sigma * self.rivals[number - 1].factor, state.heat[number]
        over = replace(over, sigma=sigma, ratio=_RATIO, turn=0, streak=0, misfit=misfit, ended=False)
        return super()._begin_round(over, state.rival)

    def _begin_round(self, state: RaceState, trunk: Any) -> RaceState:
        """The state before a round, or before the heat where that is due."""
        assert isinstance(state, HeatState)
        following = super()._begin_round(state, trunk)
        turned = state.rounds > 0 and state.streak == 0
        if state.decided or not (turned or following.ended):
            return following
        start = {"image": trunk.image, "trunk": trunk, "side": trunk, "rival": trunk}
        state = replace(state, **start, entrant=0, place=0, look=0, goal=self.heat_steps, weaker=False, lead=None)
        return replace(state, final=state.ended, ended=False)

    def _side(self, state: RaceState) -> Any:
        """The algorithm with the sigma and the denoiser of what is running."""
        assert isinstance(state, HeatState)
        number = state.choice if state.entrant is None else state.entrant
        made = super()._side(state) if state.entrant is None else replace(self.algorithm, sigma=state.sigma)
        if number == 0:
            return made
        rival = self.rivals[number - 1]
        sigma = made.sigma if state.entrant is None else made.sigma * rival.factor
        return replace(made, denoiser=rival.denoiser, sigma=sigma)

    def finish(self, state: RaceState, algorithm: Any | None = None) -> tuple[Any, Any]:
        """The algorithm with the denoiser and the sigma that were found, and the state to go on from with it.

        Arguments: state, of a race that has ended; algorithm, to go on with instead, which has the denoiser already.
        """
        assert isinstance(state, HeatState)
        if algorithm is None and state.choice > 0:
            algorithm = replace(self.algorithm, denoiser=self.rivals[state.choice - 1].denoiser)
        return super().finish(state, algorithm)

    def name_of(self, number: int) -> str | None:
        """The name of an entrant of the heat; None for the race's own denoiser."""
        return None if number == 0 else self.rivals[number - 1].name


def _known(misfit: float) -> float:
    """A misfit, infinite where an image is not finite."""
    return math.inf if math.isnan(misfit) else misfit
