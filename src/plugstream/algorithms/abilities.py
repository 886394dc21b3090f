"""What an algorithm may have besides `init` and `step`: each ability with the default of one that lacks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plugstream.base.defaults import with_defaults
from plugstream.base.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from plugstream.fidelity.least_squares import Fidelity
    from plugstream.models.views import Views

__all__ = ["AlgorithmAbilities", "as_algorithm"]


class _AllViews:
    """All views in each step; made when it is asked for, since samplers need torch, and lists of names do not wait."""

    def __get__(self, algorithm: Any, owner: Any = None) -> Any:
        from plugstream.algorithms.sampling import All

        return All()


class AlgorithmAbilities:
    """What algorithms may say of themselves: whoever has one asks for it, and need not look whether it is there."""

    sigma: Any = None
    """The denoiser's noise level, a number or schedule, where it has one."""
    lam: Any = None
    """The weight of the prior, of which sigma is made, where it is given instead."""
    sampler: Any = _AllViews()
    """Which views each step uses."""
    momentum: Any = "none"
    """The sequence q_k, by its name or as a function."""
    gradient: Any = None
    """How the gradient is estimated from a batch, where that can be chosen."""
    judge: Any = None
    """The fidelity of data that steps leave out, where there is one; `misfit(state)` is then by it."""

    def fidelity_at(self, state: Any) -> Fidelity:
        """The fidelity with what the state has found of the model beside the image."""
        from plugstream.fidelity.least_squares import as_fidelity

        own: Any = self
        found: Fidelity = as_fidelity(own.fidelity)
        return found

    def phase(self, state: Any) -> int | None:
        """In which part of its way the algorithm is after the steps of this state, each of which seeks another image.

        0 for the last of them; None where the next image says nothing of the last, as in a search that tries several.
        """
        return 0

    def residual(self, state: Any, views: Views = None) -> Tensor:
        """||x - T(x)||^2 of the map T that it iterates; refused where an algorithm does not say."""
        raise InputError(
            f"{type(self).__name__} has no residual(state, views), the squared distance ||x - T(x)||^2 of the "
            "map that it iterates; give it one, or do not measure the distance"
        )


def as_algorithm(algorithm: Any) -> Any:
    """An algorithm as it is, or one of somebody's own class with the defaults of `AlgorithmAbilities`."""
    return with_defaults(algorithm, AlgorithmAbilities)
