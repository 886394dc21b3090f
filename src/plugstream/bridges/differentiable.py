"""A model of ours inside a network of PyTorch: forward map and adjoint through which `backward` goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from plugstream.base.errors import InputError
from plugstream.models.base import Model
from plugstream.models.views import Views, all_views, check_shape


class DifferentiableModel(torch.nn.Module):
    r"""A model as a layer, for training networks that go back to the data: unrolled, or with a loss on measurements.

    y = H x, with backward g -> Re(H^H g); and z -> Re(H^H z), with backward g -> H g. Each is the derivative of the
    other, so gradients of any order exist. They are exact as far as the adjoint is (`check_adjoint`), cost one adjoint
    or forward map each, and keep nothing. A model that is not linear has the first derivative, J(x)^H g.

    Layers have no weights and stay on the model's device; images must be there, and of its `dtype`, as must data be of
    its `data_dtype`.

    Arguments: model, of one's own or `CTModel(rays, voxels)`, `MRIModel`, `BornModel` and so on.
    Shapes: image (..., *image_shape) to data (..., B, *data_shape) for B views, all if none are given, and back.
    Leading axes are independent images, such as a network's batch.
    Reference: Adler and Öktem, IEEE Trans. Med. Imaging 37(6), 2018 (learned primal-dual reconstruction).

        >>> import numpy as np, torch, plugstream as ps
        >>> from plugstream.models.ct_beams import parallel_beam
        >>> from plugstream.models.ct_geometry import Voxels
        >>> rays = parallel_beam(np.linspace(0, np.pi, 8, endpoint=False), 24, 1.0)
        >>> project = ps.DifferentiableModel(ps.CTModel(rays, Voxels((16, 16), 1.0)))
        >>> image = torch.ones(2, 16, 16, requires_grad=True)
        >>> project(image).square().sum().backward()
        >>> tuple(image.grad.shape)
        (2, 16, 16)
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        """(..., *image_shape) to (..., B, *data_shape)."""
        self._check("an image", image, self.model.dtype, self.model.image_shape)
        if not self.model.linear:
            return _Nonlinear.apply(image, self.model, views)  # type: ignore[no-any-return,no-untyped-call]
        return _Linear.apply(image, self.model.forward, self.model.adjoint, views)  # type: ignore[no-any-return,no-untyped-call]

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        """(..., B, *data_shape) to (..., *image_shape): the sum over views of Re(H_i^H z_i)."""
        model = self.model
        if not model.linear:
            raise InputError(f"{type(model).__name__} is not linear, so it has no adjoint; use model.linearized(image)")
        count = len(all_views(views, model.n_views))
        self._check("data", data, model.data_dtype, (count, *model.data_shape))
        return _Linear.apply(data, model.adjoint, model.forward, views)  # type: ignore[no-any-return,no-untyped-call]

    def _check(self, name: str, values: Tensor, dtype: torch.dtype, tail: tuple[int, ...]) -> None:
        model = self.model
        check_shape(f"{name} for this model", values, tail)
        if values.dtype != dtype or values.device != model.device:
            raise InputError(
                f"{name} of {values.dtype} on {values.device} is not for this model, which takes {dtype} on "
                f"{model.device}; change it with .to(...)"
            )


_Map = Callable[[Tensor, Views], Tensor]


class _Linear(torch.autograd.Function):
    """A linear map whose derivative is its adjoint, and the other way round."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, map_: _Map, adjoint: _Map, views: Views) -> Tensor:
        ctx.maps, ctx.views = (map_, adjoint), views
        return map_(values.detach(), views)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        map_, adjoint = ctx.maps
        return _Linear.apply(gradient.contiguous(), adjoint, map_, ctx.views), None, None, None  # type: ignore[no-untyped-call]


class _Nonlinear(torch.autograd.Function):
    """A map that is linear nowhere or only near an image, with its first derivative."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, model: Model, views: Views) -> Tensor:
        prediction, ctx.pullback = model.linearize(image.detach(), views)
        return prediction

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.pullback(gradient.contiguous()), None, None
