"""Proximal gradient: ISTA, FISTA, PnP-ISTA, PnP-FISTA and PnP-SGD are this one step.

| name        | denoiser       | sampler                     | momentum               |
| ----------- | -------------- | --------------------------- | ---------------------- |
| ISTA        | a prox         | All                         | none                   |
| FISTA       | a prox         | All                         | nesterov               |
| PnP-ISTA    | any            | All                         | none                   |
| PnP-FISTA   | any            | All                         | nesterov               |
| PnP-SGD     | any            | Uniform(B), Epochs(B), ...  | none, or nesterov      |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from plugstream.algorithms.base import PlugAndPlay
from plugstream.errors import InputError

__all__ = ["MOMENTUM", "GradientState", "ProximalGradient"]

Momentum = Callable[[int, float], float]
"""The sequence {q_k}: from k and q_{k-1} to q_k, with q_0 = 1."""

MOMENTUM: dict[str, Momentum] = {
    "none": lambda k, q: 1.0,
    "nesterov": lambda k, q: (1 + math.sqrt(1 + 4 * q * q)) / 2,
    "chambolle-dossal": lambda k, q: (k + 2) / 3,  # (k + a - 1) / a with a = 3: the iterates converge too
}


@dataclass(frozen=True)
class GradientState:
    """k steps taken, the image x^k, the extrapolated point s^k, q_k, and the denoiser's warm start."""

    k: int
    image: Tensor
    s: Tensor
    q: float = 1.0
    warm: Tensor | None = None


@dataclass(frozen=True, eq=False)
class ProximalGradient(PlugAndPlay):
    r"""Reconstruct an image by gradient steps on a few views and a denoiser, with or without momentum.

    For k = 1, 2, ...:

        z^k = s^{k-1} - gamma * mean over the drawn views of grad d_i(s^{k-1})
        x^k = D_sigma(z^k)
        s^k = x^k + ((q_{k-1} - 1) / q_k) (x^k - x^{k-1})

    With gamma <= 1/L, all q_k = 1, convex d_i and an averaged D, the mean squared distance ||x - P(x)||^2 to a fixed
    point of P = D_sigma(I - gamma grad d) falls as O(1/t) for all views (Proposition 2), and down to a floor of
    O(gamma nu / sqrt(B)) for B random ones (Proposition 5). Momentum ("nesterov") is faster in practice and outside
    that theory. With D = prox_{gamma r} a fixed point minimises d + r (Proposition 1).

    Arguments: those of `PlugAndPlay`, and momentum, a name ("none", "nesterov", "chambolle-dossal") or a function
    from (k, q_{k-1}) to q_k.

    Reference: Sun, Wohlberg and Kamilov, Algorithms 1, 3 and 5; Beck and Teboulle, SIAM J. Imaging Sci. 2, 2009.
    """

    momentum: str | Momentum = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.momentum, str) and self.momentum not in MOMENTUM:
            raise InputError(f"there is no momentum {self.momentum!r}; choose one of {', '.join(MOMENTUM)}")

    def init(self, image: Tensor | None = None) -> GradientState:
        """The state before the first step, from an image (..., H, W), or from zero."""
        x = self._start_image(image)
        self._warn_of_long_steps()
        return GradientState(k=0, image=x, s=x)

    @torch.no_grad()
    def step(self, state: GradientState) -> GradientState:
        """One iteration."""
        k = state.k + 1
        gamma, sigma = self.parameters(k)
        batch = self.sampler.draw(state.k, self.fidelity.available)
        z = state.s - gamma * self.fidelity.gradient(state.s, batch.views, batch.weights)
        x, warm = self.denoiser.denoise(z, sigma, state.warm)
        momentum = MOMENTUM[self.momentum] if isinstance(self.momentum, str) else self.momentum
        q = momentum(k, state.q)
        s = x if state.q == 1 else x + ((state.q - 1) / q) * (x - state.image)
        return GradientState(k=k, image=x, s=s, q=q, warm=warm)
