"""An object that waves scatter at: the fields inside it, and outside, of any illumination."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from plugstream.models.field_equation import FieldEquation
from plugstream.models.green_fft import Box, GreenFFT

__all__ = ["Scatterer"]

# A box of more than this part of the grid is the whole grid, whose field then needs no product to be known everywhere.
_MOST = 0.7


class Scatterer:
    """One image x, and u = u_in + G (x u) of illuminations u_in.

    The unknowns are u in the smallest box that holds all of the image that is not zero; u elsewhere follows from it by
    one product with G. All illuminations are solved for together (`FieldEquation`), those of the adjoint problem, whose
    operator is the same, with what was found for the others.

    Arguments: image (H, W), real; green of its grid; tolerance, the relative residual of u; max_iterations.
    """

    def __init__(self, image: Tensor, green: GreenFFT, *, tolerance: float, max_iterations: int) -> None:
        self.green, self.tolerance, self.max_iterations = green, tolerance, max_iterations
        self.box: Box = slice(0, 0), slice(0, 0)
        somewhere = image != 0
        rows, columns = (somewhere.any(axis).nonzero()[:, 0].tolist() for axis in (1, 0))
        self.empty = not rows
        if rows:
            self.box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
            area = (rows[-1] + 1 - rows[0]) * (columns[-1] + 1 - columns[0])
            if area > _MOST * image.numel():
                self.box = slice(0, image.shape[0]), slice(0, image.shape[1])
        self.contrast = image[self.box]  # (h, w)
        self.equation = None if self.empty else FieldEquation(self.contrast, green)

    def cut(self, fields: Tensor) -> Tensor:
        """Fields (B, H, W) in the box: (B, h, w), in the same memory."""
        return fields[:, *self.box]

    def solve(self, inside: Tensor) -> tuple[Tensor, NDArray[np.float64]]:
        """u in the box, (B, h, w), of illuminations there, and the relative residual of each."""
        if self.equation is None:
            return inside, np.zeros(len(inside))
        found = self.equation.solve(inside.flatten(1), tol=self.tolerance, max_iterations=self.max_iterations)
        return found.values.reshape(inside.shape), found.residuals

    def extend(self, incident: Tensor, inside: Tensor) -> Tensor:
        """u on the whole grid, (B, H, W), from the illumination there and u in the box."""
        if self.empty:
            return incident
        if inside.shape == incident.shape:
            return inside
        return self.green.spread(incident, self.contrast * inside, self.box)
