"""Convolution of what is in a box by FFTs: on one torus, or on four of half the sides, which stay in the cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

__all__ = ["Span", "even_size", "fast_size", "quarter_convolution", "quarters_of", "torus_symbol", "whole_convolution"]

Span = tuple[int, int, int]
"""Of an axis: the pixel where a box begins, its length, and how many pixels its field is wanted for, from 0 on."""

# Fields that a CPU transforms at once, with their torus.
_CACHE_BYTES = 1 << 20


def torus_symbol(kernel: Tensor, spans: tuple[Span, Span], sizes: tuple[int, int]) -> Tensor:
    """The transform of an even kernel on a torus of these sizes, whose origin is where the box begins: (rows, columns).

    Holds where no two pairs of pixels fall together: sizes of at least length + wanted - 1.

    Arguments: kernel (H, W), what a pixel gives one that is a rows and b columns away.
    """
    torus = kernel
    for axis, ((start, length, wanted), size) in enumerate(zip(spans, sizes, strict=True)):
        before, after = start + length, wanted - start  # how far the field goes, to either side
        line = torus.new_zeros([size if n == axis else torus.shape[n] for n in (0, 1)])
        line.narrow(axis, 0, after).copy_(torus.narrow(axis, 0, after))
        if before > 1:
            mirrored = torus.narrow(axis, 1, before - 1).flip(axis)
            line.narrow(axis, size - before + 1, before - 1).copy_(mirrored)
        torus = line
    symbol: Tensor = torch.fft.fft2(torus)
    return symbol


def whole_convolution(
    symbol: Tensor, spans: tuple[Span, Span], factor: Tensor | None = None
) -> Callable[[Tensor, Tensor], Tensor]:
    """(b, f) -> b + k * (x f), with f in a box and b where the field is wanted, by one FFT and back.

    The zeros around x f are written once.

    Arguments: symbol of the kernel; spans of the axes; factor x, (h, w), or None.
    Returns: takes b (k, H, W) and f (k, h, w), complex; b is not changed.
    """
    (top, height, rows), (left, width, columns) = spans
    padded = symbol.new_zeros((0, *symbol.shape))
    inside = padded[:, :height, :width]

    def convolve(base: Tensor, fields: Tensor) -> Tensor:
        nonlocal padded, inside
        if len(padded) != len(fields):
            padded = symbol.new_zeros((len(fields), *symbol.shape))
            inside = padded[:, :height, :width]
        if factor is None:
            inside.copy_(fields)
        else:
            torch.mul(fields, factor, out=inside)
        grid = torch.fft.fft2(padded)
        grid *= symbol
        field = torch.fft.ifft2(grid)
        if top or left:  # what is before the box is at the end of the torus
            field = field.roll((top, left), (1, 2))
        return torch.add(base, field[:, :rows, :columns])

    return convolve


def quarters_of(symbol: Tensor) -> Tensor:
    """Even and odd frequencies of each axis apart, for `quarter_convolution`: (rows, columns) to (4, half, half)."""
    return torch.stack([symbol[row::2, column::2] for row in (0, 1) for column in (0, 1)]) / 4


def quarter_convolution(
    quarters: Tensor, spans: tuple[Span, Span], factor: Tensor | None = None
) -> Callable[[Tensor, Tensor], Tensor]:
    r"""(b, f) -> b + k * (x f), with f in a box and b where the field is wanted.

    With J = x f, the frequencies 2 q + a of a torus of 2 m pixels are those of an FFT of m pixels of
    J_n exp(-i pi a n / m), for a = 0 and 1, where the box has no more than m pixels, and back

        (k * J)_n = 1/2 sum_a exp(i pi a n / m) (F_m^{-1} (k^ F_m J)_a)_{n mod m},

    on both axes: four FFTs of a quarter of the pixels each, with nothing to pad.

    Arguments: quarters of the kernel's symbol (4, m, m'); spans of the axes; factor x, (h, w), or None.
    Returns: takes b (k, H, W) and f (k, h, w), complex; b is not changed.
    """
    halves = quarters.shape[1:]
    (_, height, _), (_, width, _) = spans
    turns = [
        _half_turns(torch.arange(length), half, quarters) for (_, length, _), half in zip(spans, halves, strict=True)
    ]
    ones = [torch.ones_like(turn) for turn in turns]
    before = torch.stack([r[:, None] * c for r in (ones[0], turns[0]) for c in (ones[1], turns[1])])  # (4, h, w)
    if factor is not None:
        before *= factor
    # The columns' turns on the way back, for the places of the wanted field, and the rows'.
    back = [
        _half_turns(torch.arange(-start, wanted - start), half, quarters).conj().resolve_conj()
        for (start, _, wanted), half in zip(spans, halves, strict=True)
    ]
    pieces = [list(_pieces(-start, wanted, half)) for (start, _, wanted), half in zip(spans, halves, strict=True)]
    wanted = spans[0][2], spans[1][2]
    at_once = max(1, _CACHE_BYTES // quarters.nbytes)
    room = quarters.new_zeros((0, *quarters.shape))

    def convolve(base: Tensor, fields: Tensor) -> Tensor:
        nonlocal room
        if len(room) < min(len(fields), at_once):
            room = quarters.new_zeros((min(len(fields), at_once), *quarters.shape))
        out = torch.empty_like(base)
        for start in range(0, len(fields), at_once):
            some, place = fields[start : start + at_once], out[start : start + at_once]
            padded = room[: len(some)]
            torch.mul(some[:, None], before, out=padded[..., :height, :width])
            grid = torch.fft.fft2(padded)
            grid *= quarters
            parts = torch.fft.ifft2(grid).unflatten(1, (2, 2))
            lines = parts.new_empty((len(some), 2, halves[0], wanted[1]))
            for there, here in pieces[1]:
                part = parts[..., there]
                torch.addcmul(part[:, :, 0], part[:, :, 1], back[1][here], out=lines[..., here])
            for there, here in pieces[0]:
                part = lines[:, :, there]
                torch.add(base[start : start + at_once, here], part[:, 0], out=place[:, here])
                place[:, here].addcmul_(part[:, 1], back[0][here, None])
        return out

    return convolve


def _pieces(first: int, count: int, period: int) -> Iterator[tuple[slice, slice]]:
    """Places first, first + 1 .. as runs of a torus: where each run is there, and where in the row of all places."""
    done = 0
    while done < count:
        there = (first + done) % period
        length = min(period - there, count - done)
        yield slice(there, there + length), slice(done, done + length)
        done += length


def _half_turns(places: Tensor, half: int, like: Tensor) -> Tensor:
    """exp(-i pi n / m) at places n: (places,) complex."""
    angle = places.double() * (-math.pi / half)
    return torch.polar(torch.ones_like(angle), angle).to(device=like.device, dtype=like.dtype)


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
