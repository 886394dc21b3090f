"""Proposition 1: if the denoiser is the prox of gamma r, the fixed points of P are the minimisers of d + r.

Random least squares with r = lambda ||x||_1. The fixed point that ISTA reaches is compared with the minimiser that
coordinate descent finds, a method that knows neither steps nor proximal operators; and the other way round, the
minimiser is put into P.

    python examples/theory/proposition_1.py
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from theory_problems import SHAPE, fixed_point, least_squares

import plugstream as ps
from plugstream.algorithms.theory import fixed_point_distance


@dataclass(frozen=True)
class Measured:
    """Of each problem: ||x* - minimiser|| over ||minimiser||, ||x - P(x)|| at the minimiser and beside it."""

    apart: list[float]
    at_minimiser: list[float]
    beside: list[float]


def coordinate_descent(fidelity: ps.LeastSquares, weight: float, sweeps: int = 3000) -> np.ndarray:
    """The minimiser of d + weight ||x||_1, one pixel after another, each exactly."""
    eye = torch.eye(math.prod(SHAPE), dtype=torch.float64).reshape(-1, *SHAPE)
    zero = fidelity.gradient(torch.zeros(SHAPE, dtype=torch.float64))
    h = (fidelity.gradient(eye) - zero).flatten(1).numpy()  # the Hessian, column by column
    b = -zero.numpy().ravel()
    x = np.zeros(len(b))
    for _ in range(sweeps):
        before = x.copy()
        for i in range(len(b)):
            rest = b[i] - h[i] @ x + h[i, i] * x[i]
            x[i] = np.sign(rest) * max(abs(rest) - weight, 0.0) / h[i, i]
        if np.abs(x - before).max() < 1e-15:
            break
    return x


def measure(quick: bool = False) -> Measured:
    out = Measured([], [], [])
    for seed in range(2 if quick else 20):
        fidelity, weight = least_squares(seed), 0.3
        gamma = 1 / fidelity.lipschitz
        sigma = math.sqrt(gamma * weight)
        star = fixed_point(fidelity, ps.SoftThreshold(), gamma, sigma)
        best = torch.from_numpy(coordinate_descent(fidelity, weight)).reshape(SHAPE)
        beside = best + 1e-3 * torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        out.apart.append(float((star - best).norm() / best.norm()))
        for images, values in ((best, out.at_minimiser), (beside, out.beside)):
            distance = fixed_point_distance(images, fidelity, ps.SoftThreshold(), gamma, sigma)
            values.append(math.sqrt(float(distance)))
    return out


def main() -> None:
    found = measure()
    print(f"{len(found.apart)} random problems, least squares with an l1 prior")
    print(f"fixed point against minimiser, relative:  at most {max(found.apart):.1e}")
    print(f"||x - P(x)|| at the minimiser:            at most {max(found.at_minimiser):.1e}")
    print(f"||x - P(x)|| 0.003 beside it:             at least {min(found.beside):.1e}")


if __name__ == "__main__":
    main()
