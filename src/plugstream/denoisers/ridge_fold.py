r"""Filters and their mirror images, folded: the same responses from a quarter of the products.

A filter w that is even under a half turn is e + o, where e is its own mirror image across and down, and o changes sign
under either. Its mirror image is e - o. So both responses come from two products with the sums of the pixels of four
quadrants,

    e * x = sum over a, b >= 0 of e_ab (x[i + a, j + b] + x[i + a, j - b] + x[i - a, j + b] + x[i - a, j - b]),

with half the weight in the middle row and column; o * x has the signs (+, -, -, +). A filter that is odd under a half
turn is the sum of one that changes sign downwards, (+, +, -, -), and one that does so across, (+, -, +, -). For a pair
of 9 x 9 that is 41 or 40 products instead of 162; the adjoint is the transpose.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Folded(NamedTuple):
    """The quadrants of the parts of n pairs of even filters, then of n pairs of odd ones.

    forward, backward: (4, n, side, side), side = size // 2 + 1, entry (a, b) for the pixel a below and b to the right.
    Parts: even filters' unchanging and changing ones, odd filters' that change downwards and across. `forward` has the
    middle row and column at half their weight, `backward` in full.
    """

    forward: Tensor
    backward: Tensor


def fold_kernels(kernels: Tensor) -> Folded:
    """What `Ridges.kernels` gives, (4 n, 1, size, size): n even filters, n odd ones, and the mirror images of both."""
    middle = kernels.shape[-1] // 2
    plain, mirrored = kernels[:, 0].chunk(2)
    even, odd = ((plain + mirrored) / 2).chunk(2), ((plain - mirrored) / 2).chunk(2)
    backward = torch.stack([even[0], odd[0], even[1], odd[1]])[..., middle:, middle:].contiguous()
    # 1/2 in the middle: without a number from the host, which a CUDA graph could not copy.
    half = 1 - (torch.arange(middle + 1, device=kernels.device) == 0).to(kernels.dtype) / 2
    return Folded(backward * half[:, None] * half, backward)
