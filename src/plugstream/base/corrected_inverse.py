"""Many right-hand sides of one linear operator, solved for by guesses of its inverse that are corrected."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.block_gmres import Solutions, row_norms

__all__ = ["refine"]

# Products that are nearly combinations of others are left out, by their share of the largest, squared.
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
    r"""Solutions of A x_i = b_i from guesses M of A^{-1}, until ||b_i - A x_i|| <= tol ||b_i|| or guesses are no use.

    A step guesses d_i = M r_i of all residuals r_i and takes d_i as it is where that is enough:

        x_i <- x_i + d_i,    r_i <- r_i - A d_i,

    and otherwise the combination of all d so far, of all steps and all i, that leaves the least of r_i. With a guess
    that is off by a hundredth, a step makes the residuals a hundred times smaller. M may be another one each time.

    Holds for any M; one that leaves more than half of a residual ends it, so that a caller finishes what is left in
    another way.

    Arguments:
        apply: A, maps (k, n) to the same, complex.
        guess: M, maps rows (k, n) and a tolerance to rows; closer to A^{-1} than the tolerance is no use.
        b: (B, n).
        limit: directions that are kept, each with its product.
        measured: whether the last residuals are; if not, the last guess is expected to do as much as the one before,
            which saves its product.
    Reference: Atkinson, The Numerical Solution of Integral Equations of the Second Kind, ch. 6; for combinations, Saad,
    SIAM J. Sci. Comput. 14(2), 1993.
    """
    scale = norms = row_norms(b)
    found: Tensor | None = None
    residual, before = b, _Guesses(limit)
    taken = 0
    while taken < max_iterations and bool((left := norms > tol * scale).any()):
        rows = None if left.all() else torch.from_numpy(np.flatnonzero(left)).to(b.device)
        some = residual if rows is None else residual[rows]
        new = guess(some, float((tol * scale[left] / norms[left]).min()))
        product = apply(new)
        taken += 1
        rest = some - product
        after = row_norms(rest)
        if not (after <= tol * scale[left]).all():
            before.append(new, product)
            if (shares := before.shares(some)) is None:
                break
            new, rest = before.combine(shares, some)
            after = row_norms(rest)
        if rows is None:
            found, residual = new if found is None else found + new, rest
        else:
            found = torch.zeros_like(b) if found is None else found.clone()
            found[rows] += new
            residual = residual.clone()
            residual[rows] = rest
        gain = after / norms[left]
        norms = norms.copy()
        norms[left] = after
        if (gain > _SLOW).any():
            break
        if not measured and (gain.max() * norms <= tol * scale).all():
            wanted = np.divide(tol * scale, norms, out=np.ones(len(b)), where=norms > 0).min()
            found, norms = found + guess(residual, float(wanted)), gain.max() * norms
    relative = np.divide(norms, scale, out=np.zeros(len(b)), where=scale > 0)
    return Solutions(torch.zeros_like(b) if found is None else found, relative, taken)


class _Guesses:
    """Directions and their products so far, (k, n) each, and what the products have in common, (all, all)."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._blocks: list[tuple[Tensor, Tensor]] = []
        self._gram: NDArray[np.complex128] = np.zeros((0, 0), dtype=np.complex128)

    def append(self, directions: Tensor, products: Tensor) -> None:
        """Add some; the first are given up where there is no room for all."""
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
        """The combinations of products that are nearest to vectors (k, n): (k, all); None where they are no numbers."""
        length = np.sqrt(self._gram.diagonal().real)  # products get shorter with the residuals
        if not np.isfinite(self._gram).all() or not length.all():
            return None
        values, turns = np.linalg.eigh(self._gram / np.outer(length, length))
        kept = values > _SHARE[vectors.dtype] * values[-1]
        turned = (self._overlaps(vectors) / length) @ turns[:, kept]
        shares = (turned / values[kept]) @ turns[:, kept].conj().T / length
        return torch.from_numpy(shares).to(vectors.device, vectors.dtype)

    def combine(self, shares: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """These combinations of directions, and vectors less those of products: (k, n) each."""
        found, rest = torch.zeros_like(vectors), vectors.clone()
        parts = shares.split([len(directions) for directions, _ in self._blocks], 1)
        for part, (directions, products) in zip(parts, self._blocks, strict=True):
            found.addmm_(part, directions)
            rest.addmm_(part, products, alpha=-1)
        return found, rest

    def _overlaps(self, vectors: Tensor) -> NDArray[np.complex128]:
        parts = torch.cat([vectors @ products.mH for _, products in self._blocks], 1)
        return parts.cpu().numpy().astype(np.complex128)
