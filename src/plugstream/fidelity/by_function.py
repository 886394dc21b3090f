"""Misfits other than least squares: any convex, smooth function for each view."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from plugstream.base.arrays import accept_arrays
from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.base.linalg import local_curvature, norm
from plugstream.fidelity.abilities import FidelityAbilities, Weights
from plugstream.models.views import Views, all_views, check_shape

Functions = Sequence[Callable[[Tensor], Tensor]]


class SmoothFidelity(FidelityAbilities):
    r"""Any convex, smooth measure of misfit, given as one function for each view.

    d(x) = (1/I) sum_i d_i(x), each d_i convex and differentiable with an L-Lipschitz gradient. Gradients come from
    autograd unless given. The prox is by Nesterov's method for strongly convex functions, with the condition number
    1 + gamma L.

    Arguments:
        functions: d_i, each mapping an image (..., *image_shape) to (...).
        image_shape: of one image, (H, W) or any other.
        lipschitz: L, a bound for the gradients of all d_i; without it steps must be numbers, and there is no prox.
        gradients: grad d_i, each mapping (..., *image_shape) to the same, if they are known.

    Reference: Sun, Wohlberg and Kamilov, Assumption 2 and the Huber example of Appendix E; Nesterov, Introductory
    Lectures on Convex Optimization, 2004, section 2.2.
    """

    def __init__(
        self,
        functions: Functions,
        image_shape: tuple[int, ...],
        *,
        lipschitz: float | None = None,
        gradients: Functions | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        prox_tol: float = 1e-6,
        prox_iterations: int = 10_000,
    ) -> None:
        if len(functions) == 0:
            raise InputError("a SmoothFidelity needs at least one function, one for each view")
        if gradients is not None and len(gradients) != len(functions):
            raise InputError(f"there are {len(functions)} functions, but {len(gradients)} gradients")
        if lipschitz is not None and not lipschitz > 0:
            raise InputError(f"the Lipschitz constant must be > 0, not {lipschitz}")
        self.functions = tuple(functions)
        self.gradients = None if gradients is None else tuple(gradients)
        self.n_views, self.image_shape = len(functions), image_shape
        self.device, self.dtype = torch.device(device), dtype
        self.prox_tol, self.prox_iterations = prox_tol, prox_iterations
        self._lipschitz = lipschitz

    @property
    def available(self) -> Tensor:
        return torch.arange(self.n_views)

    @property
    def lipschitz(self) -> float:
        if self._lipschitz is None:
            raise InputError("this SmoothFidelity has no Lipschitz constant; give it one, or the step as a number")
        return self._lipschitz

    @property
    def has_lipschitz(self) -> bool:
        """Whether L was given."""
        return self._lipschitz is not None

    def local_lipschitz(self, image: Tensor, views: Views = None) -> float:
        """L at an image: the largest eigenvalue of the second derivative there, from differences of gradients."""
        x = image.reshape(-1, *self.image_shape)[0]
        return local_curvature(lambda z: self.gradient(z, views), x, len(self.image_shape))

    @property
    def lipschitz_max(self) -> float:
        return self.lipschitz

    @accept_arrays
    def value(self, image: Tensor, views: Views = None, weights: Weights = None) -> Tensor:
        """The mean of d_i(x) over these views, or its sum with these weights: (..., *image_shape) to (...)."""
        return self._mean(self.functions, image, views, weights)

    @accept_arrays
    def gradient(self, image: Tensor, views: Views = None, weights: Weights = None) -> Tensor:
        """The mean of grad d_i(x) over these views, or its sum with these weights."""
        if self.gradients is not None:
            return self._mean(self.gradients, image, views, weights)
        with torch.enable_grad():
            point = image.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.value(point, views, weights).sum(), point)
        return gradient

    linear = False
    data_shape: tuple[int, ...] = ()

    @property
    def data_dtype(self) -> torch.dtype:
        return self.dtype

    def predict(self, image: Tensor, views: Views = None) -> Tensor:
        """Refused: functions of the image predict no data."""
        raise InputError("a SmoothFidelity is made of functions of the image, and predicts no data")

    def pullback(self, slopes: Tensor, views: Views = None) -> Tensor:
        """Refused, as `predict`."""
        return self.predict(slopes)

    def slope_change(self, new: Tensor, old: Tensor, views: Views = None) -> Tensor:
        """Refused, as `predict`."""
        return self.predict(new)

    @accept_arrays
    def prox(
        self, image: Tensor, gamma: float, views: Views = None, weights: Weights = None, start: Tensor | None = None
    ) -> Tensor:
        """argmin_z 1/2 ||z - x||^2 + gamma d(z), to ||gradient|| <= prox_tol * max(1, ||x||)."""
        smooth = 1 + gamma * self.lipschitz
        beta = (math.sqrt(smooth) - 1) / (math.sqrt(smooth) + 1)
        z = s = image if start is None else start
        goal = self.prox_tol * norm(image, len(self.image_shape)).clamp_min(1)
        for _ in range(self.prox_iterations):
            slope = s - image + gamma * self.gradient(s, views, weights)
            if bool((norm(slope, len(self.image_shape)) <= goal).all()):
                return s
            before, z = z, s - slope / smooth
            s = z + beta * (z - before)
        warnings.warn(
            f"the prox of a SmoothFidelity did not reach its tolerance {self.prox_tol:.1e} in {self.prox_iterations} "
            "iterations; allow more iterations, or check the Lipschitz constant",
            PlugstreamWarning,
            stacklevel=2,
        )
        return s

    def _mean(self, functions: Functions, image: Tensor, views: Views, weights: Weights) -> Tensor:
        check_shape("image", image, self.image_shape)
        index = all_views(views, self.n_views).tolist()
        factors = [1 / len(index)] * len(index) if weights is None else weights.tolist()
        return torch.stack([w * functions[view](image) for view, w in zip(index, factors, strict=True)]).sum(0)
