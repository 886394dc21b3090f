"""What the CUDA kernels of Joseph's projector are given, and the copies that they start and end with."""

from __future__ import annotations

import ctypes
from copy import copy
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.arrays import send
from plugstream.base.cuda_source import Kernels

_PACKED = 4  # numbers that a thread moves when axes change places


class Problem(ctypes.Structure):
    """What every kernel is given; `ct_cuda.cu` has the meaning of each field."""

    _fields_ = (
        *((name, ctypes.c_int) for name in (
            "views", "rows", "columns", "depth", "height", "width", "parallel", "axis", "margin", "z_margin", "z_size",
            "row_margin", "row_size", "column_margin", "large", "batches", "lines", "length", "scaled", "sum",
            "first_plane",
        )),
        *((name, ctypes.c_float) for name in ("first_row", "beyond_row", "uneven")),
        *((name, ctypes.c_longlong) for name in (
            "batch_stride", "line_stride", "packed_batch", "packed_place", "packed_line",
        )),
        ("spacing", ctypes.c_double * 3),
        ("origin", ctypes.c_double * 3),
        *((name, ctypes.c_void_p) for name in (
            "vectors", "middles", "index", "maps", "spans", "forms", "table", "steps", "ranges", "edges", "chosen",
        )),
    )  # fmt: skip


class GrowingTable:
    """A row for each view, on a device, in memory with room for a quarter more: new rows are added without a copy.

    Arguments: room, whose first `count` rows are the table, all if not given.
    """

    def __init__(self, room: Tensor, count: int | None = None) -> None:
        self._room, self._count = room, len(room) if count is None else count
        self._taken = [self._count]  # by all tables in this room

    @property
    def rows(self) -> Tensor:
        """The table."""
        return self._room[: self._count]

    @property
    def address(self) -> int:
        """Where it begins."""
        return self._room.data_ptr()

    def append(self, rows: Tensor) -> GrowingTable:
        """The table with more rows, in the same memory if they fit and no other table has gone on there."""
        count = self._count + len(rows)
        grown = copy(self)
        if count > len(self._room) or self._taken[0] != self._count:
            grown._room, grown._taken = rows.new_empty((count + count // 4, *rows.shape[1:])), [0]
            grown._room[: self._count] = self.rows
        grown._room[self._count : count] = rows
        grown._count = grown._taken[0] = count
        return grown


@cache
def read_source() -> str:
    """The text of the kernels."""
    folder = Path(__file__).parent
    return "".join((folder / name).read_text(encoding="utf-8") for name in ("ct_cuda.cu", "ct_rays.cu"))


def choose_views(p: Problem, index: NDArray[np.int64], device: torch.device) -> Tensor:
    """Which views a launch is of; the tensor must live as long as the launches are being made."""
    chosen = send(torch.from_numpy(index.astype(np.int32)), device)
    p.views, p.index = len(index), chosen.data_ptr()
    return chosen


def launch_move(kernels: Kernels, name: str, p: Problem, source: Tensor, target: Tensor) -> None:
    """Start `pack` or `unpack` of matrices whose sizes and strides are set."""
    grid = (-(-p.length // 16), -(-p.lines // (16 * _PACKED)), p.batches)
    kernels.launch(name, grid, (16, 16, 1), p, source, target)
