"""Back-projection by voxels: the native kernel against torch in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from native_build import LEVELS, needs_native
from plugstream import _native
from plugstream.models.ct_beams import cone_beam, fan_beam, parallel_beam
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.scans.baselines.voxel_views import VoxelViews

TURN = np.linspace(0, 2 * np.pi, 5) + 0.1
FLAT, SOLID = Voxels((17, 22), (1.0, 0.8), (-7.0, -9.0)), Voxels((6, 9, 11), (1.2, 1.0, 0.9))
BEAMS: dict[str, tuple[Rays, Voxels]] = {
    "parallel": (parallel_beam(TURN, 25, 1.1, center=10.3), FLAT),
    "fan": (fan_beam(TURN, 25, 2.0, source=50, detector=40, center=12.2), FLAT),
    "cone": (cone_beam(TURN, (7, 15), 2.0, source=50, detector=40), SOLID),
    "stack": (parallel_beam(TURN, (9, 25), 0.9), SOLID),
    "beside": (parallel_beam(TURN, 25, 1.1).shift_detector(columns=21), FLAT),
}


@needs_native
@pytest.mark.parametrize("name", BEAMS)
def test_the_native_kernel_reads_what_torch_reads(name: str) -> None:
    rays, voxels = BEAMS[name]
    data = torch.rand(2, len(rays), *rays.detector, generator=torch.Generator().manual_seed(0))
    views, distance = torch.tensor([3, 0, 4]), np.full(3, 50.0)
    want = VoxelViews(rays, voxels, torch.device("cpu"), torch.float64).gather(data[:, views].double(), views, distance)
    plan = VoxelViews(rays, voxels, torch.device("cpu"), torch.float32)
    assert plan.is_native(data)
    found = plan.gather(data[:, views], views, distance)
    assert float((found - want).abs().max()) < 2e-5


@needs_native
def test_threads_and_instruction_sets_read_the_same() -> None:
    rays, voxels = BEAMS["cone"]
    plan = VoxelViews(rays, voxels, torch.device("cpu"), torch.float32)
    forms = plan._forms(np.arange(5), np.full(5, 50.0))
    data = np.pad(np.random.default_rng(0).random((1, 5, 7, 15), np.float32), ((0, 0), (0, 0), (1, 2), (1, 2)))
    found = {}
    for level in LEVELS:
        for threads in (1, 3):
            out = np.zeros((1, *voxels.shape), np.float32)
            _native.kernels().gather_views(
                data, forms, out, has_rows=True, parallel=False, threads=threads, level=level
            )
            found[level, threads] = out
        assert np.array_equal(found[level, 1], found[level, 3])
        np.testing.assert_allclose(found[level, 1], found[LEVELS[0], 1], atol=1e-5)
