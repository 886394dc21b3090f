"""What a search has tried, on disk, so that one that was stopped repeats its first steps from the file and goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from plugstream.errors import InputError
from plugstream.tuning.search import worst_if_nan

__all__ = ["Journal"]


class Journal:
    """What a search has tried: one JSON line for each evaluation, so that it goes on where it was stopped.

    A line that a crash left half-written is not counted. A journal whose first line is about something else (another
    scan, other settings) is refused.

    Arguments: path of the file, made if it is not there; about, which the first line says.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path = path
        self._known: dict[str, float] = {}
        try:
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
            if lines:
                if json.loads(lines[0]) != json.loads(json.dumps({"about": about})):
                    raise InputError(f"{path} is the journal of another search; remove it, or choose another --out")
                for line in lines[1:]:
                    entry = json.loads(line)
                    self._known[json.dumps(entry["try"], sort_keys=True)] = float(entry["score"])
            # What a crash left half-written is cut off, since a line that followed would be lost with it.
            path.write_text("".join(lines), encoding="utf-8")
            if not lines:
                self._write({"about": about})
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} cannot be read as a journal: {error}") from error
        except OSError as error:
            raise InputError(f"cannot write the journal {path}: {error.strerror}") from error

    def __len__(self) -> int:
        return len(self._known)

    def ask(self, tried: Mapping[str, Any], evaluate: Callable[[], float]) -> float:
        """The score of what is tried: from the file, or evaluated now and written down."""
        key = json.dumps(tried, sort_keys=True)
        if key not in self._known:
            self._known[key] = worst_if_nan(evaluate())
            self._write({"try": dict(tried), "score": self._known[key]})
        return self._known[key]

    def _write(self, entry: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
