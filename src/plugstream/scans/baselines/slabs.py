"""Filtered back-projection on a GPU by slabs of slices, where the volume or the data are larger than its memory.

For every slab the rows of the detector that see it come over some views at a time, are filtered, and are added to it. A
transfer, the work on what came before it, and the way back of the slab before run at the same time: data go through two
page-locked buffers by a stream of their own, and a thread writes finished slabs. How a volume is cut changes no bit of
the back-projection.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from plugstream.base.capacity import format_size, free_memory
from plugstream.base.errors import InputError
from plugstream.base.progress import report
from plugstream.base.transfers import MemoryTarget, Target, bring_back
from plugstream.scans.baselines.gather_cuda import CudaGather

Rows = Callable[[Tensor, slice], Tensor]
"""Views (B,), and rows of the detector, to their data (B, R, C), on any device."""

# Numbers of filtered data that are gathered at a time, and how many times the padded rows are there while filtering.
_AT_ONCE, _COPIES = 1 << 24, 6
# Slices of a slab, at most: reading the first and writing the last one hide behind nothing.
_DEEP = 256


@dataclass(frozen=True)
class Slabs:
    """How a volume is cut: edges, 0 < ... < D; views that are filtered at a time; rows, at most, of a slab."""

    edges: tuple[int, ...]
    views: int
    rows: int

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The first slice of each slab, and the one after its last."""
        return list(itertools.pairwise(self.edges))


