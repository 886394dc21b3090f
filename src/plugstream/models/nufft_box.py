"""The FFT of a non-uniform FFT on all axes at once: for small complex images several times as fast as axis by axis."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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
