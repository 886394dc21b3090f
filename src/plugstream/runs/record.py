"""settings.toml and run.json of a run: what `plugstream resume` goes by, and what repeats the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plugstream.base.errors import InputError
from plugstream.base.version import __version__
from plugstream.runs.folder import check_plain, write_text
from plugstream.settings import Settings, to_toml

__all__ = ["RunRecord", "open_run", "place_of", "write_down"]


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
        raise InputError(f"{folder} is not the folder of a run that had begun: it has no run.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"run.json of {folder} cannot be read: {error}; bring it back, or start a new run") from error


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
    where, here = source.resolve(), folder.resolve()
    return where.relative_to(here) if where.is_relative_to(here) else where
