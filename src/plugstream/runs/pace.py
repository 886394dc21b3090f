"""How often something that shows a run may act, so that it takes next to nothing of the run's time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from plugstream.runs.callbacks import Callback

if TYPE_CHECKING:
    from torch import Tensor

    from plugstream.algorithms import State
    from plugstream.solver.result import Progress, Result

__all__ = ["Pace", "PacedWriter"]

# The part of the run's time that it may take, and seconds more that are too short for anybody to feel: with them a run
# of one second has pictures, too. Half of them may be spent in the first half second.
_SHARE = 0.01
_GRACE = 0.05
_HALF = 0.5
# Seconds between two turns at the start; an image changes most at first, so that turns become rarer with time.
_LEAST_GAP = 0.03
_GROWTH = 0.05


class Pace:
    """Whether it is somebody's turn to act: often at first, later every few seconds.

    At t seconds the next turn comes min(every, max(0.03, 0.05 t)) seconds after the one before. Whatever a turn costs,
    all of them together take at most 0.01 t + 0.05 t / (t + 0.5) seconds, and the one at the start 0.05: where the disk
    or the image is slow they become rarer.

    Arguments: every, seconds, 0 for never; cost, seconds that the first turn may take, as far as can be told.
    """

    def __init__(self, every: float, cost: float = 0.0) -> None:
        self.every, self.cost = every, cost
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
        allowed = _SHARE * passed + _GRACE * (passed / (passed + _HALF) if self.spent else 1.0)
        return now >= self._next and self.spent + self.cost <= allowed

    def leave_out(self, seconds: float) -> None:
        """Take so many seconds out of the time that has passed, in which the run was paused."""
        if self._begun is not None:
            self._begun += seconds

    @contextmanager
    def turn(self) -> Iterator[None]:
        """What is done within counts as one turn."""
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
        """Whoever pauses a run wants to see where it is."""
        if self.pace.every:
            self.write(progress.state.k, progress.state.image)

    def after_pause(self, seconds: float) -> None:
        self.pace.leave_out(seconds)
