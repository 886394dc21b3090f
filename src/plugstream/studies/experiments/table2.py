"""Table 2: the SNR of each image for PnP-ADMM, PnP-FISTA and PnP-SGD on 10 and 30 views, all tuned alike; Figs. 5-7."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from plugstream.studies.experiments.cells import Arrays, Cell, Scale, Store
from plugstream.studies.experiments.runs import Spec, as_numpy, known_settings, outcome, run, tune
from plugstream.studies.experiments.setup import Problem

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
