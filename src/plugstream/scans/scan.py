"""A scan: the measurements of all views with their instrument, wherever they lie."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.arrays import Array, as_tensor
from plugstream.base.errors import InputError
from plugstream.instruments._parts import InstrumentLike, instrument_parts
from plugstream.instruments.base import Columns, Instrument
from plugstream.models.views import as_views
from plugstream.scans.checks import (
    check_columns,
    check_data_shape,
    check_finite,
    check_truth,
    convert_numbers,
    count_views,
    data_bytes,
    fixed_arrays,
)

# Of a scan of up to this many bytes every view is compared, and of a larger one the first view of each part.
_WHOLE_BYTES = 64 << 20
_PARTS = 16


class Scan(Protocol):
    """Measurements that are read view by view, the instrument they were taken with, and where they come from."""

    @property
    def instrument(self) -> Instrument: ...
    @property
    def columns(self) -> Columns:
        """What the views have besides data, by name: in memory, or on a disk where it is large."""

    @property
    def truth(self) -> NDArray[Any] | None: ...
    @property
    def provenance(self) -> Mapping[str, Any]: ...
    @property
    def n_views(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the measurements."""

    def read(self, views: Tensor | None = None) -> Tensor:
        """The measurements of these views, (B, *data_shape), on the CPU; all for None."""


@dataclass(frozen=True, eq=False, init=False)
class MemoryScan:
    """A scan held in memory: data (views, *data_shape), its instrument and columns, and the true image if it is known.

    Data and truth may be tensors or NumPy arrays. Data becomes a tensor on the CPU: in its own dtype if the instrument
    has that, a tensor of complex128 as it is, and otherwise in the instrument's usual dtype. The truth becomes an array
    of float32, or complex64 if the image is complex.

    Arguments: data; instrument, or a geometry, which has the columns too; truth; provenance; columns by name, a
    row for each view.
    """

    data: Tensor
    instrument: Instrument
    truth: NDArray[Any] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    columns: Columns = field(default_factory=dict)

    def __init__(
        self,
        data: Array,
        instrument: InstrumentLike,
        truth: Array | None = None,
        provenance: Mapping[str, Any] | None = None,
        columns: Columns | None = None,
    ) -> None:
        if truth is not None:
            truth = as_tensor("the scan's true image", truth).detach().cpu().numpy()
        device, rows = instrument_parts(instrument)
        if isinstance(data, np.ndarray) and data.dtype.kind in "biu":  # counts stay integers
            values: NDArray[Any] = np.ascontiguousarray(data)
        elif isinstance(data, Tensor) and not (data.is_floating_point() or data.is_complex()):
            values = data.detach().cpu().numpy()
        else:
            values = as_tensor("the scan's data", data).detach().cpu().numpy()
        checked = check_columns(device, {**rows, **(columns or {})}, None)
        check_data_shape(values.shape, device, count_views(checked, values))
        if truth is not None:
            truth = check_truth(truth, device.image)
        wide = isinstance(data, Tensor) and data.dtype == torch.complex128
        if not wide and values.dtype.name not in device.data.dtypes:
            values = convert_numbers("data", values, np.dtype(device.data.dtypes[0]))
        check_finite(values, device.find_mask(checked))
        set_once = object.__setattr__  # as the __init__ of a frozen dataclass does
        set_once(self, "data", torch.from_numpy(values))
        set_once(self, "instrument", device)
        set_once(self, "truth", truth)
        set_once(self, "provenance", {} if provenance is None else provenance)
        set_once(self, "columns", checked)

    @property
    def n_views(self) -> int:
        return len(self.data)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.data.numpy().dtype

    def read(self, views: Tensor | None = None) -> Tensor:
        return self.data if views is None else self.data[as_views(views, self.n_views)]


def hashes(scan: Scan, views: int) -> dict[str, str]:
    """What tells a scan from others, by name: hashes of its geometry and, in parts, of its first `views` views.

    Of a scan of up to 64 MB every view counts, of a larger one the first view of each of 16 parts. Neither a damaged
    part nor a later view makes it another scan: they have no entry.
    """
    instrument, columns = scan.instrument, scan.columns
    header = json.dumps([instrument.name, instrument.values()], sort_keys=True).encode()
    arrays = map(np.ascontiguousarray, fixed_arrays(instrument).values())
    entries = {"the geometry of the scan": _hash(header, *arrays)}
    small = views * view_bytes(scan) <= _WHOLE_BYTES
    for part in np.array_split(np.arange(views), min(_PARTS, views)):
        sample = part if small else part[:1]
        try:
            data = scan.read(torch.from_numpy(sample)).numpy()
            mask = instrument.find_mask(columns)
            check_finite(data, None if mask is None else mask[sample])
        except InputError:  # damaged, or NaN, which is damage from before the checksum
            continue
        rows = [data, *(columns[column.name][sample] for column in instrument.columns if column.name in columns)]
        first, last = sample[0], sample[-1]
        name = f"view {first} of the scan" if first == last else f"one of views {first} to {last} of the scan"
        entries[name] = _hash(*map(np.ascontiguousarray, rows))
    return entries


def stored_dtype(scan: Scan) -> str:
    """The dtype of measurements on a disk or on their way: their own if the instrument has it."""
    dtypes = scan.instrument.data.dtypes
    return scan.dtype.name if scan.dtype.name in dtypes else dtypes[0]


def view_bytes(scan: Scan) -> int:
    """Bytes of a view with all of its columns."""
    instrument = scan.instrument
    columns = [column for column in instrument.columns if column.name in scan.columns]
    sizes = [math.prod(instrument.row_shape(column)) * np.dtype(column.dtype).itemsize for column in columns]
    return data_bytes(instrument, scan.dtype) + sum(sizes)


def fingerprint(scan: Scan) -> str:
    """Which scan this is, with the views that it has now, in 16 hexadecimal digits."""
    return _hash(repr((scan.n_views, hashes(scan, scan.n_views))).encode())


def _hash(*parts: Any) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()[:16]
