"""What there is to say of the folder of a run, from its files alone: nothing is computed, locked or changed."""

from __future__ import annotations

import time
from pathlib import Path

from plugstream.runs.events import Event, read_events
from plugstream.runs.folder import is_locked
from plugstream.runs.results import title_of
from plugstream.runs.run import open_run
from plugstream.settings import Settings, resolve
from plugstream.text import shell_quote

__all__ = ["describe_run", "is_run"]

_QUANTITIES = {
    "snr": "SNR {:.2f} dB",
    "psnr": "PSNR {:.2f} dB",
    "ssim": "SSIM {:.4f}",
    "relative_distance": "distance to a fixed point {:.2e} of its start",
    "cost": "cost {:.4e}",
}


def is_run(place: object) -> bool:
    """Whether this is the folder of a run, begun or not."""
    return isinstance(place, Path) and any((place / name).is_file() for name in ("run.json", "events.jsonl"))


def describe_run(folder: Path) -> dict[str, str]:
    """How far a run is, how it ended, what it was asked to do, and how to go on with it: names and texts, in order."""
    kept = open_run(folder)
    settings = resolve(folder / "settings.toml", trust=True)  # nothing that it names is run
    log = folder / "events.jsonl"
    events = list(read_events(log)) if log.exists() else []
    stop = next((event for event in reversed(events) if event["event"] in ("stop", "start")), None)
    ended = stop if stop is not None and stop["event"] == "stop" else None
    running = is_locked(folder)
    step = max((event.get("step", 0) for event in events[_last_start(events) :]), default=0)
    asked = settings.algorithm.iterations
    planned = f" of {asked}" if not settings.scan.follow else ""
    rows = {
        "run": f"{folder} ({_state(running, ended, events)})",
        "steps": f"{step}{planned}"
        + (f", in {ended['time']:.1f} s ({ended['wall']:.1f} s with measuring)" if ended else ""),
    }
    if ended is not None:
        rows["ended"] = f"{ended['reason']}; the image is that of step {ended['image_step']}"
        if ended.get("verdict"):
            rows["verdict"] = ": ".join(str(ended[key]) for key in ("verdict", "explanation") if ended.get(key))
    values: dict[str, float | None] = next(
        (event["values"] for event in reversed(events) if event["event"] == "measured"), {}
    )
    shown = [form.format(values[name]) for name, form in _QUANTITIES.items() if values.get(name) is not None]
    if shown:
        rows["measured"] = ", ".join(shown)
    missing = isinstance(kept.source, Path) and not kept.source.exists()
    rows |= {
        "scan": f"{kept.source}{' (not there; resume --scan says where it is)' if missing else ''}",
        "algorithm": title_of(settings),
        "strength": _strength(settings),
        "images": ", ".join(sorted(path.name for path in folder.glob("result*"))) or "none yet",
        "report": ", ".join(sorted(path.name for path in folder.glob("report.*"))) or "none yet",
    }
    if not running:
        again = f"plugstream resume {shell_quote(folder)}"
        done = ended is not None and not ended["failed"] and step >= asked
        rows["go on with"] = f"{again} --iterations {2 * max(asked, step)}" if done else again
    rows["repeat with"] = kept.command
    return rows


def _last_start(events: list[Event]) -> int:
    """Where the last part of the log begins: a resumed run repeats what came after its checkpoint."""
    return next((number for number in range(len(events) - 1, -1, -1) if events[number]["event"] == "start"), 0)


def _state(running: bool, ended: Event | None, events: list[Event]) -> str:
    if running:
        return "running"
    if ended is None:
        when = f"; its last sign of life was {_ago(time.time() - events[-1]['at'])} ago" if events else ""
        return f"broken off before its end{when}"
    return "failed" if ended["failed"] else "interrupted" if ended["reason"].endswith("interrupted") else "finished"


def _ago(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _strength(settings: Settings) -> str:
    a, bounds = settings.algorithm, settings.denoiser
    number = f"sigma {a.sigma:g}" if a.sigma is not None else f"lam {a.lam}"
    falling = f" to {a.sigma_end:g}" if a.sigma_end is not None else ""
    ends = [f"{name} {value}" for name, value in (("low", bounds.low), ("high", bounds.high)) if value is not None]
    return ", ".join([f"{number}{falling}", f"step {a.step_size}", *(ends or ["no bounds"])])
