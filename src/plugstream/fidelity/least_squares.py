"""How far an image is from the measurements: d(x), the mean over views of d_i(x), its gradient, prox and L."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import cached_property
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from plugstream.base.arrays import Array
from plugstream.base.linalg import conjugate_gradient, inner, largest_eigenvalue, largest_norm, largest_ritz_value, norm
from plugstream.base.progress import Listener, listening, report
from plugstream.fidelity.abilities import FidelityAbilities, Quadratic, Weights, as_fidelity
from plugstream.fidelity.base import Measurements, ModelFidelity
from plugstream.models.base import Model
from plugstream.models.views import Views, spread_views

__all__ = ["Fidelity", "LeastSquares", "Measurements", "as_fidelity", "data_scale"]

# Views by which the scale of the data is measured.
_SCALE_VIEWS = 32


@runtime_checkable
class Fidelity(FidelityAbilities, Protocol):
    """d(x) = mean over views of d_i(x), with everything an algorithm needs.

    `views` are indices (None: all available ones; see `Views`), `weights` the factor of each view's term (None: 1 /
    number of views), which keep the gradient unbiased if a sampler draws unevenly.
    """

    @property
    def n_views(self) -> int: ...
    @property
    def available(self) -> Tensor:
        """The indices of the views that samplers draw from, (count,), ascending, on the CPU."""

    @property
    def image_shape(self) -> tuple[int, ...]: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...

    def value(self, image: Tensor, views: Views = None, weights: Weights = None) -> Tensor:
        """(..., *image_shape) to (...)."""

    def gradient(self, image: Tensor, views: Views = None, weights: Weights = None) -> Tensor:
        """(..., *image_shape) to the same."""

    @property
    def linear(self) -> bool:
        """Whether predictions are a linear function of the image; the next methods need that."""

    @property
    def data_shape(self) -> tuple[int, ...]: ...
    @property
    def data_dtype(self) -> torch.dtype: ...
    def predict(self, image: Tensor, views: Views = None) -> Tensor:
        """The model's predictions of these views: (..., *image_shape) to (..., B, *data_shape)."""

    def pullback(self, slopes: Tensor, views: Views = None) -> Tensor:
        """The adjoint of `predict`, summed over views: (..., B, *data_shape) to (..., *image_shape)."""

    def slope_change(self, new: Tensor, old: Tensor, views: Views = None) -> Tensor:
        """The loss's derivative at one prediction less that at another, both (..., B, *data_shape)."""

    @property
    def has_lipschitz(self) -> bool:
        """Whether L is known; if not, `local_lipschitz` estimates it."""

    def local_lipschitz(self, image: Tensor, views: Views = None) -> float:
        """L of grad d_i near an image, the largest of a few views."""

    @property
    def lipschitz(self) -> float:
        """L of grad d, all views together."""

    @property
    def lipschitz_max(self) -> float:
        """max_i L_i, which bounds every grad d_i (the paper's Assumption 2)."""


