"""BM3D on CUDA: which kernels of `triton_matching.py` and `triton_kernels.py` run, in which order, on which grid.

Grids come from shapes alone and nothing is read back, so that a call can be captured in a CUDA graph, after one call
outside it that compiles the kernels. Small images, whose kernels take less time than their launches, use such a graph.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache

import numpy as np
import torch
from torch import Tensor

from plugstream.base.cuda_graphs import GraphCall, side_by_side
from plugstream.denoisers import forms
from plugstream.denoisers.bm3d.profile import BLOCK, Profile
from plugstream.denoisers.bm3d.reference import group_size
from plugstream.denoisers.bm3d.transforms import correlations, transform

# Measured on an H200 at 256 x 256 and 512 x 512.
_REFERENCES = 4  # references below each other in one program of the matching,
_SIDE = 3  # as many side by side, and
_DOWN = 3  # candidates below each other in one lane: 39 x 13 lanes fill 512
_WARPS, _REGISTERS = 16, 128  # of the matching at most: a lane a thread, and as many registers as 512 threads can have
_KEEP = (4, 5)  # keys that a thread of the selection keeps, of groups of up to 16 and of more
_FILTER = ({"num_warps": 1}, {"num_warps": 1})  # stage 1 and 2; with one warp, a thread has two coefficients
_COUNTED = (0, 2)  # levels of a group's tree whose pairs are counted, in stage 1 and 2
_TRANSFORM = (8, 8, 4)  # columns and rows of one program, and its warps
_FOLD = (16, 4)  # columns of one program, and its warps


serves = forms.triton_serves


def bm3d(images: Tensor, sigma: Tensor, profile: Profile, *, stages: int = 2, deterministic: bool = False) -> Tensor:
    """Remove white Gaussian noise by filtering groups of similar blocks: (N, H, W) and (N,) to (N, H, W).

    The matching is that of `reference.bm3d` to the bit, the result up to rounding. Blocks are added atomically, in an
    order that changes from run to run: as integers of 64 bits, whose sum does not depend on it, or as floating point
    numbers, whose last bits do. If those decide which of two blocks is nearer in stage 2, pixels move by up to 7e-4 of
    values from 0 to 1, with sigma 0.1.

    Arguments:
        images: float32 on CUDA, contiguous, H, W >= 8.
        sigma: float32 on the same device, one for each image; never read by the host, and not to be changed later. 0
            returns the image as it is.
        deterministic: add integers: the same bits every time, a little slower, twice the memory for sums.
    """
    return _graph_call(profile, stages, deterministic)(images, sigma)


@lru_cache(maxsize=8)
def _graph_call(profile: Profile, stages: int, deterministic: bool) -> GraphCall:
    def both(images: Tensor, sigma: Tensor) -> Tensor:
        basic = _stage(images, None, sigma, profile, deterministic)
        return basic if stages == 1 else _stage(images, basic, sigma, profile, deterministic)

    return GraphCall(both, steady=(1,))


def match(guide: Tensor, profile: Profile, most: int) -> Tensor:
    """As `reference.match`: (H, W) to (references, K), or (N, H, W) to (N, references, K)."""
    groups = _match(guide.reshape(-1, *guide.shape[-2:]).contiguous(), profile, most).long()
    return groups.reshape(*guide.shape[:-2], *groups.shape[1:])


def _match(images: Tensor, profile: Profile, most: int) -> Tensor:
    """The block positions of each reference's group, int32 (N, references, K)."""
    from plugstream.denoisers.bm3d.triton_matching import measure, select

    count, height, width = images.shape
    k = group_size((height, width), profile.radius, most)
    # As many as `reference_positions` has: every `step` pixels, and one at the very end.
    rows, columns = (forms.cover(size - BLOCK, profile.step) + 1 for size in (height, width))
    down, across = (
        forms.cover((size - BLOCK) // profile.step + 1, at_once)
        for size, at_once in ((height, _REFERENCES), (width, _SIDE))
    )
    # The last row or column may break the step.
    more_down, more_across = (int((size - BLOCK) % profile.step != 0) for size in (height, width))
    span = 2 * profile.radius + 1
    lanes = 1 << (forms.cover(span, _DOWN) * span - 1).bit_length()  # a power of two
    # 6 KB for a reference; freed on return, for the spectra to take its place.
    keys = torch.empty((count, rows * columns, _DOWN * lanes), dtype=torch.int32, device=images.device)
    groups = torch.empty((count, rows * columns, k), dtype=torch.int32, device=images.device)
    shape = {"RADIUS": profile.radius, "STEP": profile.step, "DOWN": _DOWN, "LANES": lanes}
    measure[across + more_across, down + more_down, count](
        _framed(images, profile.radius + profile.step * _SIDE + BLOCK),
        keys,
        height,
        width,
        rows,
        columns,
        down,
        across,
        **shape,
        REFS=_REFERENCES,
        COLUMNS=_SIDE,
        PTX=not forms.interpreted(),
        num_warps=min(_WARPS, forms.cover(lanes, 32)),
        maxnreg=_REGISTERS,
        enable_fp_fusion=False,
    )
    select[rows * columns, count](
        keys, groups, width, rows * columns, columns, height - BLOCK, **shape, K=k, KEEP=_KEEP[k > 16], num_warps=1
    )
    return groups


def _framed(images: Tensor, by: int) -> Tensor:
    """The images in memory that has `by` more numbers before and after them."""
    by = 64 * forms.cover(by, 64)  # what is not aligned takes ten times as long to copy
    memory = torch.empty(images.numel() + 2 * by, device=images.device)
    return memory[by:-by].view(images.shape).copy_(images)


def _stage(images: Tensor, basic: Tensor | None, sigma: Tensor, profile: Profile, deterministic: bool) -> Tensor:
    """One stage, as in `reference.py`: on the noisy images alone, or with the basic estimate as the guide."""
    from plugstream.denoisers.bm3d.triton_kernels import filter_groups, fold_columns, fold_rows

    first = basic is None
    guides = images if basic is None else basic
    count, height, width = images.shape
    down, across = height - BLOCK + 1, width - BLOCK + 1
    device = images.device
    name = "bior15" if first else "dct"
    analysis, synthesis, window = _constants(name, profile.kaiser, device)

    def transformed() -> tuple[Tensor, Tensor, Tensor, Tensor]:
        spectra = _spectra(images, analysis)
        kind = torch.int64 if deterministic else torch.float32
        sums = torch.zeros(65 * len(spectra), dtype=kind, device=device)  # the blocks of each position, then weights
        largest = torch.linalg.vector_norm(images, math.inf, dim=(1, 2)) if deterministic else sigma  # or unused
        return spectra, spectra if basic is None else _spectra(basic, analysis), sums, largest

    groups, (spectra, guide_spectra, sums, largest) = side_by_side(
        device, lambda: _match(guides, profile, profile.group1 if first else profile.group2), transformed
    )
    references, k = groups.shape[1:]
    total, weight = sums[: spectra.numel()].view_as(spectra), sums[spectra.numel() :]
    counted = min(_COUNTED[not first], k.bit_length() - 1)
    filter_groups[references, count](
        spectra,
        guide_spectra,
        groups,
        torch.empty_like(groups),
        torch.empty((count, references, (1 << counted) - 1, 64), device=device),
        _correlation_table(name, device),
        sigma,
        largest,
        total,
        weight,
        float(profile.threshold if first else profile.wiener),
        down * across,
        across,
        references,
        K=k,
        LEVELS=k.bit_length() - 1,
        WIENER=not first,
        WHOLE=deterministic,
        COUNTED=counted,
        **_FILTER[0 if first else 1],
    )

    numerator = torch.empty((count, down, width, BLOCK), device=device)
    denominator = torch.empty((count, down, width), device=device)
    result = torch.empty_like(images)
    tile, warps = _FOLD
    fold_columns[forms.cover(width, tile), down, count](
        total,
        weight,
        largest,
        synthesis,
        window,
        numerator,
        denominator,
        height,
        width,
        WHOLE=deterministic,
        TILE=tile,
        num_warps=warps,
    )
    fold_rows[forms.cover(width, tile), height, count](
        numerator, denominator, synthesis, window, images, sigma, result, height, width, TILE=tile, num_warps=1
    )
    return result


def _spectra(images: Tensor, analysis: Tensor) -> Tensor:
    """The transform of the block at every position, (N * positions, 64)."""
    from plugstream.denoisers.bm3d.triton_kernels import transform

    count, height, width = images.shape
    down, across = height - BLOCK + 1, width - BLOCK + 1
    out = torch.empty((count * down * across, 64), device=images.device)
    tile, tall, warps = _TRANSFORM
    transform[forms.cover(across, tile), forms.cover(down, tall), count](
        images, analysis, out, height, width, TILE=tile, TALL=tall, num_warps=warps
    )
    return out


@cache
def _constants(name: str, kaiser: float, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The analysis matrix, the synthesis matrix with row i times the window's i-th number, and the window."""
    analysis = transform(name)
    window = np.kaiser(BLOCK, kaiser)
    synthesis = window[:, None] * np.linalg.inv(analysis)
    a, s, w = (
        torch.from_numpy(np.ascontiguousarray(m)).to(device, torch.float32) for m in (analysis, synthesis, window)
    )
    return a, s, w


@cache
def _correlation_table(name: str, device: torch.device) -> Tensor:
    """`correlations` for distances with a sign, as `filter_groups` reads them: that of (dy, dx) at [8 + dy, 8 + dx]."""
    table = np.zeros((16, 64, 64))
    distances = np.abs(np.arange(-BLOCK, BLOCK))
    table[:, :16] = correlations(name)[distances[:, None], distances]
    return torch.from_numpy(table).to(device, torch.float32)
