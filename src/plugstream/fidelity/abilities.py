"""What fidelities and losses can do besides what they must, each ability with a default."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from plugstream.base.arrays import accept_arrays_in
from plugstream.base.defaults import with_defaults
from plugstream.base.errors import InputError
from plugstream.models.base import Model
from plugstream.models.views import Views

Weights = Tensor | None
"""The factor of each view's term, (B,); None for 1 / number of views each."""

Quadratic = tuple[Tensor, Callable[[Tensor], Tensor]]
"""A gradient, and a product with a curvature."""


class FidelityAbilities(Protocol):
    """Optional parts of a fidelity. Callers use them without probing for them."""

    model: Any = None
    """The forward map of each view, if there is one."""
    loss: Any = None
    """The loss, if it is not least squares."""

    @property
    def refine(self) -> Callable[..., dict[str, Tensor]] | None:
        """A step on the model's parameters (`ModelFidelity.refine`); None if they cannot be refined."""
        return None

    @property
    def own_parts(self) -> Callable[[Views], list[Tensor]] | None:
        """Which of the given views this process reads (`Sharded.own_parts`); None if it reads them all."""
        return None

    @property
    def whole(self) -> Any:
        """The fidelity as a single process has it."""
        return self

    @property
    def channels(self) -> bool:
        """Whether the first axis of an image holds channels."""
        return False

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the data, one entry for each independent image; () for one image."""
        return ()

    @property
    def fit_curvature(self) -> float:
        """The second derivative of the loss where predictions are near the data; 1 for least squares."""
        return 1.0

    def gradient_change(self, image: Tensor, other: Tensor, views: Views = None, weights: Weights = None) -> Tensor:
        """grad d(x) - grad d(x') over these views, by the cheapest way."""
        own: Any = self
        change: Tensor = own.gradient(image, views, weights) - own.gradient(other, views, weights)
        return change

    def prox(
        self, image: Tensor, gamma: float, views: Views = None, weights: Weights = None, start: Tensor | None = None
    ) -> Tensor:
        """argmin_z 1/2 ||z - x||^2 + gamma d(z), (..., *image_shape) to the same; refused if it is not known."""
        kind = type(self).__name__ if self.loss is None else f"{type(self.loss).__name__} loss"
        raise InputError(f"the prox of a {kind} is not known; use a proximal gradient method")

    def overlap(self, views: Views = None, weights: Weights = None) -> Tensor | None:
        """The diagonal of sum_i w_i H_i^H H_i over these views; None if that matrix is not diagonal."""
        return None

    @property
    def bends(self) -> bool:
        """Whether d is not quadratic and `quadratic` is known, as for nonlinear models and some losses of waves."""
        return self.loss is not None and self.loss.bends and self.model.data_dtype.is_complex

    def quadratic(
        self, image: Tensor, views: Views = None, weights: Weights = None, at: Tensor | None = None
    ) -> Quadratic:
        """grad d(x) over these views, and v -> A v with A the Gauss-Newton approximation of grad^2 d(x).

        Arguments: at, an image near x at which to linearise the model instead, (*image_shape).
        """
        raise InputError(f"the curvature of {type(self).__name__} is not known; use a proximal gradient method")

    def start_image(self) -> Tensor | None:
        """The default first image, (*image_shape); None for zero."""
        return None

    def lipschitz_at_least(self, views: Views = None, weights: Weights = None, *, products: int = 8) -> float | None:
        """A lower bound of L of the gradient over these views, from a few products; None if there is none."""
        return None

    def with_parameters(self, parameters: Mapping[str, Tensor]) -> Self:
        """The fidelity of the same data with these parameters in its model."""
        return self


class OfModel(FidelityAbilities):
    """A fidelity whose views, shapes and types are those of its model. Its methods take NumPy arrays too."""

    model: Model

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        accept_arrays_in(cls, ("value", "values", "gradient", "gradient_change", "prox", "predict", "pullback"))

    @property
    def n_views(self) -> int:
        return self.model.n_views

    @property
    def image_shape(self) -> tuple[int, ...]:
        return self.model.image_shape

    @property
    def channels(self) -> bool:
        return self.model.channels

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def linear(self) -> bool:
        """Whether predictions are a linear function of the image."""
        return self.model.linear

    @property
    def data_shape(self) -> tuple[int, ...]:
        """The shape of a view's predictions."""
        return self.model.data_shape

    @property
    def data_dtype(self) -> torch.dtype:
        """The dtype of predictions."""
        return self.model.data_dtype


class LossAbilities(Protocol):
    """Optional parts of a loss."""

    real_data: ClassVar[bool] = False
    """Whether the data is real even if predictions are waves."""
    nats: ClassVar[float | None] = None
    """How much one unit of the loss is of a negative log-likelihood, if it is one."""
    bends: ClassVar[bool] = False
    """Whether `bend` is known for waves."""

    @property
    def plain(self) -> bool:
        """Whether it is 1/2 |prediction - datum|^2, whose curvature is always 1."""
        return False

    def for_model(self, model: Any) -> Self:
        """The loss with what the model knows of its data, such as how views are recorded."""
        return self

    def bend(self, prediction: Tensor, change: Tensor, data: Tensor, views: Tensor | None = None) -> Tensor:
        """The expected second derivative at a prediction of waves, times a change of it, in the prediction's shape."""
        raise InputError(f"the second derivative of a {type(self).__name__} loss is not known")

    def check(self, data: Tensor) -> None:
        """Refuse data for which the loss has no meaning."""
        return

    def is_convex(self, *, waves: bool = False) -> bool:
        """Whether it is known to be a convex function of the prediction, which is complex with `waves`."""
        return False

    def curvature(self, data: Tensor | None = None, *, waves: bool = False) -> float:
        """A bound on its second derivative for this data; infinity if there is none."""
        return math.inf

    def fit_curvature(self, *, waves: bool = False) -> float:
        """The curvature where predictions are near the data, or its bound; infinite if it depends on the data."""
        return self.curvature(waves=waves)


def as_fidelity(fidelity: Any) -> Any:
    """A fidelity; one of your own class gets the defaults of `FidelityAbilities`."""
    return with_defaults(fidelity, FidelityAbilities)
