"""The denoiser, chosen with sigma: once sigma is found, others start from the same image."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import torch
from torch import Tensor

from plugstream.algorithms.race import RaceState, SigmaRace
from plugstream.base.arrays import Array
from plugstream.base.errors import InputError
from plugstream.denoisers.base import Denoiser

# The ratio of the first round of a rival that has won.
_RATIO = 2**0.5
# Rounds that this rival gets for its own sigma, besides those that the race did not use.
ROUNDS = 2
# This part of an image's values at each end is no part of its range.
_OUTSIDE = 0.005


@dataclass(frozen=True)
class Rival:
    """A denoiser that may take the place of the race's own.

    name; denoiser. factor, power: its sigma is on average factor * sigma^power, with sigma that of the race's own
    denoiser. unit: if sigma means something else to the race's own denoiser, its sigma is
    factor * sigma^power * R^unit, with R the range of the image; D = prox_{sigma^2 r} with r(c x) = c r(x), such as TV,
    has a sigma that grows with sqrt(R), so that unit = 1 - power / 2 leaves a level of noise. rounds: how many of 2 m
    steps it gets for its own sigma if it wins. growing: as of `SigmaRace`, None as the race's own. proves: by how
    many margins these rounds must end below the misfit of the race's own denoiser, or that one stays; 0 for no proof.
    shift: in falling searches, by how many powers of two its best lam is further from its first one, on average.
    """

    name: str
    denoiser: Denoiser
    factor: float = 1.0
    power: float = 1.0
    unit: float = 0.0
    rounds: int = ROUNDS
    growing: bool | None = None
    proves: float = 0.0
    shift: int = 0

    def sigma(self, sigma: float, image: Tensor | None = None) -> float:
        """The sigma that corresponds to one of the race's own denoiser, which has come to this image."""
        size = 1.0 if self.unit == 0 or image is None else value_range(image) ** self.unit
        return float(self.factor * sigma**self.power) * size


def value_range(image: Tensor) -> float:
    """The range of an image's values, of a complex one's magnitudes, without 0.5 % of them at each end."""
    values = (image.abs() if image.is_complex() else image).flatten()
    outside = min(int(_OUTSIDE * len(values)) + 1, len(values))
    low, high = (float(values.kthvalue(k).values) for k in (outside, len(values) + 1 - outside))
    return high - low


@dataclass(frozen=True)
class HeatState(RaceState):
    """The state of a race that chooses the denoiser too.

    entrant: the denoiser that runs in the heat, 0 for the race's own, None before and after the heat. heat: the misfits
    of those that have run. leader: the best of them, whose state is `rival` during the heat. choice: the denoiser of
    the rounds, the leader once the heat is over (`decided`). home, found: where a rival `proves` itself, the state
    to which the race goes back if it does not, and the sigma of then; proof: the misfit that it came to.
    """

    entrant: int | None = None
    heat: tuple[float, ...] = ()
    leader: int = 0
    choice: int = 0
    decided: bool = False
    home: Any = None
    found: float = 0.0
    proof: float | None = None


