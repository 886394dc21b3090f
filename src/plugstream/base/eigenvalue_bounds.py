"""Upper bounds of the eigenvalues of many operators, from a few products with each of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from plugstream.base.linalg import inner, norm, per_image, product_unit

# Products between two computations of the bounds, which need all eigenvalues of small matrices.
_BETWEEN = 3
# Rounding in a product, over the largest eigenvalue and the machine precision: sums over pixels.
_ROUNDINGS = 256.0


def largest_eigenvalue_bounds(
    apply: Callable[[Tensor, Tensor], Tensor],
    like: Tensor,
    *,
    tol: float = 0.2,
    failure: float = 1e-3,
    largest: float = 0.0,
    max_iterations: int = 300,
    seed: int = 0,
    ndim: int = 2,
    look: Callable[[int], object] | None = None,
) -> tuple[Tensor, float]:
    r"""Upper bounds of the largest eigenvalues of several symmetric positive semidefinite operators A_i.

    The largest bound is at most 1 + tol times the largest eigenvalue of all; an operator that cannot have it is left as
    soon as that is clear, with the bound so far. This costs a few products if one A_i stands out, and about
    ln(sqrt(n) / failure) / (2 sqrt(tol)) with each if all are alike and their spectra dense.

    k steps of Lanczos from a unit vector v give v_{k+1} = p_k(A) v, also of length one, with

        p_k(t) = prod_j (t - theta_j) / prod_j beta_j,

    theta_j the Ritz values. Its part along the eigenvector of the largest eigenvalue lambda is c p_k(lambda), c that of
    v, so that p_k(lambda) <= 1 / |c|. Beyond the largest theta p_k increases: lambda is below the t with
    p_k(t) = 1 / delta unless |c| < delta, which for a random v happens with a probability below delta sqrt(2 n / pi).
    Here delta is such that all bounds hold together with a probability of 1 - failure. (A residual only says that some
    eigenvalue is near.)

    Arguments:
        apply: maps images (B, *image_shape) and the operators' numbers (B,) to A_i x_i; B falls as operators are left.
        like: (operators, *image_shape), for shape, device and dtype, which may be complex. ndim: axes of an image.
        largest: a known eigenvalue of another operator. look: called now and then with how many operators are done.
    Returns the bounds, (operators,) in double precision on the CPU, and the largest Ritz value, at least `largest`.
    Reference: Hochstenbach, J. Sci. Comput. 57, 2013; van Dorsselaer, Hochstenbach and van der Vorst, SIAM J. Matrix
    Anal. Appl. 22, 2000.
    """
    count = len(like)
    size = math.prod(like.shape[like.ndim - ndim :]) * (2 if like.is_complex() else 1)
    log_inverse = math.log(max(1, count) * math.sqrt(2 * size / math.pi) / failure)
    rounding = _ROUNDINGS * torch.finfo(like.dtype).eps
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)
    v = v / per_image(norm(v, ndim), ndim)
    before, beta = torch.zeros_like(v), torch.zeros_like(norm(v, ndim))
    bounds = torch.zeros(count, dtype=torch.float64)
    active, units = torch.arange(count), torch.ones_like(beta)
    table = _Table()
    for k in range(1, max_iterations + 1):
        w = apply(v, active)
        if k == 1:  # of each operator by itself, since they may be of very different sizes
            units = torch.tensor([product_unit(one) for one in w], dtype=beta.dtype, device=beta.device)
        w = w / per_image(units, ndim) - per_image(beta, ndim) * before
        alpha = inner(v, w, ndim)
        w = w - per_image(alpha, ndim) * v
        beta = norm(w, ndim)
        table.append(alpha, beta)
        ended = table.betas[-1] <= rounding * table.scale()  # nothing is left but rounding: the Krylov space is whole
        if k % _BETWEEN == 0 or k >= size or k == max_iterations or bool(ended.any()):
            top, values = (bound * units.cpu().double() for bound in table.bounds(log_inverse))
            values = torch.where(ended | (k >= size), top, values) * (1 + rounding)
            bounds[active] = values
            largest = max(largest, float(top.max()))
            unsettled = ~ended & (values > (1 + tol) * largest)
            if look is not None:
                look(count - int(unsettled.sum()))
            if k >= size or not bool(unsettled.any()):
                break
            if not bool(unsettled.all()):
                rows = unsettled.to(v.device)
                v, w, beta, units, active = v[rows], w[rows], beta[rows], units[rows], active[unsettled]
                table.keep(unsettled)
        before, v = v, w / per_image(beta, ndim)
    return bounds, largest


def nonnegative_bound(forward: Callable[[Tensor], Tensor], adjoint: Callable[[Tensor], Tensor], start: Tensor) -> float:
    r"""An upper bound of ||A||^2 for a matrix A without negative entries, from one product with A' and one with A.

    A A' has no negative entries either, so that its largest eigenvalue, ||A||^2, is at most

        max_j (A A' w)_j / w_j

    for every w > 0 (Collatz and Wielandt; with w = 1, Gershgorin's circles say the same), with equality if w is the
    eigenvector. A model that knows a good w gives it by `ModelBase.windows`. Nothing is random.

    Arguments: forward, adjoint: products with A and A'. start: w, data, all positive and not far from 1.
    Reference: Horn and Johnson, Matrix Analysis, 2nd ed., theorem 8.1.26.
    """
    bound = float((forward(adjoint(start)) / start).max())
    return bound * (1 + _ROUNDINGS * torch.finfo(start.dtype).eps)


@dataclass
class _Table:
    """The diagonals of the tridiagonal matrices of several Lanczos recurrences, in double precision on the CPU."""

    alphas: list[Tensor] = field(default_factory=list)
    betas: list[Tensor] = field(default_factory=list)

    def append(self, alpha: Tensor, beta: Tensor) -> None:
        self.alphas.append(alpha.cpu().double())
        self.betas.append(beta.cpu().double())

    def keep(self, which: Tensor) -> None:
        self.alphas = [alpha[which] for alpha in self.alphas]
        self.betas = [beta[which] for beta in self.betas]

    def scale(self) -> Tensor:
        """How large each operator is, roughly: the largest diagonal entry so far."""
        return torch.stack(self.alphas).amax(0).clamp_min(0)

    def bounds(self, log_inverse: float) -> tuple[Tensor, Tensor]:
        """The largest Ritz value, and the t beyond it with log p_k(t) = log(1 / delta), by bisection."""
        alphas, betas = torch.stack(self.alphas, -1), torch.stack(self.betas, -1)
        inside = betas[:, :-1]
        matrix = torch.diag_embed(alphas) + torch.diag_embed(inside, 1) + torch.diag_embed(inside, -1)
        ritz = torch.linalg.eigvalsh(matrix)
        top = ritz[:, -1]
        goal = betas.clamp_min(torch.finfo(torch.float64).tiny).log().sum(-1) + log_inverse
        below = torch.zeros_like(top)
        above = torch.exp(goal / alphas.shape[-1])  # all factors are at least t - top
        for _ in range(60):
            middle = (below + above) / 2
            short = (middle[:, None] + (top[:, None] - ritz)).log().sum(-1) < goal
            below, above = torch.where(short, middle, below), torch.where(short, above, middle)
        return top, top + above
