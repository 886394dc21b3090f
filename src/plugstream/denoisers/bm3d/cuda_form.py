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

from plugstream.base.cuda_graphs import Branches, GraphCall
from plugstream.base.cuda_source import has_compiler
from plugstream.denoisers.bm3d.cuda_kernels import Filtered, Launches, Matches
from plugstream.denoisers.bm3d.profile import BLOCK, Profile
from plugstream.denoisers.bm3d.reference import group_size
from plugstream.denoisers.bm3d.transforms import correlations, transform

AT_ONCE = 1 << 19  # pixels of the images that are denoised at a time, which is enough to fill a GPU
NUMBERS = 464  # in memory for each of these pixels: spectra, keys, filtered blocks and lists
_BANDS = 2  # in a graph; measured on an H200


def serves(images: Tensor) -> bool:
    """Whether the kernels take these images: float32 on CUDA, and torch has a compiler."""
    return images.is_cuda and images.dtype == torch.float32 and has_compiler()


def bm3d(images: Tensor, sigma: Tensor, profile: Profile, *, stages: int = 2) -> Tensor:
    """Remove white Gaussian noise by filtering groups of similar blocks: (N, H, W) or (H, W), and (N,), to the same.

    The matching is that of `reference.bm3d` to the bit, the result up to rounding, and the same bits every time: all
    blocks at a position are added as integers of 64 bits, whose sum does not depend on the order. They are multiples of
    2^-42 of the power of two at or below the largest pixel; of the least weight a group can have, that is 2^-31.

    Arguments:
        images: float32 on CUDA, contiguous, H, W >= 8.
        sigma: float32 on the same device, one for each image; never read by the host, and not to be changed later. 0
            returns the image as it is.
    """
    call, (height, width) = graph_call(profile, stages), images.shape[-2:]
    most = max(1, AT_ONCE // (height * width))
    if images.ndim == 2 or len(images) <= most:
        return call(images, sigma)
    parts = zip(images.split(most), sigma.split(most), strict=True)
    return torch.cat([call(some, levels) for some, levels in parts])


@lru_cache(maxsize=8)
def graph_call(profile: Profile, stages: int) -> GraphCall:
    """What denoises (N, H, W) or (H, W) with (N,), as one CUDA graph where that pays."""

    def denoise(images: Tensor, sigma: Tensor) -> Tensor:
        return both(images[None], sigma)[0] if images.ndim == 2 else both(images, sigma)

    def both(images: Tensor, sigma: Tensor) -> Tensor:
        branches, launches = Branches(images.device), Launches(images, sigma, profile)
        with branches[0]:
            spectra = launches.transform(images, matrices("bior15", profile.kaiser)[0])
            largest = torch.linalg.vector_norm(images, math.inf, dim=(1, 2))
        blocks = _filter(launches, None, spectra, branches)
        if stages == 2:
            with branches[0]:
                spectra = launches.transform(images, matrices("dct", profile.kaiser)[0])
        basic = launches.assemble(*blocks, largest, *matrices("bior15", profile.kaiser)[1:])
        if stages == 1:
            return basic
        blocks = _filter(launches, basic, spectra, branches)
        return launches.assemble(*blocks, largest, *matrices("dct", profile.kaiser)[1:])

    return GraphCall(denoise, steady=(1,), in_place=True)


def match(guide: Tensor, profile: Profile, most: int) -> Tensor:
    """As `reference.match`: (H, W) to (references, K), or (N, H, W) to (N, references, K)."""
    stack = guide.reshape(-1, *guide.shape[-2:]).contiguous()
    launches = Launches(stack, stack, profile)
    matches, _ = launches.prepare(group_size((launches.height, launches.width), profile.radius, most))
    for band in launches.bands():
        launches.measure(stack, matches, band)
        launches.choose(matches, band)
    return matches.groups.long().reshape(*guide.shape[:-2], *matches.groups.shape[1:])


def _filter(launches: Launches, basic: Tensor | None, spectra: Tensor, branches: Branches) -> tuple[Matches, Filtered]:
    """The filtered groups of a stage, as in `reference.py`, with the noisy images or the basic estimate as the guide.

    In a graph, bands of references have branches of their own: matching counts while filters wait for memory.

    Arguments: spectra of the noisy images, found in the first branch.
    """
    first, profile, images = basic is None, launches.profile, launches.images
    name, guides = ("bior15", images) if basic is None else ("dct", basic)
    common, factor = common_table(name, images.device), float(profile.threshold if first else profile.wiener)
    size = group_size((launches.height, launches.width), profile.radius, profile.group1 if first else profile.group2)
    matches, filtered = launches.prepare(size)
    with branches[0]:
        guide = None if first else launches.transform(guides, matrices(name, profile.kaiser)[0])
    for k, band in enumerate(launches.bands(_BANDS if branches.parallel else 1), start=1):
        with branches[k]:
            launches.measure(guides, matches, band)
            launches.choose(matches, band)
            branches.wait(0)
            launches.filter(matches.groups, spectra, guide, common, factor, filtered, band)
    branches.join()
    return matches, filtered


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
