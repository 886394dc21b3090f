"""The denoiser, chosen with the step: each has a falling search of its own, from the same image."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, cast

import torch

from plugstream.algorithms.falling import FallingSearch, FallingState
from plugstream.algorithms.heat import Rival
from plugstream.base.arrays import Array
from plugstream.base.errors import InputError

# How many times the steps of a run each denoiser goes on with what its search found before its image is judged, and how
# many times more e is expected to rise by the factor by which it rose in the last of them.
_ON, _DRIFT = 2, 8
# A rival does not go on whose best run is this much worse than the best image so far. It gives up after a run that is
# this much worse: less where it began with what is the best lam of the other as well.
_BEHIND, _HOPELESS, _ALIKE = 1.1, 1.5, 1.03
# By how many margins it must be better than the first.
_SURE = 2.0


@dataclass(frozen=True)
class FallingHeatState(FallingState):
    """The state of falling searches one after the other, of the one that is running or, at the end, of the best.

    entrant: whose search that is, 0 for the algorithm's own denoiser. settled: the steps for which it has gone on with
    what it found, None before that. halfway: the misfit after as many as a run has. heat: the misfit that is expected
    of each that is over. leader: the best of these, and home its end.
    """

    entrant: int = 0
    settled: int | None = None
    halfway: float = math.inf
    heat: tuple[float, ...] = ()
    leader: int = 0
    home: Any = None


@dataclass(frozen=True, eq=False)
class FallingHeat(FallingSearch):
    """Find the step and the denoiser: a falling search with each denoiser, of which the least misfit wins.

    Each search starts from the first image and finds the weight lam of its own prior (`FallingSearch`); that of a rival
    begins where the best so far ended, since all look at the same noise (`Rival.shift`). Its best run then goes on for
    2 n steps with the sigma and the step that it found. What that comes to is compared, since it is the image that one
    gets: a prior that is wrong for an image, such as one of photographs for a hard rim, may spoil it only after a run,
    and a right one may not have arrived. If e has risen by a factor c in the last n, it is expected to rise by c^8
    more. The algorithm goes on from there. A rival must be better than the algorithm's own denoiser by two margins, and
    gives up if it is 1.5 times as bad as the best after its first runs (1.03 times if sigma means the same to both), or
    1.1 times after its search.

    Condition: as of `FallingSearch`; e is small where the image is good, for all priors alike. Data see nothing of what
    no view sees, nor does e (docs/sigma-search.md has measurements).

    Arguments: as of `FallingSearch`; steps are those of each denoiser; rivals, at least one, whose sigma is
    `Rival.sigma` of the algorithm's; margin, the part of e that may be noise, as of `DenoiserRace`.
    """

    rivals: tuple[Rival, ...] = ()
    margin: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rivals:
            raise InputError("a choice of the denoiser needs a rival of the algorithm's own")

    @property
    def needed(self) -> float:
        """By which part of its misfit a rival must be better than the algorithm's own denoiser."""
        return _SURE * self.margin

    @cached_property
    def searches(self) -> tuple[FallingSearch, ...]:
        """The search of each denoiser."""
        own = FallingSearch(**{field.name: getattr(self, field.name) for field in fields(FallingSearch)})
        sigma = float(self.algorithm.parameters(1)[1])
        others = (replace(self.algorithm, denoiser=r.denoiser, sigma=r.sigma(sigma)) for r in self.rivals)
        grow = (self.growing if rival.growing is None else rival.growing for rival in self.rivals)
        return (own, *(replace(own, algorithm=a, growing=g) for a, g in zip(others, grow, strict=True)))

    def init(self, image: Array | None = None) -> FallingHeatState:
        """The state before the first step, from an image (*image_shape), or from zero."""
        state = super().init(image)
        return FallingHeatState(**_parts(state), home=state)

    @torch.no_grad()
    def step(self, state: Any) -> FallingHeatState:
        """One step of the search that is running or of what it found, and at its end the next, or the end."""
        search = self.searches[state.entrant]
        if state.settled is None:
            gone: Any = search.step(state)
            if gone.heat and gone.powers and gone.misfit > self._limit_of(gone) * gone.heat[gone.leader]:
                return self._end_search(gone, gone.misfit)
            if not gone.ended:
                return cast(FallingHeatState, gone)
            side = search._steady(search.algorithm, gone, whole=False)[1]
            gone = replace(gone, side=side, settled=0, ended=False)
        else:
            side = self._side(state).step(state.side)
            parts = {"k": state.k + 1, "used": state.used + 1, "settled": state.settled + 1}
            gone = replace(state, image=side.image, side=side, **parts)
        more = gone.settled < _ON * self.fall and gone.used < self.steps
        if more and gone.settled != self.fall:
            return cast(FallingHeatState, gone)
        misfit = self._look(gone.side)[0]
        misfit = math.inf if math.isnan(misfit) else misfit
        if more:
            return cast(FallingHeatState, replace(gone, halfway=misfit))
        gone = replace(gone, rounds=gone.rounds + 1, misfit=misfit, tried=(misfit, misfit))
        rise = misfit / gone.halfway if gone.halfway > 0 else 1.0
        return self._end_search(gone, misfit * max(1.0, rise) ** _DRIFT)

    def _limit_of(self, state: FallingHeatState) -> float:
        """How much worse than the best a rival may be to go on."""
        alike = self.rivals[state.entrant - 1].shift == 0
        return _BEHIND if state.ended else _ALIKE if alike else _HOPELESS

    def _end_search(self, state: Any, expected: float) -> FallingHeatState:
        """The state before the search of the next denoiser, or the end; this misfit is expected of what goes on."""
        lean = 1 - self.needed if state.leader == 0 else 1.0
        if state.entrant == 0 or expected < lean * state.heat[state.leader]:
            state = replace(state, leader=state.entrant, home=FallingState(**_parts(state)))
        state = replace(state, heat=(*state.heat, expected))
        if state.entrant < len(self.rivals):
            return self._begin_search(state)
        now = {"k": state.k, "rounds": state.rounds, "entrant": state.leader, "settled": 0, "ended": True}
        return cast(FallingHeatState, replace(state, **_parts(state.home) | now))

    def _begin_search(self, state: FallingHeatState) -> FallingHeatState:
        """The state before the search of the next denoiser."""
        fresh = replace(state.rival, warm=None)  # a warm start is of the denoiser that made it
        entrant = state.entrant + 1
        shifts = (0, *(rival.shift for rival in self.rivals))
        first = round(state.home.place_found) + shifts[entrant] - shifts[state.leader]
        runs: dict[str, Any] = {"power": first, "powers": (), "misfits": (), "place_found": None, "place": 0, "used": 0}
        runs |= {"settled": None, "halfway": math.inf}
        sigma = float(self.searches[entrant].algorithm.parameters(1)[1])
        sides = {"trunk": fresh, "side": fresh, "rival": fresh}
        return replace(state, entrant=entrant, sigma=sigma, ended=False, **sides, **runs)

    def _side(self, state: Any) -> Any:
        """The algorithm of the run, or with what the search has found, which is made once."""
        search = self.searches[state.entrant]
        if state.settled is None:
            return search._side(state)
        key = (state.entrant, state.place_found)
        if key not in self._runs:
            self._runs[key] = search._steady(search._side(state), state, whole=False)[0]
        return self._runs[key]

    def found_step(self, state: Any, *, whole: bool = True) -> float:
        """gamma of the search that won, for all views, or for those of its runs."""
        return float(self.searches[state.entrant].found_step(state, whole=whole))

    def finish(self, state: Any, algorithm: Any | None = None) -> tuple[Any, Any]:
        """The algorithm with the denoiser, sigma and step found, and the state from which it continues.

        Arguments: state, of searches that have ended; algorithm, to continue with instead, which has the denoiser
        already.
        """
        search = self.searches[state.entrant]
        final, _ = search.finish(state, algorithm)
        longer = final.step_size / search.found_step(state, whole=False)
        return final, replace(state.side, k=state.k, s=state.side.s * longer)


def _parts(state: FallingState) -> dict[str, Any]:
    """What a state has as one of a falling search."""
    return {field.name: getattr(state, field.name) for field in fields(FallingState)}
