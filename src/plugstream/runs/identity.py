"""What identifies a run: its scan, its settings, the files that its denoiser reads, and the machine that it runs on."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from plugstream.base.registry import OWN, WEIGHTS, entries, pattern_of
from plugstream.base.system import count_processors, find_memory
from plugstream.base.version import __version__
from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Machine, Start
from plugstream.runs.liveness import this_process
from plugstream.scans.scan import Scan, hashes
from plugstream.settings import Settings, needed_monitors, open_end, used_sections
from plugstream.settings.choices import Choice, Selection, label_of, marked_fields


def identity(scan: Scan, settings: Settings, views: int) -> dict[str, Any]:
    """What the iterates of a run depend on, by name, with the `hashes` of the views that it began with."""
    return {**settings_identity(settings), **hashes(scan, views)}


def settings_identity(settings: Settings) -> dict[str, Any]:
    """What the iterates of a run depend on besides its scan."""
    return {f"the setting {name}": value for name, value in _settings(settings)}


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first thing that differs, in words; what only one of them knows of does not count."""
    for name, value in before.items():
        if name in now and now[name] != value:
            return f"{name} was {value} and is {now[name]}" if "setting" in name else f"{name} has changed"
    return None


def tools() -> dict[str, Any]:
    """What a run is computed with; where that changes, the same iterates may differ in their last bits."""
    return {"plugstream": __version__, "torch": torch.__version__, "threads": torch.get_num_threads()}


def absolute(settings: Settings) -> Settings:
    """The settings with the paths of files in full, so that a run can be resumed and repeated from any folder."""
    changes: dict[str, dict[str, Any]] = {}
    for name, (path, rest) in _files(settings).items():
        section, _, key = name.partition(".")
        before, full = getattr(settings, section), f"{path.resolve()}{rest}"
        change = changes.setdefault(section, {})
        if isinstance(before, Selection) and key in before.names:
            names = change.get("names", before.names)
            change["names"] = tuple(full if one == key else one for one in names)
        else:
            change[key] = full
    sections = {section: getattr(settings, section).model_copy(update=keys) for section, keys in changes.items()}
    return settings.model_copy(update=sections)


def _settings(settings: Settings) -> Iterator[tuple[str, Any]]:
    """All but how long to run, how often to measure and how the scan is read; of a file its content, not its place."""
    a = settings.algorithm
    lengths = ("time_limit", "distance_limit", "iterations", "settled", "arrive")
    in_the_log = ("search", "fall", "changes", "hop_steps")
    free = {f"algorithm.{key}" for key in (*lengths, *in_the_log)}
    free |= {"monitor.every", "monitor.names", "compute.memory"}  # memory chose blocks of slices, once
    for section, choice in _choices(settings):
        free |= {f"{section}.{key}" for key in marked_fields(choice, "consent")}  # which changes no number
    others: dict[str, Any] = {
        name: f"a file with the hash {_hash(path)[:16]}{rest}" for name, (path, rest) in _files(settings).items()
    }
    if a.sigma_end is not None or a.step_size_end is not None:
        others["algorithm.sigma_steps"] = a.sigma_steps or a.iterations  # over which sigma or the step falls
    if a.stages is not None:
        others["algorithm.stages"] = open_end(a.stages)
    for section, table in used_sections(settings).items():
        for key, value in table.items() if section not in ("simulate", "run", "scan") else ():
            if (name := f"{section}.{key}") not in free:
                yield name, others.get(name, value)
    measured = {*settings.monitor.names, *needed_monitors(settings)}
    for name in dict.fromkeys([*entries("monitor"), *sorted(measured)]):
        if pattern_of(name) != OWN:
            yield f"monitor.{name}", name in measured
        elif name in measured:
            yield f"monitor.{label_of(name)}", others.get(f"monitor.{name}", True)


def _choices(settings: Settings) -> list[tuple[str, Choice]]:
    return [(section, value) for section, value in settings if isinstance(value, Choice)]


def _files(settings: Settings) -> dict[str, tuple[Path, str]]:
    """The files that what was chosen reads, by the setting that names them, with what stands behind the path."""
    files: dict[str, tuple[str | None, str]] = {}

    def add(setting: str, name: str) -> None:
        if pattern_of(name) == OWN:
            path, _, entry = name.rpartition(":")
            files[setting] = (path, f":{entry}")
        elif pattern_of(name) == WEIGHTS:
            files[setting] = (name, "")

    for section, choice in _choices(settings):
        add(f"{section}.name", choice.name)
        files |= {f"{section}.{key}": (getattr(choice, key), "") for key in marked_fields(choice, "file")}
    for section, selection in settings:
        for name in selection.names if isinstance(selection, Selection) else ():
            add(f"{section}.{name}", name)
    # A guide may be the name of a picture, such as camera.
    return {setting: (Path(text), rest) for setting, (text, rest) in files.items() if text and Path(text).exists()}


def files_read(settings: Settings) -> dict[str, dict[str, str]]:
    """Files and folders that what was chosen reads, by the setting that names them: path and SHA-256, for the log."""
    return {name: {"path": str(path), "sha256": _hash(path)} for name, (path, _) in _files(settings).items()}


def _hash(path: Path) -> str:
    """SHA-256 of a file's content, or of a folder's files with their names."""
    total = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
        total.update(file.name.encode() if path.is_dir() else b"")
        total.update(file.read_bytes())
    return total.hexdigest()


def log_start(log: EventLog, settings: Settings, processes: int, iterations: int | None = None) -> None:
    """Write to the log that a process begins or continues a run; `iterations` are of the settings if not given."""
    me, versions = this_process(), (__version__, torch.__version__, platform.python_version())
    steps = settings.algorithm.iterations if iterations is None else iterations
    content = (steps, used_sections(settings), files_read(settings))
    log.add(Start(*content, *versions, pid=me.pid, started=me.started, machine=me.machine))
    log.add(describe_machine(settings.compute.device, processes))


def describe_machine(device: str, processes: int) -> Machine:
    """This machine, with the device that the run uses and how many processes share its work."""
    return Machine(
        platform.node(),
        f"{platform.system()} {platform.release()}",
        _processor(),
        count_processors(),
        find_memory(),
        torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu",
        torch.get_num_threads(),
        processes,
    )


def _processor() -> str:
    """The processor's name, as the kernel tells it; of machines where it does not, its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
