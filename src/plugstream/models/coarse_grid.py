"""Images and fields on pixels of twice the size, and back."""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["POINTS", "CoarseGrid", "interpolation"]

POINTS = 6
"""Points of an axis that a value is interpolated from."""


class CoarseGrid:
    """Pixels of twice the size on a box of (h, w) pixels, half as many a side, rounded up.

    Arguments: shape (h, w); device; dtype, the real precision.
    """

    def __init__(self, shape: tuple[int, int], *, device: torch.device, dtype: torch.dtype) -> None:
        self.fine, self.shape = shape, tuple(-(-n // 2) for n in shape)
        sides = [interpolation(n) for n in shape]
        # A real matrix multiplies rows of complex numbers from the left; from the right it has to be complex.
        self._down, self._up = (
            (_place(sides[0][n], device, dtype), _place(sides[1][n].T, device, dtype.to_complex())) for n in (0, 1)
        )

    def sample(self, fields: Tensor) -> Tensor:
        """Smooth fields in the middle of coarse pixels: (k, h, w) complex to (k, h/2, w/2)."""
        left, right = self._down
        return _multiply(left, fields) @ right

    def interpolate(self, fields: Tensor) -> Tensor:
        """Smooth fields of coarse pixels in the middle of fine ones: (k, h/2, w/2) complex to (k, h, w)."""
        left, right = self._up
        return _multiply(left, fields @ right)

    def average(self, image: Tensor) -> Tensor:
        """Means over coarse pixels, with zeros beyond an odd side: (h, w) to (h/2, w/2)."""
        height, width = self.fine
        even = pad(image, (0, width % 2, 0, height % 2))
        means: Tensor = even.unflatten(0, (-1, 2)).unflatten(2, (-1, 2)).mean((1, 3))
        return means


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
        others = np.delete(index, n, 1)
        weights = np.prod((places[:, None] - others) / (index[:, n : n + 1] - others), 1)
        out[np.arange(len(places)), index[:, n]] = weights
    return out


def _multiply(matrix: Tensor, fields: Tensor) -> Tensor:
    """A real matrix (m, h) and complex fields (k, h, w): (k, m, w)."""
    parts = matrix @ torch.view_as_real(fields).flatten(2)
    return torch.view_as_complex(parts.unflatten(2, (-1, 2)))


def _place(matrix: NDArray[np.float64], device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(matrix).to(device=device, dtype=dtype)
