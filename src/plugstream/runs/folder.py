"""The folder of a run: made new, locked while somebody writes to it, with settings.toml and run.json.

`plugstream resume` reads these two, and they repeat the run.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plugstream.base.errors import InputError, StorageError
from plugstream.base.files import NOT_PLAIN, hidden_place, lock_folder, name_target, sync_folder, write_whole
from plugstream.base.system import renames_open
from plugstream.base.version import __version__
from plugstream.runs.event_log import read_events
from plugstream.runs.events import StepEvent
from plugstream.settings import Settings, to_toml

# Of settings.toml and run.json, which are a few kilobytes.
_MOST_BYTES = 16 << 20
# What a run may have written of the truth before its first step.
_TRUTH = re.compile(r"truth[-a-z0-9]*\.(npy|tif|png)")


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A place to fill a new folder in, which becomes `path` when the block is left without an error.

    A folder that exists is refused, so no result is overwritten. Whatever happens, a folder of that name is never there
    in part; what a killed process left behind is removed by the next one.
    """
    _refuse_existing(path)
    _remove_abandoned(path)
    partial = hidden_place(path)
    try:
        partial.mkdir()
        with lock(partial, path), name_target(partial, path):
            yield partial
            _refuse_existing(path)
            if renames_open():
                _take_name(partial, path)
        if not renames_open():
            _take_name(partial, path)
        sync_folder(path.parent)
    except OSError as error:
        raise StorageError(f"cannot make the output folder {path}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _take_name(partial: Path, path: Path) -> None:
    (partial / ".lock").unlink()
    partial.rename(path)


def _refuse_existing(path: Path) -> None:
    if os.path.lexists(path):
        raise InputError(f"the output {path} exists already; choose another with --out, or remove it")


def _remove_abandoned(path: Path) -> None:
    """Remove what processes that were killed had begun to make under this name; those that live hold a lock."""
    pattern = re.compile(re.escape(hidden_place(path).name[:-40]) + r"[0-9a-f]{32}\.partial")
    with suppress(OSError):
        for old in path.parent.iterdir():
            if pattern.fullmatch(old.name) and (old / ".lock").exists():
                with suppress(InputError), lock(old):
                    shutil.rmtree(old, ignore_errors=True)


def check_plain(folder: Path) -> None:
    """Refuse a run's folder, which may come from anybody, with links, pipes or devices where a run has files.

    A link would have files elsewhere written to or removed, and a pipe would be waited for.
    """
    folders = ("blocks", "checkpoints", "commands", "previews", "tensorboard")
    for name in ("run.json", "settings.toml", "blocks.json", "events.jsonl", *folders):
        try:
            about = os.lstat(folder / name)
        except OSError:
            continue  # an error only where it is needed
        if not (stat.S_ISDIR if name in folders else stat.S_ISREG)(about.st_mode):
            wrong = "is a link instead of a folder" if name in folders else f"cannot be used: {NOT_PLAIN}"
            raise InputError(f"{folder / name} {wrong}; put what it should be in its place")
        if name.endswith((".json", ".toml")) and about.st_size > _MOST_BYTES:
            raise InputError(f"{folder / name} has {about.st_size / 1e6:.0f} MB, so it cannot be that of a run")


def remove_unbegun(folder: Path, *more: str) -> None:
    """Remove the folder of a run that took no step, if it holds only what the run put there, `more` names included."""
    names = {".lock", "settings.toml", "run.json", "events.jsonl", "commands", "start.npy"}
    names |= {"preview.safetensors", "previews", "tensorboard", *more}
    with suppress(OSError, InputError):
        log = folder / "events.jsonl"
        events = read_events(log) if log.exists() else ()
        steps = any(isinstance(event, StepEvent) and event.step > 0 for event in events)
        others = {path.name for path in folder.iterdir()} - names
        if not steps and all(_TRUTH.fullmatch(name) for name in others):
            shutil.rmtree(folder, ignore_errors=True)


def free_folder(stem: str) -> Path:
    """The first of stem, stem-2, stem-3, ... that does not exist."""
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return next(path for path in map(Path, names) if not path.exists())


@contextmanager
def lock(folder: Path, name: Path | None = None) -> Iterator[None]:
    """Keep others from writing to this run; when the process ends, however it ends, the system unlocks it."""
    handle = lock_folder(folder, f"the run {name or folder}")
    try:
        yield
    finally:
        os.close(handle)


def is_locked(folder: Path) -> bool:
    """Whether somebody writes to this run now, by the kernel's list of locks; asking disturbs nobody."""
    try:
        inode = (folder / ".lock").stat().st_ino
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return False
    # 1: FLOCK  ADVISORY  WRITE 708 00:1c:3434 0 EOF; a line with -> is of a process that waits.
    rows = [line.split() for line in locks.splitlines() if "FLOCK" in line and "->" not in line]
    return any(row[5].rsplit(":", 1)[-1] == str(inode) for row in rows if len(row) > 5)


def write_text(path: Path, text: str) -> None:
    """Write a small file at once or not at all."""
    try:
        write_whole(path, [text.encode()])
        sync_folder(path.parent)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error


@dataclass(frozen=True)
class RunRecord:
    """What run.json says: where the scan lies, the command that repeats the run, and its first step and why."""

    source: str | Path
    command: str
    step: Mapping[str, Any] | None = None

    @property
    def simulated(self) -> bool:
        """Whether the run made its scan, so that settings of a simulation are its own."""
        return self.command.startswith("plugstream demo")


def open_run(folder: Path) -> RunRecord:
    """Read what is needed to go on with the run in a folder."""
    check_plain(folder)
    try:
        content = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not all(isinstance(content.get(name), str) for name in ("scan", "command")):
            raise ValueError("it must tell scan and command, which are texts")
        where, step = content["scan"], content.get("step")
        source = where if "://" in where else (folder / where).resolve()
        return RunRecord(source, content["command"], step if isinstance(step, dict) else None)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{folder} is not the folder of a run: it has no run.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"run.json of {folder} cannot be read: {error}; restore it, or start a new run") from error


def write_down(
    folder: Path, settings: Settings, command: str, source: str | Path, step: Mapping[str, Any] | None = None
) -> None:
    """Write settings.toml and run.json, which `plugstream resume` goes by.

    Arguments: command, how to repeat the run; source, where the scan lies, if it is in the folder as seen from there;
    step, which one was chosen and why, once that is known.
    """
    write_text(folder / "settings.toml", to_toml(settings, f"plugstream {__version__}\nrepeat with: {command}"))
    content = {"scan": str(source), "command": command, **({} if step is None else {"step": dict(step)})}
    write_text(folder / "run.json", json.dumps(content, indent=1) + "\n")


def place_of(source: str | Path, folder: Path) -> str | Path:
    """Where a scan lies, as run.json says it: in the run's own folder relative to it, so that both can be moved."""
    if isinstance(source, str):
        return source
    source, folder = source.resolve(), folder.resolve()
    return source.relative_to(folder) if source.is_relative_to(folder) else source
