"""BM4D on CUDA, in CUDA C++ (`cuda_kernels.cu`); `reference.py` is its specification.

Nothing is read back from the device. Besides the result it needs 16 bytes a voxel for sums, and the groups of at most
2^20 references at a time.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from plugstream.base.cuda_source import CudaKernels, compile_kernels, has_compiler
from plugstream.denoisers.bm4d.profile import BLOCK, Profile, candidate_order, fixed_matrices
from plugstream.denoisers.bm4d.reference import group_size, sum_cubes

_AT_ONCE = 2**20  # references matched and filtered at a time
_WARPS = 4  # of a block of the filter, as in cuda_kernels.cu


class Problem(ctypes.Structure):
    """What every kernel is given; `cuda_kernels.cu` has the meaning of each field."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("depth", "height", "width", "step", "rows", "columns")),
        *((name, ctypes.c_int) for name in ("first", "count", "map")),
        *((name, ctypes.c_float) for name in ("alike", "factor")),
        *((name, ctypes.c_void_p) for name in ("noisy", "guide", "unit", "levels", "largest", "order")),
        *((name, ctypes.c_void_p) for name in ("analysis", "synthesis", "table", "kaiser")),
        *((name, ctypes.c_void_p) for name in ("groups", "total", "weights", "out")),
    )


def serves(volumes: Tensor) -> bool:
    """Whether the kernels take these: float32 on CUDA, not differentiated, with torch's compiler at hand."""
    return (
        volumes.is_cuda
        and volumes.dtype == torch.float32
        and volumes.shape[1] <= 2
        and volumes[0].numel() < 2**31
        and not (volumes.requires_grad and torch.is_grad_enabled())
        and has_compiler()
    )


def bm4d(volumes: Tensor, sigma: Tensor, profile: Profile, *, stages: int = 2) -> Tensor:
    """As `reference.bm4d`: the matching to the bit, the result up to rounding, the same bits every time."""
    return torch.stack([_one(z.contiguous(), s, profile, stages) for z, s in zip(volumes, sigma, strict=True)])


def _one(z: Tensor, sigma: Tensor, profile: Profile, stages: int) -> Tensor:
    noise = _relative_levels(sigma)
    largest = torch.linalg.vector_norm(z, float("inf"))
    out = z
    for stage in range(1, stages + 1):
        out = _stage(z, out, noise, largest, profile, stage)
    return torch.where(sigma == 0, z, out)


def _relative_levels(sigma: Tensor) -> tuple[Tensor, Tensor]:
    """As `reference.relative_levels`, on the device, with one level for all if there is one sigma."""
    most = sigma.amax()
    unit = torch.where(most > 0, torch.ldexp(torch.ones_like(most), torch.frexp(most).exponent - 1), 1.0)
    squares = (sigma / unit).square().contiguous()
    return unit, squares if squares.numel() == 1 else sum_cubes(squares).contiguous() / BLOCK**3


def match(guide: Tensor, sigma: Tensor, profile: Profile, stage: int) -> Tensor:
    """As `reference.match`, to the bit."""
    kept: list[Tensor] = []
    guide = guide.contiguous()
    _stage(guide, guide, _relative_levels(sigma), torch.linalg.vector_norm(guide, float("inf")), profile, stage, kept)
    return torch.cat(kept).long()


def _stage(
    z: Tensor,
    guide: Tensor,
    noise: tuple[Tensor, Tensor],
    largest: Tensor,
    profile: Profile,
    stage: int,
    kept: list[Tensor] | None = None,
) -> Tensor:
    """One stage, as in `reference.py`; `kept` is given the groups, for tests."""
    channels, *shape = z.shape
    unit, levels = noise
    first = stage == 1
    step, most = (profile.step1, profile.group1) if first else (profile.step2, profile.group2)
    k = group_size(tuple(shape), profile.radius, most)
    kernels = _kernels(profile.radius, k, channels, not first, z.device)
    assert kernels is not None
    order, analysis, synthesis, table, kaiser = _constants(profile.radius, profile.kaiser, stage, z.device)
    counts = [-(-(size - BLOCK) // step) + 1 for size in shape]  # as many as `reference_positions` has
    total = torch.zeros(z.shape, dtype=torch.int64, device=z.device)
    weights = torch.zeros((channels, *(size - BLOCK + 1 for size in shape)), dtype=torch.int64, device=z.device)
    out = torch.empty_like(z)
    planes = max(1, _AT_ONCE // (counts[1] * counts[2]))
    groups = torch.empty((min(planes, counts[0]) * counts[1] * counts[2], k), dtype=torch.int32, device=z.device)
    p = Problem(*shape, step, counts[1], counts[2], map=int(levels.numel() > 1))
    p.alike = float(np.float32((profile.alike1 if first else profile.alike2) * BLOCK**3 * channels))
    p.factor = profile.threshold if first else profile.wiener
    addresses = {"noisy": z, "guide": guide, "unit": unit, "levels": levels, "largest": largest, "order": order}
    addresses |= {"analysis": analysis, "synthesis": synthesis, "table": table, "kaiser": kaiser}
    addresses |= {"groups": groups, "total": total, "weights": weights, "out": out}
    for name, tensor in addresses.items():
        setattr(p, name, tensor.data_ptr())
    span = 2 * profile.radius + 1
    threads = -(-span * span // 32) * 32
    for plane in range(0, counts[0], planes):
        p.first = plane * counts[1] * counts[2]
        p.count = min(planes, counts[0] - plane) * counts[1] * counts[2]
        kernels.launch("match", (p.count, 1, 1), (threads, 1, 1), p, None, None)
        kernels.launch("filter", (-(-p.count // _WARPS), channels, 1), (32 * _WARPS, 1, 1), p, None, None)
        if kept is not None:
            kept.append(groups[: p.count].clone())
    grid = (-(-shape[2] // 32), -(-shape[1] // 8), channels * shape[0])
    kernels.launch("divide", grid, (32, 8, 1), p, None, None)
    return out


@cache
def _kernels(radius: int, group: int, channels: int, wiener: bool, device: torch.device) -> CudaKernels | None:
    text = Path(__file__).with_name("cuda_kernels.cu").read_text(encoding="utf-8")
    values = {"RADIUS": radius, "GROUP": group, "CHANNELS": channels, "WIENER": int(wiener)}
    head = "".join(f"#define {name} {value}\n" for name, value in values.items())
    return compile_kernels(head + text, device)


@cache
def _constants(radius: int, kaiser: float, stage: int, device: torch.device) -> tuple[Tensor, ...]:
    """The candidates of the ranks and the ranks of the candidates, and the matrices of a stage."""
    order = candidate_order(radius)
    matrices = fixed_matrices(kaiser)
    window = matrices["kaiser"]
    arrays = (
        np.concatenate([order, np.argsort(order).astype(np.int32)]),
        matrices["analysis"][stage - 1],
        window[:, None] * matrices["synthesis"][stage - 1],
        matrices["correlations"][stage - 1],
        window,
    )
    return tuple(torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in arrays)
