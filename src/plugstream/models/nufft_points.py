"""Frequencies on the finer grid of a non-uniform FFT: the cells that each touches, and their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.models.nufft_grid import Kernel

Real = NDArray[np.float64]


@dataclass(frozen=True)
class Points:
    """Where frequencies lie among the stored cells, along three axes; a grid of two has one of a single cell between.

    A point touches the cells first, first + 1, ... first + width - 1 along an axis, the first of which is `offset`
    cells, 0 <= offset < 1, inside the kernel's support. An axis whose frequencies are the grid's own has the width 1.

    Arguments: first (points, 3), int32, from the first cell that is stored; offset (points, 3), float32 or float64;
    flipped (points,), where the value at a point is the conjugate of what the cells give, None for nowhere; widths of
    the three axes; kernel.
    """

    first: Tensor
    offset: Tensor
    flipped: Tensor | None
    widths: tuple[int, int, int]
    kernel: Kernel

    def __len__(self) -> int:
        return len(self.first)

    @cached_property
    def weights(self) -> tuple[Tensor, ...]:
        """Of the cells that each point touches, (points, width) an axis."""
        weights = []
        for axis, width in enumerate(self.widths):
            offset = self.offset[:, axis]
            if width == 1:
                weights.append(torch.ones((len(offset), 1), dtype=offset.dtype, device=offset.device))
                continue
            taps = torch.arange(width, dtype=torch.float64, device=offset.device) - width / 2
            x, beta = offset.double()[:, None] + taps, self.kernel.beta
            root = (1 - (2 * x / width).square()).clamp_(min=0).sqrt_()
            inside = x.abs() <= width / 2  # as `Kernel.__call__`, on the points' device
            weights.append((torch.special.i0e(beta * root) * torch.exp(beta * (root - 1)) * inside).to(offset))
        return tuple(weights)

    def conjugate(self, values: Tensor) -> Tensor:
        """Values (n, points) conjugated where points are flipped."""
        return values if self.flipped is None else torch.where(self.flipped, values.conj(), values)


def join_points(parts: Sequence[Points]) -> Points:
    """The points of several sets on one grid, one set after the other."""
    flips = [part.flipped for part in parts if part.flipped is not None]
    return Points(
        torch.cat([part.first for part in parts]),
        torch.cat([part.offset for part in parts]),
        torch.cat(flips) if flips else None,
        parts[0].widths,
        parts[0].kernel,
    )


def read_cells(grid: Tensor, points: Points) -> Tensor:
    """The weighted sum of the cells that each point touches: (n, A, B, C) complex to (n, points).

    This is the specification of the native and Triton forms; it goes through memory once for each of a point's cells.
    """
    _, rows, columns = grid.shape[1:]
    flat, first = grid.flatten(1), points.first.long()
    out = torch.zeros((len(grid), len(points)), dtype=grid.dtype, device=grid.device)
    for i, u in enumerate(points.weights[0].T):
        for j, v in enumerate(points.weights[1].T):
            start = ((first[:, 0] + i) * rows + first[:, 1] + j) * columns + first[:, 2]
            for k, w in enumerate(points.weights[2].T):
                out += flat[:, start + k] * (u * v * w)
    return out


def write_cells(values: Tensor, points: Points, grid: Tensor) -> None:
    """The transpose of `read_cells`: add (n, points) to the cells that each point touches, in the points' order."""
    _, rows, columns = grid.shape[1:]
    flat, first = grid.view(len(grid), -1), points.first.long()
    for i, u in enumerate(points.weights[0].T):
        for j, v in enumerate(points.weights[1].T):
            start = ((first[:, 0] + i) * rows + first[:, 1] + j) * columns + first[:, 2]
            for k, w in enumerate(points.weights[2].T):
                flat.index_add_(1, start + k, values * (u * v * w))


def fit_taps(kernel: Kernel, degree: int | None = None) -> Real:
    """The weights of a point's cells as polynomials in 2 offset - 1, lowest power first: (degree + 1, width).

    A polynomial of a degree six above the width is as near to the kernel as single precision is, and a few
    multiplications, where a Bessel function would be a hundred.
    """
    degree = kernel.width + 6 if degree is None else degree
    nodes = np.cos(np.pi * (np.arange(4 * degree) + 0.5) / (4 * degree))
    taps = np.arange(kernel.width) - kernel.width / 2
    values = kernel((nodes[:, None] + 1) / 2 + taps)
    table = np.zeros((degree + 1, kernel.width))
    for tap, chebyshev in enumerate(np.polynomial.chebyshev.chebfit(nodes, values, degree).T):
        powers = np.polynomial.chebyshev.cheb2poly(chebyshev)  # without the highest powers if they are zero
        table[: len(powers), tap] = powers
    return table
