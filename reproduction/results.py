"""From the name of a table or figure to its files: the cells it needs, and our numbers beside the printed ones."""

from __future__ import annotations

import csv
import functools
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.files import write_whole
from plugstream.images.drawing import encode_figure
from reproduction.cells import Cell, OutOfTimeError, Scale, Store
from reproduction.paper import (
    AVERAGE,
    IMAGES,
    METHODS,
    OTHER_INSTRUMENTS,
    TABLE1,
    TABLE2,
    Problem,
    make_other_problem,
)
from reproduction.tables import (
    COLUMNS,
    DENOISERS,
    FIG7_IMAGES,
    FOUR_PICTURES,
    LEVELS,
    MOMENTA,
    beyond_rows,
    calls_to_reach,
    cells_of,
    first_reach,
    method_cells,
    slug,
    smallest,
    successor_cells,
    successor_rows,
    table1_cells,
)

WHAT = ("table1", "table2", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "beyond", "successors")

_STEPS = ((1.0, "1/L"), (0.25, "1/4L"), (0.0625, "1/16L"))
_BATCHES = (10, 20, 30)
# The upper left corner of the rectangles of Fig. 7, as parts of the picture: an edge of a wing, and the eye.
_BOXES = {"monarch": (0.30, 0.35), "parrot": (0.24, 0.54)}


@dataclass(frozen=True, eq=False)
class Reproduction:
    """The inputs of a reproduction: the problem, the store of cells, the scale, and optionally TNRD's weights.

    Without `tnrd`, TNRD is left out; if `weights` is None, ours are used.
    """

    problem: Problem
    store: Store
    scale: Scale
    tnrd: bool = True
    weights: Path | None = None
    _other_problems: dict[str, Problem] = field(default_factory=dict)

    def measured_by(self, name: str) -> Problem:
        """The problem, or some of its pictures measured by another instrument."""
        if name == self.problem.instrument:
            return self.problem
        if name not in self._other_problems:
            pictures = self.problem.pictures.only(FOUR_PICTURES)
            self._other_problems[name] = make_other_problem(name, pictures, device=self.problem.device)
        return self._other_problems[name]

    @property
    def denoisers(self) -> tuple[str, ...]:
        return DENOISERS if self.tnrd else DENOISERS[:2]


def compute(what: str, work: Reproduction) -> Any:
    """The cells of a table or figure, computed if they do not exist yet."""
    parts = work.problem, work.store, work.scale
    match what:
        case "table1":
            return table1_cells(*parts, work.denoisers, work.weights)
        case "fig2" | "fig3" | "fig4":
            return table1_cells(*parts, ("tv" if what == "fig4" else "bm3d",))
        case "table2" | "fig6" | "fig7":
            return method_cells(*parts, reversed(METHODS))  # our methods first
        case "fig5":
            return method_cells(*parts, ("PnP-SGD(10)", "PnP-FISTA(60)", "PnP-ADMM(60)"))
        case "beyond":
            return cells_of(beyond_rows(work.scale, ("tnrd-ours", "ridge")), *parts, "beyond")
        case "successors":
            lines, missing = _successor_lines(work)
            if missing is not None:
                raise OutOfTimeError(missing)
            return lines
    raise InputError(f"there is nothing called {what!r} to reproduce; choose {', '.join(WHAT)} or all")


def write(what: str, work: Reproduction, out: Path) -> list[Path]:
    """Compute what is missing, and write the table or draw the figure; returns the files.

    If the time is over before `successors` is complete, the existing part is written before the error is raised.
    """
    if what == "successors":
        return _write_successors(work, out)
    cells = compute(what, work)
    if what == "table1":
        return write_table(out, what, table1_table(cells), {"curves": curves(cells)})
    if what == "table2":
        tuned = {m: {"sigma": c["sigma"], "spec": c["spec"], "seconds": c["seconds"]} for m, c in cells.items()}
        return write_table(out, what, table2_table(cells), {"tuned": tuned})
    path = out / f"{what}.png"
    if what == "fig2":
        panels = [(f"step {label}, B = 30", _both(cells, step, 30)) for step, label in _STEPS]
        draw_distances(path, panels)
    elif what == "fig3":
        draw_distances(path, [(f"B = {b}, step 1/L", _both(cells, 1.0, b)) for b in _BATCHES])
    elif what == "fig4":
        steps = {f"step {label}": cells["tv", step, 30, "nesterov"] for step, label in _STEPS}
        batches = {f"B = {b}": cells["tv", 1.0, b, "nesterov"] for b in _BATCHES}
        groups = [("TV, B = 30, accelerated", steps), ("TV, step 1/L, accelerated", batches)]
        draw_stacked(path, groups, distance_curve, "iteration")
    elif what == "fig5":
        times = [("a fixed reconstruction time", cells)]
        draw_stacked(path, times, time_curve, "seconds an image", low=5)
    elif what == "fig6":
        budgets = [(f"a budget of {b} views", {m: cells[m] for m in METHODS if m.endswith(f"({b})")}) for b in (10, 30)]
        draw_stacked(path, budgets, snr_curve, "iteration", low=0, legend="lower right")
    elif what == "fig7":
        _draw_fig7(path, work, cells)
    else:
        inverting = {name: cell for name, cell in cells.items() if cell["spec"]["method"] != "pgm"}
        gradient = {name: cell for name, cell in cells.items() if name not in inverting}
        kinds = [("the data inverted in every step", inverting), ("gradient steps", gradient)]
        draw_beyond(path, [kind for kind in kinds if kind[1]])
        return [*write_table(out, what, beyond_table(cells)), path]
    return [path]


