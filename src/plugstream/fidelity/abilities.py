"""What a fidelity and a loss may have besides what they must: each ability with the default of one that lacks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, Self

from torch import Tensor

from plugstream.base.defaults import with_defaults
from plugstream.models.views import Views

__all__ = ["FidelityAbilities", "LossAbilities", "as_fidelity"]


class FidelityAbilities(Protocol):
    """What fidelities may say of themselves: whoever has one asks for it, and need not look whether it is there."""

    model: Any = None
    """The forward map of each view, where there is one."""
    loss: Any = None
    """How predictions are compared with data, where it is not by least squares."""

    @property
    def refine(self) -> Callable[..., dict[str, Tensor]] | None:
        """A step on parameters of the model, where it can be refined along with the image (`ModelFidelity.refine`)."""
        return None

    @property
    def own_parts(self) -> Callable[[Views], list[Tensor]] | None:
        """The views among these whose data this process reads, where several share them (`Sharded.own_parts`)."""
        return None

    @property
    def whole(self) -> Any:
        """The fidelity of one process; itself where views are not shared."""
        return self

    @property
    def channels(self) -> bool:
        """Whether the first axis of an image is of channels."""
        return False

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the data, which are independent images; () for the data of one."""
        return ()

    @property
    def fit_curvature(self) -> float:
        """The second derivative of the loss where predictions are near the data; 1 for least squares."""
        return 1.0

    def overlap(self, views: Views = None, weights: Tensor | None = None) -> Tensor | None:
        """The diagonal of sum_i w_i H_i^H H_i over these views, of a model where it is diagonal; None of others.

        Arguments: weights (B,), 1/B each if not given, as of the gradient.
        """
        return None

    def start_image(self) -> Tensor | None:
        """The image to begin with where nobody gives one, (*image_shape), None for zero."""
        return None

    def lipschitz_at_least(
        self, views: Views = None, weights: Tensor | None = None, *, products: int = 8
    ) -> float | None:
        """A lower bound of L of the gradient over these views, from a few products; None where there is none."""
        return None

    def with_parameters(self, parameters: Mapping[str, Tensor]) -> Self:
        """The fidelity of the same data with a model of these parameters."""
        return self


class LossAbilities(Protocol):
    """What losses may say of themselves, with the default of one that does not."""

    real_data: ClassVar[bool] = False
    """Whether the data is real even where predictions are waves."""
    nats: ClassVar[float | None] = None
    """How much of a negative log-likelihood one of its units is, where it is one."""

    @property
    def plain(self) -> bool:
        """Whether it is 1/2 |prediction - datum|^2, whose curvature is 1 whatever the data."""
        return False

    def for_model(self, model: Any) -> Self:
        """The loss that knows what the model knows of its data, such as how views are recorded."""
        return self

    def curvature(self, data: Tensor | None = None, *, waves: bool = False) -> float:
        """A bound on its second derivative for this data; infinity where there is none."""

    def fit_curvature(self, *, waves: bool = False) -> float:
        """The curvature where predictions are near the data, its bound where it says no other; infinite where it
        depends on the data."""
        return self.curvature(waves=waves)


def as_fidelity(fidelity: Any) -> Any:
    """A fidelity as it is, or one of somebody's own class with the defaults of `FidelityAbilities`."""
    return with_defaults(fidelity, FidelityAbilities)
