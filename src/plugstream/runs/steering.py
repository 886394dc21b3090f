"""How a run is steered: planned changes, and what is asked of it on the way.

A change counts from the next iteration on. Sigma and the step stay functions of the iteration's number, so a run that
goes on from a checkpoint, or is repeated from its settings, gives the same bits. Everything is in the log before it is
done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from plugstream.base.errors import InputError
from plugstream.runs.commands import Command
from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Note, Steering
from plugstream.runs.parts import goes_by_lipschitz
from plugstream.settings import Settings
from plugstream.settings.changes import Change
from plugstream.settings.checks import check_precision
from plugstream.solver.result import Progress

_LONGER = 1e4  # times the present step, a change to which is a slip of the hand


class PlannedChanges:
    """The changes of a run: makes planned ones, takes new ones, and says whether the run pauses or stops.

    A new change replaces those planned for later steps, as whoever makes it sees the run as it is.

    Arguments: changes, in the order of steps; log; write, called with all changes when there is a new one.
    """

    def __init__(
        self, changes: Sequence[Change], log: EventLog, write: Callable[[tuple[Change, ...]], None] = lambda _: None
    ) -> None:
        self.changes = tuple(changes)
        self.log, self.write = log, write
        self.paused = self.stopped = False
        self._next = 0  # of the changes

    def begin_at(self, step: int, algorithm: Any) -> Any:
        """The algorithm as it was when so many steps had been taken, before anything was changed there."""
        while self._next < len(self.changes) and self.changes[self._next].step < step:
            algorithm = _apply(algorithm, self.changes[self._next])
            self._next += 1
        return algorithm

    def go_on(self, step: int, algorithm: Any) -> Any:
        """The algorithm to go on with after this step, with the changes planned for it."""
        while self._next < len(self.changes) and self.changes[self._next].step <= step:
            change = self.changes[self._next]
            self._next += 1
            self._record(change)
            self.stopped = self.stopped or change.stop
            algorithm = _apply(algorithm, change)
        return algorithm

    def obey(self, step: int, algorithm: Any, command: Command) -> Any:
        """Do what is asked for after this step: the algorithm to go on with."""
        if command.action in ("pause", "resume"):
            if self.paused != (command.action == "pause"):
                self.paused = not self.paused
                self._tell(Steering(step, command.action), f"{'paused' if self.paused else 'going on'} at step {step}")
            return algorithm
        change = Change(step, command.sigma, command.step_size, command.action == "stop")
        self.changes = (*self.changes[: self._next], change)
        self._next += 1
        self._record(change)
        self.write(self.changes)
        self.stopped, self.paused = self.stopped or change.stop, self.paused and not change.stop
        return _apply(algorithm, change)

    def _record(self, change: Change) -> None:
        action = "stop" if change.stop else "change"
        self._tell(Steering(change.step, action, change.sigma, change.step_size), describe_change(change))

    def _tell(self, event: Steering, text: str) -> None:
        self.log.add(event)
        self.log.add(Note(text))
        self.log.sync()


def describe_change(change: Change) -> str:
    """A change in words."""
    parts = [] if change.sigma is None else [f"sigma is {change.sigma:g}"]
    size = change.step_size
    parts += [] if size is None else [f"the step is {size if isinstance(size, str) else f'{size:g}'}"]
    parts = [f"{' and '.join(parts)} from step {change.step + 1} on, as was asked for"] if parts else []
    return "; ".join([*parts, *([f"stopping at step {change.step}, as was asked for"] if change.stop else [])])


def check_command(command: Command, progress: Progress[Any], settings: Settings) -> None:
    """Refuse a change that the algorithm of the run cannot make."""
    if command.action != "change":
        return
    algorithm = progress.algorithm
    names: set[str] = {field.name for field in fields(algorithm)} if is_dataclass(algorithm) else set()
    for name, value in (("sigma", command.sigma), ("step_size", command.step_size)):
        if value is not None and name not in names:
            raise InputError(f"{name} of {type(algorithm).__name__} cannot be changed")
    if isinstance(command.step_size, str) and not goes_by_lipschitz(settings):
        raise InputError("the run began with a step that is a number, so its L is unknown; write a number")
    check_precision(settings, sigma=command.sigma)
    state = progress.state
    changed = _apply(algorithm, Change(state.k, command.sigma, command.step_size))
    before, after = (one.parameters(state.k + 1, state)[0] for one in (algorithm, changed))
    if command.step_size is not None and not after <= _LONGER * before:
        raise InputError(
            f"the step would be {after:.3g}, {after / before:.1g} times the present one, and end the run; write one at "
            f"most {_LONGER:g} times as long"
        )


def _apply(algorithm: Any, change: Change) -> Any:
    """The algorithm with what a change says."""
    values: dict[str, Any] = {}
    if change.sigma is not None:
        values["sigma"] = change.sigma
        if algorithm.lam is not None:  # which sigma was made of
            values["lam"] = None
    if change.step_size is not None:
        values["step_size"] = change.step_size
    return replace(algorithm, **values) if values else algorithm
