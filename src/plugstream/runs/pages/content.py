"""All that a page shows of a run but its images, as plain JSON: the one place that decides what that is."""

from __future__ import annotations

import contextlib
import math
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plugstream.base.errors import InputError
from plugstream.base.quantities import sort_quantities
from plugstream.base.text import printable
from plugstream.runs.commands import Inbox
from plugstream.runs.describe import is_run
from plugstream.runs.events import Measurement
from plugstream.runs.folder import check_plain, open_run
from plugstream.runs.liveness import is_running
from plugstream.runs.pages.pictures import picture_files
from plugstream.runs.replay import History, replay
from plugstream.runs.results import title_of
from plugstream.settings import Settings, resolve

# Of a run on another machine: seconds without a sign of life after which it counts as dead; it gives one every 5 s.
_SILENT = 60.0
# Seconds of the log after a preview for which numbers and curves wait for the next.
_LATE = 12.0
_MOST_NOTES = 500


def run_content(
    folder: Path,
    history: History | None = None,
    most: int = 5000,
    moment: int | None = None,
    settings: Settings | None = None,
) -> dict[str, Any]:
    """What a page shows of the run in a folder, which may go on, have ended, or have been killed.

    Members:
        name, folder, title: what the run is called and does. state: "running", "paused", "ended" or "killed".
        doing: "starting", "pausing", "going on", "stopping" or "writing results", else None.
        step; iterations, how many there will be, None while a scan is followed; seconds of the run; speed in steps a
        second and left, the seconds that are left, None where they are not known; at_most, whether it may be far less.
        began, heard: when the last process began, and when it last wrote anything, in seconds since the epoch.
        quantities: those to show, the most important first, each as `Quantity.content()` and its label.
        measured: {"step": [...], "time": [...], "values": {name: [...]}}, thinned to `most` measurements.
        views: {"arrivals": [[step, count], ...], "now", "total" (None while more may come), "damaged", "ended",
        "batch" (None for all), "hold_out" (every so many-th is in no step, None for none)}.
        stages: as they began, each with its number, count, name, views, sigma and step_size.
        steering: what a person changed. settings: by section. command: that repeats it. machine, versions, files.
        stop: the event, or None. notes: [{"at", "text"}, ...].
        space: of the image, or None. roles: which images there are, the one to show first; stamps: what tells each from
        one that is newer.

    Arguments: folder; history, where the caller has it already; most measurements; moment, the step of the preview that
    is shown beside: while the run goes on, its step, time and measurements are those of that moment, so that numbers,
    curves and image are of one. Where previews have become rare, or there are no more, they go on without it; settings,
    where the caller has them already.
    """
    if not is_run(folder):
        raise InputError(f"{folder} is not the folder of a run: it has neither run.json nor events.jsonl")
    check_plain(folder)
    history = replay(folder / "events.jsonl") if history is None else history
    state, tables = _state(folder, history), _settings(folder, history)
    settings = read_settings(folder) if settings is None else settings
    # What an error ended has no verdict, and no result of its own.
    finished = history.stop is not None and history.stop.verdict is not None
    files = picture_files(folder, running=state in ("running", "paused"), finished=finished)
    start, total = history.start, _planned(tables, history)
    step = _step(history, moment, running=state in ("running", "paused"))
    measured = history.measured if step >= history.step else [e for e in history.measured if e.step <= step]
    speed = _speed(history, running=state == "running")
    end = total if history.forecast is None else history.forecast.end
    command = ""
    with contextlib.suppress(InputError):
        command = open_run(folder).command
    versions = ("plugstream", "torch", "python")
    return {
        "name": printable(folder.resolve().name),
        "folder": printable(str(folder)),
        "title": "" if settings is None else title_of(settings),
        "state": state,
        "doing": _doing(folder, history, state),
        "step": step,
        "iterations": total,
        "seconds": _seconds(history, measured, step),
        "speed": speed,
        "left": None if not end or not speed or state != "running" else max(0, end - step) / speed,
        "at_most": history.forecast is not None and history.forecast.at_most,
        "began": None if start is None else start.at,
        "heard": history.last_at,
        "quantities": _quantities(history),
        "measured": _measured(_thin(measured, most)),
        "views": _views(tables, history),
        "stages": [_plain(event.content()) for event in history.stages],
        "steering": [_plain(event.content()) for event in history.steering],
        "settings": tables,
        "command": command,
        "machine": None if history.machine is None else _plain(history.machine.content()),
        "versions": {} if start is None else {name: getattr(start, name) for name in versions},
        "files": {} if start is None else start.files,
        "stop": None if history.stop is None else _plain(history.stop.content()),
        "notes": [{"at": note.at, "text": note.text} for note in history.notes[-_MOST_NOTES:]],
        "space": None if history.space is None else history.space.content(),
        "roles": list(files),
        "stamps": {role: stamp_of(path) for role, path in files.items()},
    }


