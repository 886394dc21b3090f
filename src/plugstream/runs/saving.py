"""When checkpoints are written, and how a run goes on from one."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from plugstream.algorithms import Algorithm, ProximalGradient, State
from plugstream.base.errors import InputError
from plugstream.base.quantities import TO_GO, Quantity
from plugstream.runs.callbacks import Callback, Callbacks
from plugstream.runs.checkpoints import Checkpoints, SavedState
from plugstream.runs.event_log import EventLog
from plugstream.runs.replay import History
from plugstream.settings import Settings
from plugstream.solver.monitors import HeldOutMisfit
from plugstream.solver.result import Progress, Snapshot, Stop
from plugstream.solver.verdict import Trace, estimate_arrival, has_settled

__all__ = ["CheckpointWriter", "check_history", "reason_to_end", "reason_to_stop", "restore_snapshot"]


class CheckpointWriter(Callback):
    """Writes a checkpoint every few seconds, and before it the log of what led there.

    Arguments: log; checkpoints; every, seconds, 0 for every step. `step` is that of the last one written.
    """

    def __init__(self, log: EventLog, checkpoints: Checkpoints, every: float) -> None:
        self.log, self.checkpoints, self.every = log, checkpoints, every
        self.callbacks = Callbacks([])  # which have something to save; set once all of them are there
        self.step = 0
        self._written = time.monotonic()

    def after_step(self, progress: Progress[State]) -> None:
        if progress.state.k > 0 and time.monotonic() - self._written >= self.every:
            self.write(progress)
            self._written = time.monotonic()

    def before_pause(self, progress: Progress[State]) -> None:
        """Whatever happens while it waits, nothing of what was reached is lost."""
        if progress.state.k > self.step:
            self.write(progress)

    def write(self, progress: Progress[State]) -> None:
        """Write a checkpoint of this progress now."""
        self.callbacks.save(progress.state.k)
        self.log.sync()
        self.checkpoints.save(progress.snapshot(), self.log.check)
        self.step = progress.state.k


def check_history(saved: SavedState, past: History, log: str) -> None:
    """Refuse to go on from a checkpoint whose log is not as it was when the checkpoint was written."""
    if not past.views:
        raise InputError(
            f"{log} does not tell which views the run used, so it cannot go on from {saved.path}; bring that "
            "file back, or start a new run"
        )
    if not past.knows(saved.content["log"]):
        raise InputError(
            f"lines are missing at the end of {log}, which {saved.path} was written after; bring that file back "
            "from a copy, or start a new run"
        )


def restore_snapshot(saved: SavedState, algorithm: Algorithm[Any], like: State, *, changed: bool) -> Snapshot[State]:
    """Where to go on from.

    Arguments: like, a state of the algorithm; changed, whether views are left out from here on: what SAGA and SVRG
    remember is a mean over all that there were, and is formed anew.
    """
    snapshot: Snapshot[Any] = saved.snapshot(like)
    if changed and isinstance(algorithm, ProximalGradient) and not isinstance(algorithm.gradient, str):
        memory = algorithm.gradient.begin(algorithm.fidelity, snapshot.state.s)
        snapshot = replace(snapshot, state=replace(snapshot.state, **memory._asdict()))
    return snapshot


def reason_to_end(trace: Trace, limit: float) -> Stop | None:
    """Why more steps would bring nothing, None where they would: the image has arrived, or all that moves it hovers.

    Arguments: trace; limit, the part of the image by which ten times as many steps may change it.
    """
    arrivals = estimate_arrival(trace)
    if trace.phase != 0 or not arrivals:
        return None
    if all(one.within(limit) for one in arrivals):
        return Stop.ARRIVED
    hovers = max(one.to_go for one in arrivals) > limit >= max(one.drift for one in arrivals)
    return Stop.HOVERS if hovers else None


def reason_to_stop(
    snapshot: Snapshot[State],
    settings: Settings,
    quantities: tuple[Quantity, ...] | list[Quantity],
    *,
    last_stage: bool = True,
) -> Stop | None:
    """Why the run had already ended when this was saved, None if it had not; steps are counted elsewhere."""
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
    held_out = [float(value.mean()) for *_, value in snapshot.rows.get(HeldOutMisfit.name, ())]
    if a.settled is not None and has_settled(held_out, a.settled):
        return Stop.SETTLED
    return Stop.TIME if a.time_limit is not None and snapshot.wall >= a.time_limit else None
