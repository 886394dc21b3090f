"""The field that currents in the pixels send to all pixels: a convolution with Green's function, by FFT."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Box", "GreenFFT", "truncated_green"]

Box = tuple[slice, slice]
"""Rows and columns of a grid."""

# Fields that a CPU transforms at once, with their torus, and symbols of boxes that are kept.
_CACHE_BYTES = 4 << 20
_KEPT = 4

# Where |s - k| L is below this, the quotient of two numbers that both vanish is taken as a mean of derivatives.
_NEAR = 1e-2


class GreenFFT:
    r"""f -> k_0^2 int g(r - r') f(r') dr' on the pixels of a grid or of a box of it, g = (i/4) H_0^(1)(k |r|).

    g is cut off beyond the grid's diagonal, which no pair of pixels can tell, and its transform is then smooth and
    known (`truncated_green`), so that the sum over pixels converges as fast as f is smooth: at second order where
    an object has edges and its pixels hold averages. The operator is a symmetric matrix, complex and not Hermitian: its
    adjoint is its conjugate.

    A product costs an FFT there and back of twice the box's sides.

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
        self.shape, self.pixel, self.wavenumber, self.scale = shape, pixel, wavenumber, scale
        self._device, self._dtype = device, dtype
        kind = torch.complex64 if dtype == torch.float32 else torch.complex128
        kernel = scale * truncated_green(shape, pixel, wavenumber)
        self._kernel = torch.from_numpy(kernel).to(device=device, dtype=kind)
        self._symbols: dict[tuple[int, ...], Tensor] = {}
        self._coarser: GreenFFT | None = None

    @property
    def held(self) -> int:
        """Bytes kept."""
        below = 0 if self._coarser is None else self._coarser.held
        return below + self._kernel.nbytes + sum(symbol.nbytes for symbol in self._symbols.values())

    def coarser(self) -> GreenFFT:
        """The same for pixels twice as large, half as many a side, rounded up; kept."""
        if self._coarser is None:
            height, width = (-(-n // 2) for n in self.shape)
            self._coarser = GreenFFT(
                (height, width), 2 * self.pixel, self.wavenumber, self.scale, device=self._device, dtype=self._dtype
            )
        return self._coarser

    def apply(self, currents: Tensor) -> Tensor:
        """The field of currents in a box of the grid, in that box: (k, h, w) complex to the same."""
        height, width = currents.shape[-2:]
        symbol = self._symbol((0, height, height), (0, width, width))
        return self._convolve(currents, symbol, lambda field: field[..., :height, :width])

    def lippmann_schwinger(self, contrast: Tensor) -> Callable[[Tensor], Tensor]:
        """u -> u - G (x u) in a box of the grid, for repeated use: (k, h, w) complex to the same.

        As of `apply`, with the zeros around x u written once. On a CPU the even and the odd frequencies of each axis
        are transformed apart, each an FFT of half the sides: four that stay in the cache take less than one that does
        not, and nothing is padded.

        Arguments: contrast x in the box, (h, w).
        """
        if contrast.is_cuda:
            return self._whole_torus(contrast)
        height, width = contrast.shape
        half = even_size(height), even_size(width)
        symbol = self._quarters(half, (height, width))
        turns = [_half_turns(n, size, contrast.dtype) for n, size in zip(contrast.shape, half, strict=True)]
        turn = (turns[0][:, None, :, None] * turns[1][:, None, :]).flatten(0, 1)  # (4, h, w)
        before, after = turn * contrast, turn.conj().resolve_conj() / -4
        at_once = max(1, _CACHE_BYTES // symbol.nbytes)
        room = symbol.new_zeros((0, *symbol.shape))

        def apply(fields: Tensor) -> Tensor:
            nonlocal room
            if len(room) < min(len(fields), at_once):
                room = symbol.new_zeros((min(len(fields), at_once), *symbol.shape))
            out = torch.empty_like(fields)
            for some, place in zip(fields.split(at_once), out.split(at_once), strict=True):
                padded = room[: len(some)]
                torch.mul(some[:, None], before, out=padded[..., :height, :width])
                grid = torch.fft.fft2(padded)
                grid *= symbol
                parts = torch.fft.ifft2(grid)[..., :height, :width]
                torch.sum(parts.mul_(after), 1, out=place)
                place += some
            return out

        return apply

    def _whole_torus(self, contrast: Tensor) -> Callable[[Tensor], Tensor]:
        height, width = contrast.shape
        symbol = self._symbol((0, height, height), (0, width, width))
        factor = contrast.to(symbol.dtype)
        room = symbol.new_zeros((0, *symbol.shape))

        def apply(fields: Tensor) -> Tensor:
            nonlocal room
            if len(room) < len(fields):
                room = symbol.new_zeros((len(fields), *symbol.shape))
            padded = room[: len(fields)]
            torch.mul(fields, factor, out=padded[:, :height, :width])
            grid = torch.fft.fft2(padded)
            grid *= symbol
            return torch.sub(fields, torch.fft.ifft2(grid)[:, :height, :width])

        return apply

    def spread(self, currents: Tensor, box: Box) -> Tensor:
        """The field of currents in a box of the grid, on the whole grid: (k, h, w) complex to (k, H, W).

        The torus is as large as the grid and the box together, which for a small box is half of what `apply` needs.
        """
        (top, left), (height, width) = (side.start or 0 for side in box), currents.shape[-2:]
        symbol = self._symbol((top, height, self.shape[0]), (left, width, self.shape[1]))

        def cut(field: Tensor) -> Tensor:  # the box is at the torus' origin, and what is before it at the end
            part = torch.cat([field[..., field.shape[-2] - top :, :], field[..., : self.shape[0] - top, :]], -2)
            return torch.cat([part[..., part.shape[-1] - left :], part[..., : self.shape[1] - left]], -1)

        return self._convolve(currents, symbol, cut)

    def _convolve(self, currents: Tensor, symbol: Tensor, cut: Callable[[Tensor], Tensor]) -> Tensor:
        """On the CPU as many at a time as stay in its cache."""
        at_once = len(currents) if currents.is_cuda else max(1, _CACHE_BYTES // symbol.nbytes)
        parts = []
        for some in currents.split(at_once):
            grid = torch.fft.fft2(some, s=symbol.shape)
            grid *= symbol
            parts.append(cut(torch.fft.ifft2(grid)))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _quarters(self, half: tuple[int, int], box: tuple[int, int]) -> Tensor:
        """The symbol of a box on a torus of twice these sides, its even and odd frequencies apart: (4, *half)."""
        key = (*half, *box)
        found = self._symbols.get(key)
        if found is None:
            whole = self._torus((0, box[0], box[0], 2 * half[0]), (0, box[1], box[1], 2 * half[1]))
            found = self._keep(key, torch.stack([whole[row::2, column::2] for row in (0, 1) for column in (0, 1)]))
        return found

    def _symbol(self, rows: tuple[int, int, int], columns: tuple[int, int, int]) -> Tensor:
        """The transform of the kernel on a torus on which no two pairs of pixels fall together, the last few kept.

        Arguments: of each axis, where the box begins, how long it is, and how many pixels its field is wanted for.
        """
        found = self._symbols.get((*rows, *columns))
        if found is None:
            sizes = [2 * even_size(-(-(wanted + length - 1) // 2)) for _, length, wanted in (rows, columns)]
            found = self._keep((*rows, *columns), self._torus((*rows, sizes[0]), (*columns, sizes[1])))
        return found

    def _keep(self, key: tuple[int, ...], symbol: Tensor) -> Tensor:
        if len(self._symbols) >= _KEPT:  # boxes come and go
            self._symbols.pop(next(iter(self._symbols)))
        self._symbols[key] = symbol
        return symbol

    def _torus(self, *axes: tuple[int, int, int, int]) -> Tensor:
        """The transform of the kernel on a torus; of each axis as of `_symbol`, and the size of the torus."""
        torus = self._kernel
        for axis, (start, length, wanted, size) in enumerate(axes):
            before, after = start + length, wanted - start  # how far the field goes, to either side
            line = torus.new_zeros([size if n == axis else torus.shape[n] for n in (0, 1)])
            line.narrow(axis, 0, after).copy_(torus.narrow(axis, 0, after))
            if before > 1:
                mirrored = torus.narrow(axis, 1, before - 1).flip(axis)
                line.narrow(axis, size - before + 1, before - 1).copy_(mirrored)
            torus = line
        symbol: Tensor = torch.fft.fft2(torus)
        return symbol


def _half_turns(count: int, size: int, dtype: torch.dtype) -> Tensor:
    """What takes the even and the odd frequencies of a torus of twice the size to those of one of the size: (2, n)."""
    angle = torch.arange(count, dtype=torch.float64) * (-math.pi / size)
    turns = torch.stack([torch.zeros_like(angle), angle])
    return torch.polar(torch.ones_like(turns), turns).to(dtype.to_complex())


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


def even_size(least: int) -> int:
    """The smallest such number that is a multiple of 8: FFTs of the others take up to twice as long for a point."""
    return 8 * fast_size(-(-least // 8))
