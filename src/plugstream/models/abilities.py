"""Abilities that a model may have besides its forward map, each with the default of a model that lacks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.images.global_phase import unit_vector
from plugstream.models.views import Derivative, Views


class ModelAbilities(Protocol):
    """What models say about themselves: every model has all of these, so nobody probes for them."""

    data_shape: tuple[int, ...]
    nonnegative: bool = False
    """Whether H_i is linear, real and without negative entries; two products with it then bound every L_i."""
    channels: bool = False
    """Whether the first axis of an image is channels; denoisers must know, since images may have three axes."""
    estimated_views: int = 0
    """Up to how many views `LeastSquares` estimates every L_i; for more, it bounds them, which is cheaper."""
    intensities: bool = False
    """Whether the data are intensities of the predicted waves, which only some losses compare."""
    incoherent: int | None = None
    """The axis of predictions, from the end, of waves that do not interfere: the sum of their intensities counts."""
    views_at_once: int | None = None
    """For how many views predictions are formed at once, None for as many as the data is read for."""
    refinable: tuple[str, ...] = ()
    """Which of the `parameters` can be refined along with the image."""
    counts: Any = None
    """How data follow from counted photons, with `weights(views)` and the `strongest`; None if nothing was counted."""
    recording: Any = None
    """Gains and backgrounds of the views (`plugstream.models.recording.Recording`), known or fitted, if any."""

    rays: Any = None
    voxels: Any = None
    """The rays of the views and the voxels that they cross, where predictions are integrals along rays."""

    def describe(self) -> str:
        """How predictions are computed, in one line; "" if there is nothing to say."""
        return ""

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of a view's data in a scan, if it differs from `data_shape`; `convert` maps one to the other."""
        return self.data_shape

    @property
    def parameters(self) -> dict[str, Tensor]:
        """What the model depends on besides the image and the views, by name; some of it may be refined.

        The model is a pure function of image and parameters, which are real or complex tensors on its device.
        """
        return {}

    def with_parameters(self, parameters: Mapping[str, Tensor]) -> Self:
        """The same model with these parameters, sharing everything else.

        Parameters with a row for each view may have only rows of the first views if the scan has grown.
        """
        return self

    def refine(
        self, image: Tensor, data: Tensor, views: Views, names: Sequence[str], derivative: Derivative, pace: float = 1.0
    ) -> dict[str, Tensor]:
        """All parameters after a step on some of them, by the data of these views, with the image fixed.

        A pure function of its arguments and of the model's parameters, so that resumed runs continue to the bit.

        Arguments: image (*image_shape); data (B, *data_shape), as `convert` makes it; views, B of them or None for all;
        names of parameters to refine, each one of `refinable`; derivative of the loss, scaled to a curvature of 1 where
        predictions are near the data; pace, the part of the step to take; a model without this argument takes all.
        """
        raise InputError(f"{type(self).__name__} has nothing that could be refined along with the image")

    def comparable(self, parameters: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        """Parameters as real vectors whose differences say how far they moved, 1 being their own size.

        What the data cannot determine is removed; named parameters that follow from others are left out.
        """
        return {name: unit_vector(parameters[name], self.parameters[name]) for name in names}

    def report_parameters(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parameters as they are written and shown, if several forms give the same predictions."""
        return dict(parameters)

    def overlap(self, views: Views = None, weights: Tensor | None = None) -> Tensor | None:
        """The diagonal of sum_i w_i H_i^H H_i over these views, if it is diagonal in some basis; else None.

        Its largest value is the L of that sum. So for a loss of curvature c, a step of 1 / (c max(overlap)) with the
        weights 1/B of a batch is 1/L of the batch: far longer than 1 / max_i L_i if views overlap little.

        Arguments: weights (B,), ones if not given.
        """
        return None

    def rough_norm_bounds(self, views: Tensor) -> Tensor | None:
        """Upper bounds of each view's ||H_i||^2 that need no products, (B,), double, CPU; None if there are none.

        Looser than `Model.squared_norm_bounds`; a view whose rough bound is small need not have its own.
        """
        return None

    def start_image(self) -> Tensor | None:
        """The image (*image_shape) to begin with by default, None for zero."""
        return None

    def start_from(
        self, read: Callable[[Tensor], Tensor], available: Tensor, names: Sequence[str]
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """The image, None for zero, and the parameters to begin with, for a model that derives them from the data.

        A pure function of its arguments; by default `start_image` and the current parameters.

        Arguments: read, which gives the data of views (B,) as `convert` makes it; available views; names of the
        parameters to refine.
        """
        return self.start_image(), self.parameters

    def convert(self, data: Tensor, views: Views = None) -> Tensor:
        """Stored data of these views, in the model's precision, as the data that the model predicts.

        Usually both are the same; an exception are photon counts, of which the model predicts the logarithm.
        """
        return data
