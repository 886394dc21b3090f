"""Total variation of volumes on CUDA, in CUDA C++ (`tv_cuda.cu`); `tv.py` is its specification.

An iteration reads the dual, the one before it and the volume, and writes a dual: ten numbers a voxel, 5.4 GB at 512^3,
which the memory of an H200 could move in 1.2 ms (it takes 3.1: each x is formed three times); a look at the gap moves
five. The gap is looked at soon and often, as a volume that has a warm start needs few iterations.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from plugstream.base.cuda_source import Kernels, compile_kernels

LOOKS = (4, 2, 2, 2)  # iterations before each of the first looks at the gap
_PLANES = 64  # that a thread goes through


class Variation(Protocol):
    """What the kernels ask of a `TV`."""

    @property
    def isotropic(self) -> bool: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def tol(self) -> float: ...


class Problem(ctypes.Structure):
    """What every kernel is given; `tv_cuda.cu` has the meaning of each field."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("depth", "height", "width", "isotropic", "planes")),
        *((name, ctypes.c_float) for name in ("low", "high", "beta")),
        *((name, ctypes.c_void_p) for name in ("z", "strength", "mean", "p", "before", "next", "x", "sums")),
    )


@cache
def read_source() -> str:
    """The text of the kernels."""
    return Path(__file__).with_suffix(".cu").read_text(encoding="utf-8")


def find_kernels(device: torch.device) -> Kernels | None:
    """The kernels for a CUDA device; None where torch has no compiler for them."""
    return compile_kernels(read_source(), device)


def serves(volumes: Tensor) -> bool:
    """Whether the kernels take these: float32 on CUDA, not differentiated."""
    return (
        volumes.is_cuda
        and volumes.dtype == torch.float32
        and not (volumes.requires_grad and torch.is_grad_enabled())
        and find_kernels(volumes.device) is not None
    )


def solve(
    tv: Variation,
    volume: Tensor,
    strength: Tensor,
    warm: Tensor | None,
    groups: Iterable[list[float]],
    kernels: Kernels,
) -> tuple[Tensor, Tensor, bool]:
    """x and the dual of one volume, and whether it is within `tv.tol`.

    Arguments: tv; volume (D, H, W); strength, sigma^2 w, one number; warm (3, D, H, W); groups, the momentum of
    iterations between two looks at the gap; kernels.
    """
    depth, height, width = volume.shape
    planes = min(_PLANES, depth)
    grid = (-(-width // 32), -(-height // 8), -(-depth // planes))
    sums = torch.empty((2, grid[2] * height * width), dtype=torch.float64, device=volume.device)
    p = Problem(depth, height, width, int(tv.isotropic), planes, low=tv.low, high=tv.high)
    p.z, p.strength, p.sums = volume.data_ptr(), strength.data_ptr(), sums.data_ptr()

    def launch(name: str) -> None:
        kernels.launch(name, grid, (32, 8, 1), p, None, None)

    launch("add_up")
    total, squares = sums.sum(1)
    mean = total / volume.numel()
    energy = squares - total * mean
    goal = tv.tol**2 * energy
    x = torch.empty_like(volume)
    # A constant volume is its own answer, which iterating from another dual would not reach to a relative error.
    if warm is not None and bool(energy <= 1e-14 * squares):
        warm = None
    dual = volume.new_zeros((3, *volume.shape)) if warm is None else warm
    before: Tensor = dual
    spare: list[Tensor] = []
    p.mean, p.x, beta, within = mean.data_ptr(), x.data_ptr(), 0.0, False
    for momentum in groups:
        for following in momentum:
            target = spare.pop() if spare else torch.empty_like(dual)
            p.p, p.before, p.next, p.beta = dual.data_ptr(), before.data_ptr(), target.data_ptr(), beta
            launch("iterate")
            if before is not warm and before is not dual:
                spare.append(before)
            before, dual, beta = dual, target, following
        p.p = dual.data_ptr()
        launch("look")
        gap, beyond = sums.sum(1).unbind()
        within = not bool((gap > goal) | (beyond > 0))  # a NaN counts as within, which no iteration would cure
        if within and tv.tol > 0:
            break
    return x, dual, within
