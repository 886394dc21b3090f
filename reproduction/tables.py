"""The runs behind each table, as cells: Tables 1 and 2, what we would use today (`beyond`), and what followed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from reproduction.cells import Arrays, Cell, Scale, Store
from reproduction.paper import BM3D_SIGMA, IMAGES, TNRD_SIGMA, TV_LAMBDA, Problem
from reproduction.runs import Spec, as_numpy, falling, known_settings, outcome, run, tune

DENOISERS = ("tv", "bm3d", "tnrd")
# (step as a multiple of 1/L, views a step), in the order of the paper's columns; the last is the first again.
COLUMNS = ((1.0, 30), (0.25, 30), (0.0625, 30), (1.0, 10), (1.0, 20), (1.0, 30))
# The basic and the accelerated variant.
MOMENTA = ("none", "nesterov")


def strengths(problem: Problem, denoiser: str, step: float) -> list[float]:
    """The sigma of each image, as the authors chose it.

    TV is the prox of gamma lambda TV, so that sigma^2 = gamma lambda and all steps and batches share their fixed
    points. For BM3D their code has sigma proportional to the step; TNRD is one model whatever the step. A picture that
    is not the paper's gets the mean of theirs.
    """
    authors = _authors_strengths(problem, denoiser)
    if denoiser == "tnrd":
        return [sigma / 255 for sigma in authors]
    if denoiser == "tv":
        gamma = step / problem.fidelity.lipschitz_max
        return [math.sqrt(gamma * lam) for lam in authors]
    return [step * sigma / 255 for sigma in authors]


def _authors_strengths(problem: Problem, denoiser: str) -> list[float]:
    """The authors' numbers for each image: lambda of TV, and sigma on the scale 0 .. 255 of the others."""
    if denoiser == "tnrd":
        return [TNRD_SIGMA] * len(problem.names)
    table = TV_LAMBDA if denoiser == "tv" else BM3D_SIGMA
    return [table[IMAGES.index(name)] if name in IMAGES else float(np.mean(table)) for name in problem.names]


def smallest(cell: Cell) -> float:
    """The smallest distance of a run, averaged over the images: an entry of the table."""
    values = np.asarray(cell["history"]["distance"]["value"], dtype=float)
    return float(np.nanmin(values, axis=0).mean())


def table1_cells(
    problem: Problem,
    store: Store,
    scale: Scale,
    denoisers: Sequence[str] = DENOISERS,
    weights: Path | None = None,
) -> dict[tuple[str, float, int, str], Cell]:
    """All runs of the table, from x^0 = 0, by denoiser, step, views and momentum.

    With momentum a step that is a quarter as long needs twice the iterations, and gets them.
    """
    cells = {}
    for denoiser, (step, views), momentum in itertools.product(denoisers, COLUMNS[:5], MOMENTA):
        iterations = round(scale.distance_steps / math.sqrt(step))
        spec = Spec(denoiser=denoiser, views=views, step=step, momentum=momentum, iterations=iterations)
        about = {
            "images": list(problem.names),
            "spec": spec.about(),
            "chosen": _authors_strengths(problem, denoiser),
            "every": scale.distance_every,
        }

        def compute(spec: Spec = spec) -> tuple[Cell, Arrays]:
            sigma = strengths(problem, spec.denoiser, spec.step)
            result = run(problem, spec, sigma, distance=True, every=scale.distance_every, weights=weights)
            return outcome(problem, result, spec=spec.about()), {}

        name = f"distance-{denoiser}-step{1 / step:g}-views{views}-{momentum}"
        cells[denoiser, step, views, momentum] = store.cell(name, about, compute)
    return cells


# The images of Fig. 7.
FIG7_IMAGES = ("monarch", "parrot")

# (step, momentum), and gamma of PnP-ADMM as a multiple of 1/L: three of each, so that no method is tuned harder.
_GRADIENT = ((1.0, "nesterov"), (1.3, "nesterov"), (1.0, "chambolle-dossal"))
_SPLITTING = (100.0, 30.0, 10.0)
# sigma, on the scale 0 .. 255. A longer step of PnP-ADMM goes with more noise in what it denoises.
_RANGE = {"pgm": (0.3, 12.0), "admm": (1.0, 60.0)}


