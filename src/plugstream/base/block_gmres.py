"""Block GMRES: one linear operator and many right-hand sides that share a space of directions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Complex = NDArray[np.complex128]

# Products whose independent share, squared, is less than this are left out.
SHARE = {torch.complex64: 1e-4, torch.complex128: 1e-10}
# Below this tolerance new products are made orthogonal to the old ones twice, since once leaves some rounding.
ONCE = {torch.complex64: 2e-4, torch.complex128: 1e-7}
# New products are made orthonormal twice if the least over the largest, squared, is below this; below a tenth of it
# if the tolerance allows the rounding.
_ILL_CONDITIONED = 0.01
# Rows have room for this many blocks from the beginning: memory that is not written to costs nothing.
_BLOCKS = 24


@dataclass(frozen=True)
class Solutions:
    """Solutions (B, n), the relative residual of each, (B,), and the number of products with blocks."""

    values: Tensor
    residuals: NDArray[np.float64]
    iterations: int


class KrylovSpace:
    r"""Solutions of A x_i = b_i for one operator A and many b_i, each taken from the space that all of them span.

    Every step multiplies A with the unsolved residuals, makes the products orthonormal to each other and to those
    before, and subtracts from every residual what they explain: residuals are minimal over the common space, as in
    GMRES over its own. Ten b give ten directions a step, and a third of the steps is enough; the next problem with the
    same A begins with the whole space.

    Holds for any invertible A. The solution for a b depends on the other b, and on those before it, only within `tol`.

    Arguments:
        apply: maps (k, n) to the same, complex.
        limit: of stored directions, each with its product; beyond it, the space restarts from the residuals.
    Reference: Eisenstat, Elman and Schultz, SIAM J. Numer. Anal. 20(2), 1983; for blocks, O'Leary, Linear Algebra Appl.
    29, 1980; for recycling between systems, Parks et al., SIAM J. Sci. Comput. 28(5), 2006.
    """

    def __init__(self, apply: Callable[[Tensor], Tensor], *, limit: int = 400) -> None:
        self.apply, self.limit = apply, limit
        self._forget()

    def solve(self, b: Tensor, *, tol: float, max_iterations: int = 200) -> Solutions:
        """x_i with ||b_i - A x_i|| <= tol ||b_i||, or the best after `max_iterations` products: (B, n)."""
        scale = row_norms(b)
        units = np.where(scale > 0, scale, 1.0)
        residual, norms = b * _place(1 / units, b)[:, None], scale / units
        shares = np.zeros((len(b), 0), dtype=np.complex128)  # of the products, in what they explain of each b
        earlier: Tensor | None = None  # the solution before the space was restarted
        if len(self._products):
            shares = _fetch(take_away(residual, self._products.rows))
            norms = row_norms(residual)
        iterations = 0
        while iterations < max_iterations and bool((unsolved := norms > tol).any()):
            if len(self._products) > 0 and len(self._products) + int(unsolved.sum()) > self.limit:
                earlier, shares = self._combine(units[:, None] * shares, b, earlier), shares[:, :0]
                self._forget()
            rows = residual if unsolved.all() else residual[torch.from_numpy(np.flatnonzero(unsolved)).to(b.device)]
            new = self._extend(rows, residual, twice=tol < ONCE[b.dtype])
            iterations += 1
            if new is None:
                norms = row_norms(residual)
                break
            shares = np.concatenate([shares, new], 1)
            # By Pythagoras, which saves a GPU a wait, and measured if little is left or this is the last.
            rest = np.sqrt(np.maximum(norms**2 - (np.abs(new) ** 2).sum(1), 0))
            sure = (rest > 0.1 * norms).all() and (rest > tol).any() and iterations < max_iterations
            norms = rest if sure else row_norms(residual)
        return Solutions(self._combine(units[:, None] * shares, b, earlier), norms, iterations)

    def _extend(self, rows: Tensor, residual: Tensor, *, twice: bool) -> Complex | None:
        """Add the directions of some rows, and subtract from all residuals, in place, what their products explain.

        Small matrices are on the CPU; a GPU waits for it once, or twice if products are nearly dependent.

        Returns: the shares of the new products in the residuals, (B, k); None if they bring nothing new.
        """
        products = self.apply(rows)
        parts = []
        for _ in range(2 if twice else 1):
            if len(self._products):
                parts.append(take_away(products, self._products.rows))
        small = _fetch(torch.cat([*parts, products @ products.mH, products @ residual.mH], 1))
        *below, gram, overlaps = np.split(small, np.cumsum([*(part.shape[1] for part in parts), len(products)]), 1)
        explained = sum(below, np.zeros((len(products), len(self._products)), dtype=np.complex128))
        # Relative to the full products, so that their rounding is not made a direction.
        lengths = np.sqrt(gram.diagonal().real + (np.abs(explained) ** 2).sum(1))
        basis = _orthonormal(gram, lengths, SHARE[rows.dtype])
        if basis is None:
            return None
        turn, least = basis
        rotation = placed = _place(turn, products)
        shares = turn @ overlaps
        if least < (_ILL_CONDITIONED if twice else 0.1 * _ILL_CONDITIONED):  # a second pass removes the rounding
            products = rotation @ products
            small = _fetch(torch.cat([products @ products.mH, products @ residual.mH], 1))
            gram, overlaps = np.split(small, [len(products)], 1)
            basis = _orthonormal(gram, np.ones(len(gram)), SHARE[rows.dtype])
            if basis is None:
                return None
            rotation, shares, turn = _place(basis[0], products), basis[0] @ overlaps, basis[0] @ turn
            placed = _place(turn, products)
        self._directions.append(placed, rows)
        self._triangle.append(turn @ explained)
        shares = shares.conj().T
        residual.addmm_(_place(shares, residual), self._products.append(rotation, products), alpha=-1)
        return shares

    def _combine(self, shares: Complex, like: Tensor, earlier: Tensor | None) -> Tensor:
        """The x whose A x are these combinations of products, added to the earlier solution: (B, n)."""
        if not shares.shape[1]:
            return torch.zeros_like(like) if earlier is None else earlier
        solution = _place(self._triangle.divide(shares), like) @ self._directions.rows
        return solution if earlier is None else earlier + solution

    def _forget(self) -> None:
        self._directions, self._products = _Rows(), _Rows()
        self._triangle = _Triangle()  # A directions = triangle @ products


class _Rows:
    """Rows that grow in one piece of memory, so that they are one matrix."""

    def __init__(self) -> None:
        self._room: Tensor | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> Tensor:
        assert self._room is not None
        return self._room[: self._count]

    def append(self, left: Tensor, right: Tensor) -> Tensor:
        """Add the rows of left @ right, and return them."""
        need = self._count + len(left)
        if self._room is None or need > len(self._room):
            room = right.new_empty((max(need, 2 * self._count, _BLOCKS * len(left)), right.shape[1]))
            if self._room is not None:
                room[: self._count] = self.rows
            self._room = room
        new = self._room[self._count : need]
        torch.mm(left, right, out=new)
        self._count = need
        return new


class _Triangle:
    """A lower triangle with a diagonal of ones, whose rows are added in blocks; rows of one block are orthonormal."""

    def __init__(self) -> None:
        self._blocks: list[Complex] = []

    def append(self, rows: Complex) -> None:
        """Add rows (k, n), with as many columns as there have been rows."""
        self._blocks.append(rows)

    def divide(self, shares: Complex) -> Complex:
        """The shares (B, n) divided by the triangle: (B, n)."""
        out = shares.copy()
        for rows in reversed(self._blocks):
            count, start = rows.shape
            out[:, :start] -= out[:, start : start + count] @ rows
        return out


def _orthonormal(gram: Complex, lengths: NDArray[np.float64], share: float) -> tuple[Complex, float] | None:
    """The orthonormal combinations of rows with this Gram matrix (k, k), and the least over the largest, squared.

    Combinations of less than `share`, squared, are left out; None if nothing is left, or if it is not finite.

    Arguments: lengths that rows are relative to, (k,).
    """
    if not np.isfinite(gram).all():
        return None
    units = np.where(lengths > 0, lengths, 1.0)
    values, vectors = np.linalg.eigh(gram / units[:, None] / units)
    significant = values > share
    if not significant.any():
        return None
    turn = (vectors[:, significant] / np.sqrt(values[significant])).conj().T / units
    return turn, float(values[significant][0] / values[-1])


def _fetch(matrix: Tensor) -> Complex:
    return matrix.cpu().numpy().astype(np.complex128)


def _place(array: NDArray[np.generic], like: Tensor) -> Tensor:
    """An array as a tensor on the device of another and of its precision."""
    single = like.dtype == torch.complex64
    kinds = (np.complex64, np.complex128) if np.iscomplexobj(array) else (np.float32, np.float64)
    return torch.from_numpy(np.ascontiguousarray(array, dtype=kinds[0 if single else 1])).to(like.device)


def take_away(vectors: Tensor, products: Tensor) -> Tensor:
    """Subtract from vectors (B, n), in place, what orthonormal products (k, n) explain; returns their shares (B, k)."""
    shares = vectors @ products.mH
    vectors.addmm_(shares, products, alpha=-1)
    return shares


def row_norms(vectors: Tensor) -> NDArray[np.float64]:
    """The norm of each row of complex numbers: (B, n) to (B,)."""
    parts = torch.view_as_real(vectors).flatten(1)  # torch's norm of complex numbers is ten times slower
    norms: NDArray[np.float64] = torch.linalg.vector_norm(parts, dim=1).cpu().double().numpy()
    return norms
