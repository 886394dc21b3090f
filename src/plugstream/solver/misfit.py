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


@dataclass(frozen=True, eq=False)
class Misfit:
    r"""The mean over views of ||H_i x - y_i||^2 / ||y_i||^2, the part of the data that an image leaves unexplained.

    It is 1 for a zero image, at which a model with multiple scattering may be stuck, and about the noise for one that
    explains the data; fitted noise makes it smaller still. Measured for least squares and for intensities of waves.

    Arguments: views, a function from a fidelity to the views to measure on, all available ones if not given; groups of
    views by name, each also measured by itself.
    """

    views: Callable[[Fidelity], Views] | None = None
    groups: Mapping[str, Tensor] | None = None
    every: int | None = None

    @cached_property
    def measures(self) -> tuple[Quantity, ...]:
        """The misfit, and that of each group."""
        total = Quantity("misfit", curve="mean ||H x - y||² / ||y||²", form=".4f", logarithmic=True)
        return total, *(Quantity(f"misfit {g}", form=".4f", logarithmic=True, detail=True) for g in self.groups or ())

    def begin(self, algorithm: Algorithm[Any], state: State, past: Past) -> Measure:
        def measure(algorithm: Algorithm[Any], state: Any) -> dict[str, Tensor]:
            fidelity: Any = algorithm.fidelity
            if not compares_data(fidelity):
                return {}
            chosen = None if self.views is None else self.views(fidelity)
            index = fidelity.available if chosen is None else all_views(chosen, fidelity.n_views)
            values = relative_misfits(fidelity_at(algorithm, state), state.image, index)
            means = {"misfit": values.nanmean(-1)}
            for name, group in (self.groups or {}).items():
                members = torch.isin(index, group).to(values.device)
                if bool(members.any()):
                    means[f"misfit {name}"] = values[..., members].nanmean(-1)
            return {name: value for name, value in means.items() if bool(value.isfinite().all())}

        return measure
