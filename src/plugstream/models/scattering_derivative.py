"""Multiple scattering near an image: its derivative there as a linear model, with all that can be kept kept."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from plugstream.models.base import ModelBase, Views, all_views, check_shape
from plugstream.models.born_dense import FIELD_BYTES, fits
from plugstream.models.scattering import ScatteringModel, view_blocks

__all__ = ["ScatteringDerivative"]


class ScatteringDerivative(ModelBase):
    """v -> J_i(x) v = S (I - X G)^{-1} (u_i v), the derivative of a `ScatteringModel` at an image x.

    The operator I - G X is the same for all products, so that its space of directions and the fields u_i are kept: of
    the many products that L or conjugate gradients need, the later ones find most of their solutions there.

    Holds as the model's own `derivative`, to its tolerance, and J and its adjoint agree to that, too.

    Arguments: model; at, the image x (H, W).
    """

    def __init__(self, model: ScatteringModel, at: Tensor) -> None:
        check_shape("image", at, model.image_shape)
        self.model = model
        self.n_views, self.image_shape, self.data_shape = model.n_views, model.image_shape, model.data_shape
        self.device, self.dtype, self.data_dtype = model.device, model.dtype, model.data_dtype
        self._thing = model.scatterer(at.to(device=model.device, dtype=model.dtype).reshape(model.image_shape))
        values = self.n_views * self.image_shape[0] * self.image_shape[1]
        self._keeps = fits(FIELD_BYTES, values, self.device, self.dtype)
        self._fields: dict[int, Tensor] = {}

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        """(..., H, W) real to (..., B, receivers) complex."""
        check_shape("image", image, self.image_shape)
        index, images = all_views(views, self.n_views), image.to(self.dtype).reshape(-1, *self.image_shape)
        shape = (len(images), len(index), *self.data_shape)
        out = torch.empty(shape, device=self.device, dtype=self.data_dtype)
        for rows, some in view_blocks(index):
            field = self._field(some)
            for place, direction in enumerate(images):
                out[place, rows] = self.model.push(self._thing, field, direction, some)
        return out.reshape(*image.shape[:-2], *shape[1:])

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        """(..., B, receivers) complex to (..., H, W) real."""
        index = all_views(views, self.n_views)
        check_shape("data", data, (len(index), *self.data_shape))
        z = self.restrict(data.to(self.data_dtype), index).reshape(-1, *data.shape[-2:])
        out = torch.zeros((len(z), *self.image_shape), device=self.device, dtype=self.dtype)
        for rows, some in view_blocks(index):
            field = self._field(some)
            for place in range(len(z)):
                out[place] += self.model.pull(self._thing, field, z[place, rows], some).sum(0)
        return out.reshape(*data.shape[:-2], *self.image_shape)

    def linearize(self, image: Tensor, views: Views = None) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return self.forward(image, views), lambda data: self.adjoint(data, views)

    def normal_each(self, images: Tensor, views: Tensor) -> Tensor:
        """Re(J_i^H J_i v_i), an image for each view: (B, H, W) to the same."""
        index, out = all_views(views, self.n_views), torch.empty_like(images)
        for rows, some in view_blocks(index):
            field = self._field(some)
            data = self.model.push(self._thing, field, images[rows], some)
            out[rows] = self.model.pull(self._thing, field, data, some)
        return out

    def restrict(self, data: Tensor, views: Views = None) -> Tensor:
        return self.model.restrict(data, views)

    def _field(self, views: Tensor) -> Tensor:
        """u_i on the grid: (B, H, W)."""
        if not self._keeps:
            return self.model.total_field(self._thing, views)
        new = torch.tensor([view for view in dict.fromkeys(views.tolist()) if view not in self._fields])
        if len(new):
            fields = self.model.total_field(self._thing, new)
            self._fields |= {int(view): field for view, field in zip(new, fields, strict=True)}
        return torch.stack([self._fields[view] for view in views.tolist()])
