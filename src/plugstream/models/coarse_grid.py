"""Images and fields on pixels of twice the size, and back."""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

POINTS = 6
"""Points of an axis that a value is interpolated from."""

# Rows of a matrix near its diagonal that are multiplied at once.
_BLOCK = 64


class CoarseGrid:
    """Pixels of twice the size on a box of (h, w) pixels, half as many a side, rounded up.

    Arguments: shape (h, w); device; dtype, the real precision.
    """

    def __init__(self, shape: tuple[int, int], *, device: torch.device, dtype: torch.dtype) -> None:
        self.fine, self.shape = shape, tuple(-(-n // 2) for n in shape)
        rows, columns = (interpolation(n) for n in shape)
        # A real matrix multiplies rows of complex numbers from the left; along columns it has to be complex.
        self._down, self._up = (
            (_Band(row_matrix, device, dtype), _Band(column_matrix, device, dtype.to_complex()))
            for row_matrix, column_matrix in zip(rows, columns, strict=True)
        )

    def sample(self, fields: Tensor) -> Tensor:
        """Smooth fields in the middle of coarse pixels: (k, h, w) complex to (k, h/2, w/2)."""
        rows, columns = self._down
        return columns.along_columns(rows.along_rows(fields))

    def interpolate(self, fields: Tensor) -> Tensor:
        """Smooth fields of coarse pixels in the middle of fine ones: (k, h/2, w/2) complex to (k, h, w)."""
        rows, columns = self._up
        return rows.along_rows(columns.along_columns(fields))

    def average(self, image: Tensor) -> Tensor:
        """Means over coarse pixels, with zeros beyond an odd side: (h, w) to (h/2, w/2)."""
        height, width = self.fine
        even = pad(image, (0, width % 2, 0, height % 2))
        means: Tensor = even.unflatten(0, (-1, 2)).unflatten(2, (-1, 2)).mean((1, 3))
        return means


class _Band:
    """A band matrix, in blocks of rows, each with the columns that it needs; on a GPU one block, to save launches."""

    def __init__(self, matrix: NDArray[np.float64], device: torch.device, dtype: torch.dtype) -> None:
        self.count, step = len(matrix), len(matrix) if device.type == "cuda" else _BLOCK
        self._blocks: list[tuple[slice, slice, Tensor]] = []
        for start in range(0, self.count, step):
            rows = matrix[start : start + step]
            used = np.flatnonzero(rows.any(0))
            columns = slice(int(used[0]), int(used[-1]) + 1)
            block = torch.from_numpy(rows[:, columns]).to(device=device, dtype=dtype)
            self._blocks.append((slice(start, start + len(rows)), columns, block))

    def along_rows(self, fields: Tensor) -> Tensor:
        """The matrix, real, times complex fields (k, n, w): (k, count, w)."""
        parts = torch.view_as_real(fields).flatten(2)
        out = parts.new_empty((len(parts), self.count, parts.shape[2]))
        for rows, columns, block in self._blocks:
            torch.matmul(block, parts[:, columns], out=out[:, rows])
        return torch.view_as_complex(out.unflatten(2, (-1, 2)))

    def along_columns(self, fields: Tensor) -> Tensor:
        """Complex fields (k, h, n) times the transpose of the matrix, complex: (k, h, count)."""
        flat = fields.flatten(0, 1)
        out = flat.new_empty((len(flat), self.count))
        for rows, columns, block in self._blocks:
            torch.mm(flat[:, columns], block.T, out=out[:, rows])
        return out.reshape(*fields.shape[:2], self.count)


@functools.lru_cache(maxsize=64)
def interpolation(size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """From pixels to the middle of pairs of them, (half, size), and back, (size, half), with half rounded up.

    By the polynomial through the nearest `POINTS`, exact for polynomials of degree five.
    """
    half = -(-size // 2)
    return _lagrange(np.arange(0.5, 2 * half, 2.0), size), _lagrange(np.arange(-0.25, (size - 1) / 2, 0.5), half)


def _lagrange(places: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Values at places from those at 0, 1 .. size - 1: (places, size)."""
    points = min(POINTS, size)
    first = np.clip(np.floor(places).astype(int) - (points // 2 - 1), 0, size - points)
    index = first[:, None] + np.arange(points)
    out = np.zeros((len(places), size))
    for n in range(points):
        nodes = np.delete(index, n, 1)
        weights = np.prod((places[:, None] - nodes) / (index[:, n : n + 1] - nodes), 1)
        out[np.arange(len(places)), index[:, n]] = weights
    return out
