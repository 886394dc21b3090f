"""What a model that wraps another one passes on unchanged."""

from __future__ import annotations

from torch import Tensor

from plugstream.models.base import Model, ModelBase, as_model
from plugstream.models.views import Views

__all__ = ["WrappedModel"]


class WrappedModel(ModelBase):
    """A model with the shapes, facts and conversions of another one, `whole`; subclasses define products and norms."""

    def __init__(self, model: Model) -> None:
        self.whole = model = as_model(model)
        self.n_views, self.image_shape, self.data_shape = model.n_views, model.image_shape, model.data_shape
        self.device, self.dtype, self.data_dtype = model.device, model.dtype, model.data_dtype
        self.linear, self.nonnegative, self.channels = model.linear, model.nonnegative, model.channels
        self.intensities, self.incoherent, self.recording = model.intensities, model.incoherent, model.recording
        self.counts, self.estimated_views, self.views_at_once = model.counts, model.estimated_views, model.views_at_once

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return self.whole.stored_shape

    def describe(self) -> str:
        return self.whole.describe()

    def convert(self, data: Tensor, views: Views = None) -> Tensor:
        return self.whole.convert(data, views)

    def overlap(self, views: Views = None, weights: Tensor | None = None) -> Tensor | None:
        """That of the wrapped model, which is a bound for a part of its data."""
        return self.whole.overlap(views, weights)

    def start_image(self) -> Tensor | None:
        return self.whole.start_image()
