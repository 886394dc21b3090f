"""The prox of total variation by a solver written differently."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import diags, eye, kron, vstack
from scipy.sparse.linalg import factorized


def admm(
    parts: NDArray[np.float64], ndim: int, strength: float, isotropic: bool, low: float, high: float
) -> NDArray[np.float64]:
    """As `_admm`, computed once for all forms that are compared with it."""
    parts = np.ascontiguousarray(parts)
    return _admm(parts.tobytes(), parts.shape, ndim, strength, isotropic, low, high)


@functools.cache
def _admm(
    content: bytes, shape: tuple[int, ...], ndim: int, strength: float, isotropic: bool, low: float, high: float
) -> NDArray[np.float64]:
    """The prox for components (K, *spatial) by ADMM on sparse matrices: another method, another form of differences.

    min 1/2 ||x - z||^2 + strength sum |v| subject to v = D x and x in the box, where |v| is the length over axes and
    components of a pixel, or (anisotropic) the sum over axes of that over components.
    """
    parts = np.frombuffer(content).reshape(shape)
    spatial, components = parts.shape[1:], len(parts)
    rows = []
    for axis in range(ndim):
        step = diags([-np.ones(spatial[axis]), np.ones(spatial[axis] - 1)], [0, 1]).tolil()
        step[-1] = 0
        rows.append(kron(kron(eye(math.prod(spatial[:axis])), step), eye(math.prod(spatial[axis + 1 :]))))
    d, n = vstack(rows).tocsc(), math.prod(spatial)
    z = parts.reshape(components, n).T
    solve = factorized((2 * eye(n) + d.T @ d).tocsc())
    v, u, w, q = np.zeros((ndim * n, components)), np.zeros((ndim * n, components)), z.copy(), np.zeros_like(z)
    before = np.inf * w
    for k in range(40_000):
        if k % 100 == 0:
            if np.abs(w - before).max() < 1e-8:
                break
            before = w
        x = solve(z + d.T @ (v - u) + (w - q))
        g = d @ x + u
        field = g.reshape(ndim, n, components)
        over = (0, 2) if isotropic else (2,)
        size = np.sqrt((field**2).sum(axis=over, keepdims=True))
        v = (field * np.maximum(0, 1 - strength / np.maximum(size, 1e-300))).reshape(g.shape)
        u = g - v
        w = np.clip(x + q, low, high)
        q = q + x - w
    return w.T.reshape(parts.shape)
