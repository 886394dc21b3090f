"""Results that are computed once: a cell of a table or a curve of a figure is one JSON file, complete or absent."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.files import write_whole
from plugstream.base.progress import within

__all__ = ["Arrays", "OutOfTimeError", "Store"]

Arrays = dict[str, NDArray[Any]]


class OutOfTimeError(Exception):
    """The time limit is over, and the next cell does not exist yet."""


@dataclass
class Store:
    """A folder of cells. A cell that exists and is about the same thing is not computed again.

    Arguments:
        folder: where the cells are. say: called with each computed cell. deadline: on `time.monotonic()`; after it no
        cell is begun, and OutOfTimeError is raised instead.
    """

    folder: Path
    say: Callable[[str], None] = print
    deadline: float | None = None
    computed: list[str] = field(default_factory=list)

    def cell(
        self, name: str, about: Mapping[str, Any], compute: Callable[[], tuple[dict[str, Any], Arrays]]
    ) -> dict[str, Any]:
        """The result of a cell, from its file or computed now; arrays go into an .npz beside it, written first."""
        path = self.folder / f"{name}.json"
        about = json.loads(json.dumps(about))
        if path.exists():
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored["about"] == about:
                result: dict[str, Any] = stored["result"]
                return result
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTimeError(name)
        begin = time.perf_counter()
        with within(name):
            result, arrays = compute()
        seconds = time.perf_counter() - begin
        self.folder.mkdir(parents=True, exist_ok=True)
        if arrays:
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
            write_whole(path.with_suffix(".npz"), [buffer.getvalue()])
        content = {"about": about, "seconds": round(seconds, 3), "result": result}
        write_whole(path, [json.dumps(content, allow_nan=True).encode()])
        self.computed.append(name)
        self.say(f"{name}: {seconds:.1f} s")
        fresh: dict[str, Any] = json.loads(json.dumps(result))  # as it will be when read back
        return fresh

    def arrays(self, name: str) -> Arrays:
        """The arrays of an existing cell."""
        with np.load(self.folder / f"{name}.npz", allow_pickle=False) as opened:
            return {key: opened[key] for key in opened.files}
