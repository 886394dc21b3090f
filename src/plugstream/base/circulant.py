"""Operators that are nearly convolutions, by the circulant next to them: what makes conjugate gradients short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from plugstream.base.linalg import inner, per_image

__all__ = ["Circulant", "preconditioned_steps"]


@dataclass(frozen=True, eq=False)
class Circulant:
    r"""C = F^{-1} diag(s) F with s >= 0, F the discrete Fourier transform over an image's spatial axes.

    Arguments: spectrum, s, of the image's shape; of real images half of it, as `torch.fft.rfftn` has it; shape, the
    image's; ndim, how many of its last axes are spatial; real, whether images are.
    """

    spectrum: Tensor
    shape: tuple[int, ...]
    ndim: int
    real: bool

    @classmethod
    def near(cls, apply: Callable[[Tensor], Tensor], like: Tensor, ndim: int) -> Circulant:
        r"""The circulant next to A, symmetric (Hermitian), positive semidefinite and nearly a convolution.

        From one product: with h the response to a point in the middle of the image and w(t) = max(0, 1 - 2|t|/n) along
        each axis of length n, s is the transform of h(t) w(t_1) ... w(t_d). For a convolution, h is a positive
        semidefinite function of the distance t, and so is w; so is their product (Schur), which vanishes half an image
        away, so that its periodic continuation has no negative transform. What an operator that is no convolution
        leaves below zero is cut off. The window is the price for edges that do not wrap around: it smooths s over two
        frequencies.

        Arguments: apply, A, from (*shape) to the same; like, an empty image of the shape, kind and device; ndim,
        spatial axes of it, the axes before which, such as channels, are each of their own.
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
) -> Tensor:
    """A few steps of preconditioned conjugate gradients for A x = b, each image by itself: (..., *image_shape).

    There is no tolerance: the caller wants so many products, and no more. An image whose residual is zero stays.

    Arguments: apply, A, symmetric and positive definite; solve, the inverse of what stands in for A, so too; start, x;
    residual, b - A x; steps >= 1, as many products with A; ndim, axes of an image.
    Reference: Concus, Golub and O'Leary, in Sparse Matrix Computations, 1976.
    """
    x, r = start, residual
    direction = solve(r)
    size = inner(r, direction, ndim)
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
        direction = again + per_image(torch.where(before > 0, size / before, 0.0), ndim) * direction
    return x
