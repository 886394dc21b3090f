"""An algorithm of one's own: half-quadratic splitting with gradient steps on a few views in place of the prox.

    plugstream reconstruct scan.zarr --denoiser bm3d --sampler shifted --batch 10 --sigma 0.1 --sigma-end 0.025 \
        --algorithm examples/algorithms/gradient_splitting.py:splitting --inner-steps 27 --iterations 81

From Python, beside this file: `from gradient_splitting import GradientSplitting`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from plugstream.algorithms import GradientState, ProximalGradient
from plugstream.base.errors import InputError
from plugstream.base.linalg import squared_norm
from plugstream.base.registry import Field, Options, register
from plugstream.models.views import Views


class InnerOptions(Options):
    """Of splitting by gradient steps."""

    inner_steps: int = Field(20, ge=1, le=10**9, description="gradient steps for each denoiser call")


@dataclass(frozen=True, eq=False)
class GradientSplitting(ProximalGradient):
    r"""Reconstruct an image by runs of m gradient steps on a few views each, and a denoiser after each run.

        z = m steps of `ProximalGradient` from x without a denoiser,    x = D_sigma(z),

    and the momentum starts over after each denoiser call. The m steps are an inexact prox: for a quadratic d without
    momentum and with all views, z = x - W grad d(x) with W = gamma sum_{j<m} (I - gamma H)^j, which is m gamma where
    the data say little (about m^2 gamma / 6 with momentum) and the inverse of the curvature H where they say much. So
    it inverts the data as `ADMM` without its dual does, with a sigma as large as there, falling from call to call; but
    a step takes a few views and no conjugate gradients, and the loss needs no prox.

    Condition: for gamma <= 1/L, convex d_i, all views and no momentum, m gradient steps are an averaged map, and with
    an averaged D so is T = D(m steps), whose fixed points are those of D(I - W grad d), not of P. With momentum and few
    views nothing is proved. `residual` is that of T with all views, at m passes over the data.

    The image is not denoised between two calls: take a multiple of m as the number of steps.

    Arguments: those of `ProximalGradient`, and inner, m: the steps k = m, 2m, ... call the denoiser.
    References: Zhang et al., IEEE Trans. Pattern Anal. Mach. Intell. 44(10), 2022, for the splitting; Tang and Davies,
    arXiv:2006.11630, for stochastic gradient steps inside of a plug-and-play iteration.
    """

    inner: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner < 1:
            raise InputError(f"a denoiser call comes after at least one step, not {self.inner}")

    def calls_denoiser(self, k: int) -> bool:
        """Whether iteration k = 1, 2, ... calls the denoiser."""
        return k % self.inner == 0

    @torch.no_grad()
    def step(self, state: GradientState) -> GradientState:
        """One iteration."""
        after = super().step(state)
        if not self.calls_denoiser(after.k):
            return after
        return replace(after, s=after.image, q=0 * after.q + 1.0, began=0 * after.began + after.k)

    @torch.no_grad()
    def residual(self, state: Any, views: Views = None) -> Tensor:
        """||x - T(x)||^2 with T the next run of m steps and its denoiser, on these views, all if None: (...)."""
        k = state.k - state.k % self.inner + self.inner
        gamma, sigma = self.parameters(k, state, self._problem_batch(views))
        fidelity = self.fidelity_at(state)
        x = s = state.image
        q = 1.0
        for number in range(1, self.inner + 1):
            before, x, rising = x, s - gamma * fidelity.gradient(s, views), self._sequence(number, q)
            s, q = x + ((q - 1) / rising) * (x - before), rising
        clean, _ = self.denoiser.denoise(x, sigma, state.warm)
        return squared_norm(state.image - clean, self._ndim)

    def _move(self, state: GradientState, g: Tensor, gamma: float, sigma: float) -> tuple[Tensor, dict[str, Any]]:
        if self.calls_denoiser(state.k + 1):
            return super()._move(state, g, gamma, sigma)
        return state.s - gamma * g, {}


@register(
    "algorithm",
    "splitting",
    "half-quadratic splitting, with gradient steps on a few views in place of the prox",
    options=InnerOptions,
    uses=("momentum", "gradient"),
    refines=True,
    grows=True,
    title="PnP-HQS by gradients",
)
def build_splitting(options: InnerOptions, fidelity: Any, denoiser: Any, **parts: Any) -> GradientSplitting:
    """The algorithm, with the options of the command line."""
    return GradientSplitting(fidelity, denoiser, inner=options.inner_steps, **parts)
