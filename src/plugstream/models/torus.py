"""Convolution of what is in a box by FFTs on a torus."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Span = tuple[int, int, int]
"""Of an axis: the first pixel of a box, its length, and how many pixels, from 0 on, its field is computed for."""

# What a CPU transforms at once, on its torus: several of these should stay in a core's cache.
_CACHE_BYTES = 3 << 19


def torus_symbol(kernel: Tensor, spans: tuple[Span, Span], sizes: tuple[int, int]) -> Tensor:
    """The transform of an even kernel on a torus of these sizes, with its origin at the box's: (rows, columns).

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
    symbol: Tensor = torch.fft.fft2(torus)
    return symbol


def convolution(
    symbol: Tensor, spans: tuple[Span, Span], factor: Tensor | None = None
) -> Callable[[Tensor, Tensor], Tensor]:
    """(b, f) -> b + k * (x f), with f in a box and b where the field is wanted, by an FFT there and back.

    The zeros around x f are written once. A CPU transforms a few fields at a time, which stay in its cache, in two
    thirds of the time.

    Arguments: symbol of the kernel k (`torus_symbol`); spans of the axes; factor x, (h, w), or None.
    Returns: takes b (k, H, W) and f (k, h, w), complex, and changes neither.
    """
    height, width = spans[0][1], spans[1][1]
    pieces = [_pieces(-start, count, size) for (start, _, count), size in zip(spans, symbol.shape, strict=True)]
    most = None if symbol.is_cuda else max(1, _CACHE_BYTES // symbol.nbytes)
    multiplier = None if factor is None else factor.to(symbol.dtype)
    padded = symbol.new_zeros((0, *symbol.shape))
    inside = padded[:, :height, :width]

    def convolve(base: Tensor, fields: Tensor) -> Tensor:
        out = torch.empty_like(base)
        step = most or max(1, len(fields))
        for part in zip(base.split(step), fields.split(step), out.split(step), strict=True):
            transform(*part)
        return out

    def transform(base: Tensor, fields: Tensor, out: Tensor) -> None:
        nonlocal padded, inside
        if len(padded) != len(fields):
            padded = symbol.new_zeros((len(fields), *symbol.shape))
            inside = padded[:, :height, :width]
        if multiplier is None:
            inside.copy_(fields)
        else:
            torch.mul(fields, multiplier, out=inside)
        grid = torch.fft.fft2(padded)
        grid *= symbol
        field = torch.fft.ifft2(grid)
        if spans[0][0] == spans[1][0] == 0:  # nothing is before the box
            torch.add(base, field[:, : base.shape[1], : base.shape[2]], out=out)
            return
        for torus_rows, rows in pieces[0]:
            for torus_columns, columns in pieces[1]:
                torch.add(base[:, rows, columns], field[:, torus_rows, torus_columns], out=out[:, rows, columns])

    return convolve


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
