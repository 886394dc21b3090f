"""A volume that is larger than a GPU: it stays in the memory of the CPU, and the GPU works on slabs of slices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from plugstream.base.capacity import format_size, free_memory, parse_size
from plugstream.base.errors import InputError
from plugstream.runs.footprint import ON_GPU, SHARE, Footprint, Worker, warm_fields
from plugstream.runs.partition import SURE, Planned, find_obstacle

if TYPE_CHECKING:
    from plugstream.denoisers.base import Denoiser
    from plugstream.scans.scan import Scan

_CPU = torch.device("cpu")


def choose_worker(plan: Planned, scan: Scan) -> Worker | None:
    """The GPU of a run whose volume is larger than it, None where the run has another way.

    It depends on the GPU's size, not on what others use of it now, so that a run that goes on has the same slabs.
    """
    settings, space, device = plan.settings, plan.instrument.image, plan.parts.device
    whole = len(space.spatial) != 3 or space.channels or scan.n_views == 0
    if whole or not plan.instrument.by_slabs or not is_gpu(device) or plan.parts.group.size > 1:
        return None
    dtype, depth, shape = plan.parts.dtype, space.shape[0], space.shape
    data = scan.n_views * math.prod(plan.instrument.data_shape) * dtype.itemsize
    in_memory = data <= settings.scan.in_memory * 1e6
    needed = Footprint.of(plan.denoiser, shape, dtype, data / depth, in_memory=in_memory, device=device).bytes(depth)
    memory = settings.compute.memory
    limit, sure = (SHARE * gpu_memory(device), SURE["cuda"]) if memory is None else (parse_size(memory), 1.0)
    if sure * needed <= limit or find_obstacle(plan, scan) is None:
        return None
    tile = _slices_at_once(plan.denoiser, shape, dtype, limit, settings.compute.halo)
    if tile is None or tile < 1:
        return None
    here = Footprint.of(plan.denoiser, shape, dtype, data / depth, in_memory=in_memory, device=_CPU)
    if here.bytes(depth) > here.process + SHARE * free_memory():
        raise InputError(
            f"a run on {' x '.join(map(str, shape))} voxels takes about {format_size(needed)} of the GPU's memory, or "
            f"{format_size(here.bytes(depth))} of the CPU's, and {format_size(limit)} and {format_size(free_memory())} "
            "are available; import it with larger voxels"
        )
    note = (
        f"all of it would take about {format_size(needed)} of the GPU's memory, and {format_size(limit)} are "
        f"available: the volume stays in the CPU's memory, and the GPU denoises {tile} slices at a time"
    )
    return Worker(device, limit, tile, note)


def _slices_at_once(
    denoiser: Denoiser, shape: tuple[int, ...], dtype: torch.dtype, limit: float, halo: int | None
) -> int | None:
    """How many slices can be denoised at a time, beside their halo; None where it is not known how far that goes."""
    around = halo if halo is not None else denoiser.reach if denoiser.halo is None else denoiser.halo
    if around is None:
        return None
    part = Footprint.of(denoiser, shape, dtype, 0.0, in_memory=False, device=torch.device("cuda"))
    # The slices, what comes of them, and its part on the way back; warm starts before and after.
    numbers = ON_GPU + 3 + 2 * warm_fields(denoiser)
    return min(shape[0], int((limit - part.fixed) // (numbers * part.slice)) - 2 * around)


def is_gpu(device: torch.device) -> bool:
    """Whether a device has memory of its own."""
    return device.type == "cuda"


def gpu_memory(device: torch.device) -> float:
    """Bytes of a GPU's memory, whoever uses it."""
    return float(torch.cuda.get_device_properties(device).total_memory)
