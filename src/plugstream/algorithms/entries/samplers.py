"""The samplers by name: which views each step uses.

Facts of an entry:

    grows: it can take views that arrive later.
    seeded: it draws at random (`seed=` of the section is passed).
    draws: "independent" views, as in the theory of stochastic steps; "all" of them; the "same" in each step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plugstream.base.class_entries import register_class
from plugstream.base.registry import Field, Options, register

if TYPE_CHECKING:
    from plugstream.algorithms.sampling import Sampler
    from plugstream.fidelity.least_squares import Fidelity


class BatchOptions(Options):
    """Of samplers that take a few views a step."""

    batch: int = Field(10, ge=1, le=10**12, description="views in a step")


_RANDOM: dict[str, Any] = {"options": BatchOptions, "seeded": True}


def _declare(name: str, text: str, sampler: str, **how: Any) -> None:
    register_class(__name__, "sampler", name, text, f"plugstream.algorithms:{sampler}", **how)


_declare(
    "uniform", "independent views, with replacement: the paper's", "Uniform", **_RANDOM, grows=True, draws="independent"
)
_declare("epochs", "every view once before any repeats, shuffled", "Epochs", **_RANDOM, grows=True)
_declare("shifted", "evenly spaced views, shifted by one each step", "ShiftedViews", options=BatchOptions, grows=True)


@register("sampler", "importance", "views drawn by their Lipschitz constants, weighted to match", **_RANDOM)
def build_importance(options: BatchOptions, fidelity: Fidelity, seed: int = 0) -> Sampler:
    from plugstream.algorithms.sampling import Importance

    return Importance(options.batch, fidelity.lipschitz_views, seed)  # type: ignore[attr-defined]


@register("sampler", "fixed", "the same evenly spaced views in every step", options=BatchOptions, draws="same")
def build_fixed(options: BatchOptions, fidelity: Fidelity) -> Sampler:
    from plugstream.algorithms.sampling import FixedViews
    from plugstream.models.views import evenly_spaced

    return FixedViews(tuple(evenly_spaced(options.batch, fidelity.n_views).tolist()))


_declare("all", "every view in every step: the batch algorithms", "All", grows=True, draws="all")
