"""Non-local means in torch: the specification of the fast forms, and what runs where they do not serve."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Matrix(NamedTuple):
    """W = diag(scale) A diag(scale) + diag(rest) as the fast forms keep it: one half of A, in an order of their own."""

    affinity: Tensor
    scale: Tensor
    rest: Tensor
    search: int


def nlm(images: Tensor, width: Tensor, search: int, patch: int, balance: int) -> Tensor:
    """Every image averaged with itself as the guide, whose weights are constants to derivatives.

    Arguments: images, (N, H, W); width, h for each, (N,), or 0 to leave it as it is; others as for `NLM`.
    """
    out = [
        apply(weights(z.detach(), h, search, patch, balance), z[None])[0] if h > 0 else z
        for z, h in zip(images, width.tolist(), strict=True)
    ]
    return torch.stack(out) if out else images.clone()


def form(guide: Tensor, width: float, search: int, patch: int, balance: int) -> Tensor:
    """The matrix of a guide, (H, W), for `apply`."""
    return weights(guide, width, search, patch, balance)


def apply(matrix: Tensor, images: Tensor) -> Tensor:
    """The product of a matrix and images, (N, H, W)."""
    near = _neighbours(images, len(matrix) // 2)
    total = torch.zeros_like(images)
    for row, values in zip(matrix, near, strict=True):  # a row of distances at a time, to need little memory
        total = total + (row[:, None] * values).sum(0)
    return total


@torch.no_grad()
def weights(guide: Tensor, width: float, search: int, patch: int, balance: int) -> Tensor:
    r"""The matrix W of `NLM`, as what every pixel gives to its neighbours.

    out[dy + search, dx + search, y, x] = W between (y, x) and (y + dy, x + dx), and 0 where that is outside the image.

    The affinities of one half of the distances are copied to the other, so that the matrix is symmetric to the bit; row
    sums are 1 up to rounding.

    Arguments:
        guide: (H, W). width: h. search, patch, balance: as for `NLM`.
    Returns (2 search + 1, 2 search + 1, H, W).
    Reference: Sreehari et al., 2016, section III-C.
    """
    span, around = 2 * search + 1, 2 * patch + 1
    height, across = guide.shape
    out = guide.new_zeros(span, span, height, across)
    out[search, search] = 1
    rate = float(rates(torch.tensor(width, dtype=torch.float64), patch, guide.dtype))
    # Symmetric continuation by any number of pixels, since patches may be larger than small images are wide.
    rows, columns = (reflect_indices(size, patch, guide.device) for size in guide.shape)
    padded = guide[rows][:, columns]
    for dy in range(min(search, height - 1) + 1):
        for dx in range(-min(search, across - 1), min(search, across - 1) + 1):
            if dy == 0 and dx <= 0:
                continue
            left, right = max(0, -dx), max(0, dx)
            first = padded[: padded.shape[0] - dy, left : padded.shape[1] - right]
            second = padded[dy:, right : padded.shape[1] - left]
            distance = _running_sum(_running_sum((first - second).square_(), 0, around), 1, around)  # ||P_s - P_r||^2
            pyramid = (1 - dy / (search + 1)) * (1 - abs(dx) / (search + 1))
            # Held above the smallest numbers, on which processors are ten times slower; 1.8e-35 adds nothing.
            affinity = distance.mul_(-rate).clamp_min_(-80).exp_().mul_(pyramid)
            out[search + dy, search + dx, : height - dy, left : across - right] = affinity
            out[search - dy, search - dx, dy:, right : across - left] = affinity
    scale = torch.ones_like(guide)
    for _ in range(balance):
        scale = (scale / apply(out, scale[None])[0]).sqrt_()
    scale /= (scale * apply(out, scale[None])[0]).max().sqrt()  # d sqrt(a), for a = 1 / max(rho)
    missing = torch.ones_like(guide)
    for row, near in zip(out, _neighbours(scale[None], search), strict=True):
        row *= near[:, 0] * scale  # in this order: a product of two is the same for (s, r) and (r, s)
        missing -= row.sum(0)
    out[search, search] += missing.clamp_min_(0)
    return out


def rates(width: Tensor, patch: int, dtype: torch.dtype) -> Tensor:
    """1 / (2 n h^2) for every h, and 0 for h = 0; a finite number in this precision, however small h is."""
    n = (2 * patch + 1) ** 2
    rate = 0.5 / (n * width.double().square()).clamp_min(torch.finfo(dtype).tiny)
    return torch.where(width > 0, rate, 0.0).to(dtype)


def reflect_indices(size: int, margin: int, device: torch.device) -> Tensor:
    """The pixels -margin .. size + margin - 1 of a line continued symmetrically, as often as needed."""
    place = torch.arange(-margin, size + margin, device=device) % (2 * size)
    return torch.where(place < size, place, 2 * size - 1 - place)


def _running_sum(values: Tensor, axis: int, count: int) -> Tensor:
    """The sums of `count` values in a row along an axis, which gets shorter by count - 1."""
    length = values.shape[axis] - count + 1
    total = values.narrow(axis, 0, length).clone()
    for k in range(1, count):
        total += values.narrow(axis, k, length)
    return total


def _neighbours(images: Tensor, search: int) -> Tensor:
    """The pixels around each, zero outside: (N, H, W) to (2 search + 1, 2 search + 1, N, H, W), without a copy."""
    height, width = images.shape[-2:]
    padded = F.pad(images, (search,) * 4)
    return padded.unfold(1, height, 1).unfold(2, width, 1).movedim(0, 2)
