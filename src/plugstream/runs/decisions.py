"""What a run decides once a step, by its clock, its disk, signals and what people ask; of several processes rank 0."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from plugstream.algorithms import Algorithm, State
from plugstream.base.errors import InputError
from plugstream.base.processes import Group
from plugstream.base.quantities import TO_GO
from plugstream.runs.callbacks import Callback, Callbacks
from plugstream.runs.commands import Command, Inbox
from plugstream.runs.events import Note, Views
from plugstream.runs.saving import reason_to_end
from plugstream.runs.search import Search
from plugstream.runs.signals import Requests
from plugstream.runs.stages import Stages, restrict_views
from plugstream.runs.steering import Course, check_command
from plugstream.runs.views import GrowingViews
from plugstream.settings import Settings
from plugstream.solver.monitors import HeldOutMisfit
from plugstream.solver.result import Progress, Stop, Turn
from plugstream.solver.verdict import has_settled

__all__ = ["Decisions", "Steerage"]

# Seconds between two words of rank 0 to the others while the run is paused, so that they do not take it for dead.
_WORD = 1.0


@dataclass(frozen=True)
class _Decision:
    """Of one step: whether somebody interrupted it, time is up, it has settled or why it has arrived, the views of the
    next, if they are others, and what people ask for."""

    interrupted: bool = False
    late: bool = False
    settled: bool = False
    arrived: Stop | None = None
    views: Views | None = None
    commands: tuple[Command, ...] = ()


@dataclass
class Steerage:
    """What it takes to steer a run.

    Arguments: course, its changes; inbox, where people ask; settings; callbacks, which are told of a pause.
    """

    course: Course
    inbox: Inbox
    settings: Settings
    callbacks: Callbacks = field(default_factory=lambda: Callbacks([]))


class Decisions(Callback):
    """Whether to stop, which views there are and what was asked for, decided by rank 0 after each step, for all.

    No process goes by its own clock, disk or signals, so that none leaves while others wait for it. A process by itself
    is its own rank 0. `reason` says why the run ended, where it did so here.

    Arguments: group; requests, the signals that came; population, the views of a scan that is read as it goes;
    time_limit in seconds, None where `solve` looks at its own clock, as it may where there is one process; steerage,
    None for a run that nobody steers; stages, and whole, the fidelity of all views where they lie in memory; search,
    for sigma.
    """

    def __init__(
        self,
        group: Group,
        requests: Requests,
        population: GrowingViews | None,
        time_limit: float | None,
        steerage: Steerage | None = None,
        stages: Stages | None = None,
        whole: Any = None,
        search: Search | None = None,
    ) -> None:
        self.stages, self.whole, self.search = stages, whole, search
        self.group, self.requests, self.population, self.time_limit = group, requests, population, time_limit
        self.steerage = steerage
        self.reason: Stop | None = None
        self._step = 0  # the last at which people were heard
        self._heard: list[Path] = []  # commands that are not in the log yet

    def after_step(self, progress: Progress[State]) -> bool | Algorithm[State] | Turn[State] | None:
        decision = self.group.decide(lambda: self._decide(progress))
        if decision.interrupted:
            raise KeyboardInterrupt
        changed, population = None, self.population
        turns = self._change_stage(progress.state.k)
        found = None if self.search is None else self.search.turn(progress)
        if found is not None:
            changed = found.algorithm
        elif population is not None:
            changed = population.change_views(progress, decision.views)
            if population.follow and population.done(progress.state.k):
                self.reason = Stop.ITERATIONS
                return True
        if decision.late:
            self.reason = Stop.TIME
            return True
        if decision.settled:
            self.reason = Stop.SETTLED
            return True
        if decision.arrived is not None:
            self.reason = decision.arrived
            return True
        if self.search is not None and self.search.over(progress.state.k):
            self.reason = Stop.ITERATIONS
            return True
        if turns and population is None:
            assert self.stages is not None
            changed = replace(progress.algorithm, fidelity=restrict_views(self.whole, self.stages))  # type: ignore[type-var]
        if self.steerage is not None:
            before: Any = progress.algorithm if changed is None else changed
            after = self._steer(self.steerage, progress, before, decision.commands)
            if self.steerage.course.stopped:
                self.reason = Stop.ASKED
                return True
            changed = changed if after is before else after
        if found is not None:
            return found if changed is None else Turn(changed, found.state)
        return self._turn(progress, changed) if turns else changed

    def _change_stage(self, step: int) -> bool:
        """Go over to the stage that begins here, and say whether one does."""
        stages, begun = self.stages, False
        while stages is not None and stages.due(step):
            stages.go_on()
            begun = True
        if begun and self.population is not None:
            self.population.change_stage()
        return begun

    def _turn(self, progress: Progress[State], changed: Any) -> Turn[State]:
        """Begin the stage, with the algorithm on its views, from the image that there is."""
        algorithm: Any = progress.algorithm if changed is None else changed
        state = algorithm.renew(progress.state)
        assert self.stages is not None
        self.stages.tell(progress.state.k, algorithm, state)
        return Turn(algorithm, state)

    def _steer(
        self, steerage: Steerage, progress: Progress[State], algorithm: Any, commands: tuple[Command, ...]
    ) -> Any:
        """The algorithm to go on with, once nobody wants the run to wait any more."""
        step, course = progress.state.k, steerage.course
        algorithm = course.go_on(step, algorithm)
        algorithm = self._obey(steerage, step, algorithm, commands)
        return self._pause(steerage, progress, algorithm) if course.paused else algorithm

    def _pause(self, steerage: Steerage, progress: Progress[State], algorithm: Any) -> Any:
        step, course = progress.state.k, steerage.course
        begun = time.monotonic()
        steerage.callbacks.before_pause(progress)
        try:
            while course.paused:
                decision = self.group.decide(lambda: self._wait(progress))
                if decision.interrupted:
                    raise KeyboardInterrupt
                algorithm = self._obey(steerage, step, algorithm, decision.commands)
                steerage.callbacks.while_paused(progress)
        finally:
            seconds = time.monotonic() - begun
            progress.leave_out(seconds)
            steerage.callbacks.after_pause(seconds)
        return algorithm

    def _obey(self, steerage: Steerage, step: int, algorithm: Any, commands: tuple[Command, ...]) -> Any:
        for command in commands:
            algorithm = steerage.course.obey(step, algorithm, command)
        steerage.inbox.remove(self._heard)  # of rank 0: they are in the log now
        self._heard.clear()
        return algorithm

    def _decide(self, progress: Progress[State]) -> _Decision:
        if self.requests.due(progress.state.k):
            return _Decision(interrupted=True)
        late = self.time_limit is not None and progress.state.k > 0 and progress.wall >= self.time_limit
        views = None if self.population is None else self.population.find_views(progress.state.k)
        # Not before the first step, nor where the last is measured again: there is nothing to stop.
        stepped, self._step = self._step < progress.state.k, progress.state.k
        heard = self._hear(progress) if stepped else ()
        settled, arrived = (stepped and self._settled(progress), self._arrived(progress) if stepped else None)
        return _Decision(late=late, settled=settled, arrived=arrived, views=views, commands=heard)

    def _arrived(self, progress: Progress[State]) -> Stop | None:
        """Why more steps would bring nothing, where that was looked at just now and no stage is still to come."""
        limit = None if self.steerage is None else self.steerage.settings.algorithm.arrive
        if limit is None or TO_GO.name not in progress.measured or (self.stages is not None and self.stages.to_come):
            return None
        return reason_to_end(progress.snapshot().trace, limit)

    def _settled(self, progress: Progress[State]) -> bool:
        """Whether the misfit on held-out views was measured just now, and falls no more."""
        name = HeldOutMisfit.name
        if self.steerage is None or self.steerage.settings.algorithm.settled is None or name not in progress.measured:
            return False
        misfits = [float(value.mean()) for *_, value in progress.snapshot().rows[name]]
        return has_settled(misfits, self.steerage.settings.algorithm.settled)

    def _wait(self, progress: Progress[State]) -> _Decision:
        """What rank 0 hears while it waits, or nothing after a second."""
        assert self.steerage is not None
        until = time.monotonic() + _WORD
        while time.monotonic() < until:
            if self.requests.came:
                return _Decision(interrupted=True)
            if commands := self._hear(progress):
                return _Decision(commands=commands)
            time.sleep(max(0.01, self.steerage.inbox.every / 2))
        return _Decision()

    def _hear(self, progress: Progress[State]) -> tuple[Command, ...]:
        """What people asked for since; what cannot be done is told."""
        if self.steerage is None:
            return ()
        heard = []
        for path, command in self.steerage.inbox.take():
            try:
                if isinstance(command, InputError):
                    raise command
                check_command(command, progress, self.steerage.settings)
            except InputError as error:
                self.steerage.course.log.add(Note(f"warning: what was asked for cannot be done: {error}"))
            else:
                heard.append(command)
            self._heard.append(path)
        return tuple(heard)