def _successor_lines(work: Reproduction) -> tuple[dict[str, dict[str, Cell]], str | None]:
    """The lines of `successors` by instrument that exist or that there is time for, and the first missing one."""
    lines: dict[str, dict[str, Cell]] = {}
    missing = None
    for instrument in ("born-2d", *OTHER_INSTRUMENTS):
        for row in successor_rows(work.scale, instrument):
            try:
                cells = successor_cells(work.measured_by(instrument), work.store, work.scale, [row.name])
            except OutOfTimeError as error:
                missing = missing or str(error)
            else:
                lines.setdefault(instrument.removesuffix("-density"), {}).update(cells)
    return lines, missing


def _write_successors(work: Reproduction, out: Path) -> list[Path]:
    lines, missing = _successor_lines(work)
    paths = []
    for instrument, cells in lines.items():
        name = "successors" if instrument == "born-2d" else f"successors-{instrument}"
        tuned = {line: {"sigma": cell["sigma"], "spec": cell["spec"]} for line, cell in cells.items()}
        paths += write_table(out, name, successors_table(cells, instrument), {"tuned": tuned})
    if missing is not None:
        raise OutOfTimeError(missing)
    return paths


def summary(work: Reproduction) -> str:
    """The existing cells as JSON: names, seconds, and the last SNR if it was measured."""
    out = {}
    for path in sorted(work.store.folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        snr = content["result"].get("snr")
        out[path.stem] = {"seconds": content["seconds"], "snr": None if snr is None else float(np.mean(snr))}
    return json.dumps(out, indent=1)


def _both(cells: Any, step: float, views: int) -> list[Cell]:
    """The basic and the accelerated run with BM3D."""
    return [cells["bm3d", step, views, momentum] for momentum in MOMENTA]


def _draw_fig7(path: Path, work: Reproduction, cells: dict[str, Cell]) -> None:
    names = [name for name in work.problem.names if name in FIG7_IMAGES] or [work.problem.names[0]]
    rows, boxes = [], []
    for name in names:
        place = work.problem.names.index(name)
        truth = work.problem.truth[place].cpu().numpy()
        row = [(name, truth)]
        for method in ("PnP-FISTA(30)", "PnP-ADMM(30)", "PnP-SGD(10)", "PnP-SGD(30)"):
            image = work.store.arrays(f"run-{slug(method)}")[name]
            row.append((f"{method}: {cells[method]['snr'][place]:.2f} dB", image))
        rows.append(row)
        top, left = _BOXES.get(name, (0.4, 0.4))
        boxes.append((int(top * truth.shape[0]), int(left * truth.shape[1])))
    draw_images(path, rows, boxes)


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


_INK = "#333333"
_COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#8d5a97")


def draw_distances(path: Path, panels: Sequence[tuple[str, Sequence[Cell]]]) -> None:
    """Figs. 2 and 3: a panel for each step or batch size, basic (solid) and accelerated (dashed), least value dotted.

    Arguments: panels, (title, the cells of the basic and the accelerated run).
    """
    figure, axes = _figure(1, len(panels), width=3.6 * len(panels), height=3.2)
    for axis, (title, cells) in zip(axes[0], panels, strict=True):
        for momentum, cell in zip(MOMENTA, cells, strict=True):
            label, style = ("basic", "-") if momentum == "none" else ("accelerated", "--")
            axis.semilogy(*distance_curve(cell), style, color=_COLOURS[0], label=label)
        least = min(smallest(cell) for cell in cells)
        axis.axhline(least, color=_COLOURS[1], linestyle=":", linewidth=1)
        right = axis.get_yaxis_transform()
        axis.text(0.98, least, f"{least:.2e}", ha="right", va="bottom", fontsize=8, transform=right)
        _dress(axis, title, "iteration", "distance to a fixed point")
        axis.legend(frameon=False, fontsize=8)
    limits = [axis.get_ylim() for axis in axes[0]]
    for axis in axes[0]:
        axis.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    _save(figure, path)


def draw_stacked(
    path: Path,
    panels: Sequence[tuple[str, Mapping[str, Cell]]],
    curve: Callable[[Cell], tuple[Any, Any]],
    x: str,
    *,
    low: float | None = None,
    legend: str = "best",
) -> None:
    """Figs. 4 to 6: panels above each other, a curve for each cell.

    Arguments: panels, (title, the cells by their labels); curve, the values along x and y; x, the label of that axis;
    low, where an axis of SNR begins. Without it the axis is of distances, logarithmic, and least values are dotted.
    """
    figure, axes = _figure(len(panels), 1, width=5.0, height=(3.6 if len(panels) == 1 else 3.2) * len(panels))
    for axis, (title, cells) in zip(axes[:, 0], panels, strict=True):
        for colour, (label, cell) in zip(_COLOURS, cells.items(), strict=False):
            axis.plot(*curve(cell), color=colour, label=label)
            if low is None:
                axis.axhline(smallest(cell), color=colour, linestyle=":", linewidth=0.9)
        _dress(axis, title, x, "distance to a fixed point" if low is None else "average SNR (dB)")
        if low is None:
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=low)
        axis.legend(frameon=False, fontsize=8, loc=legend)
    _save(figure, path)


