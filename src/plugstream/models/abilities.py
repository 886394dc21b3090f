"""What a model may have besides its forward map: each ability with the default of a model that lacks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.images.global_phase import unit_vector
from plugstream.models.views import Derivative, Views

__all__ = ["ModelAbilities"]


class ModelAbilities(Protocol):
    """What models may say of themselves: whoever has a model asks for it, and need not look whether it is there."""

    data_shape: tuple[int, ...]
    nonnegative: bool = False
    """Whether H_i is linear, real and without negative entries; every L_i is then bounded by two products with it."""
    channels: bool = False
    """Whether the first axis of an image is of channels, which denoisers have to know of three axes."""
    estimated_views: int = 0
    """Of at most so many views `LeastSquares` estimates every L_i; of more, it bounds them, which costs less."""
    intensities: bool = False
    """Whether the data are intensities of the waves that the model predicts, which only some losses compare."""
    incoherent: int | None = None
    """The axis of predictions, from the end, of waves that do not interfere: their intensities are counted together."""
    views_at_once: int | None = None
    """Of how many views predictions are formed at once, None for as many as the data is read of."""
    refinable: tuple[str, ...] = ()
    """Which of the `parameters` can be found along with the image."""
    counts: Any = None
    """How data follow from photons that were counted, with `weights(views)` and the `strongest`, where they were."""
    recording: Any = None
    """Gains and backgrounds of the views (`plugstream.models.recording.Recording`), where they are known or fitted."""

    rays: Any = None
    voxels: Any = None
    """The rays of the views and the voxels that they cross, where predictions are integrals along rays."""

    def describe(self) -> str:
        """In one line how predictions are computed; "" where there is nothing to say."""
        return ""

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of what a scan stores of a view, where it is another than `data_shape`; `convert` leads there."""
        return self.data_shape

    @property
    def parameters(self) -> dict[str, Tensor]:
        """What the model depends on besides the image and the views, and what may be refined of it, by name.

        The model is a pure function of image and parameters: `with_parameters` gives one with others. They are real or
        complex tensors on the model's device; none if not overridden.
        """
        return {}

    def with_parameters(self, parameters: Mapping[str, Tensor]) -> Self:
        """The same model with these parameters, which shares all else with this one, and is quickly made.

        Parameters with a row for each view may have rows of the first views alone, where the scan has grown since.
        """
        return self

    def refine(
        self, image: Tensor, data: Tensor, views: Views, names: Sequence[str], derivative: Derivative, pace: float = 1.0
    ) -> dict[str, Tensor]:
        """All parameters after a step on some of them, by the data of these views, at an image that stays as it is.

        A pure function of its arguments and of the model's parameters, so that runs that go on do so to the bit.

        Arguments: image (*image_shape); data (B, *data_shape), as `convert` makes it; views, B of them or None for all;
        names, of those to refine, each one of `refinable`; derivative, of the loss, scaled so that its curvature where
        predictions are near the data is 1; pace, the part of the step that is taken, which a model without `pace` among
        its arguments always takes whole.
        """
        raise InputError(f"{type(self).__name__} has nothing that could be refined along with the image")

    def comparable(self, parameters: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        """Parameters as real vectors whose differences tell how much they have moved, 1 being as much as themselves.

        What no data tells of them is taken out, and those of these names that follow from others are left out.
        """
        return {name: unit_vector(parameters[name], self.parameters[name]) for name in names}

    def report_parameters(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parameters in the form in which they are written and shown, of several that give the same predictions."""
        return dict(parameters)

    def overlap(self, views: Views = None, weights: Tensor | None = None) -> Tensor | None:
        """The diagonal of sum_i w_i H_i^H H_i over these views, where it is diagonal, in whatever basis; else None.

        Its largest value is the L of that sum, so that for a loss of curvature c a step of 1 / (c max(overlap)) with
        the weights of the batch, 1/B each, is 1/L of the batch: far longer than 1 / max_i L_i where views overlap
        little.

        Arguments: weights (B,), ones if not given.
        """
        return None

    def start_image(self) -> Tensor | None:
        """The image (*image_shape) to begin with where nobody gives one, None for zero."""
        return None

    def start_from(
        self, read: Callable[[Tensor], Tensor], available: Tensor, names: Sequence[str]
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """The image to begin with, None for zero, and the parameters, of a model that asks the data for them.

        A pure function of its arguments; `start_image`, and the parameters as they are, if not overridden.

        Arguments: read, which gives the data of views (B,) as `convert` makes it; available views; names of the
        parameters that are refined.
        """
        return self.start_image(), self.parameters

    def convert(self, data: Tensor, views: Views = None) -> Tensor:
        """What a scan stores of these views, in the model's precision, as the data that the model predicts.

        Usually it is that; counts of photons, of which the model predicts the logarithm, are an exception.
        """
        return data
