"""Proposition 5: PnP-SGD comes near fixed points, up to what the variance of its gradients leaves.

The mean over t iterations and over seeds of ||x - P(x)||^2, with P on all views, against

    2 (1 + theta)/(1 - theta) [gamma^2 nu^2 / B + 2 gamma nu ||x^0 - x*|| / sqrt(B) + ||x^0 - x*||^2 / t],

on random least squares, with an averaged denoiser that is no prox, for several steps gamma and batches B. nu is the
largest of all images that a run visits. Beyond some t the measured mean stops falling at a floor: with the same seeds
it is set by gamma and B, as the bound's is.

    python examples/theory/proposition_5.py
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.stats
from theory_problems import Twisted, fixed_point, least_squares, start

import plugstream as ps
from plugstream.algorithms import GradientState
from plugstream.algorithms.theory import bound, gradient_variance

THETA, SIGMA = 0.6, 0.3


@dataclass(frozen=True)
class Case:
    """A step (times 1/L) and a batch: the mean over seeds and its 95 % half width at each t, the bound, the floor.

    The floor is the mean of the second half of the iterations alone, which the start no longer weighs on.
    """

    multiple: float
    batch: int
    ts: list[int]
    mean: np.ndarray
    half: np.ndarray
    bounds: np.ndarray
    floor: float


def measure(quick: bool = False) -> list[Case]:
    steps, seeds = (100, 4) if quick else (3000, 16)
    ts = [int(t) for t in np.unique(np.geomspace(1, steps, 8).astype(int))]
    out = []
    for multiple, batch in ((1.0, 1), (0.25, 1), (1.0, 16), (0.25, 16)):
        fidelity, denoiser = least_squares(0), Twisted(THETA)
        gamma = multiple / fidelity.lipschitz_max
        star = fixed_point(fidelity, denoiser, gamma, SIGMA)
        first = start(0)
        length = float((first - star).norm())
        averages, late, nu = [], [], 0.0
        for seed in range(seeds):
            distances, variance = _run(fidelity, denoiser, gamma, batch, seed, steps)
            averages.append((np.cumsum(distances) / np.arange(1, steps + 1))[np.array(ts) - 1])
            late.append(float(distances[steps // 2 :].mean()))
            nu = max(nu, math.sqrt(variance))
        values = np.array(averages)
        quantile = float(scipy.stats.t.ppf(0.975, seeds - 1))
        out.append(
            Case(
                multiple,
                batch,
                ts,
                values.mean(0),
                quantile * values.std(0, ddof=1) / math.sqrt(seeds),
                np.array(
                    [
                        bound(THETA, length, t, gamma=gamma, lipschitz=fidelity.lipschitz_max, nu=nu, batch=batch)
                        for t in ts
                    ]
                ),
                float(np.mean(late)),
            )
        )
    return out


def _run(
    fidelity: ps.LeastSquares, denoiser: ps.Denoiser, gamma: float, batch: int, seed: int, steps: int
) -> tuple[np.ndarray, float]:
    """The distances of x^0 .. x^{t-1}, and the largest nu^2 at every hundredth of them and the first ten."""
    variance = 0.0

    def look(progress: ps.Progress[GradientState]) -> None:
        nonlocal variance
        k = progress.state.k
        if k < 10 or k % 100 == 0:
            variance = max(variance, float(gradient_variance(progress.state.image, fidelity)))

    algorithm = ps.ProximalGradient(
        fidelity, denoiser, sigma=SIGMA, step_size=gamma, sampler=ps.Uniform(batch, seed=seed)
    )
    done = ps.solve(algorithm, start(0), iterations=steps - 1, monitors=[ps.Distance()], every=1, callbacks=[look])
    return done.history["distance"].value, variance


def main() -> None:
    print("gamma L    B |      t   measured (95 %)              bound   measured / bound")
    for case in measure():
        for t, mean, half, limit in zip(case.ts, case.mean, case.half, case.bounds, strict=True):
            print(
                f"{case.multiple:7.2f} {case.batch:4d} | {t:6d}   {mean:.3e} +- {half:.1e}   {limit:.3e}   "
                f"{mean / limit:.4f}"
            )
        print(f"{'':12} | second half alone: {case.floor:.3e}")


if __name__ == "__main__":
    main()