def choices(method: str, scale: Scale) -> list[Spec]:
    """The settings that are tried for a method, such as "PnP-SGD(10)"; batch methods keep to evenly spaced views."""
    name, count = method.removesuffix(")").split("(")
    views = None if count == "60" else int(count)
    if name == "PnP-ADMM":
        return [
            Spec("admm", sampler="fixed", views=views, step=gamma, iterations=scale.splits)
            for gamma in _SPLITTING[: scale.choices]
        ]
    sampler = "shifted" if name == "PnP-SGD" else "fixed"
    return [
        Spec("pgm", sampler=sampler, views=views, step=step, momentum=momentum, iterations=scale.steps)
        for step, momentum in _GRADIENT[: scale.choices]
    ]


def method_cells(problem: Problem, store: Store, scale: Scale, methods: Iterable[str]) -> dict[str, Cell]:
    """Each method tuned, and run again with every step measured; both are stored, and the runs returned."""
    return {method: _method_cell(problem, store, scale, method) for method in methods}


def slug(method: str) -> str:
    """A method as part of a file name."""
    return method.removesuffix(")").replace("(", "-").lower()


def _method_cell(problem: Problem, store: Store, scale: Scale, method: str) -> Cell:
    specs = choices(method, scale)
    about: dict[str, Any] = {
        "images": list(problem.names),
        "choices": [spec.about() for spec in specs],
        "grid": scale.grid,
        "evaluations": scale.evaluations,
    }

    def search() -> tuple[Cell, Arrays]:
        if scale.evaluations == 0:
            best = known_settings(method, problem.names, specs[0].iterations)
            assert best is not None
        else:
            low, high = _RANGE[specs[0].method]
            best = tune(problem, specs, low, high, grid=scale.grid, evaluations=scale.evaluations)
        return {**vars(best), "spec": best.spec.about()}, {}

    tuned = store.cell(f"tune-{slug(method)}", about, search)
    spec = Spec(**tuned["spec"])
    settings = {"spec": spec.about(), "sigma": tuned["sigma"]}

    def final() -> tuple[Cell, Arrays]:
        result = run(problem, spec, tuned["sigma"])
        pictures = {
            name: as_numpy(result.image[i]) for i, name in enumerate(problem.names) if name in FIG7_IMAGES or i == 0
        }
        return outcome(problem, result, **settings), pictures

    return store.cell(f"run-{slug(method)}", {**about, **settings}, final)


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


def beyond_rows(scale: Scale, trained: Sequence[str] = ()) -> list[Row]:
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


# What they are compared with: the lines of `beyond` that were the best online, and the best of all.
BEFORE = ("PnP-SGD(10), shifted", "PnP-ADMM(60)", "PnP-HQS(30), shifted, falling")
# The pictures that the other instruments see.
FOUR_PICTURES = ("house", "lenna", "monarch", "parrot")
# For other instruments: how many values of sigma are tried, and the methods with two settings.
_EVALUATIONS = 7
_FEW = ("admm", "hqs", "ipa", "block-admm", "inexact-admm", "red", "snore")


def successor_rows(scale: Scale, instrument: str = "born-2d") -> list[Row]:
    """The table's lines for an instrument, earlier methods first.

    For instruments other than the paper's, sigma has a wider range, there are lines that weigh pixels or samples, and
    only the first setting of each line is tried, or the first two for methods of `_FEW`, where the step matters most.
    """
    plain = Spec(iterations=scale.calls[0])
    if instrument == "born-2d":
        return _paper_rows(scale)
    if instrument == "mri-density":
        weighted = tuple(replace(plain, step=step) for step in (4.0, 8.0)[: scale.choices])
        return [Row("PnP-SGD(10), shifted, density", weighted, 0.3, 30.0)]
    lines = []
    for line in _paper_rows(scale):
        count = 2 if line.choices[0].method in _FEW else 1
        lines.append(replace(line, choices=line.choices[:count], low=line.low / 3, high=3 * line.high))
    if instrument == "ct":
        each = replace(plain, gradient="diagonal")
        lines.append(Row("PnP-SGD(10), shifted, a step for each pixel", (each,), 0.3, 30.0, "an image"))
    return lines


