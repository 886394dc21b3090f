"""Reading and writing the cells of a non-uniform FFT on CUDA in Triton; `nufft_points.py` is the specification.

Writing goes tile by tile: points are sorted by the tiles that they begin in, and a program adds to its tile what those
near it leave there, in the order of the sort. So nothing is added atomically, and results are the same every time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from plugstream.models.nufft_points import Points
from plugstream.models.nufft_triton import triton_is_here

_READ_BLOCK, _WRITE_BLOCK, _ROW_BLOCK = 32, 8, 32  # points that a program looks at together
_TOGETHER = 4  # images whose rows a program writes to
_TILE = 16  # a kernel has at most 17 cells along an axis


def serves(grid: Tensor) -> bool:
    """Whether the kernels take cells like these: on CUDA, not differentiated, where Triton is installed."""
    return grid.is_cuda and not (grid.requires_grad and torch.is_grad_enabled()) and triton_is_here()


def read(grid: Tensor, points: Points) -> Tensor:
    """The values at points, conjugated where they are flipped: (n, A, B, C) to (n, points)."""
    from plugstream.models.nufft_spread_triton_kernel import read_points

    pairs = torch.view_as_real(grid.contiguous())
    out = torch.empty((len(grid), len(points), 2), dtype=pairs.dtype, device=grid.device)
    if len(points):
        w0, w1, w2 = points.widths
        read_points[(-(-len(points) // _READ_BLOCK), len(grid))](
            pairs, points.first, *points.weights, _flips(points), out, len(points), *grid.shape[1:],
            W0=w0, W1=w1, W2=w2, TAPS=1 << (w2 - 1).bit_length(), FLIP=points.flipped is not None, BLOCK=_READ_BLOCK,
        )  # fmt: skip
    return torch.view_as_complex(out)


def write(values: Tensor, points: Points, grid: Tensor) -> None:
    """The transpose: add (n, points) to the cells, which are contiguous."""
    from plugstream.models.nufft_spread_triton_kernel import write_rows, write_tiles

    if not len(points):
        return
    size0, size1, size2 = grid.shape[1:]
    bins1, bins2 = -(-size1 // _TILE), -(-size2 // _TILE)
    first = points.first.long()
    key = (first[:, 0] * bins1 + first[:, 1] // _TILE) * bins2 + first[:, 2] // _TILE
    ordered, order = torch.sort(key, stable=True)
    starts = torch.searchsorted(ordered, torch.arange(size0 * bins1 * bins2 + 1, device=grid.device))
    pairs, cells = torch.view_as_real(values.resolve_conj().contiguous()), torch.view_as_real(grid)
    w0, w1, w2 = points.widths
    if size1 == 1:
        together = min(_TOGETHER, 1 << (len(grid) - 1).bit_length())
        write_rows[(size0 * bins2, -(-len(grid) // together))](
            pairs, points.first, points.weights[0], points.weights[2], _flips(points), order, starts, cells,
            len(points), len(grid), size0, size2, bins2,
            W0=w0, W2=w2, FLIP=points.flipped is not None, IMAGES=together, TILE=_TILE, BLOCK=_ROW_BLOCK,
        )  # fmt: skip
        return
    write_tiles[(size0 * bins1 * bins2, len(grid))](
        pairs, points.first, *points.weights, _flips(points),
        order, starts, cells, len(points), size0, size1, size2, bins1, bins2,
        W0=w0, W1=w1, W2=w2, FLIP=points.flipped is not None, TILE=_TILE, BLOCK=_WRITE_BLOCK,
    )  # fmt: skip


def _flips(points: Points) -> Tensor:
    """One byte a point; any tensor where none is flipped, since it is not read."""
    return points.first if points.flipped is None else points.flipped.view(torch.uint8)
