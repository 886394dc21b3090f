"""A scan without the numbers that cannot be right: its mask leaves them out."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugstream.base.errors import DamagedError
from plugstream.instruments.base import Columns, Instrument
from plugstream.models.outliers import Outliers, suspect_data
from plugstream.scans.scan import Scan
from plugstream.scans.store import StoredScan

_LARGE = 1 << 21  # numbers, from which on looking takes seconds


def is_camera(instrument: Instrument) -> bool:
    """Whether the last two axes of the data are rows and columns of a detector."""
    return instrument.data.shape[-2:] == ("row", "column")


def mask_column(instrument: Instrument, columns: Columns, bad: Tensor) -> dict[str, Any]:
    """The column that masks these numbers, too: (views, *data_shape); nothing of an instrument without masks."""
    column = next((column for column in instrument.columns if column.covers), None)
    if column is None:
        return {}
    mask = instrument.find_mask(columns)
    good = (~bad).cpu().numpy().reshape(len(bad), *instrument.row_shape(column))
    return {column.name: good if mask is None else good & np.asarray(mask[:])}


def without_outliers(scan: Scan, found: Outliers) -> Scan:
    """The scan whose mask leaves these numbers out, and in which noisy views count less."""
    masked: Any = copy.copy(scan)
    columns = {**scan.columns}
    if bool(found.bad.any()):
        columns |= mask_column(scan.instrument, scan.columns, found.bad)
    if found.weights is not None:
        columns["weight"] = found.weights.cpu().numpy() * np.asarray(scan.columns.get("weight", 1.0))
    object.__setattr__(masked, "_columns" if isinstance(scan, StoredScan) else "columns", columns)
    return masked  # type: ignore[no-any-return]


def without_suspects(scan: Scan) -> Scan:
    """A small scan without the numbers that their neighbours make impossible, for a first look at it."""
    large = scan.n_views * int(np.prod(scan.instrument.data_shape)) > _LARGE
    if large or not scan.instrument.has_neighbours(scan.columns):
        return scan
    try:
        rays = getattr(scan.instrument, "rays", None)  # of X-rays
        mirror = None if rays is None else torch.from_numpy(rays(scan.columns).mirrored_columns())
        found = suspect_data(scan.read().resolve_conj(), camera=is_camera(scan.instrument), mirror=mirror)
    except DamagedError:  # which whoever reads the damaged views is told
        return scan
    return without_outliers(scan, found) if bool(found.bad.any()) else scan
