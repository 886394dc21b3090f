"""A search's evaluations on disk, so that a stopped search reads them from the file and continues."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from plugstream.base.errors import InputError, StorageError
from plugstream.base.files import NEW_FILE
from plugstream.studies.tuning.search import worst_if_nan


class Journal:
    """The evaluations of a search, one JSON line each, so that a stopped search can continue.

    Lines are only ever added, each with one write. A line that a crash left half-written does not count, and is cut off
    when the journal is opened again, which needs no disk space; earlier lines are never rewritten. A journal whose
    first line is about something else (another scan, other settings) is refused.

    Arguments: path of the file, created if missing; about, the content of the first line.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path = path
        self._scores: dict[str, float] = {}
        self._remarks: set[str] = set()
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise InputError(f"{path} is not a plain file, so it cannot be a journal; choose another --out")
        try:
            text = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise StorageError(f"cannot read the journal {path}: {error.strerror}") from error
        complete = text[: text.rfind(b"\n") + 1]
        try:
            first, *lines = [json.loads(line) for line in complete.splitlines()] or [None]
            if first is not None and first != json.loads(json.dumps({"about": about})):
                raise InputError(f"{path} is the journal of another search; remove it, or choose another --out")
            for entry in lines:
                self._scores[json.dumps(entry["try"], sort_keys=True)] = float(entry["score"])
                self._remarks.add(str(entry.get("remark", "")))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"{path} cannot be read as a journal: {error}") from error
        if len(complete) < len(text):
            try:
                os.truncate(path, len(complete))  # the next line would be lost with the rest of this one
            except OSError as error:
                raise StorageError(f"cannot write the journal {path}: {error.strerror}") from error
        if not complete:
            self._add({"about": about})

    def __len__(self) -> int:
        return len(self._scores)

    def ask(self, setting: Mapping[str, Any], evaluate: Callable[[], float]) -> float:
        """The score of a setting: from the file, or evaluated now and written to it."""
        key = json.dumps(setting, sort_keys=True)
        if key not in self._scores:
            score = worst_if_nan(evaluate())
            self._add({"try": dict(setting), "score": score})
            self._scores[key] = score
        return self._scores[key]

    def conclude(self, setting: Mapping[str, Any], remark: str) -> None:
        """Write a remark about the result, once: its line again, with the remark."""
        if remark not in self._remarks:
            self._add({"try": dict(setting), "score": self.ask(setting, lambda: float("nan")), "remark": remark})
            self._remarks.add(remark)

    def _add(self, entry: Mapping[str, Any]) -> None:
        """Add one complete line, or leave the file as it was."""
        line = (json.dumps(entry) + "\n").encode()
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | NEW_FILE, 0o644)
            before = os.fstat(handle).st_size
            try:
                if os.write(handle, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(handle)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.ftruncate(handle, before)
                raise
            finally:
                os.close(handle)
        except OSError as error:
            raise StorageError(
                f"cannot write the journal {self.path}: {error.strerror}; it keeps its {len(self)} evaluations, and "
                "the same command continues from there"
            ) from error
