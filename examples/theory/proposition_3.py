"""Proposition 3: PnP-ADMM has the fixed points of P.

On random least squares, with a denoiser that is no prox: what PnP-ADMM converges to is put into P, and PnP-ADMM is
started at a fixed point x* of P with the dual -gamma grad d(x*), from which it must not move.

    python examples/theory/proposition_3.py
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from theory_problems import Twisted, fixed_point, least_squares, start

import plugstream as ps
from plugstream.algorithms import SplitState
from plugstream.algorithms.theory import fixed_point_distance

THETA, SIGMA = 0.45, 0.3


@dataclass(frozen=True)
class Measured:
    """Of each problem: ||x - P(x)|| of ADMM's limit, ||limit - x*||, and how far ADMM moves from x* in ten steps."""

    distance: list[float]
    apart: list[float]
    moved: list[float]


def measure(quick: bool = False) -> Measured:
    out = Measured([], [], [])
    denoiser = Twisted(THETA)
    for seed in range(1 if quick else 10):
        fidelity = least_squares(seed)
        gamma = 3 / fidelity.lipschitz  # any step will do for ADMM; P's fixed points are those of the same gamma
        algorithm = ps.ADMM(fidelity, denoiser, sigma=SIGMA, step_size=gamma)
        limit = ps.solve(algorithm, start(seed), iterations=400, monitors=[], every=400).image
        out.distance.append(math.sqrt(float(fixed_point_distance(limit, fidelity, denoiser, gamma, SIGMA))))
        star = fixed_point(fidelity, denoiser, gamma, SIGMA)
        out.apart.append(float((limit - star).norm()))
        state = SplitState(k=0, image=star, z=star, s=-gamma * fidelity.gradient(star))
        for _ in range(10):
            state = algorithm.step(state)
        out.moved.append(float((state.image - star).norm()))
    return out


def main() -> None:
    found = measure()
    print(f"{len(found.apart)} random problems, a denoiser that is {THETA}-averaged and no prox")
    print(f"||x - P(x)|| at what PnP-ADMM converges to:  at most {max(found.distance):.1e}")
    print(f"its distance to a fixed point of P:          at most {max(found.apart):.1e}")
    print(f"PnP-ADMM moves from a fixed point of P by    at most {max(found.moved):.1e}")


if __name__ == "__main__":
    main()
