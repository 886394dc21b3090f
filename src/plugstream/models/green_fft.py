"""The field that currents in the pixels send to all pixels: a convolution with Green's function, by FFT."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["GreenFFT", "truncated_green"]

# Where |s - k| L is below this, the quotient of two numbers that both vanish is taken as a mean of derivatives.
_NEAR = 1e-2


class GreenFFT:
    r"""f -> k_0^2 int g(r - r') f(r') dr' on the pixels of a grid or of a box of it, g = (i/4) H_0^(1)(k |r|).

    g is cut off beyond the grid's diagonal, which no pair of pixels can tell, and its transform is then smooth and
    known (`truncated_green`), so that the sum over pixels converges as fast as f is smooth: at second order where
    an object has edges and its pixels hold averages. The operator is a symmetric matrix, complex and not Hermitian: its
    adjoint is its conjugate.

    A product costs an FFT there and back of twice the box's sides, with rows and columns that are zero left out.

    Arguments: shape (H, W) of the grid; pixel in metres; wavenumber k in the background; scale, k_0^2; device; dtype,
    the real precision.
    Reference: Vico, Greengard and Ferrando, J. Comput. Phys. 323, 2016.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        pixel: float,
        wavenumber: float,
        scale: float,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.shape = shape
        kind = torch.complex64 if dtype == torch.float32 else torch.complex128
        kernel = scale * truncated_green(shape, pixel, wavenumber)
        self._kernel = torch.from_numpy(kernel).to(device=device, dtype=kind)
        self._symbols: dict[tuple[int, int], Tensor] = {}

    @property
    def held(self) -> int:
        """Bytes kept."""
        return self._kernel.nbytes + sum(symbol.nbytes for symbol in self._symbols.values())

    def apply(self, currents: Tensor) -> Tensor:
        """The field of currents in a box of the grid, in that box: (..., h, w) complex to the same."""
        height, width = currents.shape[-2:]
        symbol = self._symbol(height, width)
        rows, columns = symbol.shape
        grid = torch.fft.fft(torch.fft.fft(currents, n=columns, dim=-1), n=rows, dim=-2)
        grid *= symbol
        field: Tensor = torch.fft.ifft(torch.fft.ifft(grid, dim=-2)[..., :height, :], dim=-1)[..., :width]
        return field

    def _symbol(self, height: int, width: int) -> Tensor:
        """The transform of the kernel on a torus on which a box does not meet itself, that of the last boxes kept."""
        found = self._symbols.get((height, width))
        if found is None:
            rows, columns = fast_size(2 * height - 1), fast_size(2 * width - 1)
            torus = self._kernel.new_zeros((rows, columns))
            corner = self._kernel[:height, :width]
            torus[:height, :width] = corner
            torus[rows - height + 1 :, :width] = corner[1:].flip(0)
            torus[:, columns - width + 1 :] = torus[:, 1:width].flip(1)
            found = torch.fft.fft2(torus)
            if len(self._symbols) >= 4:  # boxes come and go
                self._symbols.pop(next(iter(self._symbols)))
            self._symbols[height, width] = found
        return found


def truncated_green(shape: tuple[int, int], pixel: float, wavenumber: float) -> NDArray[np.complex128]:
    r"""What a unit in one pixel gives in another, a rows and b columns away: (H, W) complex, for a < H and b < W.

    With g cut off at L, the grid's diagonal, its Fourier transform is

        G(s) = (1 + (i pi/2) (L s J_1(L s) H_0(k L) - k L J_0(L s) H_1(k L))) / (s^2 - k^2),

    H of the first kind. The inverse FFT of its samples, on a torus of at least L plus a side so that no copies
    overlap, is the kernel that is exact for f without frequencies above the pixels'. All are even functions, so that a
    quarter of the samples is enough.

    Reference: Vico, Greengard and Ferrando, J. Comput. Phys. 323, 2016, eq. (20).
    """
    diagonal = math.hypot(*shape)
    sizes = [2 * fast_size(math.ceil((n + diagonal + 1) / 2)) for n in shape]
    v, u = (2 * np.pi / (n * pixel) * np.arange(n // 2 + 1) for n in sizes)
    transform = _transform(np.hypot(v[:, None], u), wavenumber, diagonal * pixel)
    out = np.empty(shape, dtype=np.complex128)
    for part, values in ((out.real, transform.real), (out.imag, transform.imag)):
        rows = np.fft.irfft(values, n=sizes[0], axis=0)[: shape[0]]
        part[...] = np.fft.irfft(rows, n=sizes[1], axis=1)[:, : shape[1]]
    return out


def _transform(s: NDArray[np.float64], k: float, reach: float) -> NDArray[np.complex128]:
    from scipy.special import hankel1, j0, j1

    h0, h1 = hankel1(0, k * reach), hankel1(1, k * reach)
    near = np.abs(s - k) * reach < _NEAR
    with np.errstate(divide="ignore", invalid="ignore"):
        top = 1 + 0.5j * np.pi * reach * (s * j1(reach * s) * h0 - k * j0(reach * s) * h1)
        out = np.asarray(top / (s * s - k * k))
    if near.any():
        # top(k) = 0, so top(s) is the integral of its derivative from k to s: two points of Gauss are exact to 1e-12.
        def slope(t: NDArray[np.float64]) -> NDArray[np.complex128]:
            return np.asarray(0.5j * np.pi * reach**2 * (t * j0(reach * t) * h0 + k * j1(reach * t) * h1))

        place = s[near]
        points = [k + (place - k) * (0.5 + side / math.sqrt(12)) for side in (-1.0, 1.0)]
        out[near] = (slope(points[0]) + slope(points[1])) / (2 * (place + k))
    return out


def fast_size(least: int) -> int:
    """The smallest number from `least` on whose factors are 2, 3 and 5, which FFTs are fast for."""
    size = least
    while True:
        rest = size
        for factor in (2, 3, 5):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return size
        size += 1
