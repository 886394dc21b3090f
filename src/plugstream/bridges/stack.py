"""What models of other people's operators share: leading axes, views of several sizes, and whether adjoints match."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.base.linalg import inner, norm
from plugstream.models.base import ModelBase
from plugstream.models.views import Views, all_views, check_shape

# Of so few views every L_i is estimated to a hundredth; of more, bounds that cost less will do.
_ESTIMATED_VIEWS = 8
# By how much <A x, z> and <x, A^H z> may differ, relative to ||A x|| ||z||, before the adjoint is called wrong: far
# beyond rounding in single precision, and what interpolation in two different ways gives.
_MISMATCH = 1e-3


class StackedModel(ModelBase):
    r"""One model of many operators, each measuring the same image: H_i = A_i, view i.

    If all views have data of one shape, that is `data_shape`. Otherwise the data of each is a row of the length of the
    longest, zero beyond its own end; those zeros are predicted, and no loss counts them (`restrict`).

    A subclass says what its operators do with several images at a time: `_predict` and `_pull`.

    Arguments:
        image_shape: of one image. data_shapes: of each view's data.
        dtype, data_dtype: of images and data, real or complex each. device: where both are.
        channels: whether the first axis of an image is of channels.
    """

    estimated_views = _ESTIMATED_VIEWS

    def __init__(
        self,
        image_shape: tuple[int, ...],
        data_shapes: Sequence[tuple[int, ...]],
        *,
        dtype: torch.dtype,
        data_dtype: torch.dtype,
        device: torch.device | str,
        channels: bool,
    ) -> None:
        self.n_views = len(data_shapes)
        self.image_shape, self.channels = tuple(image_shape), channels
        self.dtype, self.data_dtype, self.device = dtype, data_dtype, torch.device(device)
        self.data_shapes = tuple(tuple(shape) for shape in data_shapes)
        self.ragged = len(set(self.data_shapes)) > 1
        longest = max(math.prod(shape) for shape in self.data_shapes)
        self.data_shape = (longest,) if self.ragged else self.data_shapes[0]

    @abstractmethod
    def _predict(self, images: Tensor, views: list[int]) -> list[Tensor]:
        """A_i of each image, of each of these views: (N, *image_shape) to (N, *data_shapes[i]) each."""

    @abstractmethod
    def _pull(self, data: list[Tensor], views: list[int]) -> Tensor:
        """The sum over these views of A_i^H, real for real images: (N, *data_shapes[i]) each to (N, *image_shape)."""

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        """(..., *image_shape) to (..., B, *data_shape)."""
        images, lead = self._several(image)
        numbers = all_views(views, self.n_views).tolist()
        return self._join(self._predict(images, numbers)).reshape(*lead, len(numbers), *self.data_shape)

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        """(..., B, *data_shape) to (..., *image_shape)."""
        numbers = all_views(views, self.n_views).tolist()
        parts, lead = self._split(data, numbers)
        return self._pull(parts, numbers).to(self.dtype).reshape(*lead, *self.image_shape)

    def restrict(self, data: Tensor, views: Views = None) -> Tensor:
        """The data with zeros beyond the end of views that are shorter than the longest."""
        if not self.ragged:
            return data
        index = all_views(views, self.n_views)
        lengths = torch.tensor([math.prod(shape) for shape in self.data_shapes])[index]
        inside = torch.arange(self.data_shape[0]) < lengths[:, None]
        return torch.where(inside.to(data.device), data, torch.zeros((), dtype=data.dtype, device=data.device))

    def pack(self, data: Sequence[Tensor]) -> Tensor:
        """Data of every view, (..., *data_shapes[i]) each, as (..., views, *data_shape), on the model's device."""
        if len(data) != self.n_views:
            raise InputError(f"there are {self.n_views} views, but the data of {len(data)}")
        rows = []
        for number, (one, shape) in enumerate(zip(data, self.data_shapes, strict=True)):
            check_shape(f"the data of view {number}", one, shape)
            rows.append(one.to(self.device).reshape(-1, *shape))
        lead = data[0].shape[: data[0].ndim - len(self.data_shapes[0])]
        if len({len(row) for row in rows}) > 1:
            raise InputError("all views must have data of the same number of images")
        return self._join(rows).reshape(*lead, self.n_views, *self.data_shape)

    def _several(self, image: Tensor) -> tuple[Tensor, torch.Size]:
        """Images with one leading axis, and the leading axes that they had."""
        check_shape("image", image, self.image_shape)
        lead = image.shape[: image.ndim - len(self.image_shape)]
        return image.to(self.dtype).reshape(-1, *self.image_shape), lead

    def _split(self, data: Tensor, numbers: list[int]) -> tuple[list[Tensor], torch.Size]:
        """The data of each view with one leading axis, and the leading axes that it had."""
        check_shape("data", data, (len(numbers), *self.data_shape))
        lead = data.shape[: data.ndim - 1 - len(self.data_shape)]
        rows = data.to(self.data_dtype).reshape(-1, len(numbers), *self.data_shape).unbind(1)
        if not self.ragged:
            return list(rows), lead
        shapes = [self.data_shapes[number] for number in numbers]
        return [row[:, : math.prod(s)].reshape(-1, *s) for row, s in zip(rows, shapes, strict=True)], lead

    def _join(self, rows: Sequence[Tensor]) -> Tensor:
        """(N, *shape) of each view to (N, B, *data_shape)."""
        rows = [row.to(self.data_dtype) for row in rows]
        if self.ragged:
            flat = [row.flatten(1) for row in rows]
            rows = [torch.nn.functional.pad(row, (0, self.data_shape[0] - row.shape[1])) for row in flat]
        return torch.stack(tuple(rows), 1)


def warn_of_mismatch(model: StackedModel, lead: tuple[int, ...] = ()) -> None:
    r"""Warn if the adjoint of the first view's operator is not its adjoint.

    <A x, z> = <x, A^H z> holds for all x and z, and is tried on one random pair, z half A x and half noise, so that a
    wrong factor shows as well as a wrong direction. Otherwise gradients are not those of a function, and L and the
    distance to a fixed point mean less than they say.

    Arguments: model; lead, leading axes that an image must have.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*lead, *model.image_shape, generator=generator, dtype=model.dtype).to(model.device)
    data = model.forward(x, [0])
    noise = torch.randn(data.shape, generator=generator, dtype=data.dtype).to(model.device)
    noise = model.restrict(noise, [0])
    axes = data.ndim
    size, other = float(norm(data, axes)), float(norm(noise, axes))
    if not (0 < size < math.inf and other > 0):
        return
    z = data / size + noise / other
    forward, adjoint = inner(data, z, axes), inner(x, model.adjoint(z, [0]), x.ndim)
    off = abs(float(forward - adjoint)) / (size * float(norm(z, axes)))
    if not off <= _MISMATCH:
        warnings.warn(
            f"the adjoint of view 0 is not that of its forward map: <A x, z> and <x, A^H z> differ by "
            f"{100 * off:.2g} %; steps of 1/L may diverge, and the distance to a fixed point is not what it says",
            PlugstreamWarning,
            stacklevel=4,
        )