class LeastSquares(ModelFidelity):
    r"""How badly an image explains complex or real measurements with Gaussian noise.

    d(x) = (1/I) sum_i d_i(x),  d_i(x) = 1/2 ||H_i x - y_i||^2,  grad d_i(x) = Re(H_i^H (H_i x - y_i)).

    For a nonlinear model the gradient uses the derivative of H_i at x, as `quadratic` does; `prox` and L are refused.

    Arguments:
        model, data, available: as for `ModelFidelity`.
        lipschitz_tol: relative tolerance of L and of every L_i, which are estimated on first use.
        lipschitz_most: with more views than this, max_i L_i comes from bounds of the L_i (`squared_norm_bounds`), which
            cost far less than estimates. None: the model's `estimated_views`: 1000 for the Born model and matrices, 0
            for others, whose bound is at most 20 % too large unless the model's own `squared_norm_bounds` says
            otherwise, as that of MRI with several coils does.
        prox_tol, prox_iterations: relative residual and number of steps at which the conjugate gradients of `prox`
            stop.
        progress: called while L is estimated, with what is done, how much and of how much.

    Reference: Sun, Wohlberg and Kamilov, eqs. (3), (6), (7) and (17).
    """

    slopes_need_data: ClassVar[bool] = False

    def __init__(
        self,
        model: Model,
        data: Array | Measurements,
        *,
        available: Views = None,
        lipschitz_tol: float = 1e-2,
        lipschitz_most: int | None = None,
        prox_tol: float = 1e-5,
        prox_iterations: int = 200,
        progress: Listener | None = None,
    ) -> None:
        super().__init__(model, data, available=available)
        self.lipschitz_tol, self.lipschitz_most = lipschitz_tol, lipschitz_most
        self.prox_tol, self.prox_iterations = prox_tol, prox_iterations
        self.progress = progress
        self._near: tuple[Model, Tensor, Model] | None = None  # the last derivative of `quadratic`, and where it is

    @property
    def norms(self) -> LeastSquares:
        """Least squares of the model, whose L_i are ||H_i||^2."""
        return self

    @property
    def has_prox(self) -> bool:
        return self.linear

    def _values_of(self, image: Tensor, block: Tensor | None) -> Tensor:
        return self._sums((self.model.forward(image, block) - self.data(block)).abs().square()) / 2

    def gradient(self, image: Tensor, views: Views = None, weights: Weights = None) -> Tensor:
        """grad d(x) over these views: the mean of Re(H_i^H (H_i x - y_i)), or its sum with these weights.

        (..., *image_shape) to the same; the image's leading axes broadcast with those of the data.
        """
        self._check_batch(image)
        parts = (self.model.gradient(image, self.data(block), block, w) for block, w in self._parts(views, weights))
        return functools.reduce(Tensor.add_, parts)

    def slope_change(self, new: Tensor, old: Tensor, views: Views = None) -> Tensor:
        return new - old

    def gradient_change(self, image: Tensor, other: Tensor, views: Views = None, weights: Weights = None) -> Tensor:
        """grad d(x) - grad d(x') over these views; Re(H_i^H H_i (x - x')) if linear, which needs no data."""
        if not self.model.linear:
            return super().gradient_change(image, other, views, weights)
        index = self._index(views)
        w = self._weights(index, weights)
        nothing = torch.zeros((), dtype=self.model.data_dtype, device=self.device).expand(len(w), *self.data_shape)
        return self.model.gradient(image - other, nothing, index, w)

    def prox(
        self, image: Tensor, gamma: float, views: Views = None, weights: Weights = None, start: Tensor | None = None
    ) -> Tensor:
        """argmin_z 1/2 ||z - x||^2 + gamma d(z), by conjugate gradients.

        Solves (I + gamma sum_i w_i H_i^H H_i) z = x + gamma sum_i w_i H_i^H y_i from `start` (x if not given) to
        the tolerance `prox_tol`. (..., *image_shape) to the same; leading axes broadcast with those of the data.
        """
        self._needs_linear("prox")
        self._check_batch(image)
        b = image
        for block, w in self._parts(views, weights):
            b = b + gamma * self.model.adjoint(self._spread(w) * self.data(block), block)
        return self.solve_prox(b, gamma, views, weights, image if start is None else start)

    @property
    def bends(self) -> bool:
        """Whether d is not quadratic, so that `quadratic` is a step of Gauss and Newton."""
        return not self.linear

    def quadratic(
        self, image: Tensor, views: Views = None, weights: Weights = None, at: Tensor | None = None
    ) -> Quadratic:
        """The gradient and the curvature v -> sum_i w_i Re(J_i^H J_i v) of d with H_i(at) + J_i (x - at) as the model.

        Arguments: image x; views; weights; at, where J_i is the derivative, (*image_shape), x if not given.
        """
        at = image if at is None else at
        if self._near is None or self._near[0] is not self.model or not torch.equal(self._near[1], at):
            self._near = self.model, at.clone(), self.model.linearized(at)
        near, parts = self._near[2], list(self._parts(views, weights))

        def pull(data: Callable[[Tensor | None], Tensor]) -> Tensor:
            pulled = (near.adjoint(self._spread(w) * data(block), block) for block, w in parts)
            return functools.reduce(torch.add, pulled)

        def curvature(v: Tensor) -> Tensor:
            return pull(lambda block: near.forward(v, block))

        g = pull(lambda block: self.model.forward(at, block) - self.data(block))
        return (g if at is image else g + curvature(image - at)), curvature

    def solve_prox(self, b: Tensor, gamma: float, views: Views, weights: Weights, start: Tensor) -> Tensor:
        """The solution z of (I + gamma sum_i w_i H_i^H H_i) z = b."""
        index = self._index(views)
        normal = self.model.normal(index, self._weights(index, weights))
        solution = conjugate_gradient(
            lambda z: z + gamma * normal(z),
            b,
            start=start.expand_as(b),
            tol=self.prox_tol,
            max_iterations=self.prox_iterations,
            ndim=len(self.image_shape),
        )
        return solution.image

    @cached_property
    def lipschitz(self) -> float:
        """L of grad d: the largest eigenvalue of (1/I) sum_i Re(H_i^H H_i), within `lipschitz_tol` from above."""
        self._needs_linear("L")
        normal = self.model.normal(self._available, self._weights(self._available, None))
        like = torch.empty(self.image_shape, device=self.device, dtype=self.dtype)
        products = 0

        def apply(image: Tensor) -> Tensor:
            nonlocal products
            products += 1
            report(f"estimating L, product {products}")
            return normal(image)

        with listening(self.progress):
            return float(largest_eigenvalue(apply, like, tol=self.lipschitz_tol, ndim=len(self.image_shape)))

    @cached_property
    def lipschitz_views(self) -> Tensor:
        """Every L_i, the largest eigenvalue of Re(H_i^H H_i): (views,), in double precision on the CPU."""
        self._needs_linear("L_i")
        with listening(self.progress):
            return self.model.squared_norms(torch.arange(self.n_views), self.lipschitz_tol)

    @property
    def lipschitz_max(self) -> float:
        """A bound of all L_i: the largest estimate, or the largest bound (`lipschitz_most`)."""
        if self._lipschitz_max is None:
            self._needs_linear("L_i")
            index = self.available
            most = self.lipschitz_most
            if len(index) > (self.model.estimated_views if most is None else most):
                with listening(self.progress):
                    self._lipschitz_max = self.model.largest_norm_bound(index)
            else:
                self._lipschitz_max = float(self.lipschitz_views[index].max())
        return self._lipschitz_max

    def bound_lipschitz(self, views: Views = None, beyond: float = 0.0) -> float:
        """A bound of the L_i of these views (`squared_norm_bounds`), cheap enough for a scan that is still growing.

        Views whose bounds cannot be beyond a number may be left out; 0 if all are.
        """
        self._needs_linear("L_i")
        index = self._index(views)
        return self.model.largest_norm_bound(torch.arange(self.n_views) if index is None else index, beyond)

    def lipschitz_at_least(self, views: Views = None, weights: Weights = None, *, products: int = 8) -> float:
        """A lower bound of L of the gradient over these views: the largest Ritz value of a few Lanczos steps."""
        self._needs_linear("L")
        index = self._index(views)
        normal = self.model.normal(index, self._weights(index, weights))
        like = torch.empty(self.image_shape, device=self.device, dtype=self.dtype)
        return largest_ritz_value(normal, like, products, ndim=len(self.image_shape))


@torch.no_grad()
def data_scale(fidelity: Fidelity, like: Tensor) -> float:
    """The size of the image that explains the data: the length of the best step from zero down the gradient of d.

    ||t p|| with p = -a grad d(0) and t = -<p, grad d(0)> / <p, grad d(p) - grad d(0)>, the minimum along p of a
    quadratic d; a makes p as long as `like`. It does not depend on step, start or denoiser. A few views suffice; it is
    0 if the gradient is zero there.

    Arguments: fidelity; like, any image (..., *image_shape) that is not zero.
    """
    views, ndim = spread_views(fidelity.available, _SCALE_VIEWS), len(fidelity.image_shape)
    g = fidelity.gradient(torch.zeros_like(like), views)
    length = largest_norm(g, ndim)
    if not (length > 0 and math.isfinite(length)):
        return 0.0
    p = g * (-largest_norm(like, ndim) / length)
    curvature = inner(p, fidelity.gradient(p, views) - g, ndim)
    t = torch.where(curvature > 0, -inner(p, g, ndim) / curvature, torch.zeros_like(curvature))
    scale = float((t * norm(p, ndim)).max())
    return scale if math.isfinite(scale) else 0.0
