"""The non-uniform FFT in two and three dimensions without tables: frequencies come with each call."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.models import nufft_native, nufft_spread_triton
from plugstream.models.nufft_grid import Kernel, choose_kernel, fast_size
from plugstream.models.nufft_points import Points, read_cells, write_cells

Real = NDArray[np.float64]

_FFT_COST = 8.0  # of a cell, in cells that a point touches, each way
_BOX_OVERSAMPLINGS = (1.25, 1.375, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0)


@dataclass(frozen=True)
class Axis:
    """The frequencies that an axis of the image may have.

    Arguments: band, their largest value in radians a pixel, up to pi, beyond which they are folded; period, if all of
    them are multiples of 2 pi / period, a whole number of pixels not below the image's size: this axis then needs no
    finer grid and no interpolation. None if they lie anywhere.
    """

    band: float = float(np.pi)
    period: int | None = None


class SpreadNufft:
    r"""The Fourier transform of images or volumes at frequencies w, and its adjoint:

        F(w) = sum_n x[n] exp(i w . (n - N // 2)) = sum_l phi(l - n_f w / 2 pi) X[l] up to eps,

    X being the FFT of x / phihat on a grid that is about 1.5 to 2 times as fine, and phi the Kaiser-Bessel kernel
    (`plugstream.models.nufft_grid.Kernel`). Only cells near the band are computed, of real images only half of them,
    and an axis whose frequencies are the FFT's own costs one plain FFT. A product of many views takes one transform of
    the image: `transform` it, `read` at any points as often as wanted; `write` values at points to cells that are
    zero at first, and take `back` their sum. In each direction one is the exact transpose of the other.

    The number of threads changes no bit of the result.

    Arguments:
        shape: of an image, two or three axes. eps: the relative accuracy.
        axes: what is known of each axis. is_complex: whether images are.
        points: about how many there are for each transform, by which the kernel is chosen.
        box: of complex images, take the FFT along all axes at once, on a grid that may be coarser, to 1.25 times the
            image's: the faster way for images that fit into a processor's cache many times over.
        device, dtype: real precision.
    Reference: Dutt and Rokhlin, SIAM J. Sci. Comput. 14(6), 1993; Barnett, Magland and af Klinteberg, SIAM J. Sci.
    Comput. 41(5), 2019.
    """

    name = "spread"

    def __init__(
        self,
        shape: Sequence[int],
        eps: float,
        *,
        axes: Sequence[Axis] | None = None,
        is_complex: bool = False,
        points: int = 0,
        box: bool = False,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        axes = [Axis()] * len(shape) if axes is None else list(axes)
        if len(shape) not in (2, 3) or len(axes) != len(shape):
            raise InputError(f"a non-uniform FFT has two or three axes, not {tuple(shape)} with {len(axes)} of them")
        for size, axis in zip(shape, axes, strict=True):
            if axis.period is not None and axis.period < size:
                raise InputError(f"the period of an axis is {axis.period}, below its {size} pixels")
        self.shape = tuple(shape)
        self.is_complex, self.device, self.dtype = is_complex, torch.device(device), dtype
        self._complex = dtype.to_complex()
        free = sum(axis.period is None for axis in axes)
        pixels = int(np.prod(shape))
        more = {"oversamplings": _BOX_OVERSAMPLINGS} if box else {}
        self.kernel = choose_kernel(eps, pixels, points or pixels, axes=max(1, free), fft=_FFT_COST, **more)
        # Exact axes first: the halved one is then of few cells, and kernels run along the last.
        self._order = sorted(range(len(shape)), key=lambda n: axes[n].period is None)
        self._lines = [
            _Line(shape[n], axes[n], self.kernel, half=not is_complex and place == 0, device=device, dtype=dtype)
            for place, n in enumerate(self._order)
        ]
        spans = [Span(line.pixels, line.size, line.low, line.count) for line in self._lines]
        self._box: Box | None = None
        if box and is_complex and self._order == sorted(self._order) and all(span.fits for span in spans):
            scales = [line.scale for line in self._lines]
            scale = scales[0][:, None] * scales[1]
            self._box = Box(spans, scale if len(scales) == 2 else scale[..., None] * scales[2])

    @property
    def cells(self) -> tuple[int, int, int]:
        """The shape of the stored grid; of two axes the one between has a single cell."""
        counts = [line.count for line in self._lines]
        return (counts[0], 1, counts[1]) if len(counts) == 2 else (counts[0], counts[1], counts[2])

    @property
    def sizes(self) -> tuple[int, ...]:
        """The lengths of the FFTs along the image's axes."""
        return tuple(self._lines[self._order.index(n)].size for n in range(len(self.shape)))

    @property
    def held(self) -> int:
        """Bytes kept for as long as the plan lives."""
        return sum(line.scale.nbytes for line in self._lines)

    def place(self, frequencies: Real) -> Points:
        """Where frequencies (points, axes) in radians a pixel, of any period, lie on the grid."""
        # torch's FFT has exp(-i w n), so it is read at -w.
        folded = np.mod(-np.asarray(frequencies)[:, self._order] + np.pi, 2 * np.pi) - np.pi
        flipped = None
        if not self.is_complex:
            negative = folded[:, 0] < 0
            folded = np.where(negative[:, None], -folded, folded)
            flipped = torch.from_numpy(negative).to(self.device)
        first = np.zeros((len(folded), 3), np.int32)
        offset = np.zeros((len(folded), 3), np.float32 if self.dtype == torch.float32 else np.float64)
        widths = [1, 1, 1]
        for n, line in enumerate(self._lines):
            place = 2 * n if len(self._lines) == 2 else n
            cells = folded[:, n] * (line.size / (2 * np.pi))
            widths[place] = line.width
            if line.width == 1:
                nearest = np.rint(cells).astype(np.int64)
                if len(cells) and np.abs(cells - nearest).max() > 1e-4:
                    raise InputError("frequencies along an axis with a period must be multiples of 2 pi / period")
                begin = np.where(nearest >= line.low + line.count, nearest - line.size, nearest)
            else:
                begin = np.ceil(cells - line.width / 2).astype(np.int64)
                offset[:, place] = begin - (cells - line.width / 2)
            begin = begin - line.low
            if len(cells) and (begin.min() < 0 or begin.max() + line.width > line.count):
                raise InputError(f"a frequency is beyond the band of axis {self._order[n]}; give the axis a wider one")
            first[:, place] = begin
        tensors = (torch.from_numpy(first).to(self.device), torch.from_numpy(offset).to(self.device))
        return Points(*tensors, flipped, (widths[0], widths[1], widths[2]), self.kernel)

    def transform(self, images: Tensor) -> Tensor:
        """The stored cells of the FFT of scaled images: (n, *shape) to (n, *cells)."""
        if self._box is not None and not (images.requires_grad and torch.is_grad_enabled()):
            return self._box.transform(images).view(len(images), *self.cells)
        values = images.permute(0, *(1 + n for n in self._order))
        last = values.ndim - 1
        for line in self._lines:  # each axis in turn is moved behind the others, which leaves them in order at the end
            values = line.forward(values.permute(0, *range(2, last + 1), 1))
        return values.reshape(len(images), *self.cells)

    def zeros(self, count: int) -> Tensor:
        """Cells to write to, (count, *cells)."""
        return torch.zeros((count, *self.cells), dtype=self._complex, device=self.device)

    def back(self, grid: Tensor) -> Tensor:
        """The transpose of `transform`: (n, *cells) to (n, *shape)."""
        counts = [line.count for line in self._lines]
        values = grid.reshape(len(grid), *counts)
        if self._box is not None and not (grid.requires_grad and torch.is_grad_enabled()):
            return self._box.back(values)
        last = values.ndim - 1
        for line in reversed(self._lines):
            values = line.backward(values).permute(0, last, *range(1, last))
        return values.permute(0, *(1 + self._order.index(n) for n in range(last))).contiguous()

    def read(self, grid: Tensor, points: Points) -> Tensor:
        """The transform at points: (n, *cells) to (n, points)."""
        if nufft_native.serves(grid):
            return nufft_native.read(grid, points)
        if nufft_spread_triton.serves(grid):
            return nufft_spread_triton.read(grid, points)
        return points.conjugate(read_cells(grid, points))

    def write(self, values: Tensor, points: Points, grid: Tensor) -> None:
        """The transpose of `read`: add (n, points) to cells."""
        if nufft_native.serves(grid):
            nufft_native.write(values, points, grid)
        elif nufft_spread_triton.serves(grid):
            nufft_spread_triton.write(values, points, grid)
        else:
            write_cells(points.conjugate(values), points, grid)

    def sample(self, images: Tensor, points: Points) -> Tensor:
        """(n, *shape) to (n, points) complex."""
        return self.read(self.transform(images), points)

    def adjoint(self, values: Tensor, points: Points) -> Tensor:
        """(n, points) complex to (n, *shape)."""
        grid = self.zeros(len(values))
        self.write(values, points, grid)
        return self.back(grid)


class PlacedNufft:
    """A `SpreadNufft` with fixed points. Arguments: as for `plugstream.models.nufft.make_nufft`."""

    name = "spread"

    def __init__(
        self,
        shape: Sequence[int],
        frequencies: Real,
        eps: float,
        *,
        is_complex: bool = False,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        folded = np.mod(frequencies + np.pi, 2 * np.pi) - np.pi
        axes = [Axis(float(band)) for band in np.abs(folded).max(0, initial=0.0)]
        self.plan = SpreadNufft(
            shape, eps, axes=axes, is_complex=is_complex, points=len(folded), device=device, dtype=dtype
        )
        self.points = self.plan.place(folded)

    @property
    def held(self) -> int:
        """Bytes kept for as long as it lives."""
        return self.plan.held + sum(t.nbytes for t in (self.points.first, self.points.offset))

    def sample(self, images: Tensor) -> Tensor:
        """(n, *shape) to (n, points) complex."""
        return self.plan.sample(images, self.points)

    def adjoint(self, values: Tensor) -> Tensor:
        """(n, points) complex to (n, *shape)."""
        return self.plan.adjoint(values, self.points)


class _Line:
    """An axis: the FFT along it, of length `size`, and the `count` cells from `low` on that are kept."""

    def __init__(
        self, pixels: int, axis: Axis, kernel: Kernel, *, half: bool, device: torch.device | str, dtype: torch.dtype
    ) -> None:
        self.pixels, self.half = pixels, half
        self.width = 1 if axis.period is not None else kernel.width
        size = axis.period or fast_size(max(kernel.oversampling * pixels, 2 * kernel.width))
        self.size = size
        band = min(float(np.pi), axis.band)
        if axis.period is not None:
            reach = min(size // 2, int(np.floor(band * size / (2 * np.pi) + 1e-6)))
            # The highest frequency is kept once, as the negative one.
            below, above = reach, reach - (0 if half or 2 * reach < size else 1)
            scale = np.ones(pixels)
        else:
            edge = band * size / (2 * np.pi)
            below, above = (int(np.floor(edge + kernel.width / 2)) + 1,) * 2
            scale = 1 / kernel.transform((np.arange(pixels) - pixels // 2) / size)
        if half:  # frequencies below zero are read as conjugates, but for those that kernels reach
            below = 0 if self.width == 1 else kernel.width // 2 + 1
        self.low, self.count = -below, below + above + 1
        self.scale = torch.from_numpy(scale).to(device=device, dtype=dtype)
        self._cells = torch.arange(self.low, self.low + self.count, device=device)

    def forward(self, values: Tensor) -> Tensor:
        """(..., pixels) to (..., count)."""
        behind = self.pixels // 2
        out = torch.zeros((*values.shape[:-1], self.size), dtype=values.dtype, device=values.device)
        _multiply(values[..., behind:], self.scale[behind:], out[..., : self.pixels - behind])
        if behind:
            _multiply(values[..., :behind], self.scale[:behind], out[..., self.size - behind :])
        if not self.half:
            return self._take(torch.fft.fft(out))
        half: Tensor = torch.fft.rfft(out)
        if self.low == 0 and self.count <= half.shape[-1]:
            return half[..., : self.count]
        cells = self._cells.remainder(self.size)
        beyond = cells > self.size // 2
        picked = half[..., torch.where(beyond, self.size - cells, cells)]
        return torch.where(beyond, picked.conj(), picked)

    def backward(self, values: Tensor) -> Tensor:
        """The transpose: (..., count) to (..., pixels)."""
        if self.half:
            # The inverse real FFT counts every cell and its conjugate at minus its frequency, so cells are halved,
            # except for zero and the highest frequency, which are their own conjugates.
            stored = self.size // 2 + 1
            cells = self._cells.remainder(self.size)
            beyond = cells > self.size // 2
            half = torch.zeros((*values.shape[:-1], stored), dtype=values.dtype, device=values.device)
            if self.low == 0 and self.count <= stored:
                half[..., : self.count] = values
            else:
                folded = torch.where(beyond, values.conj(), values)
                half.index_add_(-1, torch.where(beyond, self.size - cells, cells), folded)
            share = torch.full((stored,), 0.5, dtype=self.scale.dtype, device=values.device)
            share[0] = 1.0
            if self.size % 2 == 0:
                share[-1] = 1.0
            out: Tensor = torch.fft.irfft(half.mul_(share), n=self.size, norm="forward")
        else:
            out = torch.fft.ifft(self._put(values), norm="forward")
        behind = self.pixels // 2
        joined: Tensor = torch.cat([out[..., self.size - behind :], out[..., : self.pixels - behind]], -1)
        return joined.mul_(self.scale)

    def _take(self, spectrum: Tensor) -> Tensor:
        if self.count > self.size:
            return spectrum[..., self._cells.remainder(self.size)]
        return torch.cat([spectrum[..., self.size + self.low :], spectrum[..., : self.low + self.count]], -1)

    def _put(self, values: Tensor) -> Tensor:
        out = torch.zeros((*values.shape[:-1], self.size), dtype=values.dtype, device=values.device)
        if self.count > self.size:
            return out.index_add_(-1, self._cells.remainder(self.size), values)
        out[..., self.size + self.low :] = values[..., : -self.low] if self.low else values[..., :0]
        out[..., : self.low + self.count] = values[..., -self.low :]
        return out


def _multiply(values: Tensor, scale: Tensor, out: Tensor) -> None:
    """Products written into a part of a tensor, without a temporary unless they are differentiated."""
    if values.requires_grad and torch.is_grad_enabled():
        out.copy_(values * scale)
    else:
        torch.mul(values, scale, out=out)


@dataclass(frozen=True)
class Span:
    """An axis: pixels of the image, size of the FFT, and the `count` cells that are kept from frequency `low` on."""

    pixels: int
    size: int
    low: int
    count: int

    @property
    def fits(self) -> bool:
        """Whether the cells below zero, and the others, are each a contiguous part of the FFT."""
        return -self.low <= self.size and self.low + self.count <= self.size

    def image_parts(self) -> list[tuple[slice, slice]]:
        """Which pixels go where before the FFT: pixel N // 2 comes first."""
        behind = self.pixels // 2
        parts = [(slice(behind, None), slice(0, self.pixels - behind))]
        return parts + ([(slice(0, behind), slice(self.size - behind, None))] if behind else [])

    def cell_parts(self) -> list[tuple[slice, slice]]:
        """Which cells are which entries of the FFT; entries at the band's two ends may be in both parts."""
        parts = [(slice(-self.low, None), slice(0, self.low + self.count))]
        return parts + ([(slice(0, -self.low), slice(self.size + self.low, None))] if self.low else [])


class Box:
    """Cells of the FFT of scaled images, and the transpose.

    Arguments: spans of the axes, each of which `fits`; scale, (*pixels), what images are multiplied with.
    """

    def __init__(self, spans: Sequence[Span], scale: Tensor) -> None:
        self.scale = scale
        self._sizes = tuple(span.size for span in spans)
        self._counts = tuple(span.count for span in spans)
        self._shape = tuple(span.pixels for span in spans)
        self._axes = tuple(range(1, 1 + len(spans)))
        self._images = [self._pair(parts) for parts in itertools.product(*(span.image_parts() for span in spans))]
        self._cells = [self._pair(parts) for parts in itertools.product(*(span.cell_parts() for span in spans))]

    def transform(self, images: Tensor) -> Tensor:
        """(n, *pixels) to (n, *counts)."""
        padded = torch.zeros((len(images), *self._sizes), dtype=images.dtype, device=images.device)
        for pixels, entries in self._images:
            torch.mul(images[pixels], self.scale[pixels[1:]], out=padded[entries])
        spectrum: Tensor = torch.fft.fftn(padded, dim=self._axes)
        out = torch.empty((len(images), *self._counts), dtype=images.dtype, device=images.device)
        for cells, entries in self._cells:
            out[cells] = spectrum[entries]
        return out

    def back(self, cells: Tensor) -> Tensor:
        """The transpose: (n, *counts) to (n, *pixels)."""
        padded = torch.zeros((len(cells), *self._sizes), dtype=cells.dtype, device=cells.device)
        for part, entries in self._cells:
            padded[entries] += cells[part]
        images: Tensor = torch.fft.ifftn(padded, dim=self._axes, norm="forward")
        out = torch.empty((len(cells), *self._shape), dtype=cells.dtype, device=cells.device)
        for pixels, entries in self._images:
            torch.mul(images[entries], self.scale[pixels[1:]], out=out[pixels])
        return out

    @staticmethod
    def _pair(parts: tuple[tuple[slice, slice], ...]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        everything = slice(None)
        return (everything, *(one for one, _ in parts)), (everything, *(other for _, other in parts))
