"""Proposition 4: a bounded denoiser is not enough: one for which PnP-ISTA diverges, and from where on.

d is Huber's function (L = 1) of one pixel, D(z) = z + sigma sqrt(c) sign(z), which is bounded in Chan's sense with the
constant c and jumps at 0. For sigma > gamma / sqrt(c) every step moves z outwards, |z^t| >= |z^0| + t (sigma sqrt(c) -
gamma); for a smaller sigma |z^t| never exceeds max(|z^0|, 1).

    python examples/theory/proposition_4.py [picture.png]
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import plugstream as ps
from plugstream.algorithms import GradientState

C, GAMMA = 4.0, 0.5
THRESHOLD = GAMMA / math.sqrt(C)


@dataclass(frozen=True)
class Measured:
    """For each sigma over its threshold and each z^0: |z^t|, t = 0, 1, ..., and Chan's constant as measured."""

    sigmas: list[float]
    starts: list[float]
    sizes: np.ndarray
    boundedness: float


def huber() -> ps.SmoothFidelity:
    def value(x: Tensor) -> Tensor:
        return torch.where(x.abs() <= 1, x.square() / 2, x.abs() - 0.5).sum((-2, -1))

    return ps.SmoothFidelity([value], (1, 1), lipschitz=1.0, gradients=[lambda x: x.clamp(-1, 1)], dtype=torch.float64)


def outward(z: Tensor, sigma: float) -> Tensor:
    return z + sigma * math.sqrt(C) * torch.sign(z)


def measure(quick: bool = False) -> Measured:
    steps = 50 if quick else 300
    multiples = [0.5, 0.9, 0.999, 1.001, 1.1, 2.0]
    starts = [-0.2, 0.01, 5.0] if quick else [-3.0, -0.2, 0.01, 0.7, 5.0]
    fidelity, denoiser = huber(), ps.FromFunction(outward)
    sizes = np.empty((len(multiples), len(starts), steps + 1))
    c = 0.0
    for i, multiple in enumerate(multiples):
        sigma = multiple * THRESHOLD
        algorithm = ps.ProximalGradient(fidelity, denoiser, sigma=sigma, step_size=GAMMA)
        for j, z in enumerate(starts):
            x = denoiser(torch.full((1, 1), z, dtype=torch.float64), sigma)  # x^0 = D(z^0)
            c = max(c, float((x - z).square().mean()) / sigma**2)
            seen = [abs(z)]

            def remember(progress: ps.Progress[GradientState], seen: list[float] = seen) -> None:
                x = progress.state.image  # the next step's z
                seen.append(abs(float(x - GAMMA * fidelity.gradient(x))))

            ps.solve(algorithm, x, iterations=steps - 1, divergence=None, callbacks=[remember])
            sizes[i, j] = seen
    return Measured([m * THRESHOLD for m in multiples], starts, sizes, c)


def draw(found: Measured, path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 4.0), layout="constrained")
    axes = figure.subplots()
    for sigma, sizes in zip(found.sigmas, found.sizes, strict=True):
        outside = sigma > THRESHOLD
        color, style = ("#c2571a", "-") if outside else ("#1f5fa8", "--")
        axes.plot(sizes[3], style, color=color, label=f"sigma = {sigma / THRESHOLD:g} gamma / sqrt(c)")
    axes.set(xlabel="iterations t", title="|z^t| in Huber's counterexample, z^0 = 0.7", yscale="log")
    axes.legend(fontsize=8)
    axes.grid(True, alpha=0.25)
    figure.savefig(path, dpi=110)


def main() -> None:
    found = measure()
    t = np.arange(found.sizes.shape[2])
    print(f"gamma = {GAMMA}, c = {C} (measured {found.boundedness:.4g}), sigma's threshold {THRESHOLD}")
    for sigma, sizes in zip(found.sigmas, found.sizes, strict=True):
        drift = sigma * math.sqrt(C) - GAMMA
        first = np.abs(found.starts)[:, None]
        if drift > 0:
            least = (sizes - first - t * drift).min()
            print(f"sigma = {sigma:.5f}: diverges; |z^t| - |z^0| - t (sigma sqrt(c) - gamma) >= {least:.1e}")
        else:
            most = (sizes - np.maximum(first, 1)).max()
            print(f"sigma = {sigma:.5f}: bounded; |z^t| - max(|z^0|, 1) <= {most:.1e}")
    if len(sys.argv) > 1:
        draw(found, sys.argv[1])


if __name__ == "__main__":
    main()
