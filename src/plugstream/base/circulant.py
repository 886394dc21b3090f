"""The circulant nearest to an operator that is nearly a convolution: a preconditioner of conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from plugstream.base.linalg import inner, per_image


@dataclass(frozen=True, eq=False)
class Circulant:
    r"""C = F^{-1} diag(s) F with s >= 0, F the discrete Fourier transform over an image's spatial axes.

    Arguments: spectrum, s, of the image's shape; for real images half of it, as in `torch.fft.rfftn`; shape, the
    image's; ndim, the number of spatial axes, the last ones; real, whether images are.
    """

    spectrum: Tensor
    shape: tuple[int, ...]
    ndim: int
    real: bool

    @classmethod
    def near(cls, apply: Callable[[Tensor], Tensor], like: Tensor, ndim: int) -> Circulant:
        r"""The circulant nearest to A, symmetric (Hermitian), positive semidefinite and nearly a convolution.

        From one product: with h the response to a point in the middle of the image and w(t) = max(0, 1 - 2|t|/n) along
        each axis of length n, s is the transform of h(t) w(t_1) ... w(t_d). For a convolution, h and w are positive
        semidefinite functions of the distance t, and so is their product (Schur), which vanishes half an image away, so
        its periodic continuation has no negative transform. For other operators, negative values are cut off. The
        window smooths s over two frequencies, since edges do not wrap around.

        Arguments: apply, A, from (*shape) to the same; like, an image of the shape, dtype and device; ndim, its spatial
        axes; those before them, such as channels, are independent.
        References: Chan, SIAM J. Sci. Stat. Comput. 9(4), 1988; for tomography, Fessler and Booth, IEEE Trans. Image
        Process. 8(5), 1999.
        """
        shape = tuple(like.shape)
        axes = tuple(range(len(shape) - ndim, len(shape)))
        point = torch.zeros_like(like)
        middle = tuple(shape[axis] // 2 for axis in axes)
        where: tuple[slice | int, ...] = (*(slice(None),) * axes[0], *middle)
        point[where] = 1.0
        response = apply(point)
        for axis, centre in zip(axes, middle, strict=True):
            n = shape[axis]
            window = (1 - 2 * (torch.arange(n, dtype=torch.float64) - centre).abs() / n).clamp_min(0)
            response = response * window.to(response).reshape(n, *(1,) * (len(shape) - 1 - axis))
        response = torch.roll(response, tuple(-centre for centre in middle), axes)
        real = not like.is_complex()
        transformed = torch.fft.rfftn(response, dim=axes) if real else torch.fft.fftn(response, dim=axes)
        return cls(transformed.real.clamp_min(0), shape, ndim, real)

    def solve(self, image: Tensor, shift: float) -> Tensor:
        """(C + shift I)^{-1} z for shift > 0: (..., *shape) to the same."""
        axes = tuple(range(-self.ndim, 0))
        sizes = self.shape[len(self.shape) - self.ndim :]
        divided = (torch.fft.rfftn if self.real else torch.fft.fftn)(image, dim=axes) / (self.spectrum + shift)
        back = torch.fft.irfftn if self.real else torch.fft.ifftn
        out: Tensor = back(divided, s=sizes, dim=axes)
        return out


def preconditioned_steps(
    apply: Callable[[Tensor], Tensor],
    solve: Callable[[Tensor], Tensor],
    start: Tensor,
    residual: Tensor,
    steps: int,
    ndim: int,
    tol: float = 0.0,
) -> Tensor:
    """A few steps of preconditioned conjugate gradients for A x = b, each image by itself: (..., *image_shape).

    An image whose residual is zero stays.

    Arguments: apply, A, symmetric and positive definite; solve, the inverse of the preconditioner, so too; start, x;
    residual r, b - A x; steps >= 1 at most, each with one product with A; ndim, axes of an image; tol, at which part of
    its start the norm <r, M^-1 r>^(1/2) of the preconditioner M ends the steps, where it is there of all images.
    Reference: Concus, Golub and O'Leary, in Sparse Matrix Computations, 1976.
    """
    x, r = start, residual
    direction = solve(r)
    first = size = inner(r, direction, ndim)
    for step in range(steps):
        product = apply(direction)
        curvature = inner(direction, product, ndim)
        length = per_image(torch.where(curvature > 0, size / curvature, 0.0), ndim)
        x = x + length * direction
        if step + 1 == steps:
            break
        r = r - length * product
        again = solve(r)
        before, size = size, inner(r, again, ndim)
        if tol and bool((size <= tol**2 * first).all()):
            break
        direction = again + per_image(torch.where(before > 0, size / before, 0.0), ndim) * direction
    return x
