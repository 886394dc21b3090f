"""What the run of a volume tells of the run of one of its blocks: the same events, counted over all blocks."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from plugstream.base.errors import InputError
from plugstream.runs.callbacks import Watcher
from plugstream.runs.commands import Command, Inbox
from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Event, Heartbeat, Measurement, Note, Quantities, Resume, Steering
from plugstream.runs.terminal import Terminal

if TYPE_CHECKING:
    from plugstream.algorithms import State
    from plugstream.solver.result import Progress

__all__ = ["Relay", "VolumeInbox"]


class Relay(Watcher):
    """Passes on to the log of a volume what the run of a block measures, warns of, and how far it is.

    Steps are counted over all blocks: those of this one come after `before`. Its first image is that of any block, and
    is not told again.

    Arguments: log of the volume's run; terminal, that shows it; name of the block, "block 3 of 16"; before, steps of
    the blocks before, and their seconds; total, of all steps; declared, whether it is known what is measured.
    """

    def __init__(
        self,
        log: EventLog,
        terminal: Terminal | None,
        name: str,
        *,
        before: int,
        seconds: float,
        total: int,
        declared: bool,
    ) -> None:
        self.log, self.terminal, self.name = log, terminal, name
        self.before, self.seconds, self.total, self.declared = before, seconds, total, declared

    def __call__(self, event: Event) -> None:
        match event:
            case Note() if event.text.startswith("warning: "):
                self.log.add(Note(f"warning: {self.name}: {event.text.removeprefix('warning: ')}"))
            case Quantities() if not self.declared:
                self.declared = True
                self.log.add(event)
            case Resume():
                self.log.add(Resume(self.before + event.step))
            case Measurement() if event.step > 0 or self.before == 0:
                self.log.add(replace(event, step=self.before + event.step, time=round(self.seconds + event.time, 4)))
            case Heartbeat():
                self.log.add(replace(event, step=self.before + event.step, planned=self.total))
            case Steering() if event.action != "change":
                self.log.add(replace(event, step=self.before + event.step))

    def after_step(self, progress: Progress[State]) -> None:
        if self.terminal is not None:
            self.terminal.tick(self.before + progress.state.k, self.seconds + progress.time, time.time())


class VolumeInbox(Inbox):
    """What people ask of the run of a volume, for the run of a block of it: to wait or to stop, but no change."""

    def take(self) -> list[tuple[Path, Command | InputError]]:
        """As of any run; another sigma for some blocks would leave seams, and is refused."""
        fixed = InputError("all blocks of a volume have one sigma and one step; start a new run with others")
        return [
            (path, fixed if isinstance(command, Command) and command.action == "change" else command)
            for path, command in super().take()
        ]

    def clear(self) -> None:
        """Leave what came between two blocks for the next."""
