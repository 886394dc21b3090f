"""The denoiser, chosen with the step: each has a falling search of its own, from the same image."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, cast

import torch

from plugstream.algorithms.falling import FallingSearch, FallingState
from plugstream.algorithms.heat import Rival
from plugstream.base.arrays import Array
from plugstream.base.errors import InputError


@dataclass(frozen=True)
class FallingHeatState(FallingState):
    """The state of falling searches one after the other, of the one that is running or, at the end, of the best.

    entrant: whose search that is, 0 for the algorithm's own denoiser. heat: the least misfit of each that is over.
    leader: the best of these, and home the end of its search.
    """

    entrant: int = 0
    heat: tuple[float, ...] = ()
    leader: int = 0
    home: Any = None


@dataclass(frozen=True, eq=False)
class FallingHeat(FallingSearch):
    """Find the step and the denoiser: a falling search with each denoiser, of which the least misfit wins.

    Each search starts from the first image, and finds the weight lam of its own prior (`FallingSearch`). The algorithm
    goes on from the best run of all. Of two equal misfits the first is kept.

    Condition: as of `FallingSearch`; e is small where the image is good, for all priors alike. Data see nothing of what
    no view sees, nor does e (docs/sigma-search.md has measurements).

    Arguments: as of `FallingSearch`; steps are those of each denoiser; rivals, at least one, whose sigma is
    `Rival.sigma` of the algorithm's.
    """

    rivals: tuple[Rival, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rivals:
            raise InputError("a choice of the denoiser needs a rival of the algorithm's own")

    @cached_property
    def searches(self) -> tuple[FallingSearch, ...]:
        """The search of each denoiser."""
        own = FallingSearch(**{field.name: getattr(self, field.name) for field in fields(FallingSearch)})
        sigma = float(self.algorithm.parameters(1)[1])
        others = (replace(self.algorithm, denoiser=r.denoiser, sigma=r.sigma(sigma)) for r in self.rivals)
        return (own, *(replace(own, algorithm=algorithm) for algorithm in others))

    def init(self, image: Array | None = None) -> FallingHeatState:
        """The state before the first step, from an image (*image_shape), or from zero."""
        state = super().init(image)
        return FallingHeatState(**_parts(state), home=state)

    @torch.no_grad()
    def step(self, state: Any) -> FallingHeatState:
        """One step of the search that is running, and at its end the next, or the end."""
        gone: Any = self.searches[state.entrant].step(state)
        if not gone.ended:
            return cast(FallingHeatState, gone)
        if gone.entrant == 0 or gone.misfit < gone.heat[gone.leader]:
            gone = replace(gone, leader=gone.entrant, home=FallingState(**_parts(gone)))
        gone = replace(gone, heat=(*gone.heat, gone.misfit))
        if gone.entrant < len(self.rivals):
            return self._begin_search(gone)
        best = _parts(gone.home) | {"k": gone.k, "rounds": gone.rounds, "entrant": gone.leader}
        return cast(FallingHeatState, replace(gone, **best))

    def _begin_search(self, state: FallingHeatState) -> FallingHeatState:
        """The state before the search of the next denoiser."""
        fresh = replace(state.rival, warm=None)  # a warm start is of the denoiser that made it
        runs: dict[str, Any] = {"power": 0, "powers": (), "misfits": (), "place_found": None, "place": 0, "used": 0}
        entrant = state.entrant + 1
        sigma = float(self.searches[entrant].algorithm.parameters(1)[1])
        sides = {"trunk": fresh, "side": fresh, "rival": fresh}
        return replace(state, entrant=entrant, sigma=sigma, ended=False, **sides, **runs)

    def found_step(self, state: Any) -> float:
        """gamma of the search that won, for all views."""
        return float(self.searches[state.entrant].found_step(state))

    def finish(self, state: Any, algorithm: Any | None = None) -> tuple[Any, Any]:
        """The algorithm with the denoiser, sigma and step found, and the state from which it continues.

        Arguments: state, of searches that have ended; algorithm, to continue with instead, which has the denoiser
        already.
        """
        return cast(tuple[Any, Any], self.searches[state.entrant].finish(state, algorithm))


def _parts(state: FallingState) -> dict[str, Any]:
    """What a state has as one of a falling search."""
    return {field.name: getattr(state, field.name) for field in fields(FallingState)}
