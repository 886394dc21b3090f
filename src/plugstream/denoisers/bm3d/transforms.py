"""The fixed matrices of BM3D: bior1.5, DCT, Haar and the Kaiser window."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]


@cache
def dct(size: int) -> Matrix:
    """The orthonormal DCT-II, (size, size): row u is its u-th basis vector."""
    n, u = np.arange(size), np.arange(size)[:, None]
    matrix: Matrix = np.cos(np.pi * (2 * n + 1) * u / (2 * size)) * np.sqrt(2 / size)
    matrix[0] /= np.sqrt(2)
    return matrix


def principal_axes(image: NDArray[Any]) -> NDArray[Any]:
    """The unitary matrix to the principal components of channels, (C, C), the strongest first.

    The phase of each is such that most of it is real. Arguments: image, (H, W, C).
    """
    pixels = image.reshape(-1, image.shape[2]).astype(np.result_type(image.dtype, np.float64))
    turn: NDArray[Any] = np.linalg.eigh(pixels.T @ pixels.conj())[1].T.conj()[::-1]
    if np.iscomplexobj(turn):
        turn = turn * np.exp(-0.5j * np.angle(((pixels @ turn.T) ** 2).sum(0)))[:, None]
    return turn


@cache
def haar(size: int) -> Matrix:
    """The orthonormal Haar transform, (size, size), size a power of two: the mean first, then coarse to fine."""
    if size == 1:
        return np.ones((1, 1))
    half = haar(size // 2)
    matrix: Matrix = np.concatenate([np.kron(half, [1, 1]), np.kron(np.eye(size // 2), [1, -1])]) / np.sqrt(2)
    return matrix


@cache
def bior15(size: int) -> Matrix:
    """The biorthogonal spline wavelet 1.5 with periodic borders, all levels, rows of length 1: (size, size).

    It is not orthogonal: what it analyses, `np.linalg.inv` of it puts together again. Unit rows give every coefficient
    the variance of the noise. Row 0 is the mean's.
    Reference: Cohen, Daubechies and Feauveau, Comm. Pure Appl. Math. 45, 1992.
    """
    low = np.array([3, -3, -22, 22, 128, 128, 22, -22, -3, 3]) / (128 * np.sqrt(2))
    matrix = np.eye(size)
    n = size
    while n > 1:
        level = np.zeros((n, n))
        for k in range(n // 2):
            for j, tap in enumerate(low):
                level[k, (2 * k - 4 + j) % n] += tap
            level[n // 2 + k, 2 * k : 2 * k + 2] = [-np.sqrt(0.5), np.sqrt(0.5)]
        matrix[:n] = level @ matrix[:n]
        n //= 2
    normal: Matrix = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    return normal


def transform(name: str, size: int = 8) -> Matrix:
    """The transform "bior15" or "dct", (size, size)."""
    return {"bior15": bior15, "dct": dct}[name](size)


@cache
def correlations(name: str, size: int = 8, axes: int = 2) -> Matrix:
    """What two spectra of white noise share where blocks overlap: (size + 1, ..., size^axes), for distances 0 .. size.

    rho(dy, dx)[u, v] = r_u(dy) r_v(dx),  r_u(d) = sum_n a_u[n] a_u[n + d], with a_u the rows of the transform `name`
    ("bior15" or "dct"), and likewise for cubes. It is even in dy and dx, 1 for a block with itself, and 0 from a
    distance of `size` on.
    """
    rows = transform(name, size)
    r = np.stack([np.einsum("un,un->u", rows[:, : size - d], rows[:, d:]) for d in range(size + 1)])
    table = np.ones(())
    for _ in range(axes):  # from (d ..., u ...) to (d ..., d', u ..., u')
        table = np.multiply.outer(table, r)
        table = np.moveaxis(table, -2, table.ndim // 2 - 1)
    return table.reshape(*[size + 1] * axes, size**axes)


@cache
def kaiser_window(size: int, beta: float) -> Matrix:
    """The Kaiser window of two dimensions, (size, size), by which a block's estimates count."""
    row = np.kaiser(size, beta)
    window: Matrix = np.outer(row, row)
    return window


@cache
def native_matrices(kaiser: float) -> dict[str, NDArray[np.float32]]:
    """What the native kernel takes: the transforms of both stages and the window, rounded as `reference.py` does."""
    analysis = np.stack([bior15(8), dct(8)]).astype(np.float32)
    return {
        "analysis": analysis,
        "synthesis": np.linalg.inv(analysis.astype(np.float64)).astype(np.float32),
        "correlations": np.stack([correlations(name)[:8, :8] for name in ("bior15", "dct")]).astype(np.float32),
        "kaiser": np.kaiser(8, kaiser).astype(np.float32),
    }
