"""What the files in the folder of a run say: nothing is computed, locked or changed."""

from __future__ import annotations

import math
import time
from pathlib import Path

from plugstream.base.quantities import sort_quantities
from plugstream.base.text import shell_join
from plugstream.base.trust import TRUST
from plugstream.runs.checkpoints import Checkpoints
from plugstream.runs.folder import open_run
from plugstream.runs.liveness import is_running
from plugstream.runs.partition import read_partition
from plugstream.runs.replay import History, replay
from plugstream.runs.results import title_of
from plugstream.settings import Settings, resolve, to_flags
from plugstream.settings.consent import needs_trust

# How the reasons end of runs that were stopped before they ended by themselves.
_STOPPED = ("interrupted", "asked for it", "asked it to stop")


def is_run(place: object) -> bool:
    """Whether this is the folder of a run, begun or not."""
    return isinstance(place, Path) and any((place / name).is_file() for name in ("run.json", "events.jsonl"))


def describe_run(folder: Path) -> dict[str, str]:
    """How far a run is, how it ended, what it was asked to do, and how to go on with it: names and texts, in order."""
    record = open_run(folder)
    settings = resolve(folder / "settings.toml", used=())
    history = replay(folder / "events.jsonl")
    running = is_running(folder, history)
    if running is False and history.stop is None:  # it may have ended after its log was read, and said so there
        history = replay(folder / "events.jsonl")
    ended, beat = history.stop, history.heartbeat
    step = history.step if ended is not None else max(history.step, _saved_step(folder))
    by_blocks = history.start is not None and read_partition(folder) is not None
    total = history.start.iterations if by_blocks and history.start is not None else settings.algorithm.iterations
    planned = f" of {total}" if not settings.scan.follow else ""
    rows = {"run": f"{folder} ({describe_state(running, history, step)})", "steps": f"{step}{planned}"}
    if ended is not None:
        rows["steps"] += f", in {ended.time:.1f} s ({ended.wall:.1f} s with measuring)"
        rows["ended"] = f"{ended.reason}; the image is that of step {ended.image_step}"
        if ended.verdict and not ended.answers:
            rows["verdict"] = ": ".join(text for text in (ended.verdict, ended.explanation) if text)
        for question, answer in (ended.answers or {}).items():
            rows[question] = f"{answer['word']}: {answer['text']}"
    elif beat is not None and beat.rate is not None:
        rows["steps"] += f", {beat.rate:.3g} a second"
    if history.stages:
        last = history.stages[-1]
        rows["stage"] = f"{last.number} of {last.count}, from step {last.step + 1} on: {last.name}, {last.views} views"
    # Of a run that was interrupted the image may be that of another step than the last.
    of_image = [event for event in history.measured if ended is not None and event.step == ended.image_step]
    event = next(reversed(of_image or history.measured), None)
    values = {} if event is None else event.values
    quantities = sort_quantities(history.quantities, values)
    texts = [quantity.text(value) for quantity in quantities if (value := values[quantity.name]) is not None]
    if texts:
        where = "" if event is None or event.step == step else f" at step {event.step}"
        rows["measured"] = ", ".join(texts) + where
    missing = isinstance(record.source, Path) and not record.source.exists()
    rows |= {
        "scan": f"{record.source}{' (not there; resume --scan says where it is)' if missing else ''}",
        "algorithm": title_of(settings),
        "settings": to_flags(settings),
        "images": ", ".join(sorted(path.name for path in folder.glob("result*"))) or "none yet",
        "report": ", ".join(sorted(path.name for path in folder.glob("report.*"))) or "none yet",
    }
    if history.chosen:
        others = ", ".join(f"{n} {math.nan if m is None else m:.4g}" for n, m in history.chosen[-1].misfits.items())
        rows["denoiser"] = f"{history.chosen[-1].denoiser}, chosen by held-out data: misfits {others}"
    if record.step is not None:
        found = [f"{event.step_size}, found by held-out data; the search began with " for event in history.found_steps]
        rows["step"] = "".join(found[-1:])
        rows["step"] += f"{record.step.get('size')}: {record.step.get('asked')}, {record.step.get('origin')}"
    if history.preview is not None:
        rows["preview"] = f"{history.preview.file}, of step {history.preview.step}"
    if not running and (words := resume_words(folder, settings)):
        rows["go on with"] = shell_join(["plugstream", *words])
    rows["repeat with"] = record.command
    return rows


def resume_words(folder: Path, settings: Settings, *, more: bool = True) -> list[object]:
    """The words after `plugstream` that go on with a run; none for blocks that have finished.

    Arguments: folder; its settings; more, whether a run that ended by itself is to take more steps, rather than write
    its results.
    """
    record, ended = open_run(folder), replay(folder / "events.jsonl").stop
    words: list[object] = ["resume", folder]
    words += [TRUST] * (needs_trust(settings) or isinstance(record.source, str))
    if not more or ended is None or ended.failed or ended.reason.endswith(_STOPPED):
        return words
    total = settings.algorithm.iterations
    steps = total if ended.step < total else 2 * ended.step
    return [] if read_partition(folder) is not None else [*words, "--iterations", steps]


def describe_state(running: bool | None, history: History, step: int) -> str:
    """Whether a run goes on, has ended or died, by `is_running` and its log; `step` is how far it came."""
    stop = history.stop
    if running:
        return "paused" if history.paused else "writing results" if history.finishing else "running"
    if stop is not None:
        return "failed" if stop.failed else "interrupted" if stop.reason.endswith("interrupted") else "finished"
    if history.start is None or history.last_at is None:
        return "not begun"
    sign = f"its last sign of life was {_ago(time.time() - history.last_at)} ago"
    if running is None:
        machine = history.start.machine.split(" ")[0]
        return f"begun on another machine or before a reboot, {machine}, and not ended; {sign}"
    return f"died at step {step}, {sign}"


def _saved_step(folder: Path) -> int:
    """The step of the newest checkpoint, which may be later than what the log tells of; 0 where there is none."""
    files = Checkpoints(folder / "checkpoints", {}).files()
    digits = files[0].stem.removeprefix("step-") if files else ""
    return int(digits) if digits.isdecimal() and len(digits) < 20 else 0


def _ago(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
