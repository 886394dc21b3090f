"""From the name of a table or figure to its files: compute the cells it needs, then write and draw it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from plugstream.base.errors import InputError
from plugstream.studies.experiments import beyond, figures, report, successors, table1, table2
from plugstream.studies.experiments.cells import Cell, OutOfTimeError, Scale, Store
from plugstream.studies.experiments.printed import METHODS
from plugstream.studies.experiments.setup import OTHER_INSTRUMENTS, Problem, make_other_problem

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
            pictures = self.problem.pictures.only(successors.FOUR_PICTURES)
            self._other_problems[name] = make_other_problem(name, pictures, device=self.problem.device)
        return self._other_problems[name]

    @property
    def denoisers(self) -> tuple[str, ...]:
        return table1.DENOISERS if self.tnrd else table1.DENOISERS[:2]


def compute(what: str, work: Reproduction) -> Any:
    """The cells of a table or figure, computed if they do not exist yet."""
    parts = work.problem, work.store, work.scale
    match what:
        case "table1":
            return table1.table1_cells(*parts, work.denoisers, work.weights)
        case "fig2" | "fig3" | "fig4":
            return table1.table1_cells(*parts, ("tv" if what == "fig4" else "bm3d",))
        case "table2" | "fig6" | "fig7":
            return table2.method_cells(*parts, reversed(METHODS))  # our methods first
        case "fig5":
            return table2.method_cells(*parts, ("PnP-SGD(10)", "PnP-FISTA(60)", "PnP-ADMM(60)"))
        case "beyond":
            return beyond.cells_of(beyond.rows(work.scale, ("tnrd-ours", "ridge")), *parts, "beyond")
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
        return report.write_table(out, what, report.table1_table(cells), {"curves": report.curves(cells)})
    if what == "table2":
        tuned = {m: {"sigma": c["sigma"], "spec": c["spec"], "seconds": c["seconds"]} for m, c in cells.items()}
        return report.write_table(out, what, report.table2_table(cells), {"tuned": tuned})
    path = out / f"{what}.png"
    if what == "fig2":
        panels = [(f"step {label}, B = 30", _both(cells, step, 30)) for step, label in _STEPS]
        figures.draw_distances(path, panels)
    elif what == "fig3":
        figures.draw_distances(path, [(f"B = {b}, step 1/L", _both(cells, 1.0, b)) for b in _BATCHES])
    elif what == "fig4":
        steps = {f"step {label}": cells["tv", step, 30, "nesterov"] for step, label in _STEPS}
        batches = {f"B = {b}": cells["tv", 1.0, b, "nesterov"] for b in _BATCHES}
        groups = [("TV, B = 30, accelerated", steps), ("TV, step 1/L, accelerated", batches)]
        figures.draw_stacked(path, groups, figures.distance_curve, "iteration")
    elif what == "fig5":
        times = [("a fixed reconstruction time", cells)]
        figures.draw_stacked(path, times, figures.time_curve, "seconds an image", low=5)
    elif what == "fig6":
        budgets = [(f"a budget of {b} views", {m: cells[m] for m in METHODS if m.endswith(f"({b})")}) for b in (10, 30)]
        figures.draw_stacked(path, budgets, figures.snr_curve, "iteration", low=0, legend="lower right")
    elif what == "fig7":
        _draw_fig7(path, work, cells)
    else:
        inverting = {name: cell for name, cell in cells.items() if cell["spec"]["method"] != "pgm"}
        gradient = {name: cell for name, cell in cells.items() if name not in inverting}
        kinds = [("the data inverted in every step", inverting), ("gradient steps", gradient)]
        figures.draw_beyond(path, [kind for kind in kinds if kind[1]])
        return [*report.write_table(out, what, report.beyond_table(cells)), path]
    return [path]


def _successor_lines(work: Reproduction) -> tuple[dict[str, dict[str, Cell]], str | None]:
    """The lines of `successors` by instrument that exist or that there is time for, and the first missing one."""
    lines: dict[str, dict[str, Cell]] = {}
    missing = None
    for instrument in ("born-2d", *OTHER_INSTRUMENTS):
        for row in successors.successor_rows(work.scale, instrument):
            try:
                cells = successors.successor_cells(work.measured_by(instrument), work.store, work.scale, [row.name])
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
        paths += report.write_table(out, name, report.successors_table(cells, instrument), {"tuned": tuned})
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
    return [cells["bm3d", step, views, momentum] for momentum in table1.MOMENTA]


def _draw_fig7(path: Path, work: Reproduction, cells: dict[str, Cell]) -> None:
    names = [name for name in work.problem.names if name in table2.FIG7_IMAGES] or [work.problem.names[0]]
    rows, boxes = [], []
    for name in names:
        place = work.problem.names.index(name)
        truth = work.problem.truth[place].cpu().numpy()
        row = [(name, truth)]
        for method in ("PnP-FISTA(30)", "PnP-ADMM(30)", "PnP-SGD(10)", "PnP-SGD(30)"):
            image = work.store.arrays(f"run-{table2.slug(method)}")[name]
            row.append((f"{method}: {cells[method]['snr'][place]:.2f} dB", image))
        rows.append(row)
        top, left = _BOXES.get(name, (0.4, 0.4))
        boxes.append((int(top * truth.shape[0]), int(left * truth.shape[1])))
    figures.draw_images(path, rows, boxes)
