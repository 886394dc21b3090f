"""The bumps of TNRD's influence functions, and their tables of polynomials for the fast forms."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

BUMPS = 63
SPACING = 10.0
PRECISION = 0.01
REACH = 380.0
"""Beyond this the bumps are below 1e-10 of their height, and the tables end."""


CENTRES = [SPACING * (j - BUMPS // 2) for j in range(BUMPS)]


def polynomials(weights: Tensor, degree: int, step: float) -> Tensor:
    r"""The influence functions as tables, for forms that cannot afford 63 exponentials a response.

    On the cell [-380 + c step, -380 + (c + 1) step], phi_i is replaced by the polynomial sum_m C[i, m, c] t^m in
    t = (x + 380) / step - c - 1/2 that equals it at the degree + 1 Chebyshev-Lobatto points, which include both ends,
    so that the tables are continuous. For bumps of height 1 the error is at most 2.1e-5 for degree 5 and step 10, and
    1.2e-4 for degree 3 and step 5 (tested). Beyond +-380 the value at +-380 is used, below 1e-10 times the weights.

    Arguments:
        weights: (..., 63).
    Returns float32, (..., degree + 1, cells).
    Reference: Trefethen, Approximation Theory and Approximation Practice, chapter 2.
    """
    nodes, solve, bumps, _ = _nodes(degree, step)
    values = weights.detach().double().cpu().numpy() @ bumps  # (..., cells * nodes)
    values = values.reshape(*weights.shape[:-1], -1, len(nodes))
    coefficients = np.swapaxes(values @ solve.T, -1, -2)
    return torch.from_numpy(np.ascontiguousarray(coefficients)).float()


def cubics(step: float, order: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The map from the weights to the table of cubics of phi (order 0) or of its derivative (1): (63, cells, 4).

    For tables of every step of training, on the device, as one product of matrices. Cells, nodes and order of the
    coefficients are those of `polynomials`, which gives the same table for order 0.
    """
    nodes, solve, *bumps = _nodes(3, step)
    table: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = bumps[order].reshape(BUMPS, -1, len(nodes)) @ solve.T
    return table


@cache
def _nodes(degree: int, step: float) -> tuple[Any, Any, Any, Any]:
    """Nodes on [-1/2, 1/2], the matrix from values there to coefficients, and every bump and its slope at every node,
    (63, cells * nodes)."""
    nodes = -np.cos(np.pi * np.arange(degree + 1) / degree) / 2
    solve = np.linalg.inv(np.vander(nodes, increasing=True))
    cells = round(2 * REACH / step)
    places = (-REACH + step * (np.arange(cells)[:, None] + 0.5 + nodes)).reshape(-1)
    away = places - np.array(CENTRES)[:, None]
    bumps = np.exp(-PRECISION / 2 * away**2)
    return nodes, solve, bumps, -PRECISION * away * bumps
