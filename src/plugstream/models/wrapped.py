"""What a model that stands before another one hands on as it is."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from plugstream.models.base import Model, ModelBase
from plugstream.models.views import Views

__all__ = ["WrappedModel"]


class WrappedModel(ModelBase):
    """A model with another one, `whole`, behind it: shapes, facts and what is no product with H_i are that one's.

    Whoever derives from it says what becomes of products and norms.

    Arguments: model, which stands behind.
    """

    def __init__(self, model: Model) -> None:
        self.whole = model
        self.n_views, self.image_shape, self.data_shape = model.n_views, model.image_shape, model.data_shape
        self.device, self.dtype, self.data_dtype = model.device, model.dtype, model.data_dtype
        self.linear = model.linear
        self.nonnegative = bool(getattr(model, "nonnegative", False))
        self.counts = getattr(model, "counts", None)
        self.channels = bool(getattr(model, "channels", False))
        self.estimated_views = int(getattr(model, "estimated_views", 1000))
        self.intensities = bool(getattr(model, "intensities", False))
        self.incoherent = getattr(model, "incoherent", None)
        self.recording = getattr(model, "recording", None)
        self.views_at_once = getattr(model, "views_at_once", None)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return getattr(self.whole, "stored_shape", self.data_shape)

    def convert(self, data: Tensor, views: Views = None) -> Tensor:
        convert: Callable[[Tensor, Views], Tensor] | None = getattr(self.whole, "convert", None)
        return data if convert is None else convert(data, views)

    def overlap(self, views: Views = None, weights: Tensor | None = None) -> Tensor | None:
        """That of the model behind; of a part of its data it is a bound."""
        overlap = getattr(self.whole, "overlap", None)
        return None if overlap is None else overlap(views, weights)

    def start_image(self) -> Tensor | None:
        start = getattr(self.whole, "start_image", None)
        return None if start is None else start()
