"""One linear operator and many right-hand sides: a space of directions that all of them share, block GMRES."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["KrylovSpace", "Solutions"]

Matrix = NDArray[np.complex128]

# Directions that are nearly combinations of others are left out, by their share of the largest, squared.
_SHARE = {torch.complex64: 1e-4, torch.complex128: 1e-10}
# Below this tolerance new products are made orthogonal to the old ones twice, since once leaves some rounding.
_ONCE = {torch.complex64: 2e-4, torch.complex128: 1e-7}
# Where the smallest of new products is below this share of the largest, squared, they are made orthonormal twice.
_ALIKE = 0.1


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
        self._directions, self._products = _Rows(), _Rows()
        self._mixture: Matrix = np.zeros((0, 0), dtype=np.complex128)  # products = A (mixture @ directions)

    def solve(self, b: Tensor, *, tol: float, max_iterations: int = 200) -> Solutions:
        """x_i with ||b_i - A x_i|| <= tol ||b_i||, or what was found with `max_iterations` products: (B, n)."""
        scale = norms = _norms(b)
        found, residual = torch.zeros_like(b), b
        shares: Matrix = np.zeros((len(b), 0), dtype=np.complex128)  # of the products, in what they explain of each b
        if len(self._products):
            residual, shares = _take_away(residual, self._products.rows)
            norms = _norms(residual)
        taken = 0
        while taken < max_iterations and bool((left := norms > tol * scale).any()):
            if len(self._products) > 0 and len(self._products) + int(left.sum()) > self.limit:
                found, shares = found + self._combine(shares), shares[:, :0]
                self._forget()
            which = torch.from_numpy(np.flatnonzero(left)).to(b.device)
            new = self._extend(residual[which], norms[left], tol)
            taken += 1
            if new is None:
                break
            residual, more = _take_away(residual, new)
            shares = np.concatenate([shares, more], 1)
            norms = _norms(residual)
        relative = np.divide(norms, scale, out=np.zeros(len(b)), where=scale > 0)
        return Solutions(found + self._combine(shares) if shares.size else found, relative, taken)

    def _extend(self, residuals: Tensor, norms: NDArray[np.float64], tol: float) -> Tensor | None:
        """The products with some more directions, orthonormal: (k, n); None where they bring nothing new."""
        kind = residuals.dtype
        directions = residuals * torch.from_numpy(1 / norms).to(residuals.device, kind.to_real())[:, None]
        products = self.apply(directions)
        before = self._mixture
        below = np.zeros((len(directions), before.shape[1]), dtype=np.complex128)
        own = np.eye(len(directions), dtype=np.complex128)
        if len(self._products):
            for _ in range(2 if tol < _ONCE[kind] else 1):
                products, share = _take_away(products, self._products.rows)
                below -= share @ before
        for _ in range(2):
            gram = _to_numpy(products @ products.mH)
            if not np.isfinite(gram).all():
                return None
            values, vectors = np.linalg.eigh(gram)
            if not values[-1] > 0:  # A is singular there
                return None
            kept = values > _SHARE[kind] * values[-1]
            turn = (vectors[:, kept] / np.sqrt(values[kept])).conj().T
            products = torch.from_numpy(turn).to(products) @ products
            own, below = turn @ own, turn @ below
            if values[kept][0] > _ALIKE * values[-1]:
                break
        mixture = np.zeros((len(before) + len(own), before.shape[1] + len(directions)), dtype=np.complex128)
        mixture[: len(before), : before.shape[1]] = before
        mixture[len(before) :, : before.shape[1]], mixture[len(before) :, before.shape[1] :] = below, own
        self._mixture = mixture
        self._directions.append(directions)
        self._products.append(products)
        return products

    def _combine(self, shares: Matrix) -> Tensor:
        """The x whose A x are these combinations of products: (B, n)."""
        return torch.from_numpy(shares @ self._mixture).to(self._directions.rows) @ self._directions.rows

    def _forget(self) -> None:
        self._directions, self._products = _Rows(), _Rows()
        self._mixture = np.zeros((0, 0), dtype=np.complex128)


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

    def append(self, more: Tensor) -> None:
        need = self._count + len(more)
        if self._room is None or need > len(self._room):
            room = more.new_empty((max(need, 2 * self._count, 4 * len(more)), more.shape[1]))
            if self._room is not None:
                room[: self._count] = self.rows
            self._room = room
        self._room[self._count : need] = more
        self._count = need


def _take_away(vectors: Tensor, products: Tensor) -> tuple[Tensor, Matrix]:
    """Vectors (B, n) less what orthonormal products (k, n) explain of them, and their shares in it: (B, k)."""
    shares = vectors @ products.mH
    return torch.addmm(vectors, shares, products, alpha=-1), _to_numpy(shares)


def _norms(vectors: Tensor) -> NDArray[np.float64]:
    parts = torch.view_as_real(vectors).flatten(1)  # torch's norm of complex numbers is ten times slower
    norms: NDArray[np.float64] = torch.linalg.vector_norm(parts, dim=1).double().cpu().numpy()
    return norms


def _to_numpy(small: Tensor) -> Matrix:
    return small.cpu().numpy().astype(np.complex128)
