"""Conjugate gradients and power iteration on images, several independent images at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from plugstream.errors import PlugstreamWarning

__all__ = ["Solution", "conjugate_gradient", "inner", "largest_eigenvalue", "norm"]


# A random start has some of every eigenvector, but needs a few products until the top one stands out.
_LEAST = 10


def inner(a: Tensor, b: Tensor) -> Tensor:
    """<a, b> of each image: (..., H, W) twice to (...)."""
    product: Tensor = a * b
    return product.sum((-2, -1))


def norm(a: Tensor) -> Tensor:
    """||a||_2 of each image: (..., H, W) to (...)."""
    length: Tensor = torch.linalg.vector_norm(a, dim=(-2, -1))
    return length


@dataclass(frozen=True)
class Solution:
    """What `conjugate_gradient` found: the image, the iterations taken, and ||b - A x|| / ||b||, the largest."""

    image: Tensor
    iterations: int
    residual: float


def conjugate_gradient(
    apply: Callable[[Tensor], Tensor],
    b: Tensor,
    *,
    start: Tensor | None = None,
    tol: float = 1e-6,
    max_iterations: int = 200,
) -> Solution:
    """Solve A x = b for a symmetric positive definite A, given as a function, for each image of b.

    Stops when ||b - A x|| <= tol ||b|| for all of them. Images that are done take steps of length zero while
    the others go on, so that each image's result does not depend on which others it came with.

    Arguments: apply maps (..., H, W) to (..., H, W); b is (..., H, W); start is a first guess of the same shape.
    Reference: Hestenes and Stiefel, J. Res. Nat. Bur. Standards 49, 1952.
    """
    x = torch.zeros_like(b) if start is None else start
    r = b.clone() if start is None else b - apply(x)
    p, rr = r, inner(r, r)
    goal = (tol * norm(b)) ** 2
    iterations = 0
    while iterations < max_iterations and bool((rr > goal).any()):
        active = rr > goal
        ap = apply(p)
        alpha = torch.where(active, rr / inner(p, ap), 0.0)[..., None, None]
        x, r = x + alpha * p, r - alpha * ap
        rr, before = inner(r, r), rr
        p = torch.where(active[..., None, None], r + (rr / before)[..., None, None] * p, p)
        iterations += 1
    scale = norm(b).clamp_min(torch.finfo(b.dtype).tiny)
    residual = float((rr.sqrt() / scale).max())
    if bool((rr > goal).any()):
        warnings.warn(
            f"conjugate gradients stopped after {iterations} iterations at a relative residual of {residual:.1e}, "
            f"short of {tol:.1e}; allow more iterations, or a larger tolerance",
            PlugstreamWarning,
            stacklevel=2,
        )
    return Solution(x, iterations, residual)


def largest_eigenvalue(
    apply: Callable[[Tensor], Tensor],
    like: Tensor,
    *,
    tol: float = 1e-2,
    max_iterations: int = 300,
    seed: int = 0,
) -> Tensor:
    """The largest eigenvalue of a symmetric positive semidefinite operator, to a stated tolerance.

    Power iteration that keeps the whole Krylov space v, Av, A^2 v, ... instead of its last vector (Lanczos): the
    largest eigenvalue of A on it, theta, comes from the recurrence's tridiagonal matrix. Diffraction tomography has
    many eigenvalues close to the largest, where plain power iteration took ten times as many products.

    Stops when the residual ||A u - theta u|| of the Ritz vector u is below tol * theta / 10, so that an eigenvalue lies
    within that of theta, after at least ten products; returns (1 + tol) theta. theta never exceeds the largest
    eigenvalue, hence the result is at most a factor 1 + tol too large. That the eigenvalue found is the largest, and
    the result not too small, holds unless the random start has next to nothing of its eigenvector; the tenth keeps two
    eigenvalues that lie tol apart from being taken for one between them.

    Arguments: apply maps (..., H, W) to (..., H, W), the leading axes being independent operators; like gives
    shape, device and dtype. Returns (...), in double precision on the CPU.
    Reference: Golub and Van Loan, Matrix Computations, sections 8.2 and 10.1.
    """
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)
    v = v / norm(v)[..., None, None]
    before, beta = torch.zeros_like(v), torch.zeros(like.shape[:-2], dtype=like.dtype, device=like.device)
    alphas: list[Tensor] = []
    betas: list[Tensor] = []
    size = like.shape[-2] * like.shape[-1]
    for k in range(1, max_iterations + 1):
        w = apply(v) - beta[..., None, None] * before
        alpha = inner(v, w)
        w = w - alpha[..., None, None] * v
        beta = norm(w)
        alphas.append(alpha.cpu().double())
        betas.append(beta.cpu().double())
        theta, residual = _top_of_tridiagonal(torch.stack(alphas, -1), torch.stack(betas, -1))
        if k == size or (k >= _LEAST and bool((residual <= 0.1 * tol * theta).all())):
            return theta * (1 + tol)
        # Where the Krylov space ends (beta = 0) the recurrence goes on with zeros, which add no eigenvalue above theta.
        left = beta > torch.finfo(like.dtype).tiny
        before, v = v, torch.where(left[..., None, None], w / torch.where(left, beta, 1.0)[..., None, None], 0.0)
    warnings.warn(
        f"the largest eigenvalue did not settle to {tol:.1e} in {max_iterations} iterations; L may be too small",
        PlugstreamWarning,
        stacklevel=2,
    )
    return theta * (1 + tol)


def _top_of_tridiagonal(alphas: Tensor, betas: Tensor) -> tuple[Tensor, Tensor]:
    """The largest eigenvalue of the Lanczos matrix, and the residual of its Ritz vector: beta_k |last entry|."""
    inside = betas[..., :-1]
    matrix = torch.diag_embed(alphas) + torch.diag_embed(inside, 1) + torch.diag_embed(inside, -1)
    values, vectors = torch.linalg.eigh(matrix)
    return values[..., -1], betas[..., -1] * vectors[..., -1, -1].abs()
