"""What can happen in a run: the kinds of events, with their fields and types.

`Event.content` gives what JSON writes of one, and `parse_event` the event of that. `plugstream.runs.event_log` keeps
them in a file, one a line.
"""

from __future__ import annotations

import math
import types
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Event:
    """Something that happened in a run. `at` is when it was written, in seconds since the epoch.

    `kind`, its name in the log, is that of its class unless another is given. An event equals what is read back of it:
    sequences are tuples, and numbers that JSON cannot write (NaN, infinity) are None.
    """

    kind: ClassVar[str]
    at: float = field(default=0.0, kw_only=True, compare=False)

    def __init_subclass__(cls, kind: str = "") -> None:
        cls.kind = kind or cls.__name__.lower()

    def __post_init__(self) -> None:
        for entry in fields(self):
            object.__setattr__(self, entry.name, _plain(getattr(self, entry.name)))

    def content(self) -> dict[str, Any]:
        """What JSON writes of it."""
        names = [entry.name for entry in fields(self) if entry.name != "at"]
        return {"event": self.kind, "at": self.at, **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True)
class StepEvent(Event):
    """An event of a step, counted from 1; `step` is 0 before the first."""

    step: int


@dataclass(frozen=True)
class Start(Event):
    """A process begins or continues a run.

    Arguments: iterations, the steps asked for; settings, by section; files that the denoiser reads, each with path and
    SHA-256; versions; pid, started and machine, by which `plugstream.runs.liveness` knows the process.
    """

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

    Arguments: name of the machine; system; processor; cores that may be used; memory in bytes, None if unknown; device,
    the GPU's name or "cpu"; threads of torch; processes that share the work.
    """

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
    """The space of the run's image, as `plugstream.images.space.ImageSpace` declares it."""

    space: dict[str, Any]


@dataclass(frozen=True)
class Note(Event):
    """A line for a person."""

    text: str


@dataclass(frozen=True)
class Views(StepEvent):
    """From this step on the run has views `first` to `views` - 1, without damaged ones; `lipschitz` bounds their L_i.

    `first` is not 0 where a window slides over a scan that is followed, and the views before it are forgotten.
    """

    views: int
    damaged: tuple[int, ...]
    lipschitz: float | None
    ended: bool
    first: int = 0


@dataclass(frozen=True)
class Stage(StepEvent):
    """A stage, of `count`, begins after this step."""

    number: int
    count: int
    name: str
    views: int
    sigma: float
    step_size: float


@dataclass(frozen=True)
class Quantities(Event):
    """What the monitors of this process measure, each as `plugstream.base.quantities.Quantity` declares it."""

    quantities: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Measurement(StepEvent, kind="measured"):
    """What the monitors measured, by the names of quantities, after `time` seconds of steps."""

    time: float
    values: dict[str, float | None]


@dataclass(frozen=True)
class Resume(StepEvent):
    """The run goes on from its checkpoint of this step, 0 for its start; what came after is repeated."""


@dataclass(frozen=True)
class Stop(StepEvent):
    """The end of a run that was not killed.

    Arguments: image_step, of which step its image is; time, seconds of steps, and wall, with measuring; verdict, None
    where an error ended the run; answers to the three questions of a verdict, each with word, good, text and number.
    """

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
class Steering(StepEvent):
    """What somebody asked of the run, or its settings had planned, after this step.

    Arguments: action, "change", "pause", "resume" (after a pause) or "stop"; sigma and step_size from the next
    iteration on, None where they stay as they are.
    """

    action: str
    sigma: float | None = None
    step_size: float | str | None = None


@dataclass(frozen=True)
class Trial(StepEvent):
    """A round of the search for sigma is over.

    Arguments: round, its number; sigma, by now; ratio, by which the next two differ from it; misfit of the side that
    won, on views that no step uses; stronger and weaker, the misfits of both sides; ended, whether it was the last.
    """

    round: int
    sigma: float
    ratio: float
    misfit: float | None
    stronger: float | None
    weaker: float | None
    ended: bool


@dataclass(frozen=True)
class FoundStep(StepEvent):
    """The search has found the step that goes with sigma; its last `Trial` is of the same iteration."""

    step_size: float


@dataclass(frozen=True)
class Chosen(StepEvent):
    """The search for sigma has chosen a denoiser; `misfits` are of all, on views that no step uses."""

    denoiser: str
    misfits: dict[str, float | None]


@dataclass(frozen=True)
class Heartbeat(StepEvent):
    """A sign of life every few seconds.

    Arguments: planned, how many steps there will be, None where a scan is followed; seconds since the first step; rate,
    steps a second since the last heartbeat; the process, as in `Start`.
    """

    planned: int | None
    seconds: float
    rate: float | None
    pid: int
    started: int
    machine: str


@dataclass(frozen=True)
class Forecast(StepEvent):
    """Where the run will end, as far as can be said after this step, written where that has changed.

    Arguments: end, the last step and as many more as the checks after it take, 0 where it is not known, as while a scan
    is followed; at_most, whether the run may end long before.
    """

    end: int
    at_most: bool


@dataclass(frozen=True)
class Finishing(StepEvent):
    """The last step was taken; writing the results may take longer than many steps."""


@dataclass(frozen=True)
class Preview(StepEvent):
    """A small picture of the image was written to `file`; `plugstream.runs.preview` says what a panel has."""

    file: str
    panels: tuple[dict[str, Any], ...]


_KINDS: dict[str, type[Event]] = {
    kind.kind: kind for kind in (*Event.__subclasses__(), *StepEvent.__subclasses__()) if kind is not StepEvent
}
_TYPES = {name: {k: v for k, v in get_type_hints(kind).items() if k != "kind"} for name, kind in _KINDS.items()}
_MOST = 2**62  # of whole numbers


def parse_event(content: dict[str, Any]) -> Event | None:
    """The event that `Event.content` gave; None where this is none."""
    values = dict(content)
    kind = values.pop("event", None)
    types_of = _TYPES.get(kind) if isinstance(kind, str) else None
    if types_of is None or set(values) != set(types_of):
        return None
    if not all(_fits(values[name], declared) for name, declared in types_of.items()):
        return None
    return _KINDS[kind](**values)


def _fits(value: Any, declared: Any) -> bool:
    """Whether a value of JSON is of the type that an event declares; whole numbers are never negative."""
    origin, inner = get_origin(declared), get_args(declared)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if declared is Any:
        return True
    if declared is int:
        return type(value) is int and 0 <= value < _MOST
    if declared is float:  # what is not finite is written as null, and more digits than a float has are none of ours
        return math.isfinite(value) if type(value) is float else type(value) is int and abs(value) < _MOST
    if origin is tuple:
        return isinstance(value, list) and all(_fits(item, inner[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(item, inner[1]) for item in value.values())
    return type(value) is declared


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
