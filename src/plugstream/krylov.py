"""One linear operator and many right-hand sides: a space of directions that all of them share, block GMRES."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["KrylovSpace", "Solutions", "row_norms"]

# Directions that are nearly combinations of others are left out, by their share of the largest, squared.
_SHARE = {torch.complex64: 1e-4, torch.complex128: 1e-10}
# Below this tolerance new products are made orthogonal to the old ones twice, since once leaves some rounding.
_ONCE = {torch.complex64: 2e-4, torch.complex128: 1e-7}
# Where the smallest of new products is below this share of the largest, squared, they are made orthonormal twice.
_ALIKE = 0.01
# Rows have room for so many blocks from the beginning: memory that is not written to costs nothing.
_BLOCKS = 12


@dataclass(frozen=True)
class Solutions:
    """What was found: values (B, n), the relative residual of each, (B,), and the products with blocks that it took."""

    values: Tensor
    residuals: NDArray[np.float64]
    iterations: int


class KrylovSpace:
    r"""Solutions of A x_i = b_i for one operator A and many b_i, each taken from the space that all of them span.

    Every step multiplies A with the residuals of those that are not solved yet, makes the products orthonormal to each
    other and to those before, and takes away from every residual what they explain: the residuals are the least that
    the space of all directions so far allows, as GMRES has it for one b and the space of its own. With ten b the
    space has ten directions a step, and a third of the steps is enough; what is asked next of the same A, such as the
    solutions of the adjoint problem, begins with all of it.

    Holds for any A that can be inverted. What is found for a b depends on the others it came with, and before it, only
    within `tol`.

    Arguments:
        apply: maps (k, n) to the same, complex.
        limit: directions that are kept, each with its product; with more the space is begun anew from the residuals.
    Reference: Eisenstat, Elman and Schultz, SIAM J. Numer. Anal. 20(2), 1983; for blocks, O'Leary, Linear Algebra Appl.
    29, 1980; for what is kept from one system to the next, Parks et al., SIAM J. Sci. Comput. 28(5), 2006.
    """

    def __init__(self, apply: Callable[[Tensor], Tensor], *, limit: int = 400) -> None:
        self.apply, self.limit = apply, limit
        self._forget()

    def solve(self, b: Tensor, *, tol: float, max_iterations: int = 200) -> Solutions:
        """x_i with ||b_i - A x_i|| <= tol ||b_i||, or what was found with `max_iterations` products: (B, n)."""
        scale = norms = row_norms(b)
        residual, begun = b.clone(), None  # begun: what was found before the space was begun anew
        shares = self._explain(residual)  # of the products, in what they explain of each b
        if len(self._products):
            norms = row_norms(residual)
        taken = 0
        while taken < max_iterations and bool((left := norms > tol * scale).any()):
            if len(self._products) > 0 and len(self._products) + int(left.sum()) > self.limit:
                begun, shares = self._combine(shares, begun), shares[:, :0]
                self._forget()
            rows = residual if left.all() else residual[torch.from_numpy(np.flatnonzero(left)).to(b.device)]
            new = self._extend(rows, norms[left], tol)
            taken += 1
            if new is None:
                break
            shares = torch.cat([shares, _take_away(residual, new)], 1)
            norms = row_norms(residual)
        relative = np.divide(norms, scale, out=np.zeros(len(b)), where=scale > 0)
        found = self._combine(shares, begun) if shares.numel() else begun
        return Solutions(torch.zeros_like(b) if found is None else found, relative, taken)

    def _extend(self, residuals: Tensor, norms: NDArray[np.float64], tol: float) -> Tensor | None:
        """The products with some more directions, orthonormal: (k, n); None where they bring nothing new.

        Small matrices stay with the large ones, but for one of k x k whose eigenvectors are found on the CPU: on a GPU
        a step waits for that one and for the norms alone.
        """
        kind, device = residuals.dtype, residuals.device
        directions = residuals * torch.from_numpy(1 / norms).to(device, kind.to_real())[:, None]
        products = self.apply(directions)
        parts = self._explain(products)  # of the products before in the new ones
        if len(self._products) and tol < _ONCE[kind]:
            parts += self._explain(products)
        turn = torch.eye(len(directions), dtype=kind, device=device)
        for last in (False, True):
            gram = (products @ products.mH).cpu().numpy().astype(np.complex128)
            if not np.isfinite(gram).all():
                return None
            values, vectors = np.linalg.eigh(gram)
            if not values[-1] > 0:  # A is singular there
                return None
            kept = values > _SHARE[kind] * values[-1]
            own = torch.from_numpy((vectors[:, kept] / np.sqrt(values[kept])).conj().T).to(device, kind)
            turn = own @ turn
            if last or values[kept][0] > _ALIKE * values[-1]:
                break
            products = own @ products
        self._triangle.grow(turn @ parts)
        self._directions.append(turn, directions)
        return self._products.append(own, products)

    def _explain(self, vectors: Tensor) -> Tensor:
        """Take away from vectors, in place, what the products so far explain of them; their shares in it: (B, k)."""
        if len(self._products) == 0:
            return vectors.new_zeros((len(vectors), 0))
        return _take_away(vectors, self._products.rows)

    def _combine(self, shares: Tensor, begun: Tensor | None) -> Tensor:
        """The x whose A x are these combinations of products, added to what was found before: (B, n)."""
        found = self._triangle.divide(shares) @ self._directions.rows
        return found if begun is None else begun + found

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
    """A lower triangle with a diagonal of ones, whose rows come some at a time, in memory that it can grow in."""

    def __init__(self) -> None:
        self._room: Tensor | None = None
        self._count = 0

    def grow(self, rows: Tensor) -> None:
        """Add rows (k, n), with as many columns as there have been rows."""
        start, need = self._count, self._count + len(rows)
        if self._room is None or need > len(self._room):
            room = rows.new_empty(2 * (2 * max(need, 32),), dtype=torch.complex128)
            if self._room is not None:
                room[:start, :start] = self._room[:start, :start]
            self._room = room
        self._room[start:need, :start] = rows
        # What a block's own rows share is nothing: they were made orthonormal, and their directions turned with them.
        self._room[start:need, start:need] = 0
        self._count = need

    def divide(self, shares: Tensor) -> Tensor:
        """What gives the shares (B, n) when multiplied with the triangle: (B, n)."""
        assert self._room is not None
        whole = self._room[: self._count, : self._count]
        wide = shares.to(whole.dtype)
        found = torch.linalg.solve_triangular(whole, wide, upper=False, left=False, unitriangular=True)
        return torch.as_tensor(found).to(shares.dtype)


def _take_away(vectors: Tensor, products: Tensor) -> Tensor:
    """Take from vectors (B, n), in place, what orthonormal products (k, n) explain; their shares in it: (B, k)."""
    shares = vectors @ products.mH
    vectors.addmm_(shares, products, alpha=-1)
    return shares


def row_norms(vectors: Tensor) -> NDArray[np.float64]:
    """The norm of each row of complex numbers: (B, n) to (B,)."""
    parts = torch.view_as_real(vectors).flatten(1)  # torch's norm of complex numbers is ten times slower
    norms: NDArray[np.float64] = torch.linalg.vector_norm(parts, dim=1).double().cpu().numpy()
    return norms
