"""What is refused before a run begins: a device that is not there, and views that nothing can be made of."""

from __future__ import annotations

import math

import numpy as np
import torch

from plugstream.base.errors import InputError
from plugstream.fidelity.by_loss import DataFidelity
from plugstream.instruments.base import Columns, Instrument
from plugstream.models.views import spread_views
from plugstream.scans.scan import Scan
from plugstream.scans.store import StoredScan
from plugstream.settings import ComputeSettings, Settings

# Views of a scan that is not in memory that are looked at for the range of its values, and what sums of them may add.
_VIEWS, _ROOM = 8, 100.0


def check_batch(settings: Settings, n_views: int, interval: int | None = None) -> None:
    """Refuse a batch of more views than there are; every `interval`-th is held out while sigma is searched for."""
    batch, hold_out = settings.sampler.views, interval or settings.monitor.hold_out
    if not settings.scan.follow and hold_out is not None and hold_out > n_views:
        raise InputError(
            f"every {hold_out}th view is to be held out, but the scan has {n_views}; use a smaller --hold-out"
        )
    if hold_out is not None:
        n_views -= n_views // hold_out
    less = "" if hold_out is None else " without those held out"
    if not settings.scan.follow and batch is not None and batch > n_views:
        raise InputError(
            f"a batch of {batch} views was asked for, but the scan has {n_views}{less}; use a smaller --batch"
        )


def check_mask(instrument: Instrument, columns: Columns) -> None:
    """Refuse a scan whose data are all masked; a mask on a disk is not read for this."""
    mask = instrument.find_mask(columns)
    if isinstance(mask, np.ndarray) and not mask.any():
        axes = instrument.data.shape
        name = axes[0] if len(axes) == 1 and isinstance(axes[0], str) else "datum"
        raise InputError(f"every {name} of every view is masked, so there is nothing to reconstruct from")


def check_range(scan: Scan, fidelity: DataFidelity, *, by_lipschitz: bool) -> None:
    """Refuse data whose squares, or those of the image, of about ||y_i|| / ||H_i||, leave the range of the precision.

    Of a scan that is not in memory a few views are looked at; `by_lipschitz` says that L is needed anyway.
    """
    model, available = fidelity.model, fidelity.available
    spread = spread_views(available, _VIEWS) if isinstance(scan, StoredScan) else None
    views = available if spread is None else spread
    stored = model.data_dtype.to_real() if model.intensities else model.data_dtype
    rows = scan.read(views).to(model.device, stored)
    if model.stored_shape != model.data_shape:
        rows = model.convert(rows, views)
    rows = model.restrict(rows, views)
    size = float(rows.abs().max()) * math.sqrt(math.prod(model.data_shape))
    sizes = [size]
    if by_lipschitz and fidelity.has_lipschitz and 0 < fidelity.lipschitz_max < math.inf:
        sizes.append(size / math.sqrt(fidelity.lipschitz_max))
    limits = torch.finfo(fidelity.dtype)
    if size > 0 and not all(math.sqrt(limits.tiny) < value < math.sqrt(limits.max) / _ROOM for value in sizes):
        name = str(fidelity.dtype.to_real()).removeprefix("torch.")
        wider = "use --dtype float64, or scale the data" if name == "float32" else "scale the data"
        raise InputError(
            f"the data has values of {float(rows.abs().max()):.2g}, and the image would be of about "
            f"{sizes[-1]:.2g}: their squares are outside the range of {name}, {limits.tiny:.0e} to "
            f"{limits.max:.0e}; {wider}"
        )


def prepare_device(compute: ComputeSettings) -> tuple[torch.device, torch.dtype]:
    """Set the number of threads, and return the device and dtype; refuse a GPU that is not there."""
    if compute.threads is not None:
        torch.set_num_threads(compute.threads)
    try:
        device = torch.device(compute.device)
    except RuntimeError:
        raise InputError(f"there is no device {compute.device!r}; choose cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"the device {compute.device!r} is not supported; choose cpu, cuda or cuda:N")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise InputError("torch sees no GPU on this machine; use --device cpu, or install torch with CUDA")
        if device.index is not None and device.index >= count:
            raise InputError(f"there is no GPU {device.index}: torch sees {count}, numbered from 0")
    return device, {"float32": torch.float32, "float64": torch.float64}[compute.dtype]
