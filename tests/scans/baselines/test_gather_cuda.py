"""The CUDA form of back-projection by voxels: its very text on the CPU here, on a GPU where there is one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from cuda_on_cpu import CpuKernels, emulated
from plugstream.base.cuda_source import Kernels
from plugstream.models.ct_beams import cone_beam, fan_beam, parallel_beam
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.scans.baselines import gather_cuda
from plugstream.scans.baselines.voxel_views import VoxelViews

TURN = np.linspace(0, 2 * np.pi, 7) + 0.1
FLAT, SOLID = Voxels((17, 22), (1.0, 0.8), (-7.0, -9.0)), Voxels((38, 9, 11), (1.2, 1.0, 0.9))
FEW = Voxels((3, 9, 11), (1.2, 1.0, 0.9))
CONE = cone_beam(TURN, (33, 15), 2.0, source=50, detector=40)
BEAMS: dict[str, tuple[Rays, Voxels]] = {
    "parallel": (parallel_beam(TURN, 25, 1.1, center=10.3), FLAT),
    "fan": (fan_beam(TURN, 25, 2.0, source=50, detector=40, center=12.2), FLAT),
    "beside": (parallel_beam(TURN, 25, 1.1).shift_detector(columns=21), FLAT),
    "stack": (parallel_beam(TURN, (38, 25), 1.2), SOLID),
    "stack between rows": (parallel_beam(TURN, (41, 25), 0.9).shift_detector(rows=TURN), SOLID),
    "few slices": (parallel_beam(TURN, (3, 25), 0.9), FEW),
    "cone": (CONE, SOLID),
    "cone of few slices": (CONE, FEW),
    "rolled cone": (CONE.roll_detector(0.1), SOLID),
    "rolled parallel": (parallel_beam(TURN, (33, 15), 1.0).roll_detector(0.1), SOLID),
}


@pytest.fixture(scope="module")
def kernels() -> CpuKernels:
    return CpuKernels(gather_cuda.read_source())


def amid_nan(rows: torch.Tensor) -> torch.Tensor:
    """A copy with NaN before and after it in memory, which shows in whatever reads beyond the rows."""
    room = torch.full((3 * rows.numel(),), float("nan"), device=rows.device)
    return room[rows.numel() : 2 * rows.numel()].view(rows.shape).copy_(rows)


def gather(
    plan: VoxelViews, data: torch.Tensor, kernels: Kernels, slabs: list[tuple[int, int]], views: int
) -> torch.Tensor:
    """By slabs, each from the rows that see it, and some views at a time; every view counts by its number + 1."""
    rays, device = plan.rays, plan.device
    cuda = plan.prepare_cuda(np.full(len(rays), 50.0), kernels, 1 if rays.ndim == 3 else len(data))
    stack = data[0] if rays.ndim == 3 else data.movedim(0, 1)
    scales = torch.arange(1.0, len(rays) + 1, device=device)
    out = torch.empty(cuda.shape, device=device)
    for first, last in slabs:
        sums = cuda.begin(last - first)
        low, high = cuda.find_rows(first, last)
        for start in range(0, len(rays), views):
            part = slice(start, min(start + views, len(rays)))
            rows = amid_nan(stack[part, low:high])
            cuda.add(sums, rows, part, scales[part], (first, last), low, go_on=start > 0)
        cuda.finish(sums, out[first:last])
    return out


def check(name: str, device: torch.device, kernels: Kernels) -> None:
    rays, voxels = BEAMS[name]
    images = 1 if rays.ndim == 3 else 5
    data = torch.rand(images, len(rays), *rays.detector, generator=torch.Generator().manual_seed(0))
    weights = torch.arange(1.0, len(rays) + 1).reshape(-1, *(1,) * len(rays.detector))
    exact = VoxelViews(rays, voxels, torch.device("cpu"), torch.float64)
    want = exact.gather((data * weights).double(), torch.arange(len(rays)), np.full(len(rays), 50.0))
    want = want[0] if rays.ndim == 3 else want
    plan, depth = VoxelViews(rays, voxels, device, torch.float32), len(want)
    whole = gather(plan, data.to(device), kernels, [(0, depth)], len(rays))
    assert float((whole.cpu() - want).abs().max() / want.abs().max()) < 1e-5
    edges = [0, 1, depth // 3 + 1, depth]
    slabs = list(itertools.pairwise(edges))
    assert torch.equal(gather(plan, data.to(device), kernels, slabs, 3), whole)


@emulated
@pytest.mark.parametrize("name", BEAMS)
def test_the_kernels_read_what_torch_reads_and_slabs_are_the_whole(name: str, kernels: CpuKernels) -> None:
    check(name, torch.device("cpu"), kernels)


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    device = torch.device("cuda", 0)
    kernels = gather_cuda.find_kernels(device, torch.float32)
    assert kernels is not None
    for name in BEAMS:
        check(name, device, kernels)
