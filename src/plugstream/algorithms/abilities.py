"""What algorithms can do besides `init` and `step`, each ability with a default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plugstream.base.defaults import with_defaults
from plugstream.base.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from plugstream.fidelity.least_squares import Fidelity
    from plugstream.models.views import Views


def all_views() -> Any:
    """The sampler of all views in each step; torch is imported here, so that lists of names need not wait for it."""
    from plugstream.algorithms.sampling import All

    return All()


class _AllViews:
    def __get__(self, algorithm: Any, owner: Any = None) -> Any:
        return all_views()


class AlgorithmAbilities:
    """Optional parts of an algorithm. Callers use them without probing for them."""

    sigma: Any = None
    """The denoiser's noise level, a number or schedule, if it has one."""
    lam: Any = None
    """The weight of the prior, if it is given instead of sigma."""
    sampler: Any = _AllViews()
    """Which views each step uses."""
    momentum: Any = "none"
    """The sequence q_k, by its name or as a function."""
    gradient: Any = None
    """How the gradient is estimated from a batch, if that can be chosen."""
    dual: bool = False
    """Whether its state has a scaled dual s, as that of ADMM: s / gamma means the same with any step."""
    judge: Any = None
    """The fidelity of data that steps leave out, if there is one, by which `misfit(state)` is measured."""

    def fidelity_at(self, state: Any) -> Fidelity:
        """The fidelity with the parameters of the model that the state holds."""
        from plugstream.fidelity.least_squares import as_fidelity

        algorithm: Any = self
        fidelity: Fidelity = as_fidelity(algorithm.fidelity)
        return fidelity

    def phase(self, state: Any) -> int | None:
        """The phase of the iteration after this state; each phase seeks another image.

        0 for the last phase; None if an image says nothing about the next, as in a search that tries several.
        """
        return 0

    def residual(self, state: Any, views: Views = None) -> Tensor:
        """||x - T(x)||^2 of the map T that it iterates; refused by default."""
        raise InputError(
            f"{type(self).__name__} has no residual(state, views), the squared distance ||x - T(x)||^2 of the "
            "map that it iterates; give it one, or do not measure the distance"
        )


def as_algorithm(algorithm: Any) -> Any:
    """An algorithm; one of your own class gets the defaults of `AlgorithmAbilities`."""
    return with_defaults(algorithm, AlgorithmAbilities)
