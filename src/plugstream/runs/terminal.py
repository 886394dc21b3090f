"""What shows a run while it goes on: the terminal, from its events, and programs of others."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from plugstream.base.display.frame import Clock
from plugstream.base.display.screen import Display
from plugstream.base.display.steps import Steps
from plugstream.base.errors import InputError
from plugstream.base.quantities import HELD_OUT, read_quantity
from plugstream.images.space import ImageSpace
from plugstream.runs import events
from plugstream.runs.callbacks import Callback, Watcher
from plugstream.runs.event_log import EventLog, Listener
from plugstream.runs.events import Event, Heartbeat, Measurement, Note, Quantities, Resume, Start, Steering, Stop, Views

if TYPE_CHECKING:
    from plugstream.algorithms import State
    from plugstream.runs.epics import Publisher
    from plugstream.solver.result import Progress

# Measurements that are a line each where lines stay, and the seconds between two of those after them.
_LINES, _PAUSE = 100, 5.0


class Terminal(Watcher):
    """Shows events on a display as they come: notes and the end as lines, steps and measurements as they change.

    Where lines stay each measurement is one, and after a hundred of them one every few seconds. As JSON each event is a
    line, as in the log. `past` says that events happened before somebody looked, so that only notes are lines.
    """

    def __init__(self, display: Display) -> None:
        self.display = display
        self.steps = Steps()
        self.past = False
        self._follow = False
        self._after = 0
        self._counted = 0.0
        self._lines, self._written, self._untold = 0, 0.0, False

    def __call__(self, event: Event) -> None:
        if self.display.mode == "json":
            self.display.event(event.content())
            if isinstance(event, Note | Stop):  # the others say how much time is left
                return
        match event:
            case Note():
                self.display.line(event.text)
            case Start():
                self._start(event)
            case Resume():
                self.steps.step = event.step
            case Views() if self._follow:
                self._count_views(event)
            case Quantities():
                self.steps.declare(read_quantity(content) for content in event.quantities)
                self.display.show(self.steps)
            case Measurement():
                self.tick(event.step, event.time, event.at)
                self.steps.measure(event.values)
                if HELD_OUT not in event.values:  # as after a search, whose last was perhaps of another denoiser
                    self.steps.forget(HELD_OUT)
                self._tell_measurement(time.monotonic())
            case events.Forecast():
                self.steps.end, self.steps.at_most = event.end, event.at_most
            case events.Trial() if event.ended:
                self.steps.clock.forget()  # steps of another denoiser, or of all views, take another time
            case Heartbeat():
                self.tick(event.step, max(event.seconds, self.steps.seconds), event.at)
            case Steering():
                self.steps.paused = event.action == "pause" or (event.action == "change" and self.steps.paused)
                self.steps.clock.forget()  # a pause is no time of the run
            case Stop():
                self._stop(event)

    def after_step(self, progress: Progress[State]) -> None:
        self.tick(progress.state.k, progress.time, time.time())

    def tick(self, step: int, seconds: float, now: float) -> None:
        """Note that this step was taken, after so many seconds of steps."""
        if step >= self.steps.step:
            self.steps.tick(step, seconds, now)

    def _start(self, event: Start) -> None:
        algorithm, scan = (event.settings.get(name) or {} for name in ("algorithm", "scan"))
        self._follow = bool(scan.get("follow"))
        self._after = event.iterations
        limit = algorithm.get("time_limit")
        self.steps = Steps(0 if self._follow else event.iterations, Clock(limit, event.at or time.time()))

    def _count_views(self, event: Views) -> None:
        now = time.monotonic()
        self.steps.views = event.views
        if not self.past and self.display.mode != "json" and (event.ended or now - self._counted > 1):
            self._counted = now
            more = ", and no more to come" if event.ended else ""
            self.display.line(f"step {event.step}: {event.views} views{more}")
        self.steps.total = event.step + self._after if event.ended else 0

    def _tell_measurement(self, now: float) -> None:
        """Show what was measured as a line, where lines stay; the last one is shown everywhere, at the end."""
        self._untold = True
        if self.display.mode == "plain" and not self.past and (self._lines < _LINES or now - self._written > _PAUSE):
            self._untold, self._lines, self._written = False, self._lines + 1, now
            self.display.line(self.steps.text())

    def _stop(self, event: Stop) -> None:
        self.display.show(None)
        if self._untold:
            self.display.line(self.steps.text(ended=True))
        image = "" if event.image_step == event.step else f"; the image is that of step {event.image_step}"
        seconds = f"{event.time:.1f} s ({event.wall:.1f} s with measuring)"
        self.display.line(f"stopped after {event.step} steps and {seconds}: {event.reason}{image}")
        for text, head, good in describe_verdict(event):
            style = "bold red" if event.failed else "bold green" if good else "bold yellow"
            self.display.line(text, head, style)


def describe_verdict(stop: Stop) -> list[tuple[str, str, bool]]:
    """The lines of a verdict: text, the part of it that stands out, and whether it is good news."""
    if stop.verdict is None:
        return []
    if not stop.answers:
        head = f"verdict: {stop.verdict}:"
        return [(f"{head} {stop.explanation}", head, bool(stop.trusted))]
    words = [(*answer["word"].partition("; "), answer["good"]) for answer in stop.answers.values()]
    wrong = ", ".join(word for word, _, _, good in words if not good)
    head = "verdict: trusted" if stop.trusted else f"verdict: not to be trusted yet ({wrong})"
    head += "".join(mark + limit for _, mark, limit, _ in words)  # such as directions that were not measured
    lines = [(head, head, bool(stop.trusted))]
    for question, answer in stop.answers.items():
        head = f"  {question} {answer['word']}:"
        lines.append((f"{head} {answer['text']}", head, bool(answer["good"])))
    return lines


@dataclass(frozen=True)
class Viewers:
    """Programs of others that show a run while it goes on; no setting, since the image does not depend on them.

    Arguments: live_zarr, where to keep the current image as OME-Zarr (`plugstream.runs.live_zarr`); tensorboard,
    whether to write what TensorBoard reads (`plugstream.runs.tensorboard`); publish, the prefix of PVs of EPICS
    (`plugstream.runs.epics`), None for none; allow_put, whether the run may be steered by them.
    """

    live_zarr: Path | None = None
    tensorboard: bool = False
    publish: str | None = None
    allow_put: bool = False
    _publishers: list[Publisher] = field(default_factory=list, init=False, repr=False, compare=False)

    def check(self) -> None:
        """Refuse a place that cannot be written to, before anything is computed."""
        if self.live_zarr is not None:
            from plugstream.runs.live_zarr import check_place

            check_place(self.live_zarr)
        if self.publish is not None:
            from plugstream.runs.epics import check_prefix

            check_prefix(self.publish)
        elif self.allow_put:
            raise InputError("--allow-put lets clients steer by the PVs of --publish; add --publish PREFIX")

    def listeners(self, folder: Path) -> tuple[Listener, ...]:
        """What listens to the log of the run in a folder."""
        listeners = list[Listener]()
        if self.tensorboard:
            from plugstream.runs.tensorboard import Tensorboard

            listeners.append(Tensorboard(folder))
        if self.publish is not None:
            from plugstream.runs.epics import Publisher

            self._publishers.append(Publisher(self.publish, folder, allow_put=self.allow_put))
        return (*listeners, *self._publishers)

    def callbacks(self, space: ImageSpace, log: EventLog) -> list[Callback]:
        """What acts after the steps of a run whose image has this space."""
        callbacks: list[Callback] = [publisher.of(space) for publisher in self._publishers]
        if self.live_zarr is not None:
            from plugstream.runs.live_zarr import LiveZarr

            callbacks.append(LiveZarr(self.live_zarr, space, log))
        return callbacks

    def close(self) -> None:
        """The run is over, and its log written."""
        while self._publishers:
            self._publishers.pop().close()
