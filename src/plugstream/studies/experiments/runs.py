"""One run of an experiment: which algorithm with which settings, on all images at once, and the search for sigma."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.algorithms import Algorithm
from plugstream.algorithms.sampling import Sampler
from plugstream.base.errors import PlugstreamWarning
from plugstream.base.schedules import Geometric, OverL
from plugstream.denoisers import Denoiser, Opening
from plugstream.denoisers.by_name import make
from plugstream.denoisers.equivariant import Equivariant
from plugstream.fidelity.least_squares import Fidelity
from plugstream.runs.parts import build_algorithm
from plugstream.settings import AlgorithmSettings, GradientSettings, MomentumSettings, SamplerSettings
from plugstream.solver.loop import solve
from plugstream.solver.monitors import SNR, Distance, Monitor
from plugstream.solver.result import Result
from plugstream.studies.experiments.setup import PerImage, Problem
from plugstream.studies.tuning import golden_section

__all__ = [
    "Spec",
    "TunedSpec",
    "as_numpy",
    "falling",
    "make_algorithm",
    "make_denoiser",
    "make_sampler",
    "outcome",
    "run",
    "tune",
]


@dataclass(frozen=True)
class Spec:
    """Everything about a run except sigma.

    method: an algorithm by its name: pgm (FISTA, PnP-SGD), admm, hqs, ... views: of a step, all if None. step and
    step_end: multiples of 1/L.
    sigma_end: sigma at the end over sigma at the start. falling: steps in which both reach their end, all if None.
    options: of the algorithm, by name. equivariant: how the denoiser is made so, if at all. opening: another denoiser
    of the first steps, how many they are, and its sigma over that of the denoiser.
    """

    method: str = "pgm"
    denoiser: str = "bm3d"
    sampler: str = "shifted"
    views: int | None = 10
    step: float = 1.0
    step_end: float | None = None
    sigma_end: float | None = None
    falling: int | None = None
    momentum: str = "nesterov"
    gradient: str = "plain"
    restart: str = "none"
    iterations: int = 150
    options: tuple[tuple[str, float | str], ...] = ()
    equivariant: str | None = None
    opening: tuple[str, int, float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", tuple((name, value) for name, value in self.options))  # JSON has lists
        object.__setattr__(self, "opening", None if self.opening is None else tuple(self.opening))

    def about(self) -> dict[str, Any]:
        """As JSON, to tell cells apart; newer fields only if they are set, so that earlier cells stay valid."""
        fields = asdict(self)
        return {
            name: value for name, value in fields.items() if value or name not in ("options", "equivariant", "opening")
        }


@dataclass(frozen=True)
class TunedSpec:
    """The best sigma for each image, its SNR, and the settings that it belongs to."""

    spec: Spec
    sigma: list[float]
    snr: list[float]
    evaluations: int


def make_denoiser(name: str, weights: Path | None = None, *, low: float = 0.0) -> Denoiser:
    """The denoiser as the paper used it: values are clipped at zero before BM3D and TNRD, and TV is constrained.

    "tnrd" is that of `weights`, ours without; "tnrd-ours" and "ridge" are the trained ones that ship with plugstream.
    """
    options: dict[str, Any] = _OPTIONS.get(name, {})
    if name == "tnrd" and weights is not None:
        options = {"weights": str(weights)}
    return make(name.removesuffix("-ours"), low=low, **options)


_OPTIONS: dict[str, dict[str, Any]] = {"tv": {"tol": 0.0, "max_iterations": 20}, "ridge": {"tol": 1e-3}}


def _make_momentum(text: str) -> Any:
    """The momentum of a run, by its name, with an optional limit after a colon: bounded:8."""
    name, _, limit = text.partition(":")
    return MomentumSettings.of(name=name, **({"momentum_limit": float(limit)} if limit else {})).build()


def make_sampler(spec: Spec, fidelity: Fidelity) -> Sampler:
    """The sampler of a run."""
    name = "all" if spec.views is None else spec.sampler
    sampler: Sampler = SamplerSettings.of(name=name, **({} if name == "all" else {"batch": spec.views})).build(fidelity)
    return sampler


def make_algorithm(
    problem: Problem, spec: Spec, sigma: Sequence[float] | NDArray[np.float64], weights: Path | None = None
) -> Algorithm[Any]:
    """The algorithm, with a sigma for each image."""
    levels = torch.as_tensor(np.asarray(sigma), dtype=problem.fidelity.dtype.to_real(), device=problem.device)
    falling = spec.falling or spec.iterations
    common: dict[str, Any] = {
        "sigma": 1.0 if spec.sigma_end is None else Geometric(1.0, spec.sigma_end, falling),
        "step_size": OverL(spec.step if spec.step_end is None else Geometric(spec.step, spec.step_end, falling)),
        "sampler": make_sampler(spec, problem.fidelity),
    }
    low = -math.inf if problem.fidelity.dtype.is_complex else 0.0
    denoiser: Denoiser = PerImage(make_denoiser(spec.denoiser, weights, low=low), levels, problem.counted)
    if spec.equivariant is not None:
        denoiser = Equivariant(denoiser, spec.equivariant)
    if spec.opening is not None:
        name, steps, factor = spec.opening
        first = PerImage(make_denoiser(name, weights, low=low), levels)  # whose calls are steps, and not counted
        denoiser = Opening(denoiser, first, steps, factor)
    return build_algorithm(
        AlgorithmSettings.of(name=spec.method, **dict(spec.options)),
        problem.fidelity,
        denoiser,
        momentum=_make_momentum(spec.momentum),
        restart=spec.restart,
        gradient=GradientSettings.of(name=spec.gradient).build(0),
        **common,
    )


def run(
    problem: Problem,
    spec: Spec,
    sigma: Sequence[float] | NDArray[np.float64],
    *,
    distance: bool = False,
    every: int = 1,
    weights: Path | None = None,
) -> Result[Any]:
    """Run it from zero on all images, and measure the SNR, and on request the distance, every so many steps.

    `problem.counted` then has the number of views and denoiser calls, also after each step, unless measuring the
    distance took some of them.
    """
    counted = problem.counted
    counted.reset()
    monitors: list[Monitor] = [SNR(problem.truth)]
    if distance:
        monitors.append(Distance())
    with warnings.catch_warnings():
        # Conjugate gradients that stop at their limit are part of the experiment, and told in the documentation.
        warnings.simplefilter("ignore", PlugstreamWarning)
        return solve(
            make_algorithm(problem, spec, sigma, weights),
            torch.zeros_like(problem.truth),
            iterations=spec.iterations,
            monitors=monitors,
            every=every,
            divergence=None,  # one image that runs away must not stop the others
            callbacks=[lambda progress: counted.note(progress.state.k)],
        )


def outcome(problem: Problem, result: Result[Any], **more: Any) -> dict[str, Any]:
    """A run as a cell stores it: the last SNR of each image, the curves, and the time.

    "calls" and "passes_at" are the denoiser calls, and the passes over the data, up to each measured SNR.
    """
    history = {
        name: {
            "step": series.step.tolist(),
            "time": np.round(series.time, 5).tolist(),
            "value": _round_digits(series.value),
        }
        for name, series in result.history.items()
    }
    snr, steps = result.history["snr"].value[-1], result.history["snr"].step
    return {
        "names": list(problem.names),
        "snr": _round_digits(snr),
        "iterations": int(result.state.k),
        "seconds": round(result.time, 4),
        "passes": round(problem.counted.visits / problem.fidelity.n_views, 2),
        "calls": [problem.counted.noted[int(k)][0] for k in steps],
        "passes_at": [round(problem.counted.noted[int(k)][1] / problem.fidelity.n_views, 2) for k in steps],
        "reason": result.reason.name,
        "device": str(problem.device),
        "history": history,
        **more,
    }


def tune(
    problem: Problem,
    specs: Sequence[Spec],
    low: float,
    high: float,
    *,
    grid: int = 5,
    evaluations: int = 11,
    weights: Path | None = None,
) -> TunedSpec:
    """The settings and the sigma of each image that give the best SNR at the end of a run.

    Every spec is tried on a grid of sigma; the one with the best average over the images goes on to golden section,
    each image in a bracket of its own, all images in one run.

    Arguments: low, high of sigma, on the scale 0 .. 255; evaluations of the spec that wins, the grid's among them.
    """

    def objective(spec: Spec) -> Any:
        def score(sigma: NDArray[np.float64]) -> NDArray[np.float64]:
            key = tuple(np.round(sigma, 12))
            if key not in scores[spec]:
                result = run(problem, spec, sigma / 255, every=spec.iterations, weights=weights)
                scores[spec][key] = result.history["snr"].value[-1]
            return scores[spec][key]

        return score

    scores: dict[Spec, dict[tuple[float, ...], NDArray[np.float64]]] = {spec: {} for spec in specs}
    n = len(problem.names)
    first, last = np.full(n, low), np.full(n, high)
    best = max(
        specs,
        key=lambda spec: float(golden_section(objective(spec), first, last, grid=grid, evaluations=grid).score.mean()),
    )
    best_sigma = golden_section(objective(best), first, last, grid=grid, evaluations=evaluations)
    total = sum(len(tries) for tries in scores.values())
    return TunedSpec(best, (best_sigma.value / 255).tolist(), best_sigma.score.tolist(), total)


def falling(spec: Spec, end: float, steps: int) -> Spec:
    """The spec with gamma falling to `end` / L in so many steps, and sigma with its square root."""
    return replace(spec, step_end=end, sigma_end=math.sqrt(end / spec.step), falling=steps)


def as_numpy(image: Tensor) -> NDArray[np.float16]:
    """An image for a cell's arrays: half precision is finer than the 8 bits it will be looked at with."""
    return image.detach().cpu().numpy().astype(np.float16)


def _round_digits(values: NDArray[np.float64]) -> Any:
    """Round to six digits: tables print two, and files should stay small."""
    with np.errstate(divide="ignore", invalid="ignore"):
        digits = 5 - np.floor(np.log10(np.abs(values)))
        scale = 10 ** np.where(np.isfinite(digits), digits, 0)
        return np.where(np.isfinite(values), np.round(values * scale) / scale, values).tolist()
