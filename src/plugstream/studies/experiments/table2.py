"""Table 2: the SNR of each image for PnP-ADMM, PnP-FISTA and PnP-SGD on 10 and 30 views, all tuned alike; Figs. 5-7."""

from __future__ import annotations

from typing import Any

from plugstream.studies.experiments.cells import Store
from plugstream.studies.experiments.known import known_settings
from plugstream.studies.experiments.printed import METHODS
from plugstream.studies.experiments.runs import Spec, TunedSpec, as_numpy, outcome, run, tune
from plugstream.studies.experiments.scale import Scale
from plugstream.studies.experiments.setup import Problem

__all__ = ["BATCH", "SHOWN", "choices", "fig5_cells", "method_cells", "table2_cells"]

# The batch methods of Fig. 5, on all views.
BATCH = ("PnP-FISTA(60)", "PnP-ADMM(60)")
# The images of Fig. 7.
SHOWN = ("monarch", "parrot")

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


def method_cells(problem: Problem, store: Store, scale: Scale, method: str) -> dict[str, Any]:
    """Tune a method, run it again with every step measured, and store both; returns the run."""
    slug = method.removesuffix(")").replace("(", "-").lower()
    specs = choices(method, scale)
    about: dict[str, Any] = {
        "images": list(problem.names),
        "choices": [spec.about() for spec in specs],
        "grid": scale.grid,
        "evaluations": scale.evaluations,
    }

    def search() -> tuple[dict[str, Any], dict[str, Any]]:
        if scale.evaluations == 0:
            settings = known_settings(method, problem.names, specs[0].iterations)
            assert settings is not None
            return _describe_tuning(settings), {}
        low, high = _RANGE[specs[0].method]
        tuned = tune(problem, specs, low, high, grid=scale.grid, evaluations=scale.evaluations)
        return _describe_tuning(tuned), {}

    tuned = store.cell(f"tune-{slug}", about, search)
    spec = Spec(**tuned["spec"])

    def final() -> tuple[dict[str, Any], dict[str, Any]]:
        result = run(problem, spec, tuned["sigma"])
        pictures = {name: as_numpy(result.image[i]) for i, name in enumerate(problem.names) if name in SHOWN or i == 0}
        return outcome(problem, result, sigma=tuned["sigma"], spec=spec.about()), pictures

    return store.cell(f"run-{slug}", {**about, "spec": spec.about(), "sigma": tuned["sigma"]}, final)


def table2_cells(problem: Problem, store: Store, scale: Scale) -> dict[str, dict[str, Any]]:
    """All of Table 2: a run for each method, our methods first."""
    return {method: method_cells(problem, store, scale, method) for method in reversed(METHODS)}


def fig5_cells(problem: Problem, store: Store, scale: Scale) -> dict[str, dict[str, Any]]:
    """SNR against time: PnP-SGD with 10 views a step against the batch methods with all 60."""
    return {method: method_cells(problem, store, scale, method) for method in ("PnP-SGD(10)", *BATCH)}


def _describe_tuning(tuned: TunedSpec) -> dict[str, Any]:
    return {
        "spec": tuned.spec.about(),
        "sigma": tuned.sigma,
        "snr": tuned.snr,
        "evaluations": tuned.evaluations,
    }
