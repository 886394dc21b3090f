"""The adjoint of Joseph's projector on CUDA for rays of any direction, by the cells between voxels (`ct_rays.cu`).

Roofline, of 512^3 voxels and 180 views of a cone with a rolled detector on an H200: instructions limit it. 42 of 44 ms
are spent in `gather_even_cells`. By its machine code, a thread takes about 40 instructions for a view, 55 for a column
that meets its cells and 16 for each ray of it; by the geometry, a warp goes through 1.09 columns where a thread has
0.77. That is 36 for a voxel and view, of 58 that the device could issue meanwhile at its highest clock. Warps leave 0.3
numbers a voxel in memory for each other, on either axis.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.arrays import send
from plugstream.base.cuda_source import Kernels
from plugstream.models.ct_forms import WHOLE, Forms
from plugstream.models.ct_problem import Problem, launch_move

CELLS_HIGH = 8  # cells that a thread adds up
_ABREAST = 4  # threads of a warp whose cells are beside each other
_ROW_ZEROS = 12  # on either side of a row of data: more than a thread's cells have rows, in 16 bytes
_EDGES = 1 << 26  # numbers that warps leave to each other
_AT_ONCE = 1 << 25  # numbers of data of one launch


class CellGather:
    """Sums of views over the cells that their rays cross.

    Arguments: forms of all views; kernels; device.
    """

    def __init__(self, forms: Forms, kernels: Kernels, device: torch.device) -> None:
        self.forms, self.kernels, self.device = forms, kernels, device
        self._table = self._on_device(forms.table)

    def gather(self, p: Problem, data: Tensor, index: NDArray[np.int64]) -> Tensor:
        """(views, rows, columns) to a volume (H, W, D)."""
        out: Tensor | None = None
        data = data.contiguous()
        parts = self._split(index, max(1, _AT_ONCE // (p.rows * p.columns)))
        numbers = np.concatenate([np.stack([places, index[places]]) for *_, places in parts] or [np.empty((2, 0))], 1)
        on_device = send(torch.from_numpy(numbers.astype(np.int32)), self.device)
        first = 0
        for axis, turned, backward, places in parts:
            chosen, held = on_device[:, first : first + len(places)]
            first += len(places)
            q = Problem.from_buffer_copy(p)
            q.axis, q.sum, q.uneven = axis, int(out is not None), self.forms.uneven
            q.views, q.index, q.chosen = len(places), held.data_ptr(), chosen.data_ptr()
            values = self._pack(q, data, turned, backward)
            table = self._table[axis].index_select(0, held)
            q.forms = table.data_ptr()
            if out is None:
                out = torch.empty((p.height, p.width, p.depth), device=self.device)
            self._add(q, values, out)
        return torch.zeros((p.height, p.width, p.depth), device=self.device) if out is None else out

    def _split(self, index: NDArray[np.int64], count: int) -> list[tuple[int, bool, bool, NDArray[np.int64]]]:
        """Places in `index` of views that a launch has together: axis, turned, backward, at most `count` of them."""
        parts = []
        for axis in (1, 2, 0):
            own = np.flatnonzero(self.forms.used[axis][index])
            views = index[own]
            kinds = 2 * self.forms.turned[axis][views] + self.forms.backward[axis][views]
            for kind in np.unique(kinds).tolist():
                some = own[kinds == kind]
                parts += [(axis, kind >= 2, kind % 2 == 1, some[n : n + count]) for n in range(0, len(some), count)]
        return parts

    def _pack(self, q: Problem, data: Tensor, turned: bool, backward: bool) -> Tensor:
        """Values times the rays' steps: columns by rows, or the other way around, and maybe from the last row on."""
        (_, rows, columns), views = data.shape, q.views
        many, long = (rows, columns) if turned else (columns, rows)
        size = 4 * math.ceil(long / 4) + 2 * _ROW_ZEROS
        values = torch.empty((views, many, size), device=self.device)
        values[..., :_ROW_ZEROS], values[..., _ROW_ZEROS + long :] = 0, 0
        q.scaled, q.batches, q.lines, q.length, q.packed_batch = 3, views, rows, columns, many * size
        q.batch_stride, q.line_stride = data.stride(0), data.stride(1)
        step = -1 if backward else 1
        q.packed_place, q.packed_line = (step, size) if turned else (size, step)
        launch_move(self.kernels, "pack", q, data, values[..., _ROW_ZEROS + (long - 1 if backward else 0) :])
        q.rows, q.columns, q.row_margin, q.row_size = long, many, _ROW_ZEROS, size
        q.first_row, q.beyond_row = WHOLE - long // 2, WHOLE - long // 2 + long
        return values

    def _add(self, q: Problem, values: Tensor, out: Tensor) -> None:
        """Add what the rays of some views give, a few planes at a time."""
        depth, height, width = q.depth, q.height, q.width
        planes, high, wide = ((depth, height, width), (height, depth, width), (width, depth, height))[q.axis]
        tiles, groups = (high - 1) // CELLS_HIGH + 2, wide + 1
        blocks = -(-groups // _ABREAST)
        edges = tiles * ((CELLS_HIGH + 1) * blocks + groups)
        some = min(max(4, _EDGES // edges), 65535, planes)
        table = torch.empty((planes, q.views, 20), device=self.device)
        own = torch.empty((some, edges), device=self.device)
        q.table, q.edges = table.data_ptr(), own.data_ptr()
        self.kernels.launch("tabulate_planes", (-(-q.views // 32), planes, 1), (32, 1, 1), q, None, None)
        name = "gather_even_cells" if self.forms.even else "gather_uneven_cells"
        for first in range(0, planes, some):
            q.first_plane, count = first, min(some, planes - first)
            grid = (-(-tiles * _ABREAST * blocks // 128), 1, count)
            self.kernels.launch(name, grid, (128, 1, 1), q, values, out)
            self.kernels.launch("fold_cells", (-(-tiles // 32), -(-blocks // 8), count), (32, 8, 1), q, None, out)

    def _on_device(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)
