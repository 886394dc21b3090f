"""How much of an experiment to run, and results that are computed once: a cell is one JSON file, complete or absent."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.files import write_whole
from plugstream.base.progress import within

Arrays = dict[str, NDArray[Any]]
Cell = dict[str, Any]
"""The result of a cell of a table or a curve of a figure."""


@dataclass(frozen=True)
class Scale:
    """How much of an experiment to run; the defaults are the full one, as the documentation shows it."""

    name: str = "cells"  # of the folder of cells
    images: tuple[str, ...] | None = None  # all pictures if None
    steps: int = 150  # of FISTA and PnP-SGD
    splits: int = 40  # steps of PnP-ADMM
    grid: int = 5  # of the search for sigma
    evaluations: int = 10  # of that search; 0 takes the settings of an earlier full search (`known_settings`)
    choices: int = 3  # settings to try for each method
    distance_steps: int = 500  # of Table 1 at the step 1/L
    distance_every: int = 5  # steps between two distances
    calls: tuple[int, int] = (100, 25)  # of the denoiser in `beyond`, the second for methods that invert the data


FULL = Scale()
QUICK = Scale(
    "cells-quick",
    ("monarch", "parrot"),
    steps=100,
    splits=20,
    grid=3,
    evaluations=0,
    choices=1,
    distance_steps=40,
    distance_every=4,
    calls=(60, 25),
)


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

    def cell(self, name: str, about: Mapping[str, Any], compute: Callable[[], tuple[Cell, Arrays]]) -> Cell:
        """The result of a cell, from its file or computed now; arrays go into an .npz beside it, written first."""
        path = self.folder / f"{name}.json"
        about = json.loads(json.dumps(about))
        if path.exists():
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored["about"] == about:
                result: Cell = stored["result"]
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
        self.say(f"{name}: {seconds:.1f} s")
        fresh: Cell = json.loads(json.dumps(result))  # as it will be when read back
        return fresh

    def arrays(self, name: str) -> Arrays:
        """The arrays of an existing cell."""
        with np.load(self.folder / f"{name}.npz", allow_pickle=False) as opened:
            return {key: opened[key] for key in opened.files}
