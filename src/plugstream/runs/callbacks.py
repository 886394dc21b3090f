"""What acts while a run iterates: after each of its steps, before its checkpoints, and where it goes on from one."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Event, Measurement
from plugstream.runs.replay import History

if TYPE_CHECKING:  # they import torch, which whoever looks at a run does without
    from plugstream.algorithms import Algorithm, State
    from plugstream.solver.result import Progress, Result, Turn

__all__ = ["Callback", "MeasurementLog", "Watcher"]

Answer: TypeAlias = "bool | Algorithm[State] | Turn[State] | None"
"""What a callback wants: True that the run ends, an algorithm that it goes on with this one, a turn that it goes on
with both an algorithm and a state, None nothing."""


class Callback:
    """Something that acts while a run iterates. It keeps to itself, so that iterates do not depend on it.

    What it must remember beyond a checkpoint it writes to the log before that (`save`) and finds there (`restore`).
    """

    def after_step(self, progress: Progress[State]) -> Answer:
        """Act before the first step, after each, and once more if something is measured at the end."""
        return None

    def save(self, step: int) -> None:
        """Write down what `restore` needs, before a checkpoint of this step."""
        return

    def restore(self, history: History) -> None:
        """Be as it was when the checkpoint was written that the run goes on from."""
        return

    def before_pause(self, progress: Progress[State]) -> None:
        """Act before the run waits for a person, who knows how long."""
        return

    def while_paused(self, progress: Progress[State]) -> None:
        """Act about once a second while the run waits."""
        return

    def after_pause(self, seconds: float) -> None:
        """Leave so many seconds out of its clocks, in which the run was paused."""
        return

    def end(self, result: Result[State]) -> None:
        """Act once the run is over, before its results are written; not where an error ended it."""
        return


class Watcher(Callback):
    """A callback that hears the events of the run, too."""

    def __call__(self, event: Event) -> None:
        """Take in an event, when it is in the log."""


class MeasurementLog(Callback):
    """Writes what was measured to the log.

    `last` is the last progress whose measurements are there: only of such a one is a checkpoint written, since a run
    that goes on from it does not measure them again.
    """

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.last: Progress[State] | None = None

    def after_step(self, progress: Progress[State]) -> None:
        if progress.measured:
            values: dict[str, float | None] = {name: float(value) for name, value in progress.measured.items()}
            self.log.add(Measurement(progress.state.k, round(progress.time, 4), values))
        self.last = progress
