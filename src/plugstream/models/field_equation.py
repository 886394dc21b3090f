"""Fields in and around an object: u - G (x u) = u_in, solved with or without the help of coarser grids."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.block_gmres import KrylovSpace, Solutions
from plugstream.base.corrected_inverse import refine
from plugstream.base.device_gmres import DeviceSpace, find_kernels
from plugstream.models.coarse_grid import POINTS, CoarseGrid
from plugstream.models.green_fft import Box, GreenFFT, LippmannSchwinger

# The directions and products of solutions may take so many bytes.
_SPACE_BYTES = {"cpu": 512 << 20, "cuda": 8 << 30}
# A coarse grid pays for boxes of so many pixels. On a GPU, smaller products take as long as a launch.
_LEAST = {"cpu": 6000, "cuda": 512 * 512}
# Pixels a wavelength inside the object that a coarse grid must have to resolve its waves.
_A_WAVELENGTH = 5.0
# A coarse field is off by about this over the fourth power of its pixels a wavelength, and not solved to less.
_ERROR = 10.0
# A box of more than this part of the grid is the whole grid, whose field then needs no product to be known everywhere.
_MOST = 0.7


class FieldEquation:
    """(I - G X) u = u_in in a box, for many u_in.

    Large boxes whose waves a grid of half the pixels a side can resolve are solved by guesses from there
    (`CoarseGuess`), with two products for a tolerance of 1e-3. Everything else is solved in a `KrylovSpace`, on CUDA in
    a `DeviceSpace`.

    Arguments: contrast x (h, w) of the box, real; green, G of the box's pixels.
    """

    def __init__(self, contrast: Tensor, green: GreenFFT) -> None:
        self.contrast = contrast
        self._green = green
        each = 2 * contrast.numel() * (8 if contrast.dtype == torch.float32 else 16)
        self._limit = max(2, _SPACE_BYTES.get(contrast.device.type, _SPACE_BYTES["cpu"]) // each)
        self._space = self._make_space()
        self._guess = _coarse_guess(contrast, green)

    def apply(self, fields: Tensor) -> Tensor:
        """u - G (x u): (k, h w) complex to the same."""
        return self._product(fields)

    @cached_property
    def _product(self) -> LippmannSchwinger:
        return self._green.lippmann_schwinger(self.contrast)

    def _make_space(self) -> KrylovSpace | DeviceSpace:
        kernels = find_kernels(self.contrast.dtype.to_complex(), self.contrast.device)
        if kernels is None:
            return KrylovSpace(self.apply, limit=self._limit)
        return DeviceSpace(
            self._green.lippmann_schwinger,
            self.contrast,
            kernels,
            limit=self._limit,
            rooms=self._green.rooms,
            name=self.contrast.shape,
        )

    def solve(self, incident: Tensor, *, tol: float, max_iterations: int, measured: bool = True) -> Solutions:
        """u to a relative residual of tol, or as far as so many products lead: (B, h w).

        Arguments: measured, whether residuals are measured, or may be estimates (`refine`).
        """
        if self._guess is None:
            return self._space.solve(incident, tol=tol, max_iterations=max_iterations)
        limits = {"max_iterations": max_iterations, "limit": self._limit}
        guessed = refine(self.apply, self._guess, incident, tol=tol, measured=measured, **limits)
        unsolved = guessed.residuals > tol
        if not unsolved.any() or guessed.iterations >= max_iterations:
            return guessed
        self._guess = None  # its grid is too coarse for these waves
        values, residuals = guessed.values, guessed.residuals.copy()
        rows = torch.from_numpy(np.flatnonzero(unsolved)).to(incident.device)
        rest = self._space.solve(
            incident[rows] - self.apply(values[rows]),
            tol=float(tol / residuals.max()),
            max_iterations=max_iterations - guessed.iterations,
        )
        values[rows] += rest.values
        residuals[unsolved] *= rest.residuals
        return Solutions(values, residuals, guessed.iterations + rest.iterations)


class CoarseGuess:
    r"""A guess of (I - G X)^{-1} r from a grid of pixels twice as large, at a fraction of the cost of a product.

    With R and P to the coarse grid and back (`CoarseGrid`) and X_c of the mean contrasts there,

        M r = r + P ((I - G_c X_c)^{-1} - I) R r,

    so that r is exact and only the field that the object adds to it, which G makes smooth, is interpolated. In
    `refine`, one product of the fine grid makes smooth residuals, such as illuminations, 50 to 2000 times smaller, and
    later ones 10 to 20 times. The coarse equation keeps its solutions for later guesses, and may have a coarser one.

    Holds where a wavelength in the object has several coarse pixels; otherwise the guess is poor, but the solution is
    not.

    Arguments: contrast (h, w), real; green, of pixels twice as large.
    Reference: Brakhage, Numer. Math. 2, 1960; Atkinson, The Numerical Solution of Integral Equations of the Second
    Kind, ch. 6.
    """

    def __init__(self, contrast: Tensor, green: GreenFFT) -> None:
        height, width = contrast.shape
        self.grid = CoarseGrid((height, width), device=contrast.device, dtype=contrast.dtype)
        coarse = self.grid.average(contrast)
        inside = math.sqrt(max(0.0, green.wavenumber**2 + green.scale * float(coarse.max())))
        self.pixels = 2 * math.pi / max(inside * green.pixel, 1e-3)  # a wavelength
        self.equation = FieldEquation(coarse, green)

    def __call__(self, rows: Tensor, tol: float) -> Tensor:
        """M r of rows (k, h w), the coarse equation solved to half of tol or to what it is worth: (k, h w)."""
        coarse = self.grid.sample(rows.unflatten(1, self.grid.fine)).flatten(1)
        tol = max(0.5 * tol, _ERROR / self.pixels**4)
        solutions = self.equation.solve(coarse, tol=tol, max_iterations=200, measured=False)
        added = (solutions.values - coarse).unflatten(1, self.grid.shape)
        return self.grid.interpolate(added).flatten(1).add_(rows)


def _coarse_guess(contrast: Tensor, green: GreenFFT) -> CoarseGuess | None:
    """A guess from the next coarser grid, None if that is too coarse or does not pay."""
    least = _LEAST.get(contrast.device.type, _LEAST["cpu"])
    if contrast.numel() < least or min(contrast.shape) < 2 * POINTS:
        return None
    guess = CoarseGuess(contrast, green.coarser())
    return guess if guess.pixels >= _A_WAVELENGTH else None


class Scatterer:
    """An image x, and u = u_in + G (x u) for illuminations u_in.

    The unknowns are u in the smallest box that contains all nonzero pixels; u elsewhere follows by one product with G.
    All illuminations are solved for together (`FieldEquation`); those of the adjoint problem, which has the same
    operator, reuse earlier solutions.

    Arguments: image (H, W), real; green of its grid; tolerance, the relative residual of u; max_iterations.
    """

    def __init__(self, image: Tensor, green: GreenFFT, *, tolerance: float, max_iterations: int) -> None:
        self.green, self.tolerance, self.max_iterations = green, tolerance, max_iterations
        self.box: Box = slice(0, 0), slice(0, 0)
        nonzero = image != 0
        used = torch.cat([nonzero.any(1), nonzero.any(0)]).cpu().numpy()  # a GPU waits for the host once
        rows, columns = (np.flatnonzero(part).tolist() for part in np.split(used, [len(image)]))
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
        solutions = self.equation.solve(inside.flatten(1), tol=self.tolerance, max_iterations=self.max_iterations)
        return solutions.values.reshape(inside.shape), solutions.residuals

    def extend(self, incident: Tensor, inside: Tensor) -> Tensor:
        """u on the whole grid, (B, H, W), from the illumination there and u in the box."""
        if self.empty:
            return incident
        if inside.shape == incident.shape:
            return inside
        return self.green.spread(incident, self.contrast * inside, self.box)
