"""What we would use today: samplers, variance reduction, restarts, a falling sigma and splitting, by denoiser calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from plugstream.studies.experiments.cells import Arrays, Cell, Scale, Store
from plugstream.studies.experiments.runs import Spec, falling, known_settings, outcome, run, tune
from plugstream.studies.experiments.setup import Problem

# Average SNR in dB that a method should reach: the issue's, and the paper's PnP-SGD with 10 views.
LEVELS = (25.5, 25.85)


@dataclass(frozen=True)
class Row:
    """A line of the table: its name, the settings to try, the range of sigma on the scale 0 .. 255, and the memory.

    `memory` is what it keeps between steps beyond the image and its momentum.
    """

    name: str
    choices: tuple[Spec, ...]
    low: float = 0.3
    high: float = 8.0
    memory: str = "none"


def rows(scale: Scale, trained: Sequence[str] = ()) -> list[Row]:
    """The table's lines, those of trained denoisers last.

    Methods that take a gradient step get `scale.calls[0]` denoiser calls, those that invert the data `scale.calls[1]`.
    """
    many, few = scale.calls
    plain = Spec(iterations=many)
    table = "0.17 MB: 60 x 360 predictions (60 gradients would be 15.7 MB), and an image"
    two = "two images, 0.5 MB"
    full = Spec(sampler="all", views=None, step=1.3, iterations=many)
    admm = [Spec("admm", sampler="all", views=None, step=gamma, iterations=few) for gamma in (100.0, 300.0)]
    batch = Spec("hqs", sampler="all", views=None, iterations=few)
    hqs = [
        falling(replace(batch, step=start), end, round(part * few))
        for start, end in ((1000.0, 10.0), (300.0, 3.0), (3000.0, 10.0))
        for part in (0.5, 0.9)
    ]
    short = [
        falling(replace(batch, step=start, iterations=8), end, 6)
        for start, end in ((1000.0, 10.0), (300.0, 3.0), (1000.0, 30.0))
    ]
    online = [
        falling(replace(batch, sampler="shifted", views=30, step=start), 3.0, round(0.9 * few))
        for start in (300.0, 100.0)
    ]
    lines = [
        Row("PnP-SGD(10), i.i.d.", (replace(plain, sampler="uniform"),)),
        Row("PnP-SGD(10), epochs", (replace(plain, sampler="epochs"),)),
        Row("PnP-SGD(10), shifted", (plain,)),
        Row("PnP-SAGA(10), i.i.d.", _shorter(replace(plain, sampler="uniform", gradient="saga")), memory=table),
        Row("PnP-SAGA(10), shifted", _shorter(replace(plain, gradient="saga")), memory=table),
        Row("PnP-SVRG(10), i.i.d.", _shorter(replace(plain, sampler="uniform", gradient="svrg")), memory=two),
        Row(
            "PnP-SGD(10), shifted, falling sigma",
            tuple(replace(plain, sigma_end=end, falling=round(0.7 * many)) for end in (0.2, 0.05)),
            high=60.0,
        ),
        Row("PnP-FISTA(60)", (full,)),
        Row("PnP-FISTA(60), restart by gradient", (replace(full, restart="gradient"),)),
        Row("PnP-FISTA(60), restart by residual", (replace(full, restart="residual"),)),
        Row(
            "PnP-SAGA(10), shifted, restart by residual",
            _shorter(replace(plain, gradient="saga", restart="residual"))[:2],
            memory=table,
        ),
        Row("PnP-ADMM(60)", tuple(admm), 3.0, 60.0, "two images"),
        Row("PnP-HQS(30), shifted, falling", tuple(online), 3.0, 60.0, "one image"),
        Row("PnP-HQS(60), falling", tuple(hqs), 3.0, 120.0, "one image"),
        Row("PnP-HQS(60), falling in 8 calls", tuple(short), 3.0, 120.0, "one image"),
    ]
    if "tnrd-ours" in trained:
        lines.append(Row("PnP-SGD(10), shifted, TNRD", (replace(plain, denoiser="tnrd-ours"),)))
    names = {"tnrd-ours": "TNRD", "ridge": "convex ridge"}
    for name in trained:
        choices = tuple(replace(spec, denoiser=name) for spec in hqs[:2])
        lines.append(Row(f"PnP-HQS(60), falling, {names[name]}", choices, 3.0, 120.0, "one image"))
    return limit_choices(lines, scale)


def limit_choices(lines: Sequence[Row], scale: Scale) -> list[Row]:
    """The lines with only the first setting of each, if the scale is a quick one."""
    limit = None if scale.choices > 1 else 1
    return [replace(line, choices=line.choices[:limit]) for line in lines]


def _shorter(spec: Spec) -> tuple[Spec, ...]:
    """Variants with the steps that variance reduction may need (its theory requires 1/(3L)), and without momentum."""
    return replace(spec, step=0.5), replace(spec, step=1 / 3), replace(spec, step=1.0, momentum="none")


def cells_of(lines: Sequence[Row], problem: Problem, store: Store, scale: Scale, prefix: str) -> dict[str, Cell]:
    """Each line tuned for the best SNR after its calls, and run with every call measured.

    Cells are named by the prefix. Without a search, known settings are used, or else a grid.
    """
    out = {}
    for row in lines:
        about = {
            "images": list(problem.names),
            "choices": [spec.about() for spec in row.choices],
            "range": [row.low, row.high],
            "grid": scale.grid,
            "evaluations": scale.evaluations,
        }

        def compute(row: Row = row) -> tuple[Cell, Arrays]:
            settings = known_settings(row.name, problem.names, row.choices[0].iterations)
            if scale.evaluations == 0 and settings is not None and problem.instrument == "born-2d":
                tuned = settings
            else:
                grid, most = scale.grid, scale.evaluations or scale.grid
                tuned = tune(problem, row.choices, row.low, row.high, grid=grid, evaluations=most)
            result = run(problem, tuned.spec, tuned.sigma)
            more = {"sigma": tuned.sigma, "spec": tuned.spec.about(), "memory": row.memory}
            return outcome(problem, result, **more), {}

        file = "".join(c if c.isalnum() else "-" for c in row.name.lower()).strip("-").replace("--", "-")
        out[row.name] = store.cell(f"{prefix}-{file}", about, compute)
    return out


def calls_to_reach(cell: Cell, level: float) -> int | None:
    """Denoiser calls until the average over the images first reaches a level, None if it never does."""
    place = first_reach(cell, level)
    return None if place is None else int(cell.get("calls", cell["history"]["snr"]["step"])[place])


def first_reach(cell: Cell, level: float) -> int | None:
    """The first measurement at which the average over the images reaches a level, None if there is none."""
    average = np.asarray(cell["history"]["snr"]["value"], dtype=float).mean(1)
    reached = np.flatnonzero(average >= level)
    return int(reached[0]) if len(reached) else None
