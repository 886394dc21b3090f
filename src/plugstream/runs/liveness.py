"""Whether the process that writes a run still lives: its signs of life, and how a reader judges them."""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from plugstream.base.system import process_state
from plugstream.runs.callbacks import Callback
from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Heartbeat
from plugstream.runs.folder import is_locked
from plugstream.runs.replay import History

if TYPE_CHECKING:
    from plugstream.algorithms import State
    from plugstream.solver.result import Progress

# Seconds between two heartbeats.
_EVERY = 5.0


@dataclass(frozen=True)
class Process:
    """A process, told apart from any later one.

    Arguments: pid; started, ticks of the system's clock from boot to the start of the process, 0 where unknown;
    machine, its name, its boot and the namespace of the pid.
    """

    pid: int
    started: int
    machine: str

    def lives(self) -> bool | None:
        """Whether it still runs, and is no zombie; None where it cannot be seen from here."""
        if self.machine != _machine():
            return None
        state, started = process_state(self.pid)
        return state not in ("", "Z", "X") and started == self.started


def this_process() -> Process:
    """The present process."""
    return Process(os.getpid(), process_state(os.getpid())[1], _machine())


def is_running(folder: Path, history: History) -> bool | None:
    """Whether a process goes on with the run, by its lock or its signs of life; None where that cannot be seen here."""
    if is_locked(folder):
        return True
    if history.start is None or history.stop is not None:
        return False
    last = history.heartbeat or history.start
    return Process(last.pid, last.started, last.machine).lives()


@dataclass
class Heartbeats(Callback):
    """Writes progress and speed to the log every few seconds; `planned` steps, None where that is not known."""

    log: EventLog
    planned: int | None
    every: float = _EVERY
    begun: float = field(default_factory=time.monotonic)
    last: tuple[float, int] | None = None
    paused: float = 0.0
    beaten: float = 0.0

    def after_step(self, progress: Progress[State]) -> None:
        step, now = progress.state.k, time.monotonic()
        if self.last is None:
            self.last = (now, step)
        seconds = now - self.last[0]
        if seconds < self.every:
            return
        self._beat(step, now - self.begun, (step - self.last[1]) / seconds)
        self.last = (now, step)

    def before_pause(self, progress: Progress[State]) -> None:
        self.paused = self.beaten = time.monotonic()

    def while_paused(self, progress: Progress[State]) -> None:
        """Give a sign of life; seen from another machine the run would seem dead."""
        now = time.monotonic()
        if now - self.beaten >= self.every:
            self._beat(progress.state.k, self.paused - self.begun, 0.0)
            self.beaten = now

    def _beat(self, step: int, seconds: float, rate: float) -> None:
        me, beat = this_process(), (step, self.planned, round(seconds, 3), round(rate, 6))
        self.log.add(Heartbeat(*beat, pid=me.pid, started=me.started, machine=me.machine))

    def after_pause(self, seconds: float) -> None:
        self.begun += seconds
        if self.last is not None:
            self.last = (self.last[0] + seconds, self.last[1])


@cache
def _machine() -> str:
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    with suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return f"{platform.node()} {boot} {namespace}"
