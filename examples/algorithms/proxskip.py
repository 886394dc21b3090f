"""An algorithm of one's own: ProxSkip, gradient steps a random few of which call the denoiser.

    plugstream reconstruct scan.zarr --sigma 0.01 --denoiser bm3d --algorithm examples/algorithms/proxskip.py:proxskip

From Python, beside this file: `from proxskip import ProxSkip`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plugstream.algorithms import GradientState, ProximalGradient, fixed_point_distance
from plugstream.algorithms.sampling import Batch
from plugstream.base.arrays import Array
from plugstream.base.draws import Stream, coin
from plugstream.base.errors import InputError
from plugstream.base.registry import Field, Options, register
from plugstream.models.views import Views


class SkipOptions(Options):
    """Of ProxSkip."""

    denoise_probability: float = Field(0.1, gt=0, le=1, description="probability that a step calls the denoiser")


@dataclass(frozen=True)
class ShiftedState(GradientState):
    """As of proximal gradients, and `shift`, the h of `ProxSkip`, which tends to grad d at the solution."""

    shift: Tensor | None = None


@dataclass(frozen=True, eq=False)
class ProxSkip(ProximalGradient):
    r"""Reconstruct an image by gradient steps, a random few of which call the denoiser.

    For k = 1, 2, ..., with g^k a gradient of d at s^{k-1} as for `ProximalGradient`:

        v^k = s^{k-1} - gamma (g^k - h^{k-1})
        with probability p:  x^k = D_sigma(v^k - (gamma / p) h^{k-1}),  h^k = h^{k-1} + (p / gamma) (x^k - v^k)
        otherwise:           x^k = v^k,                                 h^k = h^{k-1}

    and s^k as there, s^k = x^k without momentum, which is the paper's. The shift h stands in for the denoiser between
    its calls: at a fixed point h = grad d(x), so that a step without the denoiser does not move, and

        x = D_sigma(x - (gamma / p) grad d(x)).

    The fixed points are those of P with the step gamma / p, hence sigma is about 1 / sqrt(p) times that of PnP-SGD for
    the same image, and with `lam` it is sqrt(gamma lam / p), so that a prox minimises d + lam r for every p. Which
    steps call the denoiser depends on (seed, step) only, so that a resumed run makes the same calls.

    Condition: for a prox, gamma <= 1/L and d mu-strongly convex with condition number kappa,
    E||x^k - x*||^2 + (gamma / p)^2 E||h^k - h*||^2 falls by max(1 - gamma mu, 1 - p^2) a step: with
    p = 1 / sqrt(kappa) the number of gradients is that of gradient descent, and of proxes no more than that of the
    fastest method. With gradients from a few views it holds down to a floor of O(gamma nu^2). For a denoiser that is no
    prox, and with momentum, nothing is proved. A single step is not an averaged map of x; only the pair (x, h) comes
    nearer to the solution.

    Worth it if the denoiser costs more than a gradient. With p = 1 and no momentum it is `ProximalGradient` up to the
    order of its halves, x^k = D(x^{k-1} - gamma g^k).

    Arguments: those of `ProximalGradient`, and
        probability: p, in (0, 1], that a step calls the denoiser.
        seed: of the coin that decides.
    References: Mishchenko, Malinovsky, Stich and Richtarik, ICML 2022, Algorithm 1; with stochastic gradients,
    section 5 there, and Malinovsky, Yi and Richtarik, NeurIPS 2022, for those of reduced variance.
    """

    probability: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.probability <= 1:
            raise InputError(f"the probability of a denoiser call must lie in (0, 1], not {self.probability}")

    def parameters(self, k: int, state: Any = None, batch: Batch | None = None) -> tuple[float, float]:
        """gamma of the gradient and sigma of the denoiser in iteration k; with `lam`, of the step gamma / p."""
        gamma, sigma = super().parameters(k, state, batch)
        return gamma, sigma if self.lam is None else sigma / math.sqrt(self.probability)

    def calls_denoiser(self, k: int) -> bool:
        """Whether iteration k = 1, 2, ... calls the denoiser: a pure function of (seed, k)."""
        return coin(self.seed, k - 1, self.probability, Stream.DENOISER)

    @torch.no_grad()
    def residual(self, state: Any, views: Views = None) -> Tensor:
        """||x - P(x)||^2 with P = D_sigma(I - (gamma / p) grad d), gamma and sigma of iteration k + 1: (...)."""
        gamma, sigma = self.parameters(state.k + 1, state, self._problem_batch(views))
        longer = gamma / self.probability
        return fixed_point_distance(
            state.image, self.fidelity_at(state), self.denoiser, longer, sigma, state.warm, views
        )

    def _begin(self, image: Array | None, estimate: Callable[[Tensor], float]) -> ShiftedState:
        first = super()._begin(image, estimate)
        return ShiftedState(**vars(first), shift=torch.zeros_like(first.image))

    def _move(self, state: GradientState, g: Tensor, gamma: float, sigma: float) -> tuple[Tensor, dict[str, Any]]:
        assert isinstance(state, ShiftedState)
        h = state.shift
        assert h is not None
        v = state.s - gamma * (g - h)
        if not self.calls_denoiser(state.k + 1):
            return v, {}
        x, warm = self.denoiser.draw(state.k).denoise(v - (gamma / self.probability) * h, sigma, state.warm)
        return x, {"warm": warm, "shift": h + (self.probability / gamma) * (x - v)}


@register(
    "algorithm",
    "proxskip",
    "gradient steps, a random few of which call the denoiser",
    options=SkipOptions,
    uses=("momentum", "gradient"),
    refines=True,
    grows=True,
    seeded=True,
    prefers="bounded",
    title="PnP-ProxSkip",
)
def build_proxskip(options: SkipOptions, fidelity: Any, denoiser: Any, **parts: Any) -> ProxSkip:
    """The algorithm, with the options of the command line."""
    return ProxSkip(fidelity, denoiser, probability=options.denoise_probability, **parts)
