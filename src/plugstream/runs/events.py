"""What can happen in a run: the kinds of events, and which fields of which type belong to each.

An event is a frozen record that JSON can write: `Event.content` gives what is written, and `parse_event` the event of
it, or None where what was read is none. `plugstream.runs.event_log` keeps them in a file, one a line.
"""

from __future__ import annotations

import math
import types
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

__all__ = [
    "Chosen",
    "Contradiction",
    "Event",
    "Heartbeat",
    "Machine",
    "Measurement",
    "Note",
    "Preview",
    "Quantities",
    "Resume",
    "Space",
    "Stage",
    "Start",
    "Steering",
    "Stop",
    "TheoryTerms",
    "Trial",
    "Views",
    "WatchTotals",
    "parse_event",
]


@dataclass(frozen=True)
class Event:
    """Something that happened in a run. `at` is when it was written, in seconds since the epoch.

    An event equals what is read back of it: sequences are tuples, and numbers that JSON cannot write (NaN, infinity)
    are None.
    """

    kind: ClassVar[str]
    at: float = field(default=0.0, kw_only=True, compare=False)

    def __post_init__(self) -> None:
        for entry in fields(self):
            object.__setattr__(self, entry.name, _plain(getattr(self, entry.name)))

    def content(self) -> dict[str, Any]:
        """What JSON writes of it."""
        names = [entry.name for entry in fields(self) if entry.name != "at"]
        return {"event": self.kind, "at": self.at, **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True)
class Start(Event):
    """A process begins with a run, or goes on with it.

    Arguments: iterations, how many steps are asked for; settings, by section; files, that the denoiser reads, each with
    its path and SHA-256; versions; pid, started and machine, by which `plugstream.runs.liveness` knows the process.
    """

    kind = "start"
    iterations: int
    settings: dict[str, Any]
    files: dict[str, Any]
    plugstream: str
    torch: str
    python: str
    pid: int
    started: int
    machine: str


@dataclass(frozen=True)
class Machine(Event):
    """What the process that just began runs on.

    Arguments: name of the machine; system; processor; cores that it may use; memory in bytes, None if unknown; device,
    the name of the GPU or "cpu"; threads, of torch; processes, that share the work.
    """

    kind = "machine"
    name: str
    system: str
    processor: str
    cores: int
    memory: int | None
    device: str
    threads: int
    processes: int


@dataclass(frozen=True)
class Space(Event):
    """What the image of the run is: what `plugstream.images.space.ImageSpace` declares."""

    kind = "space"
    space: dict[str, Any]


@dataclass(frozen=True)
class Note(Event):
    """A line for a person."""

    kind = "note"
    text: str


@dataclass(frozen=True)
class Views(Event):
    """From this step on: the first `views` views but damaged ones, a bound of their L_i, and whether that is all."""

    kind = "views"
    step: int
    views: int
    damaged: tuple[int, ...]
    lipschitz: float | None
    ended: bool


@dataclass(frozen=True)
class Stage(Event):
    """Once this step was taken another stage begins, of `count`: its name, how many views it has, sigma and step."""

    kind = "stage"
    step: int
    number: int
    count: int
    name: str
    views: int
    sigma: float
    step_size: float


@dataclass(frozen=True)
class Quantities(Event):
    """What the monitors of this process measure: of each what `plugstream.base.quantities.Quantity` declares."""

    kind = "quantities"
    quantities: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Measurement(Event):
    """What the monitors said at a step, after so many seconds of steps: numbers by the names of quantities."""

    kind = "measured"
    step: int
    time: float
    values: dict[str, float | None]


@dataclass(frozen=True)
class Resume(Event):
    """The run goes on from its checkpoint of this step, 0 for its start: what came after is repeated."""

    kind = "resume"
    step: int


@dataclass(frozen=True)
class Stop(Event):
    """The end of a run that was not killed: why, after which step, of which step its image is, and what to think of it.

    `time` is seconds of steps, `wall` with measuring. There is no verdict where an error ended it. `answers` are those
    to the three questions of a verdict, by question, each with word, good, text and number.
    """

    kind = "stop"
    step: int
    image_step: int
    time: float
    wall: float
    reason: str
    failed: bool
    verdict: str | None = None
    trusted: bool | None = None
    explanation: str | None = None
    answers: dict[str, Any] | None = None


