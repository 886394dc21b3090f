"""What the scripts of this folder share: random convex problems, a denoiser that is averaged and no prox, slopes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy.optimize
import scipy.stats
import torch
from torch import Tensor

import plugstream as ps
from plugstream.algorithms.theory import fixed_point_map
from plugstream.denoisers.base import Sigma

SHAPE = (3, 4)


class Twisted(ps.Denoiser):
    """(1 - theta) z + theta R(z), where R shrinks an image by a soft threshold of sigma^2 and then moves it by a pixel.

    R is nonexpansive, being made of two maps that are, so this is theta-averaged. Its Jacobian is not symmetric, since
    that of moving is not: it is no proximal operator, of any function.
    """

    def __init__(self, theta: float) -> None:
        self.averaged = theta
        self.theta = theta

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, None]:
        moved = ps.SoftThreshold()(image, sigma).flatten(-2).roll(1, -1).reshape(image.shape)
        return torch.lerp(image, moved, self.theta), None


def least_squares(seed: int, views: int = 8, rows: int = 3) -> ps.LeastSquares:
    """Random matrices with data that no image explains; d is strongly convex only with all views together."""
    rng = torch.Generator().manual_seed(seed)
    size = SHAPE[0] * SHAPE[1]
    parts = [torch.randn(rows, size, generator=rng, dtype=torch.float64) for _ in range(views)]
    data = torch.randn(views, rows, generator=rng, dtype=torch.float64)
    return ps.LeastSquares(ps.MatrixModel(parts, SHAPE), data, lipschitz_tol=1e-6, prox_tol=1e-13)


def robust(seed: int, views: int = 8, rows: int = 3) -> ps.SmoothFidelity:
    """The same with sqrt(1 + e^2) in place of e^2 / 2 for each misfit e: convex and smooth, not quadratic."""
    rng = torch.Generator().manual_seed(seed)
    size = SHAPE[0] * SHAPE[1]
    parts = [torch.randn(rows, size, generator=rng, dtype=torch.float64) for _ in range(views)]
    data = [torch.randn(rows, generator=rng, dtype=torch.float64) for _ in range(views)]

    def value(a: Tensor, y: Tensor, x: Tensor) -> Tensor:
        return (1 + (x.flatten(-2) @ a.T - y).square()).sqrt().sum(-1)

    def slope(a: Tensor, y: Tensor, x: Tensor) -> Tensor:
        misfit = x.flatten(-2) @ a.T - y
        return ((misfit / (1 + misfit.square()).sqrt()) @ a).reshape(x.shape)

    pairs = list(zip(parts, data, strict=True))
    return ps.SmoothFidelity(
        [partial(value, a, y) for a, y in pairs],
        SHAPE,
        gradients=[partial(slope, a, y) for a, y in pairs],
        lipschitz=max(float(torch.linalg.matrix_norm(a, 2)) ** 2 for a in parts),
        dtype=torch.float64,
    )


def fixed_point(fidelity: ps.Fidelity, denoiser: ps.Denoiser, gamma: float, sigma: float) -> Tensor:
    """x* = P(x*), by a few steps of P and then Newton's method, to 1e-10."""
    x = torch.zeros(fidelity.image_shape, dtype=fidelity.dtype)
    for _ in range(100):
        x = fixed_point_map(x, fidelity, denoiser, gamma, sigma)

    def residual(flat: np.ndarray) -> np.ndarray:
        image = torch.from_numpy(flat).reshape(x.shape)
        return (image - fixed_point_map(image, fidelity, denoiser, gamma, sigma)).numpy().ravel()

    found = torch.from_numpy(scipy.optimize.root(residual, x.numpy().ravel(), tol=1e-14).x).reshape(x.shape)
    for _ in range(2000):  # Newton's method can stop at a kink; P goes on from there
        if float(np.linalg.norm(residual(found.numpy().ravel()))) < 1e-10:
            return found
        found = fixed_point_map(found, fidelity, denoiser, gamma, sigma)
    raise RuntimeError("no fixed point was found to 1e-10")


@dataclass(frozen=True)
class Slope:
    """The mean slope in log-log over seeds, and the half width of its 95 % confidence interval."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:+.3f} +- {self.half:.3f}"


def slopes(ts: Sequence[int], values: np.ndarray) -> Slope:
    """Of values (seeds, len(ts)): a line through the logarithms for each seed, then Student's t over seeds."""
    each = np.polyfit(np.log(ts), np.log(values).T, 1)[0]
    quantile = float(scipy.stats.t.ppf(0.975, len(each) - 1))
    return Slope(float(each.mean()), quantile * float(each.std(ddof=1)) / math.sqrt(len(each)))


def start(seed: int, size: float = 5.0) -> Tensor:
    """x^0, somewhere else for each seed."""
    return size * torch.randn(SHAPE, generator=torch.Generator().manual_seed(1000 + seed), dtype=torch.float64)
