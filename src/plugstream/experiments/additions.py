"""Lines that the tables of `successors` lack, made elsewhere and later, with less time for the search of sigma.

    python -m plugstream.experiments.additions --images FOLDER --tables docs/results --cells CELLS --lines SNORE

keeps every line of successors.json, successors-ct.json and successors-mri.json in --tables as it is, computes those of
the missing lines whose name has one of the texts of --lines in it, and writes the tables again with both. A line takes
two searches: which setting, and about which sigma, on one picture of half the side; then sigma of each picture near
that. Seconds of another device than that of the kept lines say nothing beside theirs and are left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from plugstream.errors import InputError
from plugstream.experiments import report
from plugstream.experiments.beyond import Row, slug
from plugstream.experiments.cells import OutOfTimeError, Store
from plugstream.experiments.other_instruments import OTHERS
from plugstream.experiments.reproduce import Reproduction
from plugstream.experiments.runs import Spec, outcome, run, tune
from plugstream.experiments.scale import FULL, Scale
from plugstream.experiments.setup import Problem, load_pictures, make_problem
from plugstream.experiments.successors import EVALUATIONS, other_rows, successor_rows

__all__ = ["KeptTable", "add_line", "best_of", "merge", "missing_lines", "pilot_search", "read_table"]

# The picture of the first search, which every instrument has.
_PILOT = "parrot"
# Between two sigmas of the second search, and how many more are tried beyond an end that is best on the average.
_RATIO, _WIDENINGS = 1.7, 2
_SECONDS = ("seconds", "seconds to it")
_INSTRUMENTS = ("born-2d", *OTHERS)


@dataclass(frozen=True)
class KeptTable:
    """A table as it was written: its lines by name, what was tuned for them, and the note below."""

    lines: dict[str, dict[str, Any]]
    tuned: dict[str, Any]
    note: str


def read_table(folder: Path, instrument: str) -> KeptTable:
    """The table of `successors` of an instrument in a folder."""
    path = folder / f"{_table_name(instrument)}.json"
    if not path.exists():
        raise InputError(f"there is no {path} to add lines to; make it by plugstream reproduce successors")
    content = json.loads(path.read_text(encoding="utf-8"))
    return KeptTable({line["method"]: line for line in content["rows"]}, content["tuned"], content["note"])


def missing_lines(kept: KeptTable, instrument: str, scale: Scale = FULL) -> list[Row]:
    """The lines that `successors` has of an instrument and a kept table has not, in the order of `successors`."""
    rows = successor_rows(scale) if instrument == "born-2d" else other_rows(scale, instrument)
    return [row for row in rows if row.name not in kept.lines]


def pilot_search(row: Row, pilot: Problem, store: Store, scale: Scale = FULL) -> tuple[Spec, float]:
    """The setting of a line that is best for `pilot`, and its sigma, on the scale 0 .. 1, the mean of logarithms.

    It is the search of `successors`, with as many trials: fewer of another instrument than the paper's.
    """
    most = scale.evaluations if pilot.instrument == "born-2d" else min(scale.evaluations, EVALUATIONS)
    about = {
        "images": list(pilot.names),
        "size": int(pilot.truth.shape[-1]),
        "choices": [spec.about() for spec in row.choices],
        "range": [row.low, row.high],
        "grid": scale.grid,
        "evaluations": most,
    }

    def compute() -> tuple[dict[str, Any], dict[str, Any]]:
        found = tune(pilot, row.choices, row.low, row.high, grid=scale.grid, evaluations=most)
        return {"spec": found.spec.about(), "sigma": found.sigma, "snr": found.snr}, {}

    made = store.cell(f"pilot-{pilot.instrument}-{slug(row.name)}", about, compute)
    return Spec(**made["spec"]), float(np.exp(np.log(made["sigma"]).mean()))


def add_line(row: Row, problem: Problem, pilot: Problem, store: Store, scale: Scale = FULL) -> dict[str, Any]:
    """The cell of a line: its setting is the pilot's, and each picture has the best of a few sigmas about the pilot's.

    A trial has one sigma for all pictures and is a cell of its own, so that little is lost when time is over. Pictures
    of a run go side by side and do not change each other, so that no further run is needed with each at its best.
    """
    spec, middle = pilot_search(row, pilot, store, scale)

    def trial(place: int) -> dict[str, Any]:
        sigma = [middle * _RATIO**place] * len(problem.names)
        about = {"images": list(problem.names), "size": int(problem.truth.shape[-1])}
        about |= {"spec": spec.about(), "sigma": sigma}

        def compute() -> tuple[dict[str, Any], dict[str, Any]]:
            more = {"sigma": sigma, "spec": spec.about(), "memory": row.memory}
            return outcome(problem, run(problem, spec, sigma), **more), {}

        return store.cell(f"trial-{problem.instrument}-{slug(row.name)}-{place:+d}", about, compute)

    trials = {place: trial(place) for place in (0, -1, 1)}
    for _ in range(_WIDENINGS):
        best = max(trials, key=lambda place: float(np.nan_to_num(trials[place]["snr"], nan=-np.inf).mean()))
        if best not in (min(trials), max(trials)):
            break
        beyond = best + (1 if best > 0 else -1)
        trials[beyond] = trial(beyond)
    return best_of(trials)


def best_of(trials: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    """One cell of several trials: of each picture the one with the largest SNR at its end.

    Calls and passes are the most of any trial: those of a run that goes on until its dearest picture is done.
    """
    chosen = [trials[place] for place in _best_places(trials)]
    first = chosen[0]
    history = first["history"]["snr"]
    values = [
        [cell["history"]["snr"]["value"][k][i] for i, cell in enumerate(chosen)] for k in range(len(history["step"]))
    ]
    return {
        **first,
        "snr": [cell["snr"][i] for i, cell in enumerate(chosen)],
        "sigma": [cell["sigma"][i] for i, cell in enumerate(chosen)],
        "passes": max(cell["passes"] for cell in chosen),
        "calls": [max(counts) for counts in zip(*(cell["calls"] for cell in chosen), strict=True)],
        "passes_at": [max(counts) for counts in zip(*(cell["passes_at"] for cell in chosen), strict=True)],
        "history": {"snr": {**history, "value": values}},
    }


def _best_places(trials: Mapping[int, dict[str, Any]]) -> list[int]:
    """Of each picture the trial that it is best in; a run that ended in NaN is the worst."""
    places = list(trials)
    snr = np.array([trials[place]["snr"] for place in places], dtype=float)
    return [places[k] for k in np.where(np.isnan(snr), -np.inf, snr).argmax(0)]


def merge(
    kept: KeptTable, cells: Mapping[str, dict[str, Any]], instrument: str, scale: Scale = FULL
) -> tuple[report.Table, dict[str, Any]]:
    """One table, and what was tuned, of kept lines and of new cells, in the order of `successors`.

    The level whose calls are counted is that of the kept table. Of new lines seconds are left out.
    """
    first = next(iter(kept.lines.values()))
    level = next(float(head.split()[2]) for head in first if head.startswith("calls to "))
    table = report.successors_table(cells, _table_of(instrument), level=level)
    drop = [table.head.index(name) for name in _SECONDS]
    new = {str(row[0]): tuple(None if i in drop else value for i, value in enumerate(row)) for row in table.rows}
    order = _order(instrument, scale)
    old = {name: tuple(line.values()) for name, line in kept.lines.items()}
    rows = [{**old, **new}[name] for name in order if name in old or name in new]
    tuned = {**kept.tuned, **{name: {"sigma": cell["sigma"], "spec": cell["spec"]} for name, cell in cells.items()}}
    devices = ", ".join(sorted({cell["device"] for cell in cells.values()}))
    added = (
        f" Lines without seconds were made later, on {devices}: the setting and about which sigma by a search on "
        f"{_PILOT} at half the side, then sigma of each image as the best of three to five, {_RATIO:g} apart."
    )
    note = kept.note if added in kept.note else kept.note + added
    return replace(table, rows=rows, note=note), {name: tuned[name] for name in order if name in tuned}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute lines in the order of --lines, on every instrument in turn; after each its table is written anew."""
    begin = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--cells", type=Path, required=True)
    parser.add_argument("--lines", nargs="+", default=[""])
    parser.add_argument("--instruments", nargs="+", default=_INSTRUMENTS, choices=_INSTRUMENTS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--size", type=int, default=256)
    options = parser.parse_args(arguments)

    def say(text: str) -> None:
        print(f"{time.monotonic() - begin:7.1f} {text}", flush=True)

    store = Store(options.cells, say, None if options.seconds is None else begin + options.seconds)
    large, small = (
        Reproduction(make_problem(pictures, device=options.device), store, FULL)
        for pictures in (
            load_pictures(options.images, options.size),
            load_pictures(options.images, options.size // 2).only((_PILOT,)),
        )
    )
    try:
        for text in options.lines:
            for instrument in options.instruments:
                for row in missing_lines(read_table(options.tables, instrument), instrument):
                    if text in row.name:
                        cell = add_line(row, large.measured_by(instrument), small.measured_by(instrument), store)
                        kept = read_table(options.tables, instrument)
                        table, tuned = merge(kept, {row.name: cell}, instrument)
                        report.write_table(options.tables, _table_name(instrument), table, {"tuned": tuned})
                        say(f"{instrument}, {row.name}: {np.mean(cell['snr']):.2f} dB")
    except OutOfTimeError as error:
        say(f"the time is over, before {error}; the same command goes on from there")
        return 130
    return 0


def _table_name(instrument: str) -> str:
    return "successors" if instrument == "born-2d" else f"successors-{_table_of(instrument)}"


def _table_of(instrument: str) -> str:
    """Where the lines of an instrument stand: MRI's table has its weighted line, too."""
    return instrument.removesuffix("-density")


def _order(instrument: str, scale: Scale) -> list[str]:
    """The names of a table's lines."""
    if instrument == "born-2d":
        return [row.name for row in successor_rows(scale)]
    same = [name for name in OTHERS if _table_of(name) == _table_of(instrument)]
    return [row.name for name in same for row in other_rows(scale, name)]


if __name__ == "__main__":
    sys.exit(main())
