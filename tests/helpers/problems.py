"""Small problems that several tests solve, and their matrices."""

from __future__ import annotations

import numpy as np

from plugstream import LeastSquares


def dense(fidelity: LeastSquares) -> tuple[np.ndarray, np.ndarray]:
    """The stacked matrix (views * m, n) and data of a fidelity whose model is dense."""
    stack = fidelity.model._stack.numpy()
    return stack.reshape(-1, stack.shape[-1]), fidelity.data().numpy().reshape(-1)
