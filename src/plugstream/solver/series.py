"""What a monitor measured over the steps of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plugstream.base.quantities import Quantity

__all__ = ["Series"]


@dataclass(frozen=True)
class Series:
    """One measured quantity: at which steps, after how much algorithm time in seconds, what, and what that means.

    `value` has one row a measurement and, behind it, the leading axes of the image.
    """

    step: NDArray[np.int64]
    time: NDArray[np.float64]
    value: NDArray[np.float64]
    quantity: Quantity
