"""Our numbers beside the printed ones, as CSV, JSON and Markdown."""

from __future__ import annotations

import csv
import functools
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plugstream.base.files import write_whole
from plugstream.studies.experiments.beyond import LEVELS, calls_to_reach, first_reach
from plugstream.studies.experiments.cells import Cell
from plugstream.studies.experiments.printed import AVERAGE, IMAGES, METHODS, TABLE1, TABLE2
from plugstream.studies.experiments.table1 import COLUMNS, MOMENTA, smallest

Value = float | int | str | None


@dataclass(frozen=True)
class Table:
    """A table: its title, column heads, rows, a note below it, and how numbers are written in Markdown."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[Value, ...]]
    note: str = ""
    number: str = ".2f"

    def markdown(self) -> str:
        """As a Markdown table under its title."""
        lines = [f"## {self.title}", "", "| " + " | ".join(self.head) + " |", "|" + " --- |" * len(self.head)]
        lines += ["| " + " | ".join(self._text(value) for value in row) + " |" for row in self.rows]
        return "\n".join([*lines, "", *([self.note, ""] if self.note else [])])

    def _text(self, value: Value) -> str:
        if value is None:
            return "-"
        return format(value, self.number) if isinstance(value, float) else str(value)


def table1_table(cells: Mapping[tuple[str, float, int, str], Cell]) -> Table:
    """Table 1: for each denoiser the paper's row, and then ours, basic and accelerated."""
    head = ("denoiser", "", "1/L", "1/4L", "1/16L", "B = 10", "B = 20", "B = 30")
    rows: list[tuple[Value, ...]] = []
    for denoiser in dict.fromkeys(key[0] for key in cells):
        rows.append((denoiser.upper(), "paper", *TABLE1[denoiser]))
        for momentum in MOMENTA:
            ours = tuple(smallest(cells[denoiser, step, views, momentum]) for step, views in COLUMNS)
            rows.append((denoiser.upper(), "ours, basic" if momentum == "none" else "ours, accelerated", *ours))
    counts = [cell["iterations"] for cell in cells.values()]
    names = next(iter(cells.values()))["names"]
    pictures = "the eight images" if tuple(names) == IMAGES else ", ".join(names)
    note = f"Smallest ||x - P(x)||^2 in {min(counts)} (1/L) to {max(counts)} (1/16L) iterations from x^0 = 0, averaged "
    note += f"over {pictures}."
    return Table("Table 1: minimal distance to a fixed point", head, rows, note, ".2e")


def curves(cells: Mapping[tuple[str, float, int, str], Cell]) -> list[dict[str, Any]]:
    """The distance of each image at some iterations of each run: enough to check a run by."""
    out = []
    for key, cell in cells.items():
        history = cell["history"]["distance"]
        indices = [i for i, k in enumerate(history["step"]) if k in (20, 40, 100, 200) or i + 1 == len(history["step"])]
        curve = dict(zip(("denoiser", "step", "views", "momentum"), key, strict=True))
        curve |= {"names": cell["names"], "iteration": [history["step"][i] for i in indices]}
        out.append(curve | {"distance": [history["value"][i] for i in indices]})
    return out


def table2_table(cells: Mapping[str, Cell]) -> Table:
    """Table 2: of each image the paper's SNR and ours, for every method."""
    methods = [method for method in METHODS if method in cells]
    names = next(iter(cells.values()))["names"]
    head = ("image", *(f"{method} {who}" for method in methods for who in ("paper", "ours")))
    missing = (None,) * len(METHODS)
    rows: list[tuple[Value, ...]] = []
    for i, name in enumerate([*names, "average"]):
        paper = TABLE2.get(name, missing)
        if name == "average":
            paper = AVERAGE if tuple(names) == IMAGES else missing
        row: list[Value] = [name]
        for method in methods:
            snr = cells[method]["snr"]
            row += [paper[METHODS.index(method)], float(np.mean(snr) if name == "average" else snr[i])]
        rows.append(tuple(row))
    note = "SNR in dB at the last iteration; sigma, step and momentum were searched for each method alike."
    if tuple(names) != IMAGES:
        note += f" Only on {', '.join(names)}, so the average is not the paper's."
    return Table("Table 2: SNR of each image", head, rows, note)


