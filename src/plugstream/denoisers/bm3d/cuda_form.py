"""BM3D on CUDA: which kernels of `cuda_kernels.cu` run, in which order.

Grids come from shapes alone and nothing is read back, so that a call can be captured in a CUDA graph, after one call
outside it that compiles the kernels. Small images, whose kernels take less time than their launches, use such a graph.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugstream.base.cuda_graphs import GraphCall, side_by_side
from plugstream.base.cuda_source import has_compiler
from plugstream.denoisers.bm3d.cuda_kernels import Chains, Launches
from plugstream.denoisers.bm3d.profile import BLOCK, Profile
from plugstream.denoisers.bm3d.reference import group_size
from plugstream.denoisers.bm3d.transforms import correlations, transform

AT_ONCE = 1 << 19  # pixels of the images that are denoised at a time, which is enough to fill a GPU
NUMBERS = 400  # in memory for each of these pixels: spectra, keys and filtered blocks (380 on an H200)


def serves(images: Tensor) -> bool:
    """Whether the kernels take these images: float32 on CUDA, and torch has a compiler."""
    return images.is_cuda and images.dtype == torch.float32 and has_compiler()


def bm3d(images: Tensor, sigma: Tensor, profile: Profile, *, stages: int = 2) -> Tensor:
    """Remove white Gaussian noise by filtering groups of similar blocks: (N, H, W) and (N,) to (N, H, W).

    The matching is that of `reference.bm3d` to the bit, the result up to rounding, and the same bits every time: all
    blocks at a position are added as integers of 64 bits, whose sum does not depend on the order. They are multiples of
    2^-42 of the power of two at or below the largest pixel; of the least weight a group can have, that is 2^-31.

    Arguments:
        images: float32 on CUDA, contiguous, H, W >= 8.
        sigma: float32 on the same device, one for each image; never read by the host, and not to be changed later. 0
            returns the image as it is.
    """
    call, (number, height, width) = _graph_call(profile, stages), images.shape
    most = max(1, AT_ONCE // (height * width))
    if number <= most:
        return call(images, sigma)
    parts = zip(images.split(most), sigma.split(most), strict=True)
    return torch.cat([call(some, levels) for some, levels in parts])


@lru_cache(maxsize=8)
def _graph_call(profile: Profile, stages: int) -> GraphCall:
    def both(images: Tensor, sigma: Tensor) -> Tensor:
        basic, largest = _stage(images, None, sigma, profile)
        return basic if stages == 1 else _stage(images, basic, sigma, profile, largest)[0]

    return GraphCall(both, steady=(1,))


def match(guide: Tensor, profile: Profile, most: int) -> Tensor:
    """As `reference.match`: (H, W) to (references, K), or (N, H, W) to (N, references, K)."""
    stack = guide.reshape(-1, *guide.shape[-2:]).contiguous()
    launches = Launches(stack, stack, profile)
    size = group_size((launches.height, launches.width), profile.radius, most)
    groups = launches.choose(launches.measure(stack), size)[0].long()
    return groups.reshape(*guide.shape[:-2], *groups.shape[1:])


def _stage(
    images: Tensor, basic: Tensor | None, sigma: Tensor, profile: Profile, largest: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One stage, as in `reference.py`, on the noisy images alone, or with the basic estimate as the guide.

    Returns the result and the largest absolute value of each image's pixels, which may be given.
    """
    first = basic is None
    name = "bior15" if first else "dct"
    analysis, synthesis, window = matrices(name, profile.kaiser)
    launches = Launches(images, sigma, profile)
    size = group_size((launches.height, launches.width), profile.radius, profile.group1 if first else profile.group2)

    def matched() -> tuple[Tensor, Chains]:
        return launches.choose(launches.measure(images if basic is None else basic), size)

    def transformed() -> tuple[Tensor, Tensor | None, Tensor]:
        noisy = launches.transform(images, analysis)
        guide = None if basic is None else launches.transform(basic, analysis)
        return noisy, guide, torch.linalg.vector_norm(images, math.inf, dim=(1, 2)) if largest is None else largest

    (groups, chains), (noisy, guide, most) = side_by_side(images.device, matched, transformed)
    factor = float(profile.threshold if first else profile.wiener)
    blocks, shares = launches.filter(groups, noisy, guide, common_table(name, images.device), factor)
    return launches.assemble(blocks, shares, chains, most, synthesis, window), most


@cache
def matrices(name: str, kaiser: float) -> tuple[Any, ...]:
    """The analysis matrix, the synthesis matrix with row i times the window's i-th number, and the window."""
    analysis = transform(name)
    window = np.kaiser(BLOCK, kaiser)
    synthesis = window[:, None] * np.linalg.inv(analysis)
    return tuple((ctypes.c_float * m.size)(*m.astype(np.float32).ravel()) for m in (analysis, synthesis, window))


@cache
def common_table(name: str, device: torch.device) -> Tensor:
    """What two blocks share, by `correlations`, (64, 64), and a row of zeros for those that share nothing."""
    table = np.zeros((65, 64), np.float32)
    table[:64] = correlations(name)[:8, :8].reshape(64, 64)
    return torch.from_numpy(table).to(device)
