"""Whether the process that writes a run still lives: what it says of itself, and how the next reader judges that."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from plugstream.runs.callbacks import Callback
from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Heartbeat
from plugstream.runs.folder import is_locked
from plugstream.runs.replay import History

if TYPE_CHECKING:
    from plugstream.algorithms import State
    from plugstream.solver.result import Progress

__all__ = ["Heartbeats", "Process", "is_running", "this_process"]

# Seconds between two heartbeats.
_EVERY = 5.0


@dataclass(frozen=True)
class Process:
    """A process by what no later one shares with it.

    Arguments: pid; started, the ticks of the system's clock from its boot to the start of the process, 0 where they are
    not known; machine, the name of the machine, its boot and the namespace that pid counts in.
    """

    pid: int
    started: int
    machine: str

    def lives(self) -> bool | None:
        """Whether it still runs: one of that number that was started then; None where it cannot be seen from here.

        A process that has ended and whose parent has not asked for its status yet is none that runs.
        """
        if self.machine != _machine():
            return None
        state, started = _stat(self.pid)
        return state not in ("", "Z", "X") and started == self.started


def this_process() -> Process:
    """The process that asks."""
    return Process(os.getpid(), _stat(os.getpid())[1], _machine())


def is_running(folder: Path, history: History) -> bool | None:
    """Whether a process goes on with the run in a folder; None where that cannot be seen from this machine.

    It runs if its lock is held, or if it did not say how it ended and its process lives.
    """
    if is_locked(folder):
        return True
    if history.start is None or history.stop is not None:
        return False
    last = history.heartbeat or history.start
    return Process(last.pid, last.started, last.machine).lives()


@dataclass
class Heartbeats(Callback):
    """Writes a sign of life with progress and speed, at most every few seconds; a shorter run has none.

    Arguments: log; planned, how many steps there will be, None where that is not known; every, seconds.
    """

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
        """Who waits lives, too: whoever looks from another machine would take it for dead."""
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


def _stat(pid: int) -> tuple[str, int]:
    """State and start of a process, as the kernel tells them; "" where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return "", 0
    words = text[text.rfind(b")") + 1 :].split()  # the name before may hold blanks and parentheses
    return words[0].decode(), int(words[19])


@cache
def _machine() -> str:
    return " ".join([platform.node(), _line("/proc/sys/kernel/random/boot_id"), _link("/proc/self/ns/pid")])


def _line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
