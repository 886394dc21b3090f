"""What acts while a run iterates: after its steps, before its checkpoints, and where it goes on from one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Event, Measurement
from plugstream.runs.replay import History

if TYPE_CHECKING:  # they import torch, which whoever looks at a run does without
    from torch import Tensor

    from plugstream.algorithms import Algorithm, State
    from plugstream.solver.result import Progress, Result, Turn


Answer: TypeAlias = "bool | Algorithm[State] | Turn[State] | None"
"""True ends the run, an algorithm or a turn (with a state, too) is what it goes on with, None changes nothing."""

# The part of the run's time that showing it may take, and seconds more that nobody feels: with them a run of one second
# has pictures, too. Half of them may be spent in the first half second.
_SHARE, _GRACE, _HALF = 0.01, 0.05, 0.5
# Seconds between two turns at the start; an image changes most at first, so turns become rarer with time.
_LEAST_GAP, _GROWTH = 0.03, 0.05


class Callback:
    """Something that acts while a run iterates, and on which iterates do not depend.

    What it must remember beyond a checkpoint it writes to the log before that (`save`) and finds there (`restore`).
    """

    def after_step(self, progress: Progress[State]) -> Answer:
        """Act before the first step, after each, and once more if something is measured at the end."""
        return None

    def save(self, step: int) -> None:
        """Write down what `restore` needs, before a checkpoint of this step."""

    def restore(self, history: History) -> None:
        """Return to how it was when the checkpoint was written that the run goes on from."""

    def before_pause(self, progress: Progress[State]) -> None:
        """Act before the run waits for a person."""

    def while_paused(self, progress: Progress[State]) -> None:
        """Act about once a second while the run waits."""

    def after_pause(self, seconds: float) -> None:
        """Leave the seconds of a pause out of its clocks."""

    def end(self, result: Result[State]) -> None:
        """Act once the run is over, before its results are written; not where an error ended it."""


class Watcher(Callback):
    """A callback that hears the events of the run, too."""

    def __call__(self, event: Event) -> None:
        """Take in an event, when it is in the log."""


class MeasurementLog(Callback):
    """Writes what was measured to the log.

    `last` is the last progress whose measurements are there. A checkpoint is written of no later one, since a run that
    goes on from it does not measure again.
    """

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.last: Progress[State] | None = None

    def after_step(self, progress: Progress[State]) -> None:
        if progress.measured:
            values: dict[str, float | None] = {name: float(value) for name, value in progress.measured.items()}
            self.log.add(Measurement(progress.state.k, round(progress.time, 4), values))
        self.last = progress


class Pace:
    """Whether it is somebody's turn to act: often at first, later every few seconds.

    At t seconds the next turn comes min(every, max(0.03, 0.05 t)) seconds after the one before. All turns together take
    at most 0.01 t + 0.05 t / (t + 0.5) seconds, and the first 0.05: where the disk or the image is slow they are rarer.

    Arguments: every, seconds, 0 for never; cost, an estimate of the seconds that the first turn takes; share, the part
    of the run's time that turns may take, 0.01 above.
    """

    def __init__(self, every: float, cost: float = 0.0, share: float = _SHARE) -> None:
        self.every, self.cost, self.share = every, cost, share
        self.spent = 0.0
        self._begun: float | None = None
        self._next = 0.0

    def due(self) -> bool:
        """Whether it is time, counted from the first time that this is asked."""
        if not self.every:
            return False
        now = time.monotonic()
        if self._begun is None:
            self._begun = self._next = now
        passed = now - self._begun
        allowed = self.share * passed + _GRACE * (passed / (passed + _HALF) if self.spent else 1.0)
        return now >= self._next and self.spent + self.cost <= allowed

    def leave_out(self, seconds: float) -> None:
        """Take the seconds of a pause out of the time that has passed."""
        if self._begun is not None:
            self._begun += seconds

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Count what is done within as one turn."""
        begun = time.monotonic()
        try:
            yield
        finally:
            now = time.monotonic()
            self.spent += now - begun
            self.cost = (self.cost + now - begun) / 2  # one that had to wait is not what the next will take
            since = 0.0 if self._begun is None else now - self._begun
            self._next = now + min(self.every, max(_LEAST_GAP, _GROWTH * since))


class PacedWriter(Callback):
    """Writes the image of a run at its pace, where the run pauses, and the result."""

    pace: Pace

    def write(self, step: int, image: Tensor) -> None:
        """Write this image now."""
        raise NotImplementedError

    def after_step(self, progress: Progress[State]) -> None:
        if self.pace.due():
            with self.pace.turn():
                self.write(progress.state.k, progress.state.image)

    def end(self, result: Result[State]) -> None:
        if self.pace.every:
            self.write(result.image_step, result.image)

    def before_pause(self, progress: Progress[State]) -> None:
        """Write the image, since whoever pauses a run wants to see where it is."""
        if self.pace.every:
            self.write(progress.state.k, progress.state.image)

    def after_pause(self, seconds: float) -> None:
        self.pace.leave_out(seconds)
