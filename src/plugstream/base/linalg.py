"""Conjugate gradients and power iteration on images, several independent images at a time."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from plugstream.base.errors import InputError, PlugstreamWarning


def broadcast_axes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that these broadcast to; ValueError if they do not.

    torch's own function does the same, and the first call of it imports a computer algebra system, for half a second.
    """
    return np.broadcast_shapes(*map(tuple, shapes))


# Images of up to this many numbers are combined by one thread: waking a second takes longer than it saves, and it then
# spins for a while on a core that one of our kernels wants next.
_ALONE = 1 << 20


def add_scaled(x: Tensor, scale: float, y: Tensor) -> Tensor:
    """x + scale y, to the bit as torch computes it, and on the CPU without waking torch's threads for a small image.

    On CUDA it is one kernel, without an image in between.

    Arguments: x, y: images of one shape. scale: a number.
    """
    if x.is_cuda and y.is_cuda:
        return torch.add(x, y, alpha=scale)
    if not (x.shape == y.shape and x.dtype == y.dtype and x.ndim > 0 and _is_small(x) and _is_small(y)):
        return x + scale * y
    values = y.detach().numpy()
    with np.errstate(all="ignore"):  # infinity and NaN as in torch
        out = np.multiply(values, values.dtype.type(scale))
        out += x.detach().numpy()
    return torch.from_numpy(out)


def extrapolate(x: Tensor, ahead: float, before: Tensor) -> Tensor:
    """x + ahead (x - before), with `add_scaled`; on CUDA one kernel.

    Arguments: x, before: images of one shape. ahead: a number.
    """
    if x.is_cuda and before.is_cuda:
        return torch.lerp(before, x, 1 + ahead)
    return add_scaled(x, ahead, add_scaled(x, -1.0, before))


def largest_norm(a: Tensor, ndim: int = 2) -> float:
    """The largest `norm` of some images, NaN if one holds a NaN; like `add_scaled`, without waking threads."""
    if not _is_small(a) or a.numel() == 0:
        return float(norm(a, ndim).max())
    values = a.detach().numpy().reshape(-1, math.prod(a.shape[a.ndim - ndim :]))
    with np.errstate(all="ignore"):
        return float(np.sqrt(np.einsum("ij,ij->i", values, values)).max())


def _is_small(a: Tensor) -> bool:
    """Whether one thread is enough, and NumPy can be used."""
    plain = a.device.type == "cpu" and a.dtype in (torch.float32, torch.float64) and not a.is_neg()
    return plain and a.numel() <= _ALONE and not (torch.is_grad_enabled() and a.requires_grad)


# A random start has some of every eigenvector, but needs a few products until the top one stands out.
_LEAST = 10


def inner(a: Tensor, b: Tensor, ndim: int = 2) -> Tensor:
    """<a, b> = Re(sum conj(a) b) of each image, whose axes are the last `ndim`: (..., *image_shape) twice to (...).

    For complex images it is the inner product of their real and imaginary parts, under which gradients of real
    functions are taken.
    """
    if a.is_complex() or b.is_complex():
        product: Tensor = a.real * b.real + a.imag * b.imag if a.is_complex() and b.is_complex() else (a * b).real
    else:
        product = a * b
    return product.sum(image_axes(ndim))


def norm(a: Tensor, ndim: int = 2) -> Tensor:
    """||a||_2 of each image: (..., *image_shape) to (...), real."""
    length: Tensor = torch.linalg.vector_norm(a, dim=image_axes(ndim))
    return length


def squared_norm(a: Tensor, ndim: int = 2) -> Tensor:
    """||a||_2^2 of each image: (..., *image_shape) to (...), real."""
    squares: Tensor = a.real.square() + a.imag.square() if a.is_complex() else a.square()
    return squares.sum(image_axes(ndim))


def per_image(value: Tensor, ndim: int = 2) -> Tensor:
    """One number for each image, (...), in a shape that multiplies images, (..., 1, ..., 1)."""
    return value[(..., *(None,) * ndim)]


