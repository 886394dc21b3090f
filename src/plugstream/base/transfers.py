"""Slices of a volume from a GPU to the memory of the CPU, or to a file, through page-locked memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

# Bytes of slices on their way back at a time.
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


def bring_back(slices: Tensor, ready: Any, first: int, target: Target) -> None:
    """Write slices from a device to a target, some megabytes at a time, after the event `ready`; in any thread."""
    if slices.device.type != "cuda":
        target.write(first, slices.numpy())
        return
    step = max(1, _PIECE // (slices.element_size() * math.prod(slices.shape[1:])))
    stream = torch.cuda.Stream(slices.device)
    locked = torch.empty((2, min(step, len(slices)), *slices.shape[1:]), dtype=slices.dtype, pin_memory=True)
    events = [torch.cuda.Event(), torch.cuda.Event()]

    def fetch(number: int) -> None:
        part = slices[number * step : (number + 1) * step]
        with torch.cuda.stream(stream):
            locked[number % 2, : len(part)].copy_(part, non_blocking=True)
            events[number % 2].record(stream)

    stream.wait_event(ready)
    count = math.ceil(len(slices) / step)
    fetch(0)
    for number in range(count):
        if number + 1 < count:
            fetch(number + 1)
        events[number % 2].synchronize()
        start = number * step
        target.write(first + start, locked[number % 2, : min(step, len(slices) - start)].numpy())
