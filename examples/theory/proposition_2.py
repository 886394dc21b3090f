"""Proposition 2: with an averaged denoiser, prox or not, PnP-ISTA comes near fixed points at a rate of 1/t.

The mean of ||x - P(x)||^2 over t iterations, against 2 (1 + theta)/(1 - theta) ||x^0 - x*||^2 / t, on random least
squares and on a convex misfit that is not quadratic, with a denoiser whose Jacobian is not symmetric: it is the prox of
nothing, yet averaged.

    python examples/theory/proposition_2.py [picture.png]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
from theory_problems import Slope, Twisted, fixed_point, least_squares, robust, slopes, start

import plugstream as ps
from plugstream.algorithms.theory import bound
from plugstream.studies.certificates.search import Secants, asymmetry, make_adjoint

THETA, SIGMA = 0.6, 0.3


@dataclass(frozen=True)
class Measured:
    """Of each problem: the averages over t = 1, 2, ... and the bounds, (problems, t); slopes; the asymmetry of D."""

    average: np.ndarray
    bounds: np.ndarray
    slope: Slope
    asymmetry: float


def measure(quick: bool = False) -> Measured:
    steps = 100 if quick else 10_000
    averages, bounds = [], []
    for seed in range(2 if quick else 8):
        for make in (least_squares, robust):
            fidelity: ps.Fidelity = make(seed)
            gamma, denoiser = 1 / fidelity.lipschitz_max, Twisted(THETA)
            star = fixed_point(fidelity, denoiser, gamma, SIGMA)
            algorithm = ps.ProximalGradient(fidelity, denoiser, sigma=SIGMA, step_size=gamma)
            done = ps.solve(algorithm, start(seed), iterations=steps - 1, monitors=[ps.Distance()], every=1)
            t = np.arange(1, steps + 1)
            averages.append(np.cumsum(done.history["distance"].value) / t)
            length = float((start(seed) - star).norm())
            lipschitz = fidelity.lipschitz_max
            bounds.append([bound(THETA, length, k, gamma=gamma, lipschitz=lipschitz) for k in t.tolist()])
    average = np.array(averages)
    ts = np.unique(np.geomspace(10, steps, 20).astype(int))
    secants = Secants(Twisted(THETA), SIGMA, start(0), 0.01)
    skew, _ = asymmetry(secants, make_adjoint(secants))
    return Measured(average, np.array(bounds), slopes(ts.tolist(), average[:, ts - 1]), skew)


def draw(found: Measured, path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 4.0), layout="constrained")
    axes = figure.subplots()
    t = np.arange(1, found.average.shape[1] + 1)
    axes.fill_between(t, found.average.min(0), found.average.max(0), color="#1f5fa8", alpha=0.3, linewidth=0)
    axes.plot(t, found.average.mean(0), color="#1f5fa8", label="measured: mean and range of the problems")
    axes.plot(t, found.bounds.mean(0), color="#c2571a", label="bound of Proposition 2, mean")
    axes.set(xscale="log", yscale="log", xlabel="iterations t", title="mean of ||x - P(x)||² over t iterations")
    axes.legend(fontsize=8)
    axes.grid(True, alpha=0.25)
    figure.savefig(path, dpi=110)


def main() -> None:
    found = measure()
    problems, steps = found.average.shape
    print(f"{problems} random convex problems, {steps} iterations, theta = {THETA}")
    print(f"asymmetry of the denoiser's Jacobian:     {found.asymmetry:.2f} (a prox has 0)")
    print(f"measured over bound:                      at most {(found.average / found.bounds).max():.3f}")
    print(f"slope in log-log, t = 10 .. {steps}:      {found.slope} (95 %); the bound's is -1")
    if len(sys.argv) > 1:
        draw(found, sys.argv[1])


if __name__ == "__main__":
    main()
