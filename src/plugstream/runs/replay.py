"""What the event log of a run comes to: the one place that knows which events count after a run was resumed."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plugstream.base.quantities import Quantity, read_quantity
from plugstream.images.space import ImageSpace, read_space
from plugstream.runs.event_log import EventTail, checked_events
from plugstream.runs.events import (
    Chosen,
    Contradiction,
    Event,
    Finishing,
    Heartbeat,
    Machine,
    Measurement,
    Note,
    Preview,
    Quantities,
    Resume,
    Space,
    Stage,
    Start,
    Steering,
    Stop,
    TheoryTerms,
    Trial,
    Views,
    WatchTotals,
)
from plugstream.settings.changes import Change, parse_changes

__all__ = ["History", "HistoryReader", "replay"]


@dataclass
class History:
    """A run as its log tells it, each step once.

    A run that is resumed repeats what came after its checkpoint, so what the log tells of those steps does not count.
    Views are the exception: a resumed run uses the same ones at the same steps, also beyond the checkpoint, until it
    writes down others for an earlier step.

    Attributes:
        start: how the last process began. stop: how it ended, None where it did not say so: it runs, or was killed.
        heartbeat, preview: its last ones, None where there is none.
        machine: what it runs on. space: what its image is. notes: what was told, by all processes, in order.
        views: from which steps on there were which views. stages: as they began. quantities: what the monitors measure.
        measured, contradictions, watched, steering, trials (rounds of a search), chosen (its denoiser): in the order
        of steps.
        changes: of sigma and the step, planned or asked for; as for views, a resumed run makes the same ones.
        terms: what the bound of Proposition 5 needs, once the run is over. paused: whether it waits for somebody.
        finishing: whether it has taken its last step, and not ended yet.
        step: how far the run is. last_step: up to which step its views are known, -1 for none.
        last_at: when the last event was written, seconds since the epoch. checks: of lines, see `knows`.
    """

    start: Start | None = None
    stop: Stop | None = None
    heartbeat: Heartbeat | None = None
    preview: Preview | None = None
    machine: Machine | None = None
    space: ImageSpace | None = None
    notes: list[Note] = field(default_factory=list)
    views: list[Views] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    quantities: list[Quantity] = field(default_factory=list)
    measured: list[Measurement] = field(default_factory=list)
    contradictions: list[Contradiction] = field(default_factory=list)
    watched: list[WatchTotals] = field(default_factory=list)
    steering: list[Steering] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    chosen: list[Chosen] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    terms: TheoryTerms | None = None
    paused: bool = False
    finishing: bool = False
    step: int = 0
    last_step: int = -1
    last_at: float | None = None
    checks: array[int] = field(default_factory=lambda: array("Q"))  # eight bytes a line; a log may have a million
    _next_change: int = 0

    @property
    def settings(self) -> dict[str, Any] | None:
        """The settings that the last process was started with, by section."""
        return None if self.start is None else self.start.settings

    def knows(self, check: str) -> bool:
        """Whether the log was once as `EventLog.check` says, so that nothing that was there then is missing."""
        return int(check, 16) in self.checks

    def arrivals(self) -> list[tuple[int, int]]:
        """From which steps on there were more views than before, and how many."""
        counts = {record.step: record.views for record in self.views}  # the last where a step has several
        steps = list(counts)
        return [
            (k, counts[k])
            for before, k in zip([None, *steps], steps, strict=False)
            if before is None or counts[k] > counts[before]
        ]

    def add(self, event: Event) -> None:
        """Take in the next event of the log."""
        self.last_at = event.at
        match event:
            case Start():
                self.start, self.step = event, 0
                self.stop = self.heartbeat = self.preview = self.terms = self.machine = None
                self.changes = _planned_changes(event)
                self._next_change, self.paused, self.finishing = 0, False, False
            case Machine():
                self.machine = event
            case Space():
                self.space = read_space(event.space)
            case Note():
                self.notes.append(event)
            case Resume():
                self._go_back(event.step)
            case Views():
                if self.views and event.step < self.views[-1].step:
                    self.last_step = event.step
                self.views = [earlier for earlier in self.views if earlier.step <= event.step] + [event]
            case Stage():
                self.stages.append(event)
            case Quantities():
                self.quantities = [read_quantity(content) for content in event.quantities]
            case Measurement():
                self.measured.append(event)
            case Contradiction():
                self.contradictions.append(event)
            case Steering():
                self.steering.append(event)
                self.paused = event.action == "pause" or (event.action == "change" and self.paused)
                if event.action in ("change", "stop"):
                    self._change(Change(event.step, event.sigma, event.step_size, event.action == "stop"))
            case Trial():
                self.trials.append(event)
            case Chosen():
                self.chosen.append(event)
            case WatchTotals():
                self.watched.append(event)
            case TheoryTerms():
                self.terms = event
            case Heartbeat():
                self.heartbeat = event
            case Preview():
                self.preview = event
            case Finishing():
                self.finishing = True
            case Stop():
                self.stop, self.paused, self.finishing = event, False, False
        step = getattr(event, "step", None)
        if step is not None:
            self.step, self.last_step = max(self.step, step), max(self.last_step, step)

    def _change(self, change: Change) -> None:
        """Take in a change; one that is not the next that was known takes the place of all that were to come."""
        if self.changes[self._next_change : self._next_change + 1] != [change]:
            self.changes = [*self.changes[: self._next_change], change]
        self._next_change += 1

    def _go_back(self, step: int) -> None:
        """Forget what will be repeated; a run that goes on from its start repeats that, too."""
        last = step if step > 0 else -1
        self.measured = [event for event in self.measured if event.step <= last]
        self.contradictions = [event for event in self.contradictions if event.step <= last]
        self.watched = [event for event in self.watched if event.step <= last]
        self.stages = [event for event in self.stages if event.step < step]  # one that begins here is told again
        self.trials = [e for e in self.trials if e.step < step or (e.step == step and not e.ended)]
        self.chosen = [e for e in self.chosen if e.step < step]
        # Changes at this step are made again, and written down again.
        self.steering = [e for e in self.steering if e.step < step or (e.step == step and e.action != "change")]
        self._next_change = sum(change.step < step for change in self.changes)
        self.step = step


def _planned_changes(start: Start) -> list[Change]:
    """The changes that the settings of a process plan; none in logs of before there were any."""
    algorithm = start.settings.get("algorithm")
    planned = algorithm.get("changes") if isinstance(algorithm, dict) else None
    return list(parse_changes(planned if isinstance(planned, str) else None))


def replay(path: Path) -> History:
    """The history of the run whose event log this is, empty if there is none yet; a damaged one is refused."""
    history = History()
    if path.exists():
        for event, digits in checked_events(path):
            history.checks.append(int(digits, 16))
            history.add(event)
    return history


class HistoryReader:
    """The history of a run that goes on: each time only what came since is read.

    Arguments: path of the log, which may not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.history = History()
        self._tail, self._file = EventTail(path), 0

    def read(self) -> bool:
        """Take in what came since, and say whether that was anything; a damaged log is refused."""
        events = self._tail.read()
        if self._tail.files != self._file:
            self.history, self._file = History(), self._tail.files
        for event in events:
            self.history.add(event)
        return bool(events)
