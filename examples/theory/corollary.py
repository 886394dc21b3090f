"""Corollary 1: how the step and the batch must go with t for PnP-SGD to reach fixed points, and at what rate.

(a) gamma = 1/(L sqrt(t)), B = 1: A / sqrt(t)   (b) gamma = 1/L, B = t: A / sqrt(t)   (c) both: A / t

For every t a run of its own, over many seeds: its mean of ||x - P(x)||^2 over t iterations, the slope of that in
log-log with its confidence interval, and the bound. Once from far away, where the way to the fixed point is what is
seen, and once from a fixed point, where only the noise of the gradients is. The corollary bounds from above: a measured
slope may be steeper.

    python examples/theory/corollary.py [picture.png]
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import scipy.stats
from theory_problems import Slope, Twisted, fixed_point, least_squares, slopes, start
from torch import Tensor

import plugstream as ps
from plugstream.algorithms import GradientState
from plugstream.algorithms.theory import corollary, gradient_variance

THETA, SIGMA = 0.6, 0.3
CaseName = Literal["a", "b", "c"]
Start = Literal["far", "fixed point"]
_PLACES: dict[Start, str] = {"far": "far away", "fixed point": "a fixed point"}
RATES: dict[CaseName, float] = {"a": -0.5, "b": -0.5, "c": -1.0}


@dataclass(frozen=True)
class Case:
    """Of one case: t, the averages (seeds, t), the bounds (t), and the slope."""

    ts: list[int]
    values: np.ndarray
    bounds: np.ndarray
    slope: Slope

    @property
    def half(self) -> np.ndarray:
        """The half width of the 95 % confidence interval of the mean over seeds, at each t."""
        seeds = len(self.values)
        return np.asarray(scipy.stats.t.ppf(0.975, seeds - 1) * self.values.std(0, ddof=1) / math.sqrt(seeds))


def measure(quick: bool = False) -> dict[tuple[CaseName, Start], Case]:
    ts = [10, 30, 100] if quick else [10, 32, 100, 316, 1000, 3162]
    seeds = 4 if quick else 12
    fidelity, denoiser = least_squares(0), Twisted(THETA)
    lipschitz = fidelity.lipschitz_max
    out: dict[tuple[CaseName, Start], Case] = {}
    for name in RATES:
        for where in _PLACES:
            values, bounds = np.empty((seeds, len(ts))), np.empty(len(ts))
            for j, t in enumerate(ts):
                gamma, batch, _ = corollary(name, THETA, 1.0, t, lipschitz=lipschitz, nu=1.0)
                star = fixed_point(fidelity, denoiser, gamma, SIGMA)
                first = start(0) if where == "far" else star
                sampled = ps.ProximalGradient(
                    fidelity, denoiser, sigma=SIGMA, step_size=gamma, sampler=ps.Uniform(batch, seed=0)
                )
                nu = 0.0
                for seed in range(seeds):
                    algorithm = replace(sampled, sampler=ps.Uniform(batch, seed=seed))
                    values[seed, j], variance = average(algorithm, first, t)
                    nu = max(nu, math.sqrt(variance))
                bounds[j] = corollary(name, THETA, float((first - star).norm()), t, lipschitz=lipschitz, nu=nu)[2]
            out[name, where] = Case(ts, values, bounds, slopes(ts, values))
    return out


def average(algorithm: ps.ProximalGradient, first: Tensor, t: int) -> tuple[float, float]:
    """The mean of ||x - P(x)||^2 over x^0 .. x^{t-1}, and the largest nu^2 seen at ten of them."""
    variance = 0.0

    def look(progress: ps.Progress[GradientState]) -> None:
        nonlocal variance
        if progress.state.k % max(1, t // 10) == 0:
            variance = max(variance, float(gradient_variance(progress.state.image, algorithm.fidelity)))

    done = ps.solve(algorithm, first, iterations=t - 1, monitors=[ps.Distance()], every=1, callbacks=[look])
    return float(done.history["distance"].value.mean()), variance


def draw(found: dict[tuple[CaseName, Start], Case], path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.4, 3.8), layout="constrained")
    panels = dict(zip(RATES, figure.subplots(1, 3), strict=True))
    for (name, where), case in found.items():
        axes, color = panels[name], "#1f5fa8" if where == "far" else "#2e8b57"
        mean = case.values.mean(0)
        axes.fill_between(case.ts, mean - case.half, mean + case.half, color=color, alpha=0.3, linewidth=0)
        axes.plot(case.ts, mean, "o-", color=color, markersize=3.5, label=f"from {_PLACES[where]}: slope {case.slope}")
        axes.plot(case.ts, case.bounds, "--", color=color, label=f"its bound: slope {RATES[name]:g}")
        axes.set(xscale="log", yscale="log", xlabel="iterations t", title=f"case ({name})")
        axes.grid(True, alpha=0.25)
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    figure.savefig(path, dpi=110)


def main() -> None:
    found = measure()
    for (name, where), case in found.items():
        print(f"case ({name}), from {_PLACES[where]}: slope {case.slope} (95 %, {len(case.values)} seeds)")
        print(f"  the corollary's: {RATES[name]:g}")
        for t, mean, half, limit in zip(case.ts, case.values.mean(0), case.half, case.bounds, strict=True):
            print(f"  t = {t:5d}   {mean:.3e} +- {half:.1e}   bound {limit:.3e}   ratio {mean / limit:.4f}")
    if len(sys.argv) > 1:
        draw(found, sys.argv[1])


if __name__ == "__main__":
    main()