def image_axes(ndim: int) -> tuple[int, ...]:
    """The last `ndim` axes, which are those of one image."""
    return tuple(range(-ndim, 0))


@dataclass(frozen=True)
class Solution:
    """The result of `conjugate_gradient`: the image, the number of iterations, and the largest ||b - A x|| / ||b||."""

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
    ndim: int = 2,
) -> Solution:
    """Solve A x = b for a symmetric (Hermitian) positive definite A, given as a function, for each image of b.

    Stops when ||b - A x|| <= tol ||b|| for all of them. Finished images take steps of length zero, so that the result
    of an image does not depend on the others.

    Arguments: apply maps (..., *image_shape) to the same; b is (..., *image_shape); start is a first guess of the same
    shape; ndim, the number of axes of an image.
    Reference: Hestenes and Stiefel, J. Res. Nat. Bur. Standards 49, 1952.
    """
    x = torch.zeros_like(b) if start is None else start
    r = b.clone() if start is None else b - apply(x)
    p, rr = r, squared_norm(r, ndim)
    goal = (tol * norm(b, ndim)) ** 2
    iterations = 0
    while iterations < max_iterations and bool((rr > goal).any()):
        active = rr > goal
        ap = apply(p)
        alpha = per_image(torch.where(active, rr / inner(p, ap, ndim), 0.0), ndim)
        x, r = x + alpha * p, r - alpha * ap
        rr, before = squared_norm(r, ndim), rr
        p = torch.where(per_image(active, ndim), r + per_image(rr / before, ndim) * p, p)
        iterations += 1
    scale = norm(b, ndim).clamp_min(torch.finfo(b.dtype).tiny)
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
    ndim: int = 2,
) -> Tensor:
    """The largest eigenvalue of a symmetric positive semidefinite operator, to a stated tolerance.

    Lanczos iteration: theta is the largest eigenvalue of A on the Krylov space v, Av, A^2 v, ..., from a tridiagonal
    matrix. (Diffraction tomography has many eigenvalues close to the largest, and power iteration took ten times as
    many products.)

    Stops after at least ten products, once the residual ||A u - theta u|| of the Ritz vector u is below tol theta / 10,
    so that an eigenvalue is that near; returns (1 + tol) theta. theta never exceeds the largest eigenvalue, so the
    result is at most a factor 1 + tol too large. It is not too small unless the random start has almost nothing of the
    top eigenvector; the tenth separates eigenvalues that are tol apart.

    Arguments: apply maps (..., *image_shape) to the same, the leading axes being independent operators; like gives
    shape, device and dtype, which may be complex; ndim, the number of axes of an image.
    Returns (...), in double precision on the CPU.
    Reference: Golub and Van Loan, Matrix Computations, sections 8.2 and 10.1.
    """
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)
    v = v / per_image(norm(v, ndim), ndim)
    before, beta = torch.zeros_like(v), torch.zeros_like(norm(v, ndim))
    alphas: list[Tensor] = []
    betas: list[Tensor] = []
    size = math.prod(like.shape[like.ndim - ndim :]) * (2 if like.is_complex() else 1)
    unit = 1.0
    for k in range(1, max_iterations + 1):
        w = apply(v)
        if k == 1:
            unit = product_unit(w)
        w = (w if unit == 1 else w / unit) - per_image(beta, ndim) * before
        alpha = inner(v, w, ndim)
        w = w - per_image(alpha, ndim) * v
        beta = norm(w, ndim)
        alphas.append(alpha.cpu().double())
        betas.append(beta.cpu().double())
        if k >= min(_LEAST, size, max_iterations):  # nothing is decided by fewer
            theta, residual = _top_of_tridiagonal(torch.stack(alphas, -1), torch.stack(betas, -1))
            if k == size or bool((residual <= 0.1 * tol * theta).all()):
                return theta * (1 + tol) * unit
        # If the Krylov space ends (beta = 0), the recurrence continues with zeros, which add no eigenvalue above theta.
        nonzero = beta > torch.finfo(like.dtype).tiny
        scale = per_image(torch.where(nonzero, beta, 1.0), ndim)
        before, v = v, torch.where(per_image(nonzero, ndim), w / scale, 0.0)
    warnings.warn(
        f"the largest eigenvalue did not settle to {tol:.1e} in {max_iterations} iterations; L may be too small",
        PlugstreamWarning,
        stacklevel=2,
    )
    return theta * (1 + tol) * unit


