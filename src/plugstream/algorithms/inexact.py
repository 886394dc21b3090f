"""PnP-ADMM a few views a step, with a prox of only a few products with the data."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from plugstream.algorithms.admm import ADMM, SplitState
from plugstream.algorithms.sampling import Batch
from plugstream.base.arrays import Array
from plugstream.base.circulant import Circulant, preconditioned_steps
from plugstream.base.errors import InputError
from plugstream.base.linalg import norm

# Views whose predictions are in memory at a time in a full pass.
_VIEWS_AT_ONCE = 64
# By which part of z a nonlinear model is linearised elsewhere at most (docs/sigma-search.md).
_MOVED = 0.2


@dataclass(frozen=True, eq=False)
class InexactADMM(ADMM):
    r"""Reconstruct an image by alternating a denoiser with the first steps towards the prox of a few views.

    For k = 1, 2, ..., with d_B the mean over the views of the step:

        z^k = n preconditioned conjugate gradients from z^{k-1} towards prox_{gamma d_B}(x^{k-1} - s^{k-1})
        x^k = D_sigma(z^k + s^{k-1})
        s^k = s^{k-1} + z^k - x^k

    A prox solves (I/gamma + A_B) z = (x - s)/gamma + b_B with A_B = grad^2 d_B. The preconditioner is
    (I/gamma + C)^{-1} with C the `Circulant` nearest to A of all views: the A of tomographs, of diffraction tomography
    and of MRI are nearly convolutions. It costs two FFTs. A step takes n + 1 products with the views of the batch.

    With a long step inexact may be better: an exact prox follows the views of a step to where the data of others
    disagree. docs/reproduction.md compares it with `IncrementalADMM` on the same scans.

    Condition: with all views the fixed points are those of ADMM and of P = D_sigma(I - gamma grad d), for every n. With
    n growing it becomes ADMM. For convex d and a prox as D, inexact ADMM converges if the errors of z are summable;
    that a fixed n does so is not proved, nor anything for other denoisers or few views.

    For least squares, and for losses of waves. Where d is not quadratic, a step is one of Gauss and Newton, A_B the
    mean of J_i^H loss'' J_i at z^{k-1} with the expected loss'', and there is no preconditioner. A nonlinear model is
    linearised where z was when it had last moved by a fifth, which the state has. C is computed anew of the views of
    a scan that has grown, at one more product with all of them.

    Arguments: those of `ADMM`, and
        products: n >= 1, products with the views of a step at most, beyond the one of the gradient.
        tol: they end where the preconditioner's norm of the prox's residual has come to this part of its start; 0 for n
            products in every step.
    References: Sun, Wu, Xu, Wohlberg and Kamilov, IEEE Trans. Comput. Imaging 7, 2021 (IPA); Eckstein and Yao, Math.
    Program. 170, 2018 (ADMM by inexact conjugate gradients); Fessler and Booth, IEEE Trans. Image Process. 8(5), 1999
    (circulant preconditioners for tomography).
    """

    products: int = 2
    tol: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.products < 1:
            raise InputError(f"a prox takes at least one product with the views of a step, not {self.products}")
        if not 0 <= self.tol < 1:
            raise InputError(f"the tolerance of a prox lies from 0 to 1, not at {self.tol}")

    def init(self, image: Array | None = None) -> SplitState:
        """As of `ADMM`; C is computed now."""
        if self.fidelity.loss is not None and not (self.fidelity.bends and self.fidelity.linear):
            models = "least squares, and for losses of waves; use another algorithm"
            raise InputError(f"conjugate gradients are for {models}")
        first = super().init(image)
        assert self.fidelity.bends or self.circulant is not None
        return first

    @torch.no_grad()
    def step(self, state: SplitState) -> SplitState:
        """As of `ADMM`; a nonlinear model is linearised anew once z has moved far enough."""
        if self.fidelity.linear:
            return super().step(state)
        z, at = state.z, state.at
        if at is None or bool((norm(z - at, self._ndim) > _MOVED * norm(z, self._ndim)).any()):
            at = z
        return replace(super().step(replace(state, at=at)), at=at)

    @cached_property
    def circulant(self) -> Circulant:
        """C, from one product with all views."""
        fidelity = self.fidelity
        like = torch.zeros(fidelity.image_shape, device=fidelity.device, dtype=fidelity.dtype)
        channels = bool(fidelity.channels)
        return Circulant.near(self._whole_curvature, like, self._ndim - channels)

    def _whole_curvature(self, image: Tensor) -> Tensor:
        """A z, a block of views at a time."""
        views = self.fidelity.available
        weights = torch.full((len(views),), 1 / len(views), dtype=torch.float64)
        blocks = map(Batch, views.split(_VIEWS_AT_ONCE), weights.split(_VIEWS_AT_ONCE))
        return functools.reduce(torch.add, (self._curvature(image, block) for block in blocks))

    def _data_image(self, state: SplitState, gamma: float, batch: Batch) -> Tensor:
        """n steps from z^{k-1} towards the prox."""
        if self.fidelity.bends:
            g, curvature = self.fidelity.quadratic(state.z, batch.views, batch.weights, state.at)
        else:
            g = self.fidelity.gradient(state.z, batch.views, batch.weights)
            curvature = functools.partial(self._curvature, batch=batch)
        return preconditioned_steps(
            lambda z: curvature(z) + z / gamma,
            lambda r: r if self.fidelity.bends else self.circulant.solve(r, 1 / gamma),
            state.z.expand_as(g),
            (state.image - state.s - state.z) / gamma - g,
            self.products,
            self._ndim,
            self.tol,
        )

    def _curvature(self, image: Tensor, batch: Batch) -> Tensor:
        """A_B z, the change of the gradient of d_B from 0 to z."""
        return self.fidelity.gradient_change(image, torch.zeros_like(image), batch.views, batch.weights)
