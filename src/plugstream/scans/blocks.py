"""A block of a volume's slices as a scan of its own: the rows of every view that see it, read once into memory.

A view is one chunk with one checksum, and a block needs a few rows of it. So the scan is read once in full, and
`sum_rows` takes a checksum of the rows of every block. After that a block reads and checks its own rows alone, as bytes
from the middle of each chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

# Views are read in portions of about this size.
_PORTION = 32 << 20


def sum_rows(scan: StoredScan, rows: Sequence[slice], views: Tensor) -> tuple[NDArray[np.uint32], dict[int, str]]:
    """Read these views in full, with their checksums, and take the crc32c of the rows of each block.

    Arguments: rows of each block, along the first axis of a view's data; views (B,).
    Returns (B, blocks), and what is wrong with damaged views, by their numbers: their sums say nothing.
    """
    sums = np.zeros((len(views), len(rows)), dtype=np.uint32)
    bad: dict[int, str] = {}
    mask = scan.instrument.find_mask(scan.columns)
    for numbers in _portions(scan, views, "reading every view"):
        try:
            data = scan.read(views[numbers])
        except DamagedError as error:
            bad.update(error.views)
            numbers = np.array([n for n in numbers if int(views[n]) not in error.views], dtype=np.int64)
            if len(numbers) == 0:
                continue
            data = scan.read(views[numbers])
        values, portion = data.numpy(), views[numbers].numpy()
        for row in not_finite(values, None if mask is None else mask[portion]):
            bad.setdefault(int(portion[row]), "it holds NaN or infinity")
        for number, view in zip(numbers, values, strict=True):
            for block, part in enumerate(rows):
                content = np.ascontiguousarray(view[part]).tobytes()
                sums[number, block] = int.from_bytes(crc32c(content), "little")
    return sums, bad


def read_block(
    scan: StoredScan, block: Block, sums: NDArray[np.uint32], views: Tensor, truth: NDArray[Any] | None = None
) -> MemoryScan:
    """The scan of a block of slices, in memory.

    Arguments: block, of the scan's instrument; sums (B,), of its rows in these views, from `sum_rows`; views (B,),
    those that are not damaged; truth, of these slices.
    """
    shape = (len(views), *block.instrument.data_shape)
    data = torch.empty(shape, dtype=torch.from_numpy(np.empty(0, scan.dtype)).dtype)
    for numbers in _portions(scan, views, "reading the rows of a block"):
        portion = slice(int(numbers[0]), int(numbers[-1]) + 1)  # torch does not fill unsigned integers by an index
        data[portion] = scan.read_rows(views[numbers], block.rows, sums[numbers])
    columns = block_columns(scan, block, views)
    try:
        return MemoryScan(data, block.instrument, truth, scan.provenance, columns)
    except InputError as error:
        raise DamagedError(
            f"the scan {scan.path} cannot be used: {error}; to go on without it, use --skip-damaged"
        ) from error


def block_columns(scan: StoredScan, block: Block, views: Tensor) -> dict[str, NDArray[Any]]:
    """The columns of a block in these views: those of the scan, and only its rows of those with a value a datum."""
    columns: dict[str, Any] = {}
    for column in scan.instrument.columns:
        if column.name not in scan.columns:
            continue
        rows = scan.columns[column.name]
        if column.name in block.columns:
            columns[column.name] = block.columns[column.name][views.numpy()]
        elif column.shape[:1] == scan.instrument.data.shape[:1]:  # a value for each datum
            portions = [rows[views[numbers].numpy()][:, block.rows] for numbers in _portions(scan, views)]
            columns[column.name] = np.concatenate(portions)
        else:
            columns[column.name] = rows[views.numpy()]
    return columns


def _portions(scan: StoredScan, views: Tensor, stage: str = "") -> Iterator[NDArray[np.int64]]:
    """Positions in `views` of portions that take little memory."""
    step = max(1, _PORTION // max(1, scan.nbytes // max(1, scan.n_views)))
    for start in range(0, len(views), step):
        if stage:
            report(stage, start, len(views))
        yield np.arange(start, min(start + step, len(views)))
