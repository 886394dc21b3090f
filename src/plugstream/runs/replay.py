"""The history of a run from its event log: the one place that knows which events count after a run was resumed."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plugstream.base.quantities import Quantity, read_quantity
from plugstream.images.space import ImageSpace, read_space
from plugstream.runs import events
from plugstream.runs.event_log import EventTail, checked_events
from plugstream.runs.events import Event, Measurement, Note, Stage, Start, Steering, StepEvent, Stop, Trial, Views
from plugstream.settings.changes import Change, parse_changes

# Where the history keeps all events of a kind, in order, and where only the last.
_LISTS: dict[type[Event], str] = {
    Note: "notes",
    Stage: "stages",
    Measurement: "measured",
    Trial: "trials",
    events.FoundStep: "found_steps",
    events.Chosen: "chosen",
}
_LAST: dict[type[Event], str] = {
    events.Machine: "machine",
    events.Heartbeat: "heartbeat",
    events.Preview: "preview",
    events.Forecast: "forecast",
}


@dataclass
class History:
    """A run as its log tells it, each step once.

    A run that is resumed repeats what came after its checkpoint, so what the log tells of those steps does not count.
    Views are the exception: a resumed run uses the same ones at the same steps, also beyond the checkpoint, until it
    writes down others for an earlier step.

    Attributes:
        start, machine: how the last process began, and on what. stop: how it ended, None where it runs or was killed.
        heartbeat, preview, forecast: the last of them.
        space: of the image. quantities: what the monitors measure. notes: of all processes, in order.
        views: from which steps on there were which views. stages: as they began.
        measured, steering, trials (rounds of a search), found_steps, chosen (what it found besides sigma): by step.
        changes: of sigma and the step, planned or asked for; as for views, a resumed run makes the same ones.
        paused: whether it waits for somebody. finishing: whether it has taken its last step, and not ended yet.
        step: how far the run is. last_step: up to which step its views are known, -1 for none.
        last_at: when the last event was written, seconds since the epoch. checks: of lines, see `knows`.
        most: where it is given, at most about twice so many measurements and changes of views are kept, every second
        of them where there are more, and half as many notes, the last; the log of a day has a million lines.
    """

    start: Start | None = None
    stop: Stop | None = None
    heartbeat: events.Heartbeat | None = None
    preview: events.Preview | None = None
    forecast: events.Forecast | None = None
    machine: events.Machine | None = None
    space: ImageSpace | None = None
    notes: list[Note] = field(default_factory=list)
    views: list[Views] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    quantities: list[Quantity] = field(default_factory=list)
    measured: list[Measurement] = field(default_factory=list)
    steering: list[Steering] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    found_steps: list[events.FoundStep] = field(default_factory=list)
    chosen: list[events.Chosen] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    paused: bool = False
    finishing: bool = False
    step: int = 0
    last_step: int = -1
    last_at: float | None = None
    checks: array[int] = field(default_factory=lambda: array("Q"))  # eight bytes a line; a log may have a million
    most: int | None = None
    _next_change: int = 0

    @property
    def settings(self) -> dict[str, Any] | None:
        """The settings that the last process was started with, by section."""
        return None if self.start is None else self.start.settings

    def knows(self, check: str) -> bool:
        """Whether the log was once as `EventLog.check` says, so that nothing that was there then is missing."""
        return int(check, 16) in self.checks

    def points(self) -> dict[str, list[tuple[int, float]]]:
        """What was measured of each quantity that has a value, by its name: steps and values, in order."""
        points: dict[str, list[tuple[int, float]]] = {}
        for event in self.measured:
            for name, value in event.values.items():
                if value is not None:
                    points.setdefault(name, []).append((event.step, value))
        return points

    def arrivals(self) -> list[tuple[int, int]]:
        """From which steps on there were more views than before, and how many."""
        counts = {record.step: record.views for record in self.views}  # the last where a step has several
        before = [-1, *counts.values()]
        return [(step, count) for (step, count), less in zip(counts.items(), before, strict=False) if count > less]

    def add(self, event: Event) -> None:
        """Take in the next event of the log."""
        self.last_at = event.at
        match event:
            case Start():
                self.start, self.step = event, 0
                self.stop = self.heartbeat = self.preview = self.forecast = self.machine = None
                self.changes = _planned_changes(event)
                self._next_change, self.paused, self.finishing = 0, False, False
            case events.Space():
                self.space = read_space(event.space)
            case events.Resume():
                self._go_back(event.step)
            case Views():
                if self.views and event.step < self.views[-1].step:
                    self.last_step = event.step
                while self.views and self.views[-1].step > event.step:
                    self.views.pop()
                self.views.append(event)
            case events.Quantities():
                self.quantities = [read_quantity(content) for content in event.quantities]
            case Steering():
                self.steering.append(event)
                self.paused = event.action == "pause" or (event.action == "change" and self.paused)
                if event.action in ("change", "stop"):
                    self._change(Change(event.step, event.sigma, event.step_size, event.action == "stop"))
            case events.Finishing():
                self.finishing = True
            case Stop():
                self.stop, self.paused, self.finishing = event, False, False
            case _ if type(event) in _LISTS:
                getattr(self, _LISTS[type(event)]).append(event)
            case _:
                setattr(self, _LAST[type(event)], event)
        if self.most is not None:
            self._thin(self.most)
        if isinstance(event, StepEvent):
            self.step, self.last_step = max(self.step, event.step), max(self.last_step, event.step)

    def _thin(self, most: int) -> None:
        """Leave out every second of what there is too much of, but the last."""
        if len(self.measured) > 2 * most:
            self.measured = [*self.measured[:-1:2], self.measured[-1]]
        if len(self.views) > 2 * most:
            self.views = [*self.views[:-1:2], self.views[-1]]
        if len(self.notes) > most:
            del self.notes[: len(self.notes) - most // 2]

    def _change(self, change: Change) -> None:
        """Take in a change; one that is not the next that was known takes the place of all that were to come."""
        if self.changes[self._next_change : self._next_change + 1] != [change]:
            self.changes = [*self.changes[: self._next_change], change]
        self._next_change += 1

    def _go_back(self, step: int) -> None:
        """Forget what will be repeated; a run that goes on from its start repeats that, too."""
        last = step if step > 0 else -1
        self.measured = [e for e in self.measured if e.step <= last]
        self.stages = [e for e in self.stages if e.step < step]  # one that begins here is logged again
        self.trials = [e for e in self.trials if e.step < step or (e.step == step and not e.ended)]
        self.found_steps = [e for e in self.found_steps if e.step < step]
        self.chosen = [e for e in self.chosen if e.step < step]
        # Changes at this step are made again, and written down again.
        self.steering = [e for e in self.steering if e.step < step or (e.step == step and e.action != "change")]
        self._next_change = sum(change.step < step for change in self.changes)
        self.step = step


def _planned_changes(start: Start) -> list[Change]:
    """The changes that the settings of a process plan, none where it does not say."""
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
    """The history of a run that goes on, or has not begun yet: each time only what is new in its log is read.

    Arguments: path of the log; most, of `History`.
    """

    def __init__(self, path: Path, most: int | None = None) -> None:
        self.history, self._most = History(most=most), most
        self._tail, self._file = EventTail(path), 0

    def read(self) -> bool:
        """Take in what came since, and say whether that was anything; a damaged log is refused."""
        new = self._tail.read()
        if self._tail.files != self._file:
            self.history, self._file = History(most=self._most), self._tail.files
        for event in new:
            self.history.add(event)
        return bool(new)