def _state(folder: Path, history: History) -> str:
    if history.stop is not None:  # which a process that goes on with it takes back
        return "ended"
    running = is_running(folder, history)
    if running is None:  # it cannot be seen from this machine
        running = history.last_at is not None and time.time() - history.last_at < _SILENT
    if not running:
        return "killed"
    return "paused" if history.paused else "running"


def _step(history: History, moment: int | None, *, running: bool) -> int:
    """The step that numbers and curves are of: that of the image, where there is one of late."""
    preview, last = history.preview, history.last_at
    if moment is None or not running or history.finishing or preview is None or last is None:
        return history.step
    return moment if last - preview.at <= _LATE else history.step


def _doing(folder: Path, history: History, state: str) -> str | None:
    """What a run that goes on is about to be, by its log and by what waits in its folder."""
    if state not in ("running", "paused"):
        return None
    if history.finishing:
        return "writing results"
    action, begun = Inbox(folder).pending(), 0.0 if history.start is None else history.start.at
    if action == "stop" or any(event.action == "stop" and event.at >= begun for event in history.steering[-1:]):
        return "stopping"
    if (action, state) in (("pause", "running"), ("resume", "paused")):
        return "pausing" if action == "pause" else "going on"
    return None if history.measured or history.step else "starting"


def read_settings(folder: Path) -> Settings | None:
    """The settings of the run in a folder, None where they cannot be read, or need a file that is not there."""
    with contextlib.suppress(InputError):
        return resolve(folder / "settings.toml", used=())
    return None


def _settings(folder: Path, history: History) -> dict[str, Any]:
    """The settings as the run wrote them down, else as it was started with."""
    try:
        content = tomllib.loads((folder / "settings.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        content = history.settings or {}
    return {name: _safe(section) for name, section in content.items() if isinstance(section, dict)}


def _safe(value: Any) -> Any:
    """A value that JSON can write: what TOML has besides, such as dates and infinity, as text."""
    if isinstance(value, dict):
        return {name: _safe(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(item) for item in value]
    plain = value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
    return value if plain else str(value)


def _planned(settings: dict[str, Any], history: History) -> int | None:
    """How many steps there will be in all; while a scan is followed that counts from its end."""
    iterations = None if history.start is None else history.start.iterations
    if iterations is None or not settings.get("scan", {}).get("follow"):
        return iterations
    ends = [record.step for record in history.views if record.ended]
    return ends[0] + iterations if ends else None


def _speed(history: History, *, running: bool) -> float | None:
    """Steps a second: of late where the run goes on and says so, else over all of it."""
    if running and history.heartbeat is not None and history.heartbeat.rate:
        return history.heartbeat.rate
    last = history.stop or (history.measured[-1] if history.measured else None)
    return last.step / last.time if last is not None and last.time > 0 and last.step > 0 else None


def _seconds(history: History, measured: Sequence[Measurement], step: int) -> float | None:
    if history.stop is not None:
        return history.stop.wall
    beat, preview = history.heartbeat, history.preview
    times = [event.time for event in measured[-1:]]
    if beat is not None:  # which may have come after the moment that is shown
        after = beat.at - preview.at if beat.step > step and preview is not None else 0.0
        times.append(beat.seconds - max(0.0, after))
    return max(times, default=None)


def _quantities(history: History) -> list[dict[str, Any]]:
    names = {name for event in history.measured for name in event.values}
    quantities = sort_quantities(history.quantities, names, stop_first=True)
    return [{**quantity.content(), "label": quantity.label} for quantity in quantities]


def _measured(events: Sequence[Measurement]) -> dict[str, Any]:
    names = dict.fromkeys(name for event in events for name in event.values)
    return {
        "step": [event.step for event in events],
        "time": [event.time for event in events],
        "values": {name: [event.values.get(name) for event in events] for name in names},
    }


def _thin(events: list[Measurement], most: int) -> list[Measurement]:
    """Every event, or every second, fourth, ..., at most so many, and the last; as a run goes on most of them stay."""
    stride = 1
    while len(events) > stride * (most - 1):
        stride *= 2
    return events if stride == 1 else [*events[:-1:stride], events[-1]]


def _views(settings: dict[str, Any], history: History) -> dict[str, Any]:
    last = history.views[-1] if history.views else None
    now, ended = (0, False) if last is None else (last.views, last.ended)
    hold_out = settings.get("monitor", {}).get("hold_out")
    return {
        "arrivals": [list(entry) for entry in history.arrivals()],
        "now": now,
        "total": now if ended else None,
        "damaged": [] if last is None else list(last.damaged),
        "ended": ended,
        "batch": settings.get("sampler", {}).get("batch"),
        "hold_out": hold_out if isinstance(hold_out, int) else None,
    }


def _plain(content: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name != "event"}


def stamp_of(path: Path) -> str:
    """What changes when a file is replaced."""
    try:
        about = path.stat()
    except OSError:
        return ""
    return f"{about.st_mtime_ns:x}-{about.st_size:x}"
