"""The gradients of proximal gradient methods by name: the mean over a batch, or with its variance reduced.

Facts that an entry may say: grows, that it can go on where the scan gets more views; plain, that it is the mean over
the batch and nothing else; seeded, that it draws something by the seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plugstream.base.registry import Field, Options, register

if TYPE_CHECKING:
    from plugstream.algorithms import Estimator

__all__ = ["RefreshOptions", "RowOptions"]


class RefreshOptions(Options):
    """Of loopless SVRG."""

    refresh: float | None = Field(
        None, gt=0, le=1, description="probability of a full pass in a step; batch / views if not given"
    )


class RowOptions(Options):
    """Of the gradient over a diagonal."""

    by_rows: bool = Field(
        False,
        description="weigh each ray by one over its length, as SIRT does",
        json_schema_extra={"switch": True},
    )


@register("gradient", "plain", "the mean over the batch", grows=True, plain=True)
def build_plain(options: Options, seed: int) -> Estimator:
    from plugstream.algorithms import Plain

    return Plain()


@register("gradient", "saga", "corrected by what is remembered of every view")
def build_saga(options: Options, seed: int) -> Estimator:
    from plugstream.algorithms import SAGA

    return SAGA()


@register("gradient", "svrg", "corrected by a full pass now and then", options=RefreshOptions, seeded=True)
def build_svrg(options: RefreshOptions, seed: int) -> Estimator:
    from plugstream.algorithms import SVRG

    return SVRG(options.refresh, seed)


@register("gradient", "diagonal", "with a step of its own for every pixel, for ct", options=RowOptions)
def build_diagonal(options: RowOptions, seed: int) -> Estimator:
    from plugstream.algorithms import Diagonal

    return Diagonal(options.by_rows)
