"""GMRES on many right-hand sides at once, each with its own Krylov space and its own end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Fields", "gmres"]

# Below this tolerance the basis is orthogonalised twice: once leaves it orthogonal to the root of rounding or so.
_ONCE = {torch.complex64: 1e-4, torch.complex128: 1e-7}


@dataclass(frozen=True)
class Fields:
    """What `gmres` found: the solutions (B, n), and of each its relative residual and the products it took, (B,)."""

    values: Tensor
    residuals: NDArray[np.float64]
    iterations: NDArray[np.int64]


def gmres(
    apply: Callable[[Tensor], Tensor],
    b: Tensor,
    *,
    tol: float,
    max_iterations: int = 200,
    restart: int = 40,
) -> Fields:
    """Solve A x_i = b_i for each row of b, with A given as a function, to ||b_i - A x_i|| <= tol ||b_i||.

    Of all x in the Krylov space of b_i, A b_i, A^2 b_i, ... GMRES takes the one of the least residual. Rows share
    nothing but the calls of `apply`: each ends with its own iteration, and goes on as a passenger until all have, so
    that what it finds does not depend on the others. The residual is the recurrence's, which rounding keeps true for
    tolerances well above machine precision.

    Holds for any A that can be inverted; how fast it is depends on A. After `restart` products the space is begun anew
    from the residual, which bounds the memory: (restart + 1) vectors for each row.

    Arguments: apply maps (B, n) to the same; b (B, n), complex; tol, relative; max_iterations, products in all.
    Reference: Saad and Schultz, SIAM J. Sci. Stat. Comput. 7(3), 1986.
    """
    count = len(b)
    scale = torch.linalg.vector_norm(b, dim=1).double().cpu().numpy()
    goal = tol * scale
    x = torch.zeros_like(b)
    residual, norms = b, scale.copy()
    taken = np.zeros(count, dtype=np.int64)
    done = 0
    while done < max_iterations and bool((norms > goal).any()):
        room = min(restart, max_iterations - done)
        update, norms, steps = _cycle(apply, residual, norms, goal, room, twice=tol < _ONCE[b.dtype])
        x = x + update
        taken += steps
        done += int(steps.max())
        if done < max_iterations and bool((norms > goal).any()):
            residual = b - apply(x)
            norms = torch.linalg.vector_norm(residual, dim=1).double().cpu().numpy()
    relative = np.divide(norms, scale, out=np.zeros(count), where=scale > 0)
    return Fields(x, relative, taken)


def _cycle(
    apply: Callable[[Tensor], Tensor],
    residual: Tensor,
    norms: NDArray[np.float64],
    goal: NDArray[np.float64],
    room: int,
    *,
    twice: bool,
) -> tuple[Tensor, NDArray[np.float64], NDArray[np.int64]]:
    """One space of up to `room` products: what to add to x, the norms of the residuals then, and products of each."""
    count, size = residual.shape
    basis = torch.empty((count, room + 1, size), dtype=residual.dtype, device=residual.device)
    basis[:, 0] = residual * _column(_inverse(norms), residual)
    # Of each row, the Hessenberg matrix made triangular by rotations, and the right-hand side turned with it.
    triangle = np.zeros((count, room, room), dtype=np.complex128)
    turned = np.zeros((count, room + 1), dtype=np.complex128)
    turned[:, 0] = norms
    cosines, sines = np.zeros((count, room)), np.zeros((count, room), dtype=np.complex128)
    left, steps = norms.copy(), np.zeros(count, dtype=np.int64)
    for j in range(room):
        going = left > goal
        if not going.any():
            break
        w = apply(basis[:, j])
        known = basis[:, : j + 1]
        h = _products(known, w)
        w = torch.baddbmm(w[:, None], h[:, None], known, alpha=-1)[:, 0]
        if twice:
            more = _products(known, w)
            w = torch.baddbmm(w[:, None], more[:, None], known, alpha=-1)[:, 0]
            h = h + more
        length = torch.linalg.vector_norm(w, dim=1)
        column = torch.cat([h, length[:, None].to(h.dtype)], 1).cpu().numpy().astype(np.complex128)
        lengths = column[:, j + 1].real.copy()
        basis[:, j + 1] = w * _column(_inverse(lengths), w)
        for i in range(j):
            above, below = column[:, i].copy(), column[:, i + 1].copy()
            column[:, i] = cosines[:, i] * above + sines[:, i] * below
            column[:, i + 1] = cosines[:, i] * below - sines[:, i].conj() * above
        _rotate(column, turned, cosines, sines, j, lengths)
        triangle[:, : j + 1, j] = column[:, : j + 1]
        steps[going] = j + 1
        left = np.where(going, np.abs(turned[:, j + 1]), left)
    return _combine(basis, triangle, turned, steps), left, steps


def _rotate(
    column: NDArray[np.complex128],
    turned: NDArray[np.complex128],
    cosines: NDArray[np.float64],
    sines: NDArray[np.complex128],
    j: int,
    lengths: NDArray[np.float64],
) -> None:
    """The rotation that takes the last entry of a new column away, applied to it and to the right-hand side."""
    head = column[:, j]
    size = np.hypot(np.abs(head), lengths)
    safe = np.where(size > 0, size, 1.0)
    phase = np.where(np.abs(head) > 0, head / np.where(np.abs(head) > 0, np.abs(head), 1.0), 1.0)
    cosines[:, j], sines[:, j] = np.where(size > 0, np.abs(head) / safe, 1.0), phase * lengths / safe
    column[:, j] = phase * size
    above = turned[:, j].copy()
    turned[:, j] = cosines[:, j] * above
    turned[:, j + 1] = -sines[:, j].conj() * above


def _combine(
    basis: Tensor, triangle: NDArray[np.complex128], turned: NDArray[np.complex128], steps: NDArray[np.int64]
) -> Tensor:
    """The sum of the basis with the coefficients of least residual, of each row as many as it took steps."""
    most = max(1, int(steps.max()))
    y = np.zeros((len(steps), most), dtype=np.complex128)
    for i, m in enumerate(steps):
        if m > 0 and np.abs(np.diagonal(triangle[i, :m, :m])).min() > 0:
            y[i, :m] = np.linalg.solve(triangle[i, :m, :m], turned[i, :m])
    return torch.bmm(torch.from_numpy(y).to(basis)[:, None], basis[:, :most])[:, 0]


def _products(known: Tensor, w: Tensor) -> Tensor:
    """<v_i, w> of each row's basis: (B, j, n) and (B, n) to (B, j)."""
    return torch.bmm(known, w.conj().resolve_conj()[..., None])[..., 0].conj().resolve_conj()


def _inverse(norms: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)


def _column(values: NDArray[Any], like: Tensor) -> Tensor:
    return torch.from_numpy(values).to(device=like.device, dtype=like.dtype.to_real())[:, None]
