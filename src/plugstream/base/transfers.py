"""Parts of a volume to a GPU, and back to the memory of the CPU or to a file, through page-locked memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

# Bytes on their way at a time; a multiple of every number's size.
_PIECE = 128 << 20


class Target(Protocol):
    """Where slices go: a `plugstream.base.volume_file.VolumeFile` is one."""

    def write(self, first: int, slices: Any) -> None:
        """Slices (n, H, W), an array, from the number `first` on."""


@dataclass(frozen=True)
class MemoryTarget:
    """A volume in the memory of the CPU."""

    volume: Tensor

    def write(self, first: int, slices: Any) -> None:
        self.volume[first : first + len(slices)] = torch.from_numpy(slices)


def bring(part: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device, while that works on what came before; the host waits for the transfer alone."""
    if device.type != "cuda" or part.is_cuda:
        return part.to(device)
    source, current, stream = part.contiguous().view(-1), torch.cuda.current_stream(device), _stream(device)
    with torch.cuda.stream(stream), _locked() as locked:
        out = torch.empty(part.shape, dtype=part.dtype, device=device)
        step, events = _PIECE // part.element_size(), [torch.cuda.Event(), torch.cuda.Event()]
        for number, begin in enumerate(range(0, len(source), step)):
            piece = source[begin : begin + step]
            events[number % 2].synchronize()
            here = locked[number % 2].view(part.dtype)[: len(piece)].copy_(piece)
            out.view(-1)[begin : begin + step].copy_(here, non_blocking=True)
            events[number % 2].record(stream)
        stream.synchronize()
    out.record_stream(current)
    return out


def bring_back(slices: Tensor, ready: Any, first: int, target: Target) -> None:
    """Write slices from a device to a target, some megabytes at a time, after the event `ready`; in any thread."""
    if slices.device.type != "cuda":
        target.write(first, slices.numpy())
        return
    stream, events = torch.cuda.Stream(slices.device), [torch.cuda.Event(), torch.cuda.Event()]
    stream.wait_event(ready)
    size = math.prod(slices.shape[1:])
    step = max(1, _PIECE // (slices.element_size() * size))
    parts = slices.split(step)
    with _locked(max(_PIECE, size * slices.element_size())) as locked:

        def fetch(number: int) -> Tensor:
            part = parts[number]
            here = locked[number % 2].view(slices.dtype)[: part.numel()].view(part.shape)
            with torch.cuda.stream(stream):
                here.copy_(part, non_blocking=True)
                events[number % 2].record(stream)
            return here

        here = fetch(0)
        for number in range(len(parts)):
            following = fetch(number + 1) if number + 1 < len(parts) else here
            events[number % 2].synchronize()
            target.write(first + number * step, here.numpy())
            here = following


_idle: list[Tensor] = []  # page-locked memory, (2, bytes), which takes long to get


@contextmanager
def _locked(size: int = _PIECE) -> Iterator[Tensor]:
    """Two pieces of page-locked memory that nobody else uses meanwhile."""
    try:
        found = _idle.pop()
    except IndexError:
        found = torch.empty((2, 0), dtype=torch.uint8)
    if found.shape[1] < size:
        found = torch.empty((2, -(-size // 16) * 16), dtype=torch.uint8, pin_memory=True)  # whole numbers of any kind
    try:
        yield found
    finally:
        _idle.append(found)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
