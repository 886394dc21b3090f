"""How much memory a run takes, before it is begun: a model of what is alive at its peak."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from plugstream.base.capacity import free_on_device, parse_size
from plugstream.denoisers.base import Denoiser, Wrapper
from plugstream.denoisers.bm3d import BM3D, cuda_form
from plugstream.denoisers.shapes import SliceMean, Slices
from plugstream.denoisers.tiles import Tiles
from plugstream.settings import Settings

# Images that a step has at its peak besides the states before and after it: gradient, what is denoised, and what
# denoised slices are put together from, to which come their warm starts. Measured, as all numbers here.
_AT_WORK = 5
# Of the data that a step, or a measurement of the distance, looks at: prediction, residual, and weighted.
_PREDICTIONS = 3
# Numbers that a denoiser has for each pixel that it works on at a time, on a CPU and on a GPU; there BM3D has more.
_DENOISER, ON_GPU = 6, 7
_PIXELS = 2**22  # that go through a denoiser at a time, where slices do (`plugstream.denoisers.shapes`)
# What projectors prepare at a time, and a copy of the volume that is a little larger than it.
_PROJECTOR, _MARGIN = 67e6, 1.1
# What imports, logs and pictures add to the process after it was looked at.
_REST = 50e6
_CPU = torch.device("cpu")
# Part of the free memory that a run may take where nobody says how much.
SHARE = 0.8


@dataclass(frozen=True)
class Footprint:
    """Bytes that a run takes at its peak, as a function of how many slices it has.

        process + fixed + slices (images * slice + data)

    Arguments: slice, bytes of a slice of the image; images that are alive; data, bytes of a slice's measurements that
    are alive; fixed, what does not grow with slices; process, what it has already.
    """

    slice: float
    images: float
    data: float
    fixed: float
    process: float

    def bytes(self, slices: int) -> float:
        """What a run of so many slices takes."""
        return self.process + self.fixed + slices * (self.images * self.slice + self.data)

    def most(self, limit: float) -> int:
        """How many slices fit; 0 where not even one does."""
        return max(0, int((limit - self.process - self.fixed) // (self.images * self.slice + self.data)))

    @classmethod
    def of(
        cls,
        denoiser: Denoiser,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        data: float,
        *,
        in_memory: bool,
        device: torch.device = _CPU,
    ) -> Footprint:
        """The footprint of a run.

        Arguments: denoiser, for volumes (D, H, W) of `shape`; dtype of the image; data, bytes of a slice's measurements
        in all views; in_memory, whether all of them are in memory at a time; device, whose memory it is.
        """
        pixels = math.prod(shape[1:])
        slice_bytes = pixels * dtype.itemsize
        warm = warm_fields(denoiser)
        state = 2 + warm  # image, extrapolated image, and what the denoiser starts from
        images = 3 * state + _AT_WORK + warm + _MARGIN  # before, after, and the best so far
        inner = _innermost(denoiser)
        portions = isinstance(inner, Slices | SliceMean)
        at_once = max(pixels, min(_PIXELS, pixels * shape[0])) if portions else 0
        each = ON_GPU if device.type == "cuda" else _DENOISER
        numbers = each * at_once
        if (
            device.type == "cuda"
            and isinstance(inner, Slices | SliceMean)
            and isinstance(_innermost(inner.denoiser), BM3D)
        ):
            numbers += cuda_form.NUMBERS * max(pixels, min(at_once, cuda_form.AT_ONCE))
        fixed = numbers * dtype.itemsize + _PROJECTOR + _REST
        images += 0 if isinstance(inner, Slices) or inner.reach == 0 else each
        return cls(slice_bytes, images, (1 + _PREDICTIONS if in_memory else 0) * data, fixed, process_memory(device))


@dataclass(frozen=True)
class Worker:
    """A GPU that works on slabs of a volume elsewhere.

    Arguments: device; memory of it, in bytes, that may be used; tile, slices that are denoised at a time, without their
    halo; note, why, for a person.
    """

    device: torch.device
    memory: float
    tile: int
    note: str


def warm_fields(denoiser: Denoiser) -> float:
    """How many images a denoiser's warm start is as large as, for a small volume and one process; 3 if that fails."""
    denoiser = _alone(denoiser)
    least = [max(16, size) for size in denoiser.min_shape]
    least[0] = denoiser.min_shape[0]
    image = torch.zeros(least)
    try:
        _, warm = denoiser.window(tuple(slice(0, size) for size in least)).denoise(image, 1e-3)
    except (RuntimeError, ValueError, TypeError):  # one that takes other images, or code of others
        return 3.0
    return 0.0 if warm is None else warm.numel() / image.numel()


def memory_limit(settings: Settings, processes: int = 1, device: torch.device = _CPU) -> float:
    """Bytes that each process of a run may take: what the settings say, or a part of what is free for all of them.

    Processes share the memory of the CPU; on GPUs each has its own.
    """
    if settings.compute.memory is not None:
        return parse_size(settings.compute.memory)
    return SHARE * free_on_device(device) / (processes if device.type == "cpu" else 1) + process_memory(device)


def process_memory(device: torch.device = _CPU) -> float:
    """Bytes of memory that this process has now, on the device."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError):
        return 300e6
    return pages * os.sysconf("SC_PAGE_SIZE")


def _alone(denoiser: Denoiser) -> Denoiser:
    """A denoiser whose tiles, if it has any, are this process's."""
    if isinstance(denoiser, Tiles):
        return denoiser.alone()
    if not isinstance(denoiser, Wrapper):
        return denoiser
    inner = _alone(denoiser.denoiser)
    return denoiser if inner is denoiser.denoiser else denoiser.rewrap(inner)


def _innermost(denoiser: Denoiser) -> Denoiser:
    """A denoiser without what is wrapped around it."""
    while isinstance(denoiser, Wrapper):
        denoiser = denoiser.denoiser
    return denoiser