@dataclass(frozen=True, eq=False)
class DenoiserRace(SigmaRace):
    r"""Find sigma and the denoiser: a race for sigma, and at its end one heat of denoisers.

    From the last image of the race each denoiser takes m steps on the same views, the race's own with the sigma found,
    the i-th rival with c_i sigma^p_i. With e the misfit on data that no step uses, as in `SigmaRace`, the least

        e_i / (1 - margin),    with no margin for the race's own denoiser,

    wins. A rival that wins gets further rounds from its image, with r = sqrt(2): its `rounds` of 2 m
    steps, and those that the race did not use. Otherwise the race ends as that for sigma alone, to the bit.

    Why at the end: with too large a sigma, as earlier in a race, whoever smooths least wins. Why a margin: with noisy
    data e is nearly all noise, so that chance decides between two good denoisers; the one that is best on average
    should then be chosen (docs/sigma-search.md).

    Condition: sigma means the same to all of them, a level of noise or the weight of a prior, so that c_i and p_i
    hardly depend on the data. A rival to which it means something else (`Rival.unit`) may enter several times,
    with several c_i.

    Arguments: as of `SigmaRace`, whose `steps` do not include the heat and what follows it; rivals, at least one;
    margin.
    """

    rivals: tuple[Rival, ...] = ()
    margin: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rivals:
            raise InputError("a race of denoisers needs a rival of the algorithm's own")
        if not 0 <= self.margin < 1:
            raise InputError(f"the margin by which a rival must win is from 0 to 1, not {self.margin}")

    def init(self, image: Array | None = None) -> HeatState:
        """The state before the first step, from an image (*image_shape), or from zero."""
        state = super().init(image)
        home = state.trunk if any(rival.proves > 0 for rival in self.rivals) else None
        return HeatState(**{field.name: getattr(state, field.name) for field in fields(state)}, home=home)

    @torch.no_grad()
    def step(self, state: Any) -> RaceState:
        """One step of the side or the entrant that is running, and at its end what comes of it."""
        if state.entrant is None:
            return super().step(state)
        side = self._side(state).step(state.side)
        gone = replace(state, k=state.k + 1, image=side.image, side=side, place=state.place + 1)
        return gone if gone.place < gone.goal else self._judge(gone, self._look(side)[0])

    def _judge(self, state: HeatState, misfit: float) -> RaceState:
        """The state after an entrant of the heat has come to an image of this misfit."""
        assert state.entrant is not None
        number, heat = state.entrant, (*state.heat, misfit)
        state = replace(state, heat=heat)
        if number == 0 or self._score(state, number) < self._score(state, state.leader):
            state = replace(state, leader=number, rival=state.side)
        if number < len(self.rivals):
            fresh = replace(state.trunk, warm=None)  # a warm start is of the denoiser that made it
            return replace(state, entrant=number + 1, side=fresh, image=fresh.image, place=0)
        return self._close_heat(state)

    def _score(self, state: HeatState, number: int) -> float:
        """The score of an entrant that has run, the least of which wins; infinite if its image is not finite."""
        misfit = state.heat[number]
        margin = 0.0 if number == 0 else self.margin
        return math.inf if math.isnan(misfit) else misfit / (1 - margin)

    def _close_heat(self, state: HeatState) -> RaceState:
        """The state before the first round of the rival that has won, or the end."""
        number, trunk = state.leader, state.trunk
        over = replace(state, entrant=None, decided=True, choice=number)
        if number == 0:
            return replace(over, ended=True, image=trunk.image, side=trunk, rival=trunk, place=0)
        sigma, misfit = self.rivals[number - 1].sigma(state.sigma, trunk.image), state.heat[number]
        if self.rivals[number - 1].proves > 0:
            over = replace(over, home=trunk, found=state.sigma)
        over = replace(over, sigma=sigma, ratio=_RATIO, turn=0, streak=0, misfit=misfit, length=self.length)
        return super()._begin_round(over, state.rival)

    def _begin_round(self, state: Any, trunk: Any) -> RaceState:
        """The state before a round, or before the heat where sigma has just been found."""
        following = cast(HeatState, super()._begin_round(state, trunk))
        if not following.ended:
            return following
        if state.decided:
            return self._prove(following) if self.rivals[state.choice - 1].proves > 0 else following
        return replace(following, ended=False, entrant=0, goal=self.length)

    def _prove(self, state: HeatState) -> HeatState:
        """The end of the rounds of a rival that must prove itself, or the return to the race's own denoiser."""
        misfit = state.misfit
        assert misfit is not None
        state = replace(state, proof=misfit)
        if misfit < (1 - self.rivals[state.choice - 1].proves * self.margin) * state.heat[0]:
            return state
        home = state.home
        back = {"trunk": home, "side": home, "rival": home, "image": home.image, "sigma": state.found}
        return replace(state, choice=0, misfit=state.heat[0], **back)

    def _limit(self, state: Any) -> int:
        """How many steps the way in and all rounds may take, more for a rival."""
        extra = 2 * self.rivals[state.choice - 1].rounds * self.length if state.choice > 0 else 0
        return super()._limit(state) + extra

    def _grows(self, state: Any) -> bool:
        """Whether rounds grow, which may be otherwise for a rival."""
        other = self.rivals[state.choice - 1].growing if state.choice > 0 else None
        return super()._grows(state) if other is None else other

    def _side(self, state: Any) -> Any:
        """The algorithm with the sigma and the denoiser of what is running."""
        number = state.choice if state.entrant is None else state.entrant
        side = super()._side(state) if state.entrant is None else replace(self.algorithm, sigma=state.sigma)
        if number == 0:
            return side
        rival = self.rivals[number - 1]
        sigma = side.sigma if state.entrant is None else rival.sigma(side.sigma, state.trunk.image)
        return replace(side, denoiser=rival.denoiser, sigma=sigma)

    def finish(self, state: Any, algorithm: Any | None = None) -> tuple[Any, Any]:
        """The algorithm with the denoiser and the sigma found, and the state from which it continues.

        Arguments: state, of a race that has ended; algorithm, to continue with instead, which has the denoiser already.
        """
        if algorithm is None and state.choice > 0:
            algorithm = replace(self.algorithm, denoiser=self.rivals[state.choice - 1].denoiser)
        return super().finish(state, algorithm)
