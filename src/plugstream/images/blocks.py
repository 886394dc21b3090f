"""Means over blocks of an image's axes, to make a smaller picture of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["average_blocks"]


def average_blocks(values: Tensor, blocks: Sequence[int]) -> Tensor:
    """Means over blocks of the last axes, real or complex; blocks at the far edges may be smaller.

    Arguments: values (..., n_1, ..., n_d); blocks, the d sizes of a block, two or three of them.
    Returns (..., ceil(n_1 / b_1), ..., ceil(n_d / b_d)).
    """
    if all(size == 1 for size in blocks):
        return values
    if values.is_complex():
        return torch.complex(average_blocks(values.real, blocks), average_blocks(values.imag, blocks))
    axes = len(blocks)
    before, last = values.shape[:-axes], values.shape[-axes:]
    pool = torch.nn.functional.avg_pool2d if axes == 2 else torch.nn.functional.avg_pool3d
    flat = values.reshape(math.prod(before), 1, *last)
    small: Tensor = pool(flat, list(blocks), ceil_mode=True, count_include_pad=False)
    return small.reshape(*before, *small.shape[-axes:])
