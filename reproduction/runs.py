"""One run of an experiment: which algorithm with which settings, on all images at once, and the search for sigma."""

from __future__ import annotations

import json
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
from plugstream.base.errors import PlugstreamWarning
from plugstream.base.schedules import Geometric, OverL
from plugstream.base.user_code import allow
from plugstream.denoisers import Denoiser, Opening
from plugstream.denoisers.by_name import make
from plugstream.denoisers.equivariant import Equivariant
from plugstream.runs.parts import build_algorithm
from plugstream.settings import AlgorithmSettings, GradientSettings, MomentumSettings, SamplerSettings
from plugstream.solver.loop import solve
from plugstream.solver.monitors import SNR, Distance, Monitor
from plugstream.solver.result import Result, Stop
from plugstream.studies.tuning import golden_section
from reproduction.paper import IMAGES, PerImage, Problem


@dataclass(frozen=True)
class Spec:
    """Everything about a run except sigma."""

    method: str = "pgm"  # an algorithm by its name: pgm (FISTA, PnP-SGD), admm, hqs, ...
    denoiser: str = "bm3d"
    sampler: str = "shifted"
    views: int | None = 10  # of a step; all if None
    step: float = 1.0  # a multiple of 1/L, and so is the next
    step_end: float | None = None
    sigma_end: float | None = None  # over sigma at the start
    falling: int | None = None  # steps until both reach their end; all if None
    momentum: str = "nesterov"  # with an optional limit after a colon: bounded:8
    gradient: str = "plain"
    restart: str = "none"
    iterations: int = 150
    options: tuple[tuple[str, float | str], ...] = ()  # of the algorithm, by name
    equivariant: str | None = None  # how the denoiser is made equivariant
    opening: tuple[str, int, float] | None = None  # a denoiser for the first steps, their number, its sigma over ours

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", tuple((name, value) for name, value in self.options))  # JSON has lists
        object.__setattr__(self, "opening", None if self.opening is None else tuple(self.opening))

    def about(self) -> dict[str, Any]:
        """As JSON, to tell cells apart; newer fields only if they are set, so that earlier cells stay valid."""
        newer = ("options", "equivariant", "opening")
        return {name: value for name, value in asdict(self).items() if value or name not in newer}


@dataclass(frozen=True)
class TunedSpec:
    """The best sigma for each image, its SNR, and the settings that it belongs to."""

    spec: Spec
    sigma: list[float]
    snr: list[float]
    evaluations: int


def known_settings(method: str, names: Sequence[str], iterations: int) -> TunedSpec | None:
    """The settings that a full search gave for a method of Table 2 or a line of `beyond`, None if there was none.

    They are in known.json, made from the cells of the run in docs/reproduction.md. A picture that is not the paper's
    gets the geometric mean of the paper's sigmas.

    Arguments: iterations, at most this many.
    """
    content = json.loads((Path(__file__).parent / "known.json").read_text(encoding="utf-8")).get(method)
    if content is None:
        return None
    spec = Spec(**content["spec"])
    sigma = dict(zip(IMAGES, content["sigma"], strict=True))
    mean = float(np.exp(np.mean(np.log(content["sigma"]))))
    sigmas = [sigma.get(name, mean) for name in names]
    return TunedSpec(replace(spec, iterations=min(iterations, spec.iterations)), sigmas, [], 0)


def make_denoiser(name: str, weights: Path | None = None, *, low: float = 0.0) -> Denoiser:
    """The denoiser as the paper used it: values are clipped at zero before BM3D and TNRD, and TV is constrained.

    "tnrd" is that of `weights`, ours without; "tnrd-ours" and "ridge" are the trained ones that ship with plugstream.
    """
    options: dict[str, Any] = _OPTIONS.get(name, {})
    if name == "tnrd" and weights is not None:
        options = {"weights": str(weights)}
    return make(name.removesuffix("-ours"), low=low, **options)


_OPTIONS: dict[str, dict[str, Any]] = {"tv": {"tol": 0.0, "max_iterations": 20}, "ridge": {"tol": 1e-3}}


_EXAMPLES = Path(__file__).parents[1] / "examples" / "algorithms"
# Methods that are files of their own.
_OWN = {
    "proxskip": f"{_EXAMPLES / 'proxskip.py'}:proxskip",
    "sgd-splitting": f"{_EXAMPLES / 'gradient_splitting.py'}:splitting",
}


def make_algorithm(
    problem: Problem, spec: Spec, sigma: Sequence[float] | NDArray[np.float64], weights: Path | None = None
) -> Algorithm[Any]:
    """The algorithm, with a sigma for each image."""
    levels = torch.as_tensor(np.asarray(sigma), dtype=problem.fidelity.dtype.to_real(), device=problem.device)
    falling = spec.falling or spec.iterations
    views = {"name": "all"} if spec.views is None else {"name": spec.sampler, "batch": spec.views}
    momentum, _, limit = spec.momentum.partition(":")
    limits = {"momentum_limit": float(limit)} if limit else {}
    low = -math.inf if problem.fidelity.dtype.is_complex else 0.0
    denoiser: Denoiser = PerImage(make_denoiser(spec.denoiser, weights, low=low), levels, problem.counted)
    if spec.equivariant is not None:
        denoiser = Equivariant(denoiser, spec.equivariant)
    if spec.opening is not None:
        name, steps, factor = spec.opening
        first = PerImage(make_denoiser(name, weights, low=low), levels)  # whose calls are steps, and not counted
        denoiser = Opening(denoiser, first, steps, factor)
    own = _OWN.get(spec.method)
    if own is not None:
        allow(own)
    return build_algorithm(
        AlgorithmSettings.of(name=own or spec.method, **dict(spec.options)),
        problem.fidelity,
        denoiser,
        sigma=1.0 if spec.sigma_end is None else Geometric(1.0, spec.sigma_end, falling),
        step_size=OverL(spec.step if spec.step_end is None else Geometric(spec.step, spec.step_end, falling)),
        sampler=SamplerSettings.of(**views).build(problem.fidelity),
        momentum=MomentumSettings.of(name=momentum, **limits).build(),
        restart=spec.restart,
        gradient=GradientSettings.of(name=spec.gradient).build(0),
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
    """Run it from zero on all images; every this many steps measure the SNR, and on request the distance.

    `problem.counted` then has the visits of views and the denoiser calls after each step, those for the distance too.
    """
    counted = problem.counted
    counted.reset()
    monitors: list[Monitor] = [SNR(problem.truth)]
    if distance:
        monitors.append(Distance())
    with warnings.catch_warnings():
        # Conjugate gradients that stop at their limit are part of the experiment, as the documentation says.
        warnings.simplefilter("ignore", PlugstreamWarning)
        result = solve(
            make_algorithm(problem, spec, sigma, weights),
            torch.zeros_like(problem.truth),
            iterations=spec.iterations,
            monitors=monitors,
            every=every,
            divergence=None,  # one image that runs away must not stop the others
            callbacks=[lambda progress: counted.note(progress.state.k)],
        )
    if result.reason is Stop.INTERRUPTED:  # by Ctrl-C, and so no result of the experiment
        raise KeyboardInterrupt
    return result


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
                result = run(problem, spec, sigma / 255, every=spec.iterations)
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
    """The spec with gamma falling to `end` / L in this many steps, and sigma with its square root."""
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
