"""Small problems that several tests solve, and their matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from plugstream import LeastSquares
from plugstream.algorithms import Algorithm


def run(algorithm: Algorithm, steps: int, state: Any = None) -> Any:
    """The state after so many steps, from the first one or another."""
    state = algorithm.init() if state is None else state
    for _ in range(steps):
        state = algorithm.step(state)
    return state


def dense(fidelity: LeastSquares) -> tuple[np.ndarray, np.ndarray]:
    """The stacked matrix (views * m, n) and data of a fidelity whose model is dense."""
    stack = fidelity.model._stack.numpy()
    return stack.reshape(-1, stack.shape[-1]), fidelity.data().numpy().reshape(-1)
