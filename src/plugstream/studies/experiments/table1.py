"""Table 1: how close PnP-SGD comes to a fixed point, for three denoisers, steps and batch sizes; Figs. 2 to 4."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from plugstream.studies.experiments.cells import Arrays, Cell, Scale, Store
from plugstream.studies.experiments.printed import BM3D_SIGMA, IMAGES, TNRD_SIGMA, TV_LAMBDA
from plugstream.studies.experiments.runs import Spec, outcome, run
from plugstream.studies.experiments.setup import Problem

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
