"""The random draws of a step: pure functions of (seed, step), the same on every machine and after a resume.

Random numbers are the raw words of Philox, a counter-based generator, at counter = step: they do not depend on NumPy's
version, and those of any step are available without the steps before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Stream(IntEnum):
    """The purpose of random words, so that two parts of a run with the same seed draw independently."""

    VIEWS = 0
    FULL_PASS = 1
    DENOISER = 2
    NOISE = 3
    ORIENTATION = 4
    HALVES = 5
    JUDGES = 6


def draw_words(seed: int, step: int, count: int, stream: Stream = Stream.VIEWS) -> NDArray[np.uint64]:
    """`count` random words of 64 bits for a step."""
    return np.random.Philox(key=seed, counter=[0, 0, int(stream), step]).random_raw(count)


def fraction(seed: int, step: int, stream: Stream) -> float:
    """A uniformly distributed number from 0 to 1, excluding 1."""
    return float((draw_words(seed, step, 1, stream)[0] >> np.uint64(11)) * 2.0**-53)


def coin(seed: int, step: int, probability: float, stream: Stream = Stream.FULL_PASS) -> bool:
    """Whether an event of this probability happens in a step: a pure function of (seed, step).

    Its random words differ from those of a sampler with the same seed.
    """
    return fraction(seed, step, stream) < probability


def standard_normal(seed: int, step: int, shape: Sequence[int]) -> Tensor:
    """Standard normal numbers of this shape, float64, by Box and Muller: a pure function of (seed, step)."""
    count = math.prod(shape)
    words = draw_words(seed, step, count + count % 2, Stream.NOISE).reshape(2, -1)
    uniform = ((words >> np.uint64(11)) + 0.5) * 2.0**-53  # never 0, whose logarithm is infinite
    radius, angle = np.sqrt(-2 * np.log(uniform[0])), 2 * np.pi * uniform[1]
    both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return torch.from_numpy(both[:count].reshape(tuple(shape)))
