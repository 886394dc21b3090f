"""Which step a run begins with, and why: what the log and run.json say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from plugstream.algorithms import Algorithm, State
from plugstream.base.schedules import OverL, Overlap, parse_step
from plugstream.settings import Settings, parse_changes

__all__ = ["StepChoice", "describe_step", "goes_by_lipschitz"]


@dataclass(frozen=True)
class StepChoice:
    """The step of the next iteration.

    Arguments: size, gamma; sigma; asked, the step as the settings say it; origin, where it comes from, in words;
    lipschitz, the L that it goes by, None where it goes by none.
    """

    size: float
    sigma: float
    asked: str
    origin: str
    lipschitz: float | None = None

    def content(self) -> dict[str, Any]:
        """For run.json."""
        return {"size": self.size, "asked": self.asked, "origin": self.origin, "lipschitz": self.lipschitz}

    def __str__(self) -> str:
        """For the log."""
        bound = "" if self.lipschitz is None else f"L = {self.lipschitz:.4g}, "
        return f"{bound}step {self.size:.6g}, sigma {self.sigma:.4g}; the step is {self.asked}, {self.origin}"


def goes_by_lipschitz(settings: Settings) -> bool:
    """Whether the step is a multiple of 1/L, so that L has to be known, or found."""
    said = settings.algorithm.step_size
    return isinstance(said, str) and isinstance(parse_step(said), OverL)


def describe_step(settings: Settings, algorithm: Algorithm[Any], state: State) -> StepChoice:
    """The step of the iteration after this state, and why it is that one.

    A step that is a number needs no L, which may take longer than the run, so that none is asked for.
    """
    size, sigma = algorithm.parameters(state.k + 1, state)
    changes = [c.step_size for c in parse_changes(settings.algorithm.changes) if c.step < state.k]
    said = [settings.algorithm.step_size, *(change for change in changes if change is not None)][-1]
    asked, fidelity = str(said), algorithm.fidelity
    if not isinstance(said, str):
        return StepChoice(size, sigma, asked, "given by hand")
    if isinstance(parse_step(said), Overlap):
        origin = "by the largest overlap of the views of each step, which this one is of the first"
        return StepChoice(size, sigma, asked, origin if state.k == 0 else origin.replace("first", "next"))
    if fidelity.has_lipschitz:
        return StepChoice(size, sigma, asked, "from the L that bounds every view", fidelity.lipschitz_max)
    origin = "from the L of the Jacobian at the first image, which is doubled where the views of a step contradict it"
    return StepChoice(size, sigma, asked, origin, getattr(state, "lipschitz", None))