def plan_slabs(gather: CudaGather, views: int, length: int, memory: float, *, stays: bool = True) -> Slabs:
    """The fewest slabs of a volume that need at most so much memory, which is refused if one slice needs more.

    Arguments: gather, of the volume; views, how many there are; length of the rows while they are filtered; memory;
    stays, whether a volume that fits stays on the device.
    """
    depth, height, width = gather.shape
    most = depth if stays else min(depth, _DEEP)
    while most:
        count = math.ceil(depth / most)
        edges = tuple(depth * number // count for number in range(count + 1))
        bounds = [gather.find_rows(first, last) for first, last in itertools.pairwise(edges)]
        rows = max(high - low for low, high in bounds)
        each = 4 * rows * (3 * gather.detector[1] + _COPIES * length)  # coming, here, packed; padded
        sums = 4 * height * width * 2 * (4 * math.ceil(depth / count / 4))
        if sums + each <= memory:
            at_once = max(1, _AT_ONCE // (rows * gather.detector[1]))
            return Slabs(edges, min(views, at_once, int((memory - sums) // each)), rows)
        most = min(most - 1, int(most * 0.8), _DEEP)
    raise InputError(
        f"one slice of {height} x {width} and the rows that see it take about {format_size(sums + each)} of the GPU's "
        f"memory, and {format_size(memory)} are available; use --device cpu, or larger voxels"
    )


def remember_views(read: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """A function of views, in order, that asks for each of them once, if half of the free memory has room for them.

    Arguments: read; shape (views, *detector), of all data.
    """
    if 4 * math.prod(shape) > free_memory() / 2:
        return read
    data, known = torch.empty(shape), torch.zeros(shape[0], dtype=torch.bool)

    def remember(views: Tensor) -> Tensor:
        part = slice(int(views[0]), int(views[-1]) + 1)
        if not bool(known[part].all()):
            data[part], known[part] = read(views), True
        return data[part]

    return remember


def form_slabs(
    gather: CudaGather,
    read: Rows,
    filter_rows: Callable[[Tensor, slice, int], Tensor],
    scales: Tensor,
    slabs: Slabs,
    target: Target | None = None,
) -> Tensor:
    """Filter and back-project all views.

    Arguments: gather; read; filter_rows, of data (B, R, C) on the device, which views, and the first row: (B, R, L);
    scales (views,), factors of the views; slabs; target, where slabs go.
    Returns (D, H, W), on the device if it is one slab, else on the CPU; nothing, (0,), if there is a target.
    """
    if target is not None or len(slabs.edges) == 2:
        return _sum_slabs(gather, read, filter_rows, scales, slabs, target)
    volume = torch.empty(gather.shape)
    _sum_slabs(gather, read, filter_rows, scales, slabs, MemoryTarget(volume))
    return volume


def _sum_slabs(
    gather: CudaGather,
    read: Rows,
    filter_rows: Callable[[Tensor, slice, int], Tensor],
    scales: Tensor,
    slabs: Slabs,
    target: Target | None,
) -> Tensor:
    """As `form_slabs`, slab by slab to the target, or one to the device."""
    views, device = len(scales), gather.device
    depth, height, width = gather.shape
    deepest = max(last - first for first, last in slabs.pairs)
    done = torch.empty((deepest, height, width), dtype=torch.float32, device=device)
    sums = gather.begin(deepest)
    arrivals = _Arrivals(device, slabs.views * slabs.rows * gather.detector[1])
    writing: Future[None] | None = None
    with ThreadPoolExecutor(1) as pool:
        for first, last in slabs.pairs:
            part = sums.reshape(-1)[: height * width * gather.size(last - first)]
            part = part.reshape(height, width, -1)
            low, high = gather.find_rows(first, last)
            for start in range(0, views, slabs.views):
                report("back-projecting", first * views + (last - first) * start, depth * views)
                chosen = slice(start, min(start + slabs.views, views))
                data = arrivals.load(read(torch.arange(chosen.start, chosen.stop), slice(low, high)))
                filtered = filter_rows(data, chosen, low)
                arrivals.release()
                gather.add(part, filtered, chosen, scales[chosen], (first, last), low, go_on=start > 0)
            if writing is not None:
                writing.result()  # `done` is free again
            gather.finish(part, done[: last - first])
            if target is not None:
                ready = None if device.type != "cuda" else torch.cuda.current_stream(device).record_event()
                writing = pool.submit(bring_back, done[: last - first], ready, first, target)
        if writing is not None:
            writing.result()
    return done if target is None else torch.empty(0)


class _Arrivals:
    """Data that come to a device while it works on those before.

    Arguments: device; size, numbers at most.
    """

    def __init__(self, device: torch.device, size: int) -> None:
        self.device, self._turn = device, 0
        if device.type != "cuda":
            return
        self._stream, self._size = torch.cuda.Stream(device), size
        self._here: list[Tensor] = []
        self._locked: list[Tensor | None] = [None, None]
        self._come, self._used = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))

    def load(self, data: Tensor) -> Tensor:
        """Data on the device, in single precision; valid until two more have been asked for."""
        if data.device == self.device:
            return data.to(torch.float32)
        if not self._here:
            self._here = [torch.empty(self._size, device=self.device) for _ in range(2)]
            self._stream.wait_stream(torch.cuda.current_stream(self.device))  # what their memory was used for before
        turn = self._turn = 1 - self._turn
        here = self._here[turn][: data.numel()].view(data.shape)
        if data.is_pinned() and data.dtype == torch.float32:
            sources = [data] if data.is_contiguous() else list(data)
        else:
            locked = self._locked[turn]
            if locked is None:
                locked = self._locked[turn] = torch.empty(self._size, pin_memory=True)
            self._come[turn].synchronize()  # what was here has gone over
            sources = [locked[: data.numel()].view(data.shape).copy_(data)]
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._used[turn])
            for number, source in enumerate(sources):
                (here if len(sources) == 1 else here[number]).copy_(source, non_blocking=True)
            self._come[turn].record(self._stream)
        torch.cuda.current_stream(self.device).wait_event(self._come[turn])
        return here

    def release(self) -> None:
        """What was loaded last is not needed after the work that has been launched."""
        if self.device.type == "cuda":
            self._used[self._turn].record(torch.cuda.current_stream(self.device))
