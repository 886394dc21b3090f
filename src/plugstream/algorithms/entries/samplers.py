"""The samplers by name: which views each step uses.

Facts that an entry may say:

    grows: it can take views that are still to come.
    seeded: it draws at random (then `seed=`, that of the section, is handed to it).
    draws: "independent" views, of which the theory of stochastic steps speaks; "all" of them; the "same" in each step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plugstream.base.registry import Field, Options, register

if TYPE_CHECKING:
    from plugstream.algorithms.sampling import Sampler
    from plugstream.fidelity.least_squares import Fidelity

__all__ = ["BatchOptions"]


class BatchOptions(Options):
    """Of samplers that take a few views a step."""

    batch: int = Field(10, ge=1, le=10**12, description="views in a step")


@register(
    "sampler",
    "uniform",
    "independent views, with replacement: the paper's",
    options=BatchOptions,
    seeded=True,
    grows=True,
    draws="independent",
)
def build_uniform(options: BatchOptions, fidelity: Fidelity, seed: int = 0) -> Sampler:
    from plugstream.algorithms.sampling import Uniform

    return Uniform(options.batch, seed)


@register(
    "sampler",
    "epochs",
    "every view once before any comes again, shuffled",
    options=BatchOptions,
    seeded=True,
    grows=True,
)
def build_epochs(options: BatchOptions, fidelity: Fidelity, seed: int = 0) -> Sampler:
    from plugstream.algorithms.sampling import Epochs

    return Epochs(options.batch, seed)


@register("sampler", "shifted", "evenly spaced views, moved on by one a step", options=BatchOptions, grows=True)
def build_shifted(options: BatchOptions, fidelity: Fidelity) -> Sampler:
    from plugstream.algorithms.sampling import ShiftedViews

    return ShiftedViews(options.batch)


@register(
    "sampler",
    "importance",
    "views drawn by their Lipschitz constants, weighted to match",
    options=BatchOptions,
    seeded=True,
)
def build_importance(options: BatchOptions, fidelity: Fidelity, seed: int = 0) -> Sampler:
    from plugstream.algorithms.sampling import Importance

    return Importance(options.batch, fidelity.lipschitz_views, seed)  # type: ignore[attr-defined]


@register("sampler", "fixed", "the same evenly spaced views in every step", options=BatchOptions, draws="same")
def build_fixed(options: BatchOptions, fidelity: Fidelity) -> Sampler:
    from plugstream.algorithms.sampling import FixedViews
    from plugstream.models.views import evenly_spaced

    return FixedViews(tuple(evenly_spaced(options.batch, fidelity.n_views).tolist()))


@register("sampler", "all", "every view in every step: the batch algorithms", grows=True, draws="all")
def build_all(options: Options, fidelity: Fidelity) -> Sampler:
    from plugstream.algorithms.sampling import All

    return All()
