"""Convolution of what is in a box by FFTs on a torus."""

from __future__ import annotations

import torch
from torch import Tensor

Span = tuple[int, int, int]
"""Of an axis: the first pixel of a box, its length, and how many pixels, from 0 on, its field is computed for."""

# What a CPU transforms at once, on its torus: several of these should stay in a core's cache.
_CACHE_BYTES = 3 << 19


def torus_symbol(kernel: Tensor, spans: tuple[Span, Span], sizes: tuple[int, int]) -> Tensor:
    """The transform of an even kernel on a torus of these sizes, with its origin at the box's: (rows, columns).

    On CUDA it is divided by their product, which the transform back would take a pass through memory for.

    Holds if no two pairs of pixels coincide: for sizes of at least length + count - 1.

    Arguments: kernel (H, W), what a pixel gives one that is a rows and b columns away.
    """
    torus = kernel
    for axis, ((start, length, count), size) in enumerate(zip(spans, sizes, strict=True)):
        before, after = start + length, count - start  # how far the field extends to either side
        line = torus.new_zeros([size if n == axis else torus.shape[n] for n in (0, 1)])
        line.narrow(axis, 0, after).copy_(torus.narrow(axis, 0, after))
        if before > 1:
            mirrored = torus.narrow(axis, 1, before - 1).flip(axis)
            line.narrow(axis, size - before + 1, before - 1).copy_(mirrored)
        torus = line
    symbol: Tensor = torch.fft.fft2(torus, norm="forward" if kernel.is_cuda else None)
    return symbol


class Convolution:
    """(b, f) -> b + k * (x f), with f in a box and b where the field is wanted, by an FFT there and back.

    The zeros around x f are written once. A CPU transforms a few fields at a time, which stay in its cache, in two
    thirds of the time.

    Arguments: symbol of the kernel k (`torus_symbol`); spans of the axes; factor x, (h, w), or None.
    """

    def __init__(self, symbol: Tensor, spans: tuple[Span, Span], factor: Tensor | None = None) -> None:
        self._symbol, self._spans = symbol, spans
        self._pieces = [
            _pieces(-start, count, size) for (start, _, count), size in zip(spans, symbol.shape, strict=True)
        ]
        self._at_once = None if symbol.is_cuda else max(1, _CACHE_BYTES // symbol.nbytes)
        self._factor = None if factor is None else factor.to(symbol.dtype)
        self._padded = symbol.new_zeros((0, *symbol.shape))

    def load(self, factor: Tensor) -> None:
        """Have this x from now on, where the old one was."""
        assert self._factor is not None
        self._factor.copy_(factor)

    def __call__(self, base: Tensor, fields: Tensor, out: Tensor | None = None) -> Tensor:
        """Of b (k, H, W) and f (k, h, w), complex, neither of which changes: (k, H, W), in `out` if it is given."""
        out = torch.empty_like(base) if out is None else out
        step = self._at_once or max(1, len(fields))
        for part in zip(base.split(step), fields.split(step), out.split(step), strict=True):
            self._transform(*part)
        return out

    def _transform(self, base: Tensor, fields: Tensor, out: Tensor) -> None:
        if len(self._padded) != len(fields):
            self._padded = self._symbol.new_zeros((len(fields), *self._symbol.shape))
        inside = self._padded[:, : self._spans[0][1], : self._spans[1][1]]
        if self._factor is None:
            inside.copy_(fields)
        else:
            torch.mul(fields, self._factor, out=inside)
        grid = torch.fft.fft2(self._padded)
        grid *= self._symbol
        field = torch.fft.ifft2(grid, norm="forward" if grid.is_cuda else None)
        if self._spans[0][0] == self._spans[1][0] == 0:  # nothing is before the box
            torch.add(base, field[:, : base.shape[1], : base.shape[2]], out=out)
            return
        for torus_rows, rows in self._pieces[0]:
            for torus_columns, columns in self._pieces[1]:
                torch.add(base[:, rows, columns], field[:, torus_rows, torus_columns], out=out[:, rows, columns])


def _pieces(first: int, count: int, period: int) -> list[tuple[slice, slice]]:
    """Places first, first + 1 .. as runs on a torus: where each run is on the torus, and in the row of all places."""
    pieces, start = [], 0
    while start < count:
        place = (first + start) % period
        length = min(period - place, count - start)
        pieces.append((slice(place, place + length), slice(start, start + length)))
        start += length
    return pieces


def even_size(least: int) -> int:
    """The smallest multiple of 8 from `least` on with factors 2, 3 and 5: other FFTs take up to twice as long."""
    from scipy.fft import next_fast_len

    return 8 * int(next_fast_len(-(-least // 8), real=True))