def beyond_table(cells: Mapping[str, Cell]) -> Table:
    """What each method reaches with how many denoiser calls, with its passes over the data and its memory."""
    columns: dict[str, Callable[[Cell], Value]] = {
        "SNR at 10 calls": lambda cell: _snr_after(cell, 10),
        "at 25 calls": lambda cell: _snr_after(cell, 25),
        "at the end": _average,
        "calls": lambda cell: cell["iterations"],
        **{f"calls to {level:g} dB": functools.partial(calls_to_reach, level=level) for level in LEVELS},
        "passes over the data": lambda cell: float(cell["passes"]),
        "seconds": lambda cell: float(cell["seconds"]),
        "memory": lambda cell: cell["memory"],
    }
    return _method_table("Beyond the paper: SNR against denoiser calls", columns, cells)


def successors_table(cells: Mapping[str, Cell], instrument: str = "born-2d") -> Table:
    """What each method reaches, and the calls, passes over the data and seconds to the paper's average.

    For another instrument the level is what the first line has at its end, less 0.1 dB.
    """
    level = LEVELS[-1] if instrument == "born-2d" else round(_average(next(iter(cells.values()))) - 0.1, 2)

    def reached(cell: Cell, counts: list[Any]) -> Value:
        place = first_reach(cell, level)
        value: Value = None if place is None else counts[place]
        return value

    columns: dict[str, Callable[[Cell], Value]] = {
        "SNR at the end": _average,
        "steps": lambda cell: int(cell["iterations"]),
        "calls": lambda cell: int(cell["calls"][-1]),
        "passes over the data": lambda cell: float(cell["passes"]),
        "seconds": lambda cell: float(cell["seconds"]),
        f"calls to {level:g} dB": lambda cell: reached(cell, cell["calls"]),
        "passes to it": lambda cell: reached(cell, cell["passes_at"]),
        "seconds to it": lambda cell: reached(cell, cell["history"]["snr"]["time"]),
        "memory": lambda cell: cell["memory"],
    }
    title = f"What followed the paper, by {instrument}: SNR against calls, passes and seconds"
    return _method_table(title, columns, cells, " Calls are of BM3D, and of a first TV none.")


def _method_table(
    title: str, columns: Mapping[str, Callable[[Cell], Value]], cells: Mapping[str, Cell], remark: str = ""
) -> Table:
    """A line for each method, by the values of its cell."""
    first = next(iter(cells.values()))
    note = (
        f"Average SNR in dB over {', '.join(first['names'])}; sigma tuned for the SNR at the end. A pass over the "
        f"data is one gradient of each of the 60 views.{remark} Seconds are of all images together, on "
        f"{first['device']}."
    )
    rows = [(name, *(value(cell) for value in columns.values())) for name, cell in cells.items()]
    return Table(title, ("method", *columns), rows, note)


def write_table(folder: Path, name: str, table: Table, extra: Mapping[str, Any] | None = None) -> list[Path]:
    """Write name.csv, name.json and name.md, each whole."""
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(table.head)
    writer.writerows([["" if value is None else value for value in row] for row in table.rows])
    content = {
        "title": table.title,
        "note": table.note,
        "rows": [dict(zip([name or "row" for name in table.head], row, strict=True)) for row in table.rows],
        **(extra or {}),
    }
    texts = {"csv": buffer.getvalue(), "json": json.dumps(content, indent=1) + "\n", "md": table.markdown()}
    paths = [folder / f"{name}.{kind}" for kind in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_whole(path, [text.encode()])
    return paths


def _average(cell: Cell) -> float:
    return float(np.mean(cell["snr"]))


def _snr_after(cell: Cell, calls: int) -> float | None:
    history = cell["history"]["snr"]
    if calls not in history["step"]:
        return None
    return float(np.mean(history["value"][history["step"].index(calls)]))
