"""What a run decides after each step, by its clock, its disk, signals and what people ask for."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from plugstream.algorithms import Algorithm, State
from plugstream.base.errors import InputError
from plugstream.base.quantities import TO_GO, Quantity
from plugstream.runs.callbacks import Callback
from plugstream.runs.commands import Command, Requests
from plugstream.runs.context import RunContext
from plugstream.runs.events import Forecast, Note, Views
from plugstream.runs.stages import restrict_views
from plugstream.runs.steering import check_command
from plugstream.settings import Settings
from plugstream.solver.monitors import HeldOutMisfit
from plugstream.solver.result import Progress, Snapshot, Stop, Turn
from plugstream.solver.verdict import Trace, estimate_arrival, forecast_end, has_settled, probe_length

# Seconds between two words of rank 0 to the others while the run is paused, so that they do not take it for dead.
_WORD = 1.0


@dataclass(frozen=True)
class _Decision:
    """After a step: whether somebody interrupted the run, why it ends, new views, and what people ask for."""

    interrupted: bool = False
    reason: Stop | None = None
    views: Views | None = None
    commands: tuple[Command, ...] = ()


class RunControls(Callback):
    """Whether to stop, which views there are and what people ask for, decided by rank 0 after each step, for all.

    No process goes by its own clock, disk or signals, so none leaves while others wait for it. A single process is its
    own rank 0. `reason` says why the run ended, where it ended here.

    Arguments: run; requests, the signals that came; time_limit in seconds, None where there is one process, and `solve`
    looks at the clock.
    """

    def __init__(self, run: RunContext, requests: Requests, time_limit: float | None = None) -> None:
        self.run, self.requests, self.time_limit = run, requests, time_limit
        self.settings = run.settings  # as the run began, whatever is changed on the way
        self.reason: Stop | None = None
        self._step = 0  # the last at which people were heard
        self._heard: list[Path] = []  # commands that are not in the log yet

    def after_step(self, progress: Progress[State]) -> bool | Algorithm[State] | Turn[State] | None:
        decision = self.run.group.decide(lambda: self._decide(progress))
        if decision.interrupted:
            raise KeyboardInterrupt
        changed, population = None, self.run.population
        turns = self._change_stage(progress.state.k)
        search = self.run.search
        turn = None if search is None else search.turn(progress)
        if turn is not None:
            changed = turn.algorithm
        elif population is not None:
            changed = population.change_views(progress, decision.views)
            if population.follow and population.done(progress.state.k):
                self.reason = Stop.ITERATIONS
                return True
        if decision.reason is not None or (
            search is not None and not search.running and progress.state.k >= search.last
        ):
            self.reason = decision.reason or Stop.ITERATIONS
            return True
        if turns and population is None:
            assert self.run.stages is not None
            changed = replace(progress.algorithm, fidelity=restrict_views(self.run.whole, self.run.stages))  # type: ignore[type-var]
        before: Any = progress.algorithm if changed is None else changed
        after = self._steer(progress, before, decision.commands)
        if self.run.changes.stopped:
            self.reason = Stop.ASKED
            return True
        changed = changed if after is before else after
        if turn is not None:
            return turn if changed is None else Turn(changed, turn.state)
        return self._turn(progress, changed) if turns else changed

    def _change_stage(self, step: int) -> bool:
        """Enter the stage that begins here, and say whether one does."""
        stages, begun = self.run.stages, False
        while stages is not None and stages.due(step):
            stages.go_on()
            begun = True
        if begun and self.run.population is not None:
            self.run.population.change_stage()
        return begun

    def _turn(self, progress: Progress[State], changed: Any) -> Turn[State]:
        """Begin the stage, with the algorithm on its views, from the present image."""
        algorithm: Any = progress.algorithm if changed is None else changed
        state = algorithm.renew(progress.state)
        assert self.run.stages is not None
        self.run.stages.tell(progress.state.k, algorithm, state)
        return Turn(algorithm, state)

    def _steer(self, progress: Progress[State], algorithm: Any, commands: tuple[Command, ...]) -> Any:
        """The algorithm to go on with, once nobody wants the run to wait any more."""
        step, changes = progress.state.k, self.run.changes
        algorithm = changes.go_on(step, algorithm)
        algorithm = self._obey(step, algorithm, commands)
        return self._pause(progress, algorithm) if changes.paused else algorithm

    def _pause(self, progress: Progress[State], algorithm: Any) -> Any:
        step, callbacks = progress.state.k, self.run.callbacks
        begun = time.monotonic()
        for callback in callbacks:
            callback.before_pause(progress)
        try:
            while self.run.changes.paused:
                decision = self.run.group.decide(lambda: self._wait(progress))
                if decision.interrupted:
                    raise KeyboardInterrupt
                algorithm = self._obey(step, algorithm, decision.commands)
                for callback in callbacks:
                    callback.while_paused(progress)
        finally:
            seconds = time.monotonic() - begun
            progress.leave_out(seconds)
            for callback in callbacks:
                callback.after_pause(seconds)
        return algorithm

    def _obey(self, step: int, algorithm: Any, commands: tuple[Command, ...]) -> Any:
        for command in commands:
            algorithm = self.run.changes.obey(step, algorithm, command)
        self.run.commands.remove(self._heard)  # of rank 0: they are in the log now
        self._heard.clear()
        return algorithm

    def _decide(self, progress: Progress[State]) -> _Decision:
        k, population = progress.state.k, self.run.population
        if self.requests.due(k):
            return _Decision(interrupted=True)
        views = None if population is None else population.find_views(k)
        # Not before the first step, nor where the last is measured again: there is nothing to stop.
        stepped, self._step = self._step < k, k
        commands = self._hear(progress) if stepped else ()
        late = self.time_limit is not None and k > 0 and progress.wall >= self.time_limit
        reason = Stop.TIME if late else self._reason_measured(progress) if stepped else None
        return _Decision(reason=reason, views=views, commands=commands)

    def _reason_measured(self, progress: Progress[State]) -> Stop | None:
        """Why more steps would bring nothing, by what was measured just now and where no stage is still to come."""
        a, limit, stages = self.settings.algorithm, self.settings.algorithm.settled, self.run.stages
        if limit is not None and HeldOutMisfit.name in progress.measured and _has_settled(progress.snapshot(), limit):
            return Stop.SETTLED
        if a.arrive is None or TO_GO.name not in progress.measured or (stages is not None and stages.to_come):
            return None
        return reason_to_end(progress.trace, a.arrive)

    def _wait(self, progress: Progress[State]) -> _Decision:
        """What rank 0 hears while it waits, or nothing after a second."""
        until = time.monotonic() + _WORD
        while time.monotonic() < until:
            if self.requests.came:
                return _Decision(interrupted=True)
            if commands := self._hear(progress):
                return _Decision(commands=commands)
            time.sleep(max(0.01, self.run.commands.every / 2))
        return _Decision()

    def _hear(self, progress: Progress[State]) -> tuple[Command, ...]:
        """What people asked for since; a note says what cannot be done."""
        heard = []
        for path, command in self.run.commands.take():
            try:
                if isinstance(command, InputError):
                    raise command
                check_command(command, progress, self.settings)
            except InputError as error:
                self.run.log.add(Note(f"warning: what was asked for cannot be done: {error}"))
            else:
                heard.append(command)
            self._heard.append(path)
        return tuple(heard)


class Forecasts(Callback):
    """Says in the log where the run will end, when something was measured and that has changed by a twentieth.

    The one place where that is decided: whoever shows the time left takes it from these events.
    """

    def __init__(self, run: RunContext) -> None:
        self.run, self._last = run, Forecast(0, 0, False)

    def after_step(self, progress: Progress[State]) -> None:
        k, last = progress.state.k, self._last
        if progress.measured or k == 0:
            now = Forecast(k, *self._forecast(progress))
            if now.at_most != last.at_most or 20 * abs(now.end - last.end) > abs(last.end - k):
                self._last = now
                self.run.log.add(now)

    def _forecast(self, progress: Progress[State]) -> tuple[int, bool]:
        run, settings, trace = self.run, self.run.settings, progress.trace
        a, most, every = settings.algorithm, settings.algorithm.iterations, settings.monitor.every
        if run.population is not None and run.population.follow:
            return (0, True) if run.population.ended_at is None else (run.population.ended_at + most, True)
        most, searching = (most, False) if run.search is None else (run.search.last, run.search.running)
        # Before the last stage nobody asks whether the image has arrived; after a search six of six runs ended at once.
        asks = a.arrive is not None and not searching and (run.stages is None or not run.stages.to_come)
        end = forecast_end(trace, most, a.arrive or 0, every, near=a.fall is not None) if asks else None
        early = any(rule is not None for rule in (a.settled, a.distance_limit, None if end else a.arrive))
        end = end or most
        if run.search is None and settings.monitor.hold_out is not None:  # views are asked about sigma in the end
            end += probe_length(end)
        return end + (0 if run.error_map is None else run.error_map.halves * run.error_map.steps), early or searching


def reason_to_end(trace: Trace, limit: float) -> Stop | None:
    """Why more steps would bring nothing; `limit` is the part of the image that ten times as many may change."""
    arrivals = estimate_arrival(trace)
    if trace.phase != 0 or not arrivals:
        return None
    if all(one.within(limit) for one in arrivals):
        return Stop.ARRIVED
    still = limit >= max(one.drift for one in arrivals)
    hovers = still and all(one.hovers or one.within(limit) for one in arrivals)  # as its verdict will say
    return Stop.HOVERS if hovers and max(one.to_go for one in arrivals) > limit else None


def reason_to_stop(
    snapshot: Snapshot[State],
    settings: Settings,
    quantities: tuple[Quantity, ...] | list[Quantity],
    *,
    last_stage: bool = True,
) -> Stop | None:
    """Why the run had already ended when this was saved, None if it had not; its steps are not counted here."""
    a, k = settings.algorithm, snapshot.state.k
    for quantity in quantities:
        if a.distance_limit is None or not quantity.stops or quantity.name not in snapshot.rows:
            continue
        step, _, value = snapshot.rows[quantity.name][-1]
        # Where a run was interrupted there is a measurement more, for which it would not have stopped.
        regular = step == k and (k - snapshot.first) % settings.monitor.every == 0
        if regular and all(quantity.reaches(one, a.distance_limit) for one in value.flatten().tolist()):
            return Stop.DISTANCE
    measured, due = snapshot.rows.get(TO_GO.name), (k - snapshot.first) % settings.monitor.every == 0
    if a.arrive is not None and last_stage and due and measured and measured[-1][0] == k:
        reason = reason_to_end(snapshot.trace, a.arrive)
        if reason is not None:
            return reason
    if a.settled is not None and _has_settled(snapshot, a.settled):
        return Stop.SETTLED
    return Stop.TIME if a.time_limit is not None and snapshot.wall >= a.time_limit else None


def _has_settled(snapshot: Snapshot[State], limit: int) -> bool:
    """Whether the misfit on held-out views falls no more."""
    return has_settled([float(value.mean()) for *_, value in snapshot.rows.get(HeldOutMisfit.name, ())], limit)
