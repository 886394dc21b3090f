"""Our numbers beside the printed ones, as CSV, JSON and Markdown."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plugstream.base.files import write_whole
from plugstream.studies.experiments.beyond import LEVELS, calls_to_reach, first_reach
from plugstream.studies.experiments.printed import AVERAGE, IMAGES, METHODS, TABLE1, TABLE2
from plugstream.studies.experiments.table1 import COLUMNS, MOMENTA, smallest

__all__ = ["Table", "beyond_table", "curves", "successors_table", "table1_table", "table2_table", "write_table"]

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


def table1_table(cells: Mapping[tuple[str, float, int, str], dict[str, Any]]) -> Table:
    """Table 1, for each denoiser the paper's row and then ours, basic and accelerated."""
    head = ("denoiser", "", "1/L", "1/4L", "1/16L", "B = 10", "B = 20", "B = 30")
    rows: list[tuple[Value, ...]] = []
    for denoiser in dict.fromkeys(key[0] for key in cells):
        rows.append((denoiser.upper(), "paper", *TABLE1[denoiser]))
        for momentum in MOMENTA:
            ours = tuple(smallest(cells[denoiser, step, views, momentum]) for step, views in COLUMNS)
            rows.append((denoiser.upper(), "ours, basic" if momentum == "none" else "ours, accelerated", *ours))
    names, least, most = _about(cells)
    note = f"Smallest ||x - P(x)||^2 in {least} (1/L) to {most} (1/16L) iterations from x^0 = 0, averaged over {names}."
    return Table("Table 1: minimal distance to a fixed point", head, rows, note, ".2e")


def curves(cells: Mapping[tuple[str, float, int, str], dict[str, Any]]) -> list[dict[str, Any]]:
    """The distance of each image at some iterations of each run: enough to check a run by."""
    out = []
    for (denoiser, step, views, momentum), cell in cells.items():
        history = cell["history"]["distance"]
        indices = [i for i, k in enumerate(history["step"]) if k in (20, 40, 100, 200) or i + 1 == len(history["step"])]
        out.append(
            {
                "denoiser": denoiser,
                "step": step,
                "views": views,
                "momentum": momentum,
                "names": cell["names"],
                "iteration": [history["step"][i] for i in indices],
                "distance": [history["value"][i] for i in indices],
            }
        )
    return out


def table2_table(cells: Mapping[str, dict[str, Any]]) -> Table:
    """Table 2: of each image the paper's SNR and ours, for every method."""
    shown = [method for method in METHODS if method in cells]
    names = next(iter(cells.values()))["names"]
    head = ("image", *(f"{method} {who}" for method in shown for who in ("paper", "ours")))
    rows: list[tuple[Value, ...]] = []
    for i, name in enumerate(names):
        row: list[Value] = [name]
        for method in shown:
            paper = TABLE2[name][METHODS.index(method)] if name in TABLE2 else None
            row += [paper, float(cells[method]["snr"][i])]
        rows.append(tuple(row))
    last: list[Value] = ["average"]
    for method in shown:
        last += [AVERAGE[METHODS.index(method)] if tuple(names) == IMAGES else None, _average(cells[method])]
    rows.append(tuple(last))
    note = "SNR in dB at the last iteration; sigma, step and momentum were searched for each method alike."
    if tuple(names) != IMAGES:
        note += f" Only on {', '.join(names)}, so the average is not the paper's."
    return Table("Table 2: SNR of each image", head, rows, note)


def beyond_table(cells: Mapping[str, dict[str, Any]]) -> Table:
    """What each method reaches with how many denoiser calls, with its passes over the data and its memory."""
    head = (
        "method",
        "SNR at 10 calls",
        "at 25 calls",
        "at the end",
        "calls",
        *(f"calls to {level:g} dB" for level in LEVELS),
        "passes over the data",
        "seconds",
        "memory",
    )
    rows: list[tuple[Value, ...]] = []
    for name, cell in cells.items():
        rows.append(
            (
                name,
                _snr_after(cell, 10),
                _snr_after(cell, 25),
                _average(cell),
                cell["iterations"],
                *(calls_to_reach(cell, level) for level in LEVELS),
                float(cell["passes"]),
                float(cell["seconds"]),
                cell["memory"],
            )
        )
    first = next(iter(cells.values()))
    note = (
        f"Average SNR in dB over {', '.join(first['names'])}; sigma tuned for the SNR at the end. A pass over the "
        f"data is one gradient of each of the 60 views. Seconds are of all images together, on {first['device']}."
    )
    return Table("Beyond the paper: SNR against denoiser calls", head, rows, note)


def successors_table(cells: Mapping[str, dict[str, Any]], instrument: str = "born-2d") -> Table:
    """What each method reaches, and the calls, passes over the data and seconds to the paper's average.

    Of another instrument, to what the first line has at its end, less 0.1 dB.
    """
    first = next(iter(cells.values()))
    level = LEVELS[-1] if instrument == "born-2d" else round(_average(first) - 0.1, 2)
    head = (
        "method",
        "SNR at the end",
        "steps",
        "calls",
        "passes over the data",
        "seconds",
        f"calls to {level:g} dB",
        "passes to it",
        "seconds to it",
        "memory",
    )
    rows: list[tuple[Value, ...]] = []
    for name, cell in cells.items():
        place = first_reach(cell, level)
        reached: list[Value] = [None, None, None]
        if place is not None:
            seconds = float(cell["history"]["snr"]["time"][place])
            reached = [int(cell["calls"][place]), float(cell["passes_at"][place]), seconds]
        whole = (int(cell["iterations"]), int(cell["calls"][-1]), float(cell["passes"]), float(cell["seconds"]))
        rows.append((name, _average(cell), *whole, *reached, cell["memory"]))
    note = (
        f"Average SNR in dB over {', '.join(first['names'])}; sigma tuned for the SNR at the end. A pass over the "
        f"data is one gradient of each of the 60 views. Calls are of BM3D, and of a first TV none. Seconds are of all "
        f"images together, on {first['device']}."
    )
    return Table(f"What followed the paper, by {instrument}: SNR against calls, passes and seconds", head, rows, note)


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
        "rows": [dict(zip(_unique(table.head), row, strict=True)) for row in table.rows],
        **(extra or {}),
    }
    texts = {"csv": buffer.getvalue(), "json": json.dumps(content, indent=1) + "\n", "md": table.markdown()}
    paths = [folder / f"{name}.{kind}" for kind in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_whole(path, [text.encode()])
    return paths


def _unique(head: Sequence[str]) -> list[str]:
    return [name or "row" for name in head]


def _average(cell: dict[str, Any]) -> float:
    return float(np.mean(cell["snr"]))


def _snr_after(cell: dict[str, Any], calls: int) -> float | None:
    history = cell["history"]["snr"]
    if calls not in history["step"]:
        return None
    return float(np.mean(history["value"][history["step"].index(calls)]))


def _about(cells: Mapping[Any, dict[str, Any]]) -> tuple[str, int, int]:
    first = next(iter(cells.values()))
    names = "the eight images" if tuple(first["names"]) == IMAGES else ", ".join(first["names"])
    counts = [cell["iterations"] for cell in cells.values()]
    return names, min(counts), max(counts)
