"""A model given as a function: its adjoint, and the derivative of a nonlinear one, come from autograd or are given."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from plugstream.base.arrays import call_function
from plugstream.base.errors import InputError
from plugstream.models.base import ModelBase
from plugstream.models.views import Views, all_views, check_shape


class FunctionModel(ModelBase):
    """Measurements that any differentiable function predicts, linear or not: y_i = F_i(x).

    The gradient of 1/2 ||F_i(x) - y_i||^2 is J_i(x)^T (F_i(x) - y_i), with J_i(x)^T applied by autograd, so a nonlinear
    model needs only its forward direction. The theory of the paper requires convex d_i, which a nonlinear F_i does not
    give; its Lipschitz constant is unknown, so steps are found during the run or given as numbers.

    Arguments:
        function: maps an image (..., *image_shape) and views (an int64 tensor of B indices) to (..., B, *data_shape).
        n_views, image_shape, data_shape: the sizes.
        linear: whether the function is linear in the image; only then do `prox` and L by power iteration hold.
        adjoint: of a linear function, data (..., B, *data_shape) and views to (..., *image_shape), the sum over views.
            A function of NumPy arrays needs it, since autograd cannot follow NumPy.
        device, dtype: of the images it takes. data_dtype: of the data it gives.
        channels: whether the first axis of an image is of channels.
    """

    def __init__(
        self,
        function: Callable[[Tensor, Tensor], Tensor],
        *,
        n_views: int,
        image_shape: tuple[int, ...],
        data_shape: tuple[int, ...],
        linear: bool = False,
        adjoint: Callable[[Tensor, Tensor], Tensor] | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        data_dtype: torch.dtype | None = None,
        channels: bool = False,
    ) -> None:
        self.function = function
        self.n_views = n_views
        self.image_shape = image_shape
        self.data_shape = data_shape
        if adjoint is not None and not linear:
            raise InputError("an adjoint is of a linear function; add linear=True, or leave it out")
        self.linear, self.given_adjoint = linear, adjoint
        self.channels = channels
        self.device = torch.device(device)
        self.dtype = dtype
        self.data_dtype = dtype if data_dtype is None else data_dtype

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        """(..., *image_shape) to (..., B, *data_shape)."""
        check_shape("image", image, self.image_shape)
        index = all_views(views, self.n_views)
        # The dtype and device that arrays get.
        like = torch.empty(0, dtype=self.data_dtype, device=image.device)
        out: Tensor = call_function(self.function, "the model's prediction", like, image, index)
        want = (*image.shape[: image.ndim - len(self.image_shape)], len(index), *self.data_shape)
        if tuple(out.shape) != want:
            raise InputError(f"the model's function returned shape {tuple(out.shape)}, but should return {want}")
        return out

    def adjoint(self, data: Tensor, views: Views = None, at: Tensor | None = None) -> Tensor:
        """(..., B, *data_shape) to (..., *image_shape): J(at)^T data, at the zero image unless `at` is given."""
        if self.given_adjoint is not None:
            like = torch.empty(0, dtype=self.dtype, device=data.device)
            index = all_views(views, self.n_views)
            out: Tensor = call_function(self.given_adjoint, "the model's adjoint", like, data, index)
            want = (*data.shape[: data.ndim - 1 - len(self.data_shape)], *self.image_shape)
            if tuple(out.shape) != want:
                raise InputError(f"the model's adjoint returned shape {tuple(out.shape)}, but should return {want}")
            return out
        if at is None:
            batch = data.shape[: data.ndim - 1 - len(self.data_shape)]
            at = torch.zeros((*batch, *self.image_shape), device=self.device, dtype=self.dtype)
        return self.linearize(at, views)[1](data)

    def derivative(self, image: Tensor, direction: Tensor, views: Views = None) -> Tensor:
        """J_i(x) v of these views: u -> J^H u is linear, so its own adjoint, by autograd again, is v -> J v."""
        if self.linear:
            return self.forward(direction, views)
        with torch.enable_grad():
            point = image.detach().requires_grad_()
            prediction = self.forward(point, views)
            data = torch.zeros_like(prediction, requires_grad=True)
            (pulled,) = torch.autograd.grad(prediction, point, data, create_graph=True)
            (out,) = torch.autograd.grad(pulled, data, direction.to(image.dtype))
        return out

    def linearize(self, image: Tensor, views: Views = None) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        if self.given_adjoint is not None:
            return self.forward(image, views), lambda data: self.adjoint(data, views)
        with torch.enable_grad():
            point = image.detach().requires_grad_()
            prediction = self.forward(point, views)
        if not prediction.requires_grad:
            raise InputError(
                "the model's function is not differentiable: its output does not depend on the image, or it computes "
                "with NumPy; of a linear one give the adjoint too, FunctionModel(..., linear=True, adjoint=...)"
            )

        def pullback(data: Tensor) -> Tensor:
            check_shape("data", data, tuple(prediction.shape[image.ndim - len(self.image_shape) :]))
            (gradient,) = torch.autograd.grad(prediction, point, data.to(prediction.dtype), retain_graph=True)
            return gradient

        return prediction.detach(), pullback