def draw_beyond(path: Path, panels: Sequence[tuple[str, Mapping[str, Cell]]]) -> None:
    """Average SNR against denoiser calls, a panel for few and one for many, the paper's final average as a line."""
    figure, axes = _figure(1, len(panels), width=5.4 * len(panels), height=5.2)
    for axis, (title, cells) in zip(axes[0], panels, strict=True):
        for number, (method, cell) in enumerate(cells.items()):
            colour = _COLOURS[number % len(_COLOURS)]
            style = ("-", "--", ":")[number // len(_COLOURS) % 3]
            calls, snr = snr_curve(cell)
            axis.plot(calls[1:], snr[1:], style, color=colour, label=method, linewidth=1.3)
        axis.axhline(AVERAGE[METHODS.index("PnP-SGD(10)")], color=_INK, linewidth=0.7)
        _dress(axis, title, "denoiser calls", "average SNR (dB)")
        axis.set_ylim(14, 27.5)
        axis.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    _save(figure, path)


def draw_images(
    path: Path, rows: Sequence[Sequence[tuple[str, NDArray[Any]]]], boxes: Sequence[tuple[int, int]]
) -> None:
    """Fig. 7: a row for each picture, the truth first, each with a rectangle of it enlarged in a corner.

    Arguments: rows, (label, image) of each; boxes, the upper left corner of each row's rectangle, a quarter wide.
    """
    from matplotlib.patches import Rectangle

    figure, axes = _figure(len(rows), len(rows[0]), width=2.3 * len(rows[0]), height=2.5 * len(rows))
    for line, row, (top, left) in zip(axes, rows, boxes, strict=True):
        for axis, (label, image) in zip(line, row, strict=True):
            side = image.shape[-1] // 5
            image = np.clip(image.astype(float), 0, 1)
            axis.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.add_patch(Rectangle((left, top), side, side, fill=False, edgecolor="#f0c419", linewidth=1))
            inset = axis.inset_axes((0.55, 0.0, 0.45, 0.45))
            inset.imshow(image[top : top + side, left : left + side], cmap="gray", vmin=0, vmax=1)
            for part in (axis, inset):
                part.set_xticks([])
                part.set_yticks([])
            for spine in inset.spines.values():
                spine.set_edgecolor("#f0c419")
            axis.set_title(label, fontsize=8, color=_INK)
    _save(figure, path, dpi=90, colours=96)  # photographs make large files


def distance_curve(cell: Cell) -> tuple[list[int], NDArray[np.float64]]:
    """The distance to a fixed point by iterations, averaged over the images."""
    return cell["history"]["distance"]["step"], _mean(cell["history"]["distance"])


def snr_curve(cell: Cell) -> tuple[list[int], NDArray[np.float64]]:
    """The SNR by iterations, averaged over the images."""
    return cell["history"]["snr"]["step"], _mean(cell["history"]["snr"])


def time_curve(cell: Cell) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The SNR by the algorithm's seconds an image, averaged over the images."""
    return np.asarray(cell["history"]["snr"]["time"]) / len(cell["names"]), _mean(cell["history"]["snr"])


def _mean(history: Mapping[str, Any]) -> NDArray[np.float64]:
    return np.asarray(np.asarray(history["value"], dtype=float).mean(1))


def _figure(rows: int, columns: int, *, width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _dress(axis: Any, title: str, x: str, y: str) -> None:
    axis.set_title(title, fontsize=10, color=_INK)
    axis.set_xlabel(x, fontsize=9)
    axis.set_ylabel(y, fontsize=9)
    axis.grid(alpha=0.25, linewidth=0.5)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _save(figure: Any, path: Path, dpi: int = 120, colours: int | None = None) -> None:
    """Write a figure as PNG, on request with few colours."""
    buffer = io.BytesIO(encode_figure(figure, dpi=dpi))
    if colours is not None:
        from PIL import Image

        picture = Image.open(buffer).convert("RGB").quantize(colours)
        buffer = io.BytesIO()
        picture.save(buffer, format="PNG", optimize=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, [buffer.getvalue()])
