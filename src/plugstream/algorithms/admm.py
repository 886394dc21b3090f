"""ADMM, PnP-ADMM and half-quadratic splitting: steps with the data's prox in place of its gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plugstream.algorithms.base import PlugAndPlay
from plugstream.algorithms.sampling import Batch
from plugstream.base.arrays import Array
from plugstream.base.linalg import squared_norm
from plugstream.models.views import Views


@dataclass(frozen=True)
class SplitState:
    """k steps taken, the image x^k, the data's image z^k, the scaled dual s^k, and the denoiser's warm start.

    at: where a nonlinear model was last linearised.
    """

    k: int
    image: Tensor
    z: Tensor
    s: Tensor
    warm: Tensor | None = None
    at: Tensor | None = None


@dataclass(frozen=True, eq=False)
class ADMM(PlugAndPlay):
    r"""Reconstruct an image by alternating the data's proximal operator with a denoiser.

    For k = 1, 2, ...:

        z^k = prox_{gamma d}(x^{k-1} - s^{k-1})
        x^k = D_sigma(z^k + s^{k-1})
        s^k = s^{k-1} + z^k - x^k

    Its fixed points are those of P = D_sigma(I - gamma grad d) for the same gamma and sigma (Proposition 3), so with
    D = prox_{gamma r} it minimises d + r. Any gamma > 0 will do; about 10/L converges far faster than 1/L on
    diffraction tomography. The prox is solved starting from z^{k-1}.

    Without the dual (s^k = 0) it is half-quadratic splitting, x^k = D_sigma(prox_{gamma d}(x^{k-1})): for D = prox_r
    its fixed points minimise r + the Moreau envelope of gamma d, hence nearly gamma d + r for a small gamma. They are
    not those of P, so `residual` uses its own map. With gamma and sigma^2 that fall together it needs the fewest
    denoiser calls of all algorithms here (docs/reproduction.md).

    Arguments: those of `PlugAndPlay`, and dual, False for half-quadratic splitting.

    References: Sun, Wohlberg and Kamilov, Algorithms 2 and 4; Venkatakrishnan, Bouman and Wohlberg, GlobalSIP 2013; for
    splitting without the dual, Zhang et al., IEEE Trans. Pattern Anal. Mach. Intell. 44(10), 2022.
    """

    dual: bool = True

    def init(self, image: Array | None = None) -> SplitState:
        """The state before the first step, from an image (..., *image_shape), or from zero."""
        x = self._start_image(image)
        return SplitState(k=0, image=x, z=x, s=torch.zeros_like(x))

    @torch.no_grad()
    def step(self, state: SplitState) -> SplitState:
        """One iteration."""
        k = state.k + 1
        gamma, sigma = self.parameters(k)
        z = self._data_image(state, gamma, self.sampler.draw(state.k, self.fidelity.available))
        x, warm = self.denoiser.draw(state.k).denoise(z + state.s, sigma, state.warm)
        return SplitState(k=k, image=x, z=z, s=state.s + z - x if self.dual else state.s, warm=warm)

    def _data_image(self, state: SplitState, gamma: float, batch: Batch) -> Tensor:
        """z^k, by the views of the step."""
        return self.fidelity.prox(state.image - state.s, gamma, batch.views, batch.weights, start=state.z)

    @torch.no_grad()
    def residual(self, state: SplitState, views: Views = None) -> Tensor:
        """||x - T(x)||^2 of the iterated map, at gamma and sigma of iteration k + 1: (...).

        With the dual T = P = D_sigma(I - gamma grad d) (Proposition 3), without it T = D_sigma(prox_{gamma d}), which
        has other fixed points. The prox starts from z^k, so that with all views this is ||x^k - x^{k+1}||^2.
        """
        if self.dual:
            return super().residual(state, views)
        gamma, sigma = self.parameters(state.k + 1, state)
        z = self.fidelity.prox(state.image, gamma, views, start=state.z)
        x, _ = self.denoiser.denoise(z, sigma, state.warm)
        return squared_norm(state.image - x, self._ndim)
