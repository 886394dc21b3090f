"""Regularisation by denoising, a few views a step: RED, On-RED and SIMBA, and with injected noise SNORE."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plugstream.algorithms.pgm import GradientState, ProximalGradient
from plugstream.base.draws import standard_normal
from plugstream.base.errors import InputError
from plugstream.base.linalg import squared_norm
from plugstream.base.schedules import Number, value_at
from plugstream.denoisers.base import Denoiser, per_image
from plugstream.models.views import Views

# Draws of the noise over which the residual of a step with noise takes the mean, and the first of them: no step's own.
_DRAWS, _FIRST = 4, 2**62


@dataclass(frozen=True, eq=False)
class RED(ProximalGradient):
    r"""Reconstruct an image by gradient steps on a few views and on a prior whose gradient is a denoiser's residual.

    For k = 1, 2, ..., with g^k a gradient of d at s^{k-1} as for `ProximalGradient`, and s^k as there:

        x^k = s^{k-1} - gamma (g^k + tau (s^{k-1} - D_sigma(s^{k-1} + c sigma n^k)))

    c = 0 is RED, with B views a step On-RED and SIMBA. c = 1 is SNORE: n^k is white noise, so that D gets images with
    noise of level sigma, for which it was made (the authors' code takes s + sigma n - D(s + sigma n), of the same mean
    and a larger variance); for the mean-square optimal D it descends the mean of -tau sigma^2 log p of noisy images.
    n^k depends on (seed, step) only, one noise for all images of a batch; real and imaginary part of complex images
    have noise of level c sigma each.

    The authors' annealing moves (sigma, tau) from (sigma_0, tau_0) to (sigma_end, tau_end) in stairs, both linear in
    the number of the stair: here a schedule for sigma and one for tau. With a schedule for sigma alone the prior
    weakens as sigma^2.

    A fixed point has grad d(x) + tau (x - D_sigma(x)) = 0. These are not the fixed points of P = D(I - gamma grad d)
    (of PnP-SGD), and do not depend on gamma. `residual` is that of this map, for c > 0 with the mean of D over four
    fixed noises, which leaves an error of a quarter of its variance.

    Condition: for a nonexpansive D, convex d_i and gamma <= 1 / (L + 2 tau), no momentum and c = 0 the step is averaged
    and converges to a fixed point; with random views, whose gradients have variance nu^2, the mean over t steps of
    ||grad d + tau (I - D)||^2 is O(1/t) above a floor that falls with nu / sqrt(B). For a 1/2-averaged D, tau in
    place of 2 tau will do. With tau = L/2, and for most denoisers, 1/L works. The step 1/L is that of d alone.
    With c > 0 it is stochastic approximation: it circles a fixed point unless the step falls to zero, such that the sum
    of the steps is infinite and that of their squares is not.

    Arguments: those of `ProximalGradient` with sigma, not lam, whose place tau takes, and
        tau: weight of the prior: a number, a multiple of L such as "0.5L", or a schedule, a function of the iteration
            k = 1, 2, ... to numbers, so that a run that is continued goes on with the weight of its step.
        noise: c, the level of the noise before the denoiser over sigma; 0 for none.
        seed: of the noise.
    References: Romano, Elad and Milanfar, SIAM J. Imaging Sci. 10, 2017; Wu, Sun, Liu and Kamilov, ICCV Workshops 2019
    (On-RED); Wu, Sun, Matlock, Liu, Tian and Kamilov, IEEE J. Sel. Top. Signal Process. 14, 2020 (SIMBA); Renaud,
    Prost, Leclaire and Papadakis, ICML 2024 (SNORE).
    """

    tau: Number | str = "0.5L"
    noise: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lam is not None:
            raise InputError("RED weighs its prior by tau; give sigma, the denoiser's noise level, and not lam")
        if isinstance(self.tau, str):
            _multiple(self.tau)
        elif not callable(self.tau):
            _check_weight(self.tau)
        if not 0 <= self.noise < float("inf"):
            raise InputError(f"the noise before the denoiser must be 0 or more times sigma, not {self.noise}")

    def weight(self, state: Any) -> float:
        """tau of the iteration after a state, as a number.

        A multiple of L uses the fidelity's L, or the state's if that is not known.
        """
        if not isinstance(self.tau, str):
            return _check_weight(value_at(self.tau, state.k + 1))
        if self.fidelity.has_lipschitz:
            return _multiple(self.tau) * self.fidelity.lipschitz_max
        estimate = getattr(state, "lipschitz", None)
        if estimate is None:
            raise InputError(f"no L is known, so tau = {self.tau} says nothing; give tau as a number")
        return _multiple(self.tau) * float(estimate)

    @torch.no_grad()
    def residual(self, state: Any, views: Views = None) -> Tensor:
        """||x - T(x)||^2 = gamma^2 ||grad d(x) + tau (x - D(x))||^2, gamma and sigma of iteration k + 1: (...)."""
        gamma, sigma = self.parameters(state.k + 1, state, self._problem_batch(views))
        x = state.image
        draws = [None] if self.noise == 0 else [_FIRST + number for number in range(_DRAWS)]
        prior = torch.stack([self._prior(self.denoiser, x, sigma, draw, state.warm)[0] for draw in draws]).mean(0)
        g = self.fidelity_at(state).gradient(x, views)
        return gamma**2 * squared_norm(g + self.weight(state) * prior, self._ndim)

    def _move(self, state: GradientState, g: Tensor, gamma: float, sigma: float) -> tuple[Tensor, dict[str, Any]]:
        draw = None if self.noise == 0 else state.k
        prior, warm = self._prior(self.denoiser.draw(state.k), state.s, sigma, draw, state.warm)
        return state.s - gamma * (g + self.weight(state) * prior), {"warm": warm}

    def _prior(
        self, denoiser: Denoiser, x: Tensor, sigma: float, draw: int | None, warm: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """x - D(x + c sigma n) with the noise of this draw, or none, and the denoiser's warm start."""
        z = x
        if draw is not None:
            level = per_image(denoiser.level(sigma), x, self._ndim)
            z = x + self.noise * level * self._noise(x, draw)
        clean, warm = denoiser.denoise(z, sigma, warm)
        return x - clean, warm

    def _noise(self, x: Tensor, draw: int) -> Tensor:
        shape = self.fidelity.image_shape
        if not x.is_complex():
            return standard_normal(self.seed, draw, shape).to(x)
        return torch.view_as_complex(standard_normal(self.seed, draw, (*shape, 2))).to(x)


def _check_weight(tau: float) -> float:
    if not 0 < tau < float("inf"):
        raise InputError(f"tau must be more than 0 and finite, not {tau}")
    return tau


def _multiple(text: str) -> float:
    """The number before L in text such as 0.5L."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)?\s*\*?\s*L\s*", text)
    if match is None or not (value := float(match[1] or 1)) > 0:
        raise InputError(f"tau is {text!r}, not a number > 0 or a multiple of L such as 0.5L")
    return value