@dataclass(frozen=True)
class Steering(Event):
    """What somebody asked of the run, or its settings had planned, once this step was taken.

    Arguments: action, "change", "pause", "resume" (of a run that was paused) or "stop"; sigma and step_size, which
    count from the next iteration on, None where they stay as they are.
    """

    kind = "steering"
    step: int
    action: str
    sigma: float | None = None
    step_size: float | str | None = None


@dataclass(frozen=True)
class Trial(Event):
    """A round of the search for sigma is over, once this step was taken.

    Arguments: round, which it was; sigma, by now; ratio, by which the next two differ from it; misfit, of the side that
    won, on views that no step uses; stronger and weaker, the misfits of both sides; ended, whether it was the last.
    """

    kind = "trial"
    step: int
    round: int
    sigma: float
    ratio: float
    misfit: float | None
    stronger: float | None
    weaker: float | None
    ended: bool


@dataclass(frozen=True)
class Chosen(Event):
    """The search for sigma has chosen a denoiser, and ended with this step.

    Arguments: denoiser, its name; misfits of all, by name, on views that no step uses, at the end of their heat.
    """

    kind = "chosen"
    step: int
    denoiser: str
    misfits: dict[str, float | None]


@dataclass(frozen=True)
class Contradiction(Event):
    """A step whose denoiser or gradient step enlarged a distance by `factor`; its views, None for all."""

    kind = "contradiction"
    step: int
    views: tuple[int, ...] | None
    part: str
    factor: float | None
    theta: float | None


@dataclass(frozen=True)
class WatchTotals(Event):
    """Before a checkpoint, how many steps were compared and the largest theta of them, so that a resume goes on."""

    kind = "watched"
    step: int
    steps: int
    theta: float | None


@dataclass(frozen=True)
class TheoryTerms(Event):
    """At the end, what the bound of Proposition 5 needs, and its conditions that do not hold."""

    kind = "theory"
    step: int
    theta: float | None
    proved: bool
    gamma: float | None
    batch: int | None
    nu: float | None
    distance: float | None
    unmet: tuple[str, ...]


@dataclass(frozen=True)
class Heartbeat(Event):
    """A sign of life every few seconds.

    Arguments: step; planned, how many there will be, None where a scan is followed; seconds since the process began to
    iterate; rate, steps a second since the heartbeat before; the process, as in `Start`.
    """

    kind = "heartbeat"
    step: int
    planned: int | None
    seconds: float
    rate: float | None
    pid: int
    started: int
    machine: str


@dataclass(frozen=True)
class Finishing(Event):
    """The last step was taken, and the results are made and written, which may take longer than many steps."""

    kind = "finishing"
    step: int


@dataclass(frozen=True)
class Preview(Event):
    """A small picture of the image was written: the file's name, and what each of its panels shows.

    A panel has the tensor's `name`, `quantity`, `unit`, `range` and `axes`, as `plugstream.runs.preview` says.
    """

    kind = "preview"
    step: int
    file: str
    panels: tuple[dict[str, Any], ...]


_KINDS: dict[str, type[Event]] = {
    kind.kind: kind
    for kind in (
        Start,
        Machine,
        Space,
        Note,
        Views,
        Stage,
        Quantities,
        Measurement,
        Resume,
        Stop,
        Steering,
        Trial,
        Chosen,
        Contradiction,
        WatchTotals,
        TheoryTerms,
        Heartbeat,
        Preview,
        Finishing,
    )
}
_TYPES = {name: {k: v for k, v in get_type_hints(kind).items() if k != "kind"} for name, kind in _KINDS.items()}
_MOST = 2**62  # of whole numbers


def parse_event(content: dict[str, Any]) -> Event | None:
    """The event that a line of a log tells, as `Event.content` wrote it; None where it is none."""
    values = dict(content)
    kind = values.pop("event", None)
    declared = _TYPES.get(kind) if isinstance(kind, str) else None
    if declared is None or set(values) != set(declared):
        return None
    if not all(_fits(values[name], wanted) for name, wanted in declared.items()):
        return None
    return _KINDS[kind](**values)


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a value of JSON is of the type that an event declares; whole numbers count or number something."""
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if wanted is Any:
        return True
    if wanted is int:
        return type(value) is int and 0 <= value < _MOST
    if wanted is float:  # what is not finite is written as null, and more digits than a float has are none of ours
        return math.isfinite(value) if type(value) is float else type(value) is int and abs(value) < _MOST
    if origin is tuple:
        return isinstance(value, list) and all(_fits(item, inner[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(item, inner[1]) for item in value.values())
    return type(value) is wanted


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
