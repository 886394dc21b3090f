"""Solve for many right-hand sides of one linear operator by correcting guesses of its inverse."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.block_gmres import Solutions, row_norms

# Products below this share of the largest, squared, are nearly combinations of others, and left out.
_SHARE = {torch.complex64: 1e-5, torch.complex128: 1e-12}
# A guess that leaves more than this of a residual is not worth another one.
_SLOW = 0.5


def refine(
    apply: Callable[[Tensor], Tensor],
    guess: Callable[[Tensor, float], Tensor],
    b: Tensor,
    *,
    tol: float,
    max_iterations: int = 200,
    limit: int = 400,
    measured: bool = True,
) -> Solutions:
    r"""Solutions of A x_i = b_i from guesses M of A^{-1}, until ||b_i - A x_i|| <= tol ||b_i|| or guesses do not help.

    A step guesses d_i = M r_i for all residuals r_i and uses d_i as it is if that is enough:

        x_i <- x_i + d_i,    r_i <- r_i - A d_i,

    and otherwise the combination of all d so far, of all steps and all i, that leaves the least of r_i. A guess that is
    off by a hundredth makes the residuals a hundred times smaller. M may change each time.

    Holds for any M; an M that leaves more than half of a residual ends it, so the caller can finish in another way.

    Arguments:
        apply: A, maps (k, n) to the same, complex. b: (B, n).
        guess: M, maps rows (k, n) and a tolerance to rows; it need not be closer to A^{-1} than the tolerance.
        limit: of stored directions, each with its product.
        measured: whether to measure the last residuals; if not, the last guess is assumed to be as good as the one
            before, which saves its product.
    Reference: Atkinson, The Numerical Solution of Integral Equations of the Second Kind, ch. 6; for combinations, Saad,
    SIAM J. Sci. Comput. 14(2), 1993.
    """
    scale = norms = row_norms(b)
    solution: Tensor | None = None
    residual, guesses = b, _Guesses(limit)
    iterations = 0
    while iterations < max_iterations and bool((unsolved := norms > tol * scale).any()):
        rows = None if unsolved.all() else torch.from_numpy(np.flatnonzero(unsolved)).to(b.device)
        current = residual if rows is None else residual[rows]
        new = guess(current, float((tol * scale[unsolved] / norms[unsolved]).min()))
        product = apply(new)
        iterations += 1
        rest = current - product
        after = row_norms(rest)
        if not (after <= tol * scale[unsolved]).all():
            guesses.append(new, product)
            if (shares := guesses.shares(current)) is None:
                break
            new, rest = guesses.combine(shares, current)
            after = row_norms(rest)
        if rows is None:
            solution, residual = new if solution is None else solution + new, rest
        else:
            solution = torch.zeros_like(b) if solution is None else solution.clone()
            solution[rows] += new
            residual = residual.clone()
            residual[rows] = rest
        gain = after / norms[unsolved]
        norms = norms.copy()
        norms[unsolved] = after
        if (gain > _SLOW).any():
            break
        if not measured and (gain.max() * norms <= tol * scale).all():
            tolerance = np.divide(tol * scale, norms, out=np.ones(len(b)), where=norms > 0).min()
            solution, norms = solution + guess(residual, float(tolerance)), gain.max() * norms
    relative = np.divide(norms, scale, out=np.zeros(len(b)), where=scale > 0)
    return Solutions(torch.zeros_like(b) if solution is None else solution, relative, iterations)


class _Guesses:
    """Directions and their products so far, (k, n) each, and what the products have in common, (all, all)."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._blocks: list[tuple[Tensor, Tensor]] = []
        self._gram: NDArray[np.complex128] = np.zeros((0, 0), dtype=np.complex128)

    def append(self, directions: Tensor, products: Tensor) -> None:
        """Add directions; the oldest are dropped if there is no room for all."""
        while self._blocks and len(self._gram) + len(directions) > self.limit:
            first = len(self._blocks.pop(0)[0])
            self._gram = self._gram[first:, first:]
        self._blocks.append((directions, products))
        across = self._overlaps(products)  # (k, all)
        old, new = len(self._gram), across.shape[1]
        gram = np.empty((new, new), dtype=np.complex128)
        gram[:old, :old] = self._gram
        gram[old:], gram[:old, old:] = across, across[:, :old].conj().T
        self._gram = gram

    def shares(self, vectors: Tensor) -> Tensor | None:
        """The combinations of products closest to vectors (k, n): (k, all); None if they are not finite."""
        length = np.sqrt(self._gram.diagonal().real)  # products get shorter with the residuals
        if not np.isfinite(self._gram).all() or not length.all():
            return None
        values, turns = np.linalg.eigh(self._gram / np.outer(length, length))
        significant = values > _SHARE[vectors.dtype] * values[-1]
        turned = (self._overlaps(vectors) / length) @ turns[:, significant]
        shares = (turned / values[significant]) @ turns[:, significant].conj().T / length
        return torch.from_numpy(shares).to(vectors.device, vectors.dtype)

    def combine(self, shares: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """These combinations of directions, and vectors less those of products: (k, n) each."""
        combined, rest = torch.zeros_like(vectors), vectors.clone()
        parts = shares.split([len(directions) for directions, _ in self._blocks], 1)
        for part, (directions, products) in zip(parts, self._blocks, strict=True):
            combined.addmm_(part, directions)
            rest.addmm_(part, products, alpha=-1)
        return combined, rest

    def _overlaps(self, vectors: Tensor) -> NDArray[np.complex128]:
        parts = torch.cat([vectors @ products.mH for _, products in self._blocks], 1)
        return parts.cpu().numpy().astype(np.complex128)