def _paper_rows(scale: Scale) -> list[Row]:
    """Methods with a gradient step get `scale.calls[0]` steps, and those that invert the data `scale.calls[1]`.

    Most of ProxSkip's steps call no denoiser.
    """
    many, few = scale.calls
    plain = Spec(iterations=many)

    def skip(p: float, *momenta: str, **more: Any) -> tuple[Spec, ...]:
        base = replace(plain, method="proxskip", options=(("denoise_probability", p),), **more)
        return tuple(replace(base, momentum=momentum) for momentum in momenta)

    def red(method: str, *tau: str, **more: Any) -> tuple[Spec, ...]:
        return tuple(replace(plain, method=method, options=(("tau", value),), **more) for value in tau)

    def runs(inner: int, steps: int) -> tuple[Spec, ...]:
        base = replace(plain, method="sgd-splitting", options=(("inner_steps", inner),), iterations=steps)
        return tuple(replace(base, sigma_end=end) for end in (0.25, 0.1))

    def split(method: str, views: int, *steps: float) -> tuple[Spec, ...]:
        return tuple(Spec(method, views=views, step=step, iterations=few) for step in steps)

    def after_tv(*steps: float) -> tuple[Spec, ...]:
        return tuple(replace(one, iterations=12, opening=("tv", 8, 3.0)) for one in split("inexact-admm", 30, *steps))

    anneal = {"momentum": "bounded", "step_end": 0.3, "sigma_end": 0.2}
    lines = [
        *(line for line in beyond_rows(scale) if line.name in BEFORE),
        Row("inexact ADMM(30), shifted", split("inexact-admm", 30, 300.0, 100.0, 30.0), 3.0, 60.0, "two images"),
        Row("inexact ADMM(10), shifted", split("inexact-admm", 10, 30.0, 100.0), 3.0, 60.0, "two images"),
        Row("inexact ADMM(30), shifted, TV first", after_tv(300.0, 100.0, 30.0), 3.0, 60.0, "two images"),
        Row("ProxSkip(10), shifted, p = 0.1", skip(0.1, "bounded", "bounded:5", "bounded:8"), memory="one image"),
        Row("ProxSkip(10), shifted, p = 0.2", skip(0.2, "bounded", "bounded:8"), memory="one image"),
        Row("ProxSkip(10), shifted, p = 0.5", skip(0.5, "bounded", "nesterov"), memory="one image"),
        Row("ProxSkip(60), p = 0.1", skip(0.1, "bounded", "bounded:8", sampler="all", views=None), memory="one image"),
        Row("splitting(10), shifted, 3 runs of 27 steps", runs(27, 81), 3.0, 60.0),
        Row("splitting(10), shifted, 4 runs of 20 steps", runs(20, 80), 3.0, 60.0),
        Row("online RED(10), shifted", red("red", "0.5L", "L", "0.2L")),
        Row("SNORE(10), shifted", red("snore", "0.05L", "0.1L", momentum="bounded"), 0.3, 20.0),
        Row("SNORE(10), shifted, annealed", red("snore", "0.05L", "0.1L", **anneal), 1.0, 60.0),
        Row("PnP-SGD(10), shifted, turned at random", (replace(plain, equivariant="random"),)),
        Row("online RED(10), shifted, turned at random", red("red", "0.5L", equivariant="random")),
        Row("PnP-SGD(10), shifted, TV first", tuple(replace(plain, opening=("tv", n, 3.0)) for n in (60, 30))),
        Row("IPA(10), shifted", split("ipa", 10, 10.0, 30.0, 100.0), 1.0, 60.0, "two images"),
        Row("IPA(30), shifted", split("ipa", 30, 30.0, 100.0, 10.0), 1.0, 60.0, "two images"),
        Row("ADMM by blocks of 10", split("block-admm", 10, 100.0, 300.0), 3.0, 60.0, "13 images"),
        Row("ADMM by blocks of 30", split("block-admm", 30, 300.0, 100.0), 3.0, 60.0, "5 images"),
        # The dearest last, since time may be short.
        Row("PnP-SGD(10), shifted, mean over turns", (replace(plain, equivariant="mean"),)),
    ]
    return limit_choices(lines, scale)


def successor_cells(
    problem: Problem, store: Store, scale: Scale, names: Sequence[str] | None = None
) -> dict[str, Cell]:
    """The cells of all lines, or of those with these names; instruments other than the paper's get fewer trials."""
    lines, prefix = successor_rows(scale, problem.instrument), "successors"
    if problem.instrument != "born-2d":
        prefix = f"successors-{problem.instrument}"
        scale = replace(scale, evaluations=min(scale.evaluations, _EVALUATIONS))
    return cells_of([line for line in lines if names is None or line.name in names], problem, store, scale, prefix)
