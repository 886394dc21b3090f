"""Positive vectors near the first eigenvector of a symmetric matrix without negative entries. Without torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.floating]

# For a band: how far s is above the largest eigenvalue of M, and the most corrections of s.
_BAND_ABOVE, _CORRECTIONS = 1e-3, 12
# For bands: most products for the largest eigenvalue and for the window; how far s is above the eigenvalue, and by how
# much and how often it is raised if it was not.
_LANCZOS, _GRADIENTS, _ABOVE, _RAISE, _OFTEN = 40, 300, 3e-3, 4e-3, 100
_SMALL = 1e-3  # part of all that neighbours share that may be counted as a ray's own
_LEAST = 1e-5  # of a window, since single precision divides by it


def solve_band(bands: Values) -> Values:
    """w = (s I - M)^-1 1 as a part of its largest value, M given by its diagonals, s slightly above its eigenvalues.

    w is positive, since s I - M has no positive entries off its diagonal, and M w < s w everywhere. Noda's iteration
    w_{n + 1} = (s I - M)^-1 w_n approaches the largest eigenvalue from above.

    Arguments: bands (diagonals, size), entry (d, j) being M_{j, j + d}; what is beyond the last column counts nothing.
    Reference: Noda, Numer. Math. 17, 1971; Berman and Plemmons, Nonnegative Matrices in the Mathematical Sciences,
    chapter 6.
    """
    from scipy.linalg import solveh_banded

    size = bands.shape[1]
    lower = np.array(bands, dtype=np.float64)
    for d in range(1, len(lower)):
        lower[d, size - d :] = 0.0
    scale = float(lower[0].max())
    if not scale > 0:
        return np.ones(size)
    lower /= scale
    sums = lower.sum(0)
    for d in range(1, len(lower)):
        sums[d:] += lower[d, : size - d]
    shift, w = (1 + _BAND_ABOVE) * float(sums.max()), np.ones(size)

    def solve(shift: float, right: NDArray[np.float64]) -> NDArray[np.float64]:
        matrix = -lower
        matrix[0] += shift
        return np.asarray(solveh_banded(matrix, right, lower=True, check_finite=False))

    for _ in range(_CORRECTIONS):
        vector = solve(shift, w)
        top = shift - float((w / vector).min())  # the largest of (M vector) / vector
        w = np.asarray(vector / vector.max())
        if shift <= (1 + 2 * _BAND_ABOVE) * top:
            break
        shift = (1 + _BAND_ABOVE) * top
    w = solve(shift, np.ones(size))
    return np.asarray(np.maximum(w / w.max(), _LEAST))


def solve_bands(bands: Values, offsets: NDArray[np.int64]) -> Values:
    """The same for a matrix of a few diagonals that may be far apart, which cannot be factored cheaply.

    Lanczos iterations estimate the largest eigenvalue from below, and conjugate gradients give w, until
    |(s I - M) w - 1| < 1/2 everywhere, which suffices for M w < s w.

    Arguments: bands (diagonals, size), entry (n, j) being M_{j, j + offsets[n]}, which are overwritten; offsets
    (diagonals,), 0 first.
    """
    scale = float(bands[0].max())
    if not scale > 0:
        return np.ones(bands.shape[1])
    bands /= scale
    distinct, same = np.unique(offsets, return_inverse=True)
    if len(distinct) < len(offsets):  # down and back may be as far as across
        merged = np.zeros((len(distinct), bands.shape[1]), bands.dtype)
        for n, band in zip(same, bands, strict=True):
            merged[n] += band
        bands, offsets = merged, distinct
    # What is left out is added to the diagonal, so that row sums do not change.
    most = bands.max(1)
    order = np.argsort(most)
    small = np.zeros(len(bands), bool)
    small[order[np.cumsum(most[order]) < _SMALL * most.sum()]] = True
    for band, d in zip(bands[small], offsets[small], strict=True):
        bands[0] += band
        bands[0, d:] += band[: len(band) - d]
    multiply, ones = _product(bands[~small], offsets[~small]), np.ones(bands.shape[1], bands.dtype)
    shift = (1 + _ABOVE) * _largest_eigenvalue(multiply, ones)
    for _ in range(_OFTEN):
        if (w := _conjugate_gradients(multiply, shift, ones)) is not None:
            return np.asarray(np.maximum(w / w.max(), _LEAST))
        shift *= 1 + _RAISE
    return ones


def _product(bands: Values, offsets: NDArray[np.int64]) -> Callable[[Values], Values]:
    """Products with the symmetric matrix of these diagonals, the first of them the main one."""
    from scipy.sparse import dia_array

    size = bands.shape[1]
    data = np.zeros((2 * len(bands) - 1, size), bands.dtype)
    data[0] = bands[0]
    for n, (band, d) in enumerate(zip(bands[1:], offsets[1:], strict=True)):
        data[2 * n + 1] = band
        data[2 * n + 2, d:] = band[: size - d]
    signed = np.concatenate([[0], np.stack([-offsets[1:], offsets[1:]], 1).ravel()])
    matrix = dia_array((data, signed), shape=(size, size))
    if np.count_nonzero(data) < data.size / 4:  # most rays have few of the neighbours that some have
        matrix = matrix.tocsr()
    return lambda w: matrix @ w


def _largest_eigenvalue(multiply: Callable[[Values], Values], start: Values) -> float:
    """A lower bound, by Lanczos iterations."""
    from scipy.linalg import eigvalsh_tridiagonal

    v, before, beta = start / np.linalg.norm(start), np.zeros_like(start), 0.0
    alphas: list[float] = []
    betas: list[float] = []
    for _ in range(min(_LANCZOS, len(start))):
        w = multiply(v) - beta * before
        alphas.append(float(v @ w))
        w -= alphas[-1] * v
        beta = float(np.linalg.norm(w))
        betas.append(beta)
        if beta <= 1e-6 * max(alphas):
            break
        before, v = v, w / beta
    return float(eigvalsh_tridiagonal(alphas, betas[:-1])[-1])


def _conjugate_gradients(multiply: Callable[[Values], Values], shift: float, right: Values) -> Values | None:
    """x > 0 with |shift x - M x - right| < right / 2 everywhere; None if shift is below an eigenvalue of M."""
    x, r = np.zeros_like(right), right.copy()
    p, square = r, float(r @ r)
    for _ in range(_GRADIENTS):
        product = shift * p - multiply(p)
        curvature = float(p @ product)
        if curvature <= 0:
            return None
        x = x + (square / curvature) * p
        r = r - (square / curvature) * product
        if float((np.abs(r) / right).max()) < 0.5:
            return x if bool((x > 0).all()) else None
        before, square = square, float(r @ r)
        p = r + (square / before) * p
    return None
