"""A block of a volume's slices as a scan of its own: of every view the rows that see it, read once and kept in memory.

The measurements of a view are one chunk with one checksum, and a block needs a few rows of each. So all of a scan is
read once, with its own checksums, and of the rows of every block a checksum is taken then (`sum_rows`). After that a
block reads its own rows alone, as bytes from the middle of each chunk, and compares them with that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.errors import DamagedError, InputError
from plugstream.base.progress import report
from plugstream.instruments.base import Block
from plugstream.scans.checks import not_finite
from plugstream.scans.places import crc32c
from plugstream.scans.scan import MemoryScan
from plugstream.scans.store import StoredScan

__all__ = ["block_columns", "read_block", "sum_rows"]

# Views are read in portions of about this size.
_PORTION = 32 << 20


def sum_rows(scan: StoredScan, rows: Sequence[slice], views: Tensor) -> tuple[NDArray[np.uint32], dict[int, str]]:
    """Read these views whole, with their checksums, and take the crc32c of some rows of each.

    Arguments: rows, of each block, along the first axis of a view's data; views (B,).
    Returns (B, blocks), and what is wrong with the views that are damaged, by their numbers: their sums say nothing.
    """
    sums = np.zeros((len(views), len(rows)), dtype=np.uint32)
    bad: dict[int, str] = {}
    done, mask = 0, scan.instrument.find_mask(scan.columns)
    for some in views.split(_views_at_once(scan)):
        report("reading every view", done, len(views))
        try:
            data = scan.read(some)
        except DamagedError as error:
            bad.update(error.views)
            good = torch.tensor([view not in error.views for view in some.tolist()])
            data = torch.zeros((len(some), *scan.instrument.data_shape))
            if bool(good.any()):
                whole = scan.read(some[good])
                data = data.to(whole.dtype)
                data[good] = whole
        values = data.numpy()
        for number in not_finite(values, None if mask is None else mask[some.numpy()]):
            bad.setdefault(int(some[number]), "it holds NaN or infinity")
        for number, view in enumerate(values):
            for block, part in enumerate(rows):
                content = np.ascontiguousarray(view[part]).tobytes()
                sums[done + number, block] = int.from_bytes(crc32c(content), "little")
        done += len(some)
    return sums, bad


def read_block(
    scan: StoredScan, block: Block, sums: NDArray[np.uint32], views: Tensor, truth: NDArray[Any] | None = None
) -> MemoryScan:
    """The scan of a block of slices, in memory.

    Arguments: block, of the scan's instrument; sums (B,), of its rows in these views, from `sum_rows`; views (B,),
    those that are not damaged; truth, of these slices.
    """
    shape = block.instrument.data_shape
    data = torch.empty((len(views), *shape), dtype=torch.from_numpy(np.empty(0, scan.dtype)).dtype)
    done = 0
    for some in views.split(_views_at_once(scan)):
        report("reading the rows of a block", done, len(views))
        data[done : done + len(some)] = scan.read_rows(some, block.rows, sums[done : done + len(some)])
        done += len(some)
    columns = block_columns(scan, block, views)
    try:
        return MemoryScan(data, block.instrument, truth, scan.provenance, columns)
    except InputError as error:
        raise DamagedError(
            f"the scan {scan.path} cannot be used: {error}; to go on without it, use --skip-damaged"
        ) from error


def block_columns(scan: StoredScan, block: Block, views: Tensor) -> dict[str, NDArray[Any]]:
    """The columns of a block in these views: those of the scan, of what has a value for each datum its rows alone."""
    step = _views_at_once(scan)
    columns: dict[str, Any] = {}
    for column in scan.instrument.columns:
        if column.name not in scan.columns:
            continue
        rows = scan.columns[column.name]
        if column.name in block.columns:
            columns[column.name] = block.columns[column.name][views.numpy()]
        elif column.shape[:1] == scan.instrument.data.shape[:1]:  # a value for each datum
            columns[column.name] = np.concatenate([rows[some.numpy()][:, block.rows] for some in views.split(step)])
        else:
            columns[column.name] = rows[views.numpy()]
    return columns


def _views_at_once(scan: StoredScan) -> int:
    return max(1, _PORTION // max(1, scan.nbytes // max(1, scan.n_views)))
