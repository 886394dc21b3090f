"""The way of an image in a few numbers a step: random sums, which keep distances between images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

# Random sums of an image. The length of a difference is right to sqrt(2 / sums), 9 %.
_SUMS = 256
# From this step on a trace has this many entries for each doubling of the steps, and before it every step.
_DENSE = 64
# Pixels at a time, so that a volume is not copied; on CUDA more, for fewer launches.
_CHUNK = 1 << 22
_CHUNK_CUDA = 1 << 25


@dataclass
class Trace:
    r"""Where an image was at the steps of a run, as random sums z_k = S x_k: ||z_j - z_k|| is about ||x_j - x_k||.

        z_m = sum over pixels p = m mod 256 of s_p x_p,    s_p = +-1 at random, the same for all steps,

    for which E ||z||^2 = ||x||^2, with a relative standard deviation of at most sqrt(2 / 256). S is linear, so the mean
    of sums is that of the mean image. The signs are a hash of the pixel's number, the same on every device.

    The first 64 steps are kept, and 64 of each doubling after that: a million steps have a thousand entries. A new
    problem, with another sigma say, begins a new trace.

    Arguments: first, the step that counts as zero; steps, from that one; sums, (..., 256) each, on the image's device;
    phase, that of the algorithm (`PlugAndPlay.phase`), None if it tries several images in turn.
    Reference: Charikar, Chen, Farach-Colton, Finding frequent items in data streams, 2002 (the count sketch).
    """

    first: int = 0
    steps: list[int] = field(default_factory=list)
    sums: list[Tensor] = field(default_factory=list)
    phase: int | None = 0

    def begin(self, algorithm: Any, state: Any) -> None:
        """Start again from this state, since another image is sought."""
        self.first, self.steps, self.sums = state.k, [], []
        self.phase = algorithm.phase(state)
        self.add(state.k, state.image, len(algorithm.fidelity.image_shape))

    def follow(self, algorithm: Any, state: Any) -> None:
        """Note where the image is after a step."""
        if algorithm.phase(state) != self.phase:
            self.begin(algorithm, state)
        self.add(state.k, state.image, len(algorithm.fidelity.image_shape))

    def add(self, step: int, image: Tensor, ndim: int) -> None:
        """Note where the image is, if the trace has an entry for this step.

        Arguments: step of the run; image (..., *image_shape), of `ndim` axes.
        """
        since = step - self.first
        gap = 1 << max(0, since.bit_length() - _DENSE.bit_length())
        if since < 0 or since % gap or (self.steps and self.steps[-1] >= since):
            return
        sums = random_sums(image, ndim)
        # No call between the two: Ctrl-C comes before both of them or after.
        self.steps, self.sums = [*self.steps, since], [*self.sums, sums]

    def copy(self) -> Trace:
        """The trace as it is now."""
        return Trace(self.first, list(self.steps), list(self.sums), self.phase)

    def values(self, chosen: Iterable[int]) -> NDArray[Any]:
        """The sums of these entries, in double precision: (images, entries, 256).

        Never all of them: a block that is larger each time it is asked for leaves holes that the next one cannot use,
        and the memory of a long run would grow by one with every measurement.
        """
        sums = torch.stack([self.sums[n] for n in chosen], -2).cpu()
        sums = sums.to(torch.complex128 if sums.is_complex() else torch.float64)
        values: NDArray[Any] = sums.reshape(-1, *sums.shape[-2:]).numpy()
        return values


def random_sums(image: Tensor, ndim: int) -> Tensor:
    """S x of `Trace`, of each image: (..., 256)."""
    flat = image.flatten(image.ndim - ndim)
    sums = flat.new_zeros((*flat.shape[:-1], _SUMS))
    chunk = _CHUNK_CUDA if image.is_cuda else _CHUNK
    for begin in range(0, flat.shape[-1], chunk):
        part = flat[..., begin : begin + chunk]
        part = part * _signs(begin, part.shape[-1], part.device)
        if missing := -part.shape[-1] % _SUMS:
            part = torch.nn.functional.pad(part, (0, missing))
        sums += part.unflatten(-1, (-1, _SUMS)).sum(-2)
    return sums


@lru_cache(maxsize=64)  # a byte a pixel, of images of up to 2^28 pixels
def _signs(begin: int, count: int, device: torch.device) -> Tensor:
    """+-1 for pixels of these numbers, by the finaliser of a 32-bit hash (MurmurHash3), in integers of 64 bits."""
    h = torch.arange(begin + 1, begin + 1 + count, dtype=torch.int64, device=device)
    for factor, shift in ((0x85EBCA6B, 13), (0xC2B2AE35, 16)):
        h = (h ^ (h >> 16 if shift == 13 else h >> 13)) & 0xFFFFFFFF
        h = (h * factor) & 0xFFFFFFFF
    h = (h ^ (h >> 16)) & 0xFFFFFFFF
    return (1 - 2 * (h >> 7 & 1)).to(torch.int8)
