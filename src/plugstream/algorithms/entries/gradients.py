"""The gradients of proximal gradient methods by name: the mean over a batch, or with its variance reduced.

Facts of an entry: grows, it can continue when the scan gets more views; plain, it is just the mean over the batch;
seeded, it draws something by the seed.
"""

from __future__ import annotations

from typing import Any

from plugstream.base.class_entries import register_class
from plugstream.base.registry import Field, Options


class RefreshOptions(Options):
    """Of loopless SVRG."""

    refresh: float | None = Field(
        None, gt=0, le=1, description="probability of a full pass in a step; batch / views if not given"
    )


class RowOptions(Options):
    """Of the gradient over a diagonal."""

    by_rows: bool = Field(
        False, description="weigh each ray by one over its length, as SIRT does", json_schema_extra={"switch": True}
    )


def _declare(name: str, text: str, estimator: str, **how: Any) -> None:
    register_class(__name__, "gradient", name, text, f"plugstream.algorithms:{estimator}", **how)


_declare("plain", "the mean over the batch", "Plain", grows=True, plain=True)
_declare("saga", "corrected by the last gradient of every view", "SAGA")
_declare(
    "svrg",
    "corrected by a full pass now and then",
    "SVRG",
    options=RefreshOptions,
    arguments={"refresh": "probability"},
    seeded=True,
)
_declare(
    "diagonal",
    "with a separate step for every pixel, for ct",
    "Diagonal",
    options=RowOptions,
    arguments={"by_rows": "rows"},
)