def product_unit(product: Tensor) -> float:
    """A divisor that keeps the squares of an operator's products finite; 1 unless they are very small or large.

    In single precision the square of 1e-20 is zero, and that of 1e20 infinite. NaN and infinity are refused.
    """
    largest = float(product.abs().max())
    if not math.isfinite(largest):
        raise InputError("the model's products hold NaN or infinity, so L is unknown; scale the model, or check it")
    return 1.0 if largest == 0 or 1e-12 < largest < 1e12 else 2.0 ** round(math.log2(largest))


def largest_ritz_value(
    apply: Callable[[Tensor], Tensor], like: Tensor, products: int, *, seed: int = 0, ndim: int = 2
) -> float:
    """A lower bound of the largest eigenvalue of a symmetric operator from this many products: Lanczos' largest value.

    Arguments as for `largest_eigenvalue`, with an image alone: like is of image_shape.
    """
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)
    basis = [v / norm(v, ndim)]
    size = like.numel() * (2 if like.is_complex() else 1)
    entries = torch.zeros(min(products, size), min(products, size), dtype=torch.float64)
    unit = 1.0
    for k in range(len(entries)):
        w = apply(basis[k])
        if k == 0:
            unit = product_unit(w)
        w = w if unit == 1 else w / unit
        for j, other in enumerate(basis):
            entries[j, k] = entries[k, j] = inner(other, w, ndim).item()
        for _ in range(2):  # twice, so that the basis is orthonormal to rounding, and the value from below
            for other in basis:
                w = w - inner(other, w, ndim) * other
        length = float(norm(w, ndim))
        if k + 1 == len(entries) or not length > 100 * torch.finfo(like.dtype).eps * float(entries.abs().max()):
            break
        basis.append(w / length)
    return float(torch.linalg.eigvalsh(entries[: k + 1, : k + 1])[-1]) * unit


def local_curvature(gradient: Callable[[Tensor], Tensor], image: Tensor, ndim: int = 2) -> float:
    """The largest eigenvalue of a function's second derivative at an image, from differences of its gradient.

    An estimate, good to a few hundredths in double precision: H v = (grad f(x + h v) - grad f(x)) / h with h the root
    of the machine precision, in Lanczos iterations as `largest_eigenvalue`.

    Arguments: gradient, of the function; image (*image_shape), a single one; ndim, the number of its axes.
    """
    g, size = gradient(image), max(1.0, float(norm(image, ndim)))
    h = math.sqrt(torch.finfo(image.dtype).eps) * size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlugstreamWarning)  # an estimate will do
        hessian = lambda v: (gradient(image + h * v) - g) / h  # noqa: E731
        return float(largest_eigenvalue(hessian, image, tol=0.05, max_iterations=30, ndim=ndim))


def _top_of_tridiagonal(alphas: Tensor, betas: Tensor) -> tuple[Tensor, Tensor]:
    """The largest eigenvalue of the Lanczos matrix, and the residual of its Ritz vector: beta_k |last entry|."""
    inside = betas[..., :-1]
    matrix = torch.diag_embed(alphas) + torch.diag_embed(inside, 1) + torch.diag_embed(inside, -1)
    values, vectors = torch.linalg.eigh(matrix)
    return values[..., -1], betas[..., -1] * vectors[..., -1, -1].abs()
