"""The monitor of how much of the data the image leaves unexplained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from plugstream.algorithms.base import Algorithm, State, fidelity_at
from plugstream.base.quantities import Quantity
from plugstream.fidelity.least_squares import Fidelity
from plugstream.fidelity.misfit import compares_data, relative_misfits
from plugstream.models.views import Views, all_views
from plugstream.solver.monitors import Measure, Past

__all__ = ["Misfit"]


@dataclass(frozen=True, eq=False)
class Misfit:
    r"""The mean over views of ||H_i x - y_i||^2 / ||y_i||^2, the part of the data that an image leaves unexplained.

    Every view counts alike, however strong its data is. It is 1 for an image that is zero, at which a model with
    multiple scattering may be stuck, and about the noise for one that explains the data; noise that is fitted makes it
    smaller still, so that it says little of good images. Measured for least squares, and for intensities of waves.

    Arguments: views, a function from a fidelity to the views to measure on, all that are available if not given;
    groups, names of groups of views, with their numbers, each of which is measured by itself, too.
    """

    views: Callable[[Fidelity], Views] | None = None
    groups: Mapping[str, Tensor] | None = None
    every: int | None = None

    @cached_property
    def measures(self) -> tuple[Quantity, ...]:
        """The misfit, and that of each group."""
        whole = Quantity("misfit", curve="mean ||H x - y||² / ||y||²", form=".4f", logarithmic=True)
        each = [Quantity(f"misfit {name}", form=".4f", logarithmic=True, detail=True) for name in self.groups or ()]
        return (whole, *each)

    def begin(self, algorithm: Algorithm[Any], state: State, past: Past) -> Measure:
        def measure(algorithm: Algorithm[Any], state: Any) -> dict[str, Tensor]:
            fidelity: Any = algorithm.fidelity
            if not compares_data(fidelity):
                return {}
            chosen = None if self.views is None else self.views(fidelity)
            index = fidelity.available if chosen is None else all_views(chosen, fidelity.n_views)
            values = relative_misfits(fidelity_at(algorithm, state), state.image, index)
            found = {"misfit": values.nanmean(-1)}
            for name, group in (self.groups or {}).items():
                mine = torch.isin(index, group).to(values.device)
                if bool(mine.any()):
                    found[f"misfit {name}"] = values[..., mine].nanmean(-1)
            return {name: value for name, value in found.items() if bool(value.isfinite().all())}

        return measure
