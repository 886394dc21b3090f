"""Filtered back-projection by the CUDA kernels, at once and by slabs that fit into little memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ct_balls import VOXEL, chords, truth
from cuda_on_cpu import CpuKernels, emulated
from plugstream.base.errors import InputError
from plugstream.base.volume_file import make_volume
from plugstream.models.ct_beams import cone_beam, fan_beam, parallel_beam
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.scans.baselines import filtered, gather_cuda, slabs
from plugstream.scans.baselines.filtered import filtered_back_projection

FLAT, SOLID = Voxels((52, 48), VOXEL), Voxels((13, 30, 33), VOXEL)
TURN, SHORT = 2 * np.pi / 180, np.deg2rad(np.arange(0, 228, 2.0))
FAN: dict[str, Any] = {"source": 0.2, "detector": 0.1}
CONE: dict[str, Any] = {"source": 0.4, "detector": 0.2}
BEAMS: dict[str, tuple[Rays, Voxels]] = {
    "parallel": (parallel_beam(np.arange(60) * np.pi / 60, 67, VOXEL, center=31.3), FLAT),
    "fan": (fan_beam(np.arange(60) * 3 * TURN, 79, 1.5 * VOXEL, center=37.0, **FAN), FLAT),
    "short fan": (fan_beam(SHORT, 79, 1.5 * VOXEL, **FAN), FLAT),
    "stack": (parallel_beam(np.arange(30) * np.pi / 30, (13, 43), VOXEL), SOLID),
    "stack between rows": (parallel_beam(np.arange(30) * np.pi / 30, (11, 43), 1.3 * VOXEL), SOLID),
    "cone": (cone_beam(np.arange(18) * 10 * TURN, (27, 50), 1.5 * VOXEL, middle=12.0, **CONE), SOLID),
    "short cone": (cone_beam(SHORT[::6], (27, 50), 1.5 * VOXEL, **CONE), SOLID),
    "rolled cone": (cone_beam(SHORT[::6], (27, 50), 1.5 * VOXEL, **CONE).roll_detector(0.01), SOLID),
}


@pytest.fixture(scope="module")
def kernels() -> CpuKernels:
    return CpuKernels(gather_cuda.read_source())


@pytest.fixture
def on_cpu(kernels: CpuKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of the GPU, run by the CPU."""
    monkeypatch.setattr(filtered, "find_kernels", lambda device, dtype: kernels if dtype == torch.float32 else None)


def form(name: str, device: str = "cpu", **more: Any) -> torch.Tensor:
    rays, voxels = BEAMS[name]
    return filtered_back_projection(chords(rays), rays, voxels, device=device, **more)


def check(name: str, device: str, folder: Path) -> None:
    """The image is the specification's; by slabs it is the same, and so it is in a file."""
    rays, voxels = BEAMS[name]
    exact, image = form(name, dtype=torch.float64), form(name, device)
    assert float((image.cpu() - exact).abs().max() / exact.abs().max()) < 2e-5
    if rays.ndim == 2:
        return
    data = chords(rays).float()
    for number, memory in enumerate((150e3, 110e3)):
        asked: list[int] = []

        def read(views: torch.Tensor, asked: list[int] = asked) -> torch.Tensor:
            asked.extend(views.tolist())
            return data[views]

        for source in (data, read):
            parts = filtered_back_projection(source, rays, voxels, device=device, memory=memory)
            assert parts.device.type == "cpu"
            assert float((parts - image.cpu()).abs().max() / exact.abs().max()) < 1e-6
        assert sorted(asked) == list(range(len(rays)))  # each view is read once, whatever the number of slabs
        volume = make_volume(folder / f"{number}.npy", voxels.shape)
        filtered_back_projection(data, rays, voxels, device=device, memory=memory, target=volume)
        assert np.array_equal(volume.read(0, 13), parts.numpy())


@emulated
@pytest.mark.parametrize("name", BEAMS)
def test_slabs_are_the_image_of_the_specification(name: str, on_cpu: None, tmp_path: Path) -> None:
    check(name, "cpu", tmp_path)


@emulated
def test_balls_come_back_by_slabs(on_cpu: None) -> None:
    for rays in (
        parallel_beam(np.arange(90) * TURN, (13, 67), VOXEL, center=31.5),
        cone_beam(np.arange(120) * TURN * 1.5, (25, 79), 1.5 * VOXEL, middle=11.5, **CONE),
    ):
        voxels = Voxels((7, 48, 46), VOXEL)
        found = filtered_back_projection(chords(rays), rays, voxels, memory=250e3).numpy()
        image, inside = truth(voxels)
        error = (found - image)[inside]
        assert abs(error.mean()) < 0.3
        assert np.sqrt((error**2).mean()) < 1.5


@emulated
def test_leading_axes_and_slabs_within_the_limit(on_cpu: None) -> None:
    rays, voxels = BEAMS["short fan"]
    data = torch.rand(2, 3, *chords(rays).shape)
    images = filtered_back_projection(data, rays, voxels)
    one = filtered_back_projection(data[1, 2], rays, voxels)
    torch.testing.assert_close(images[1, 2], one)
    rays, voxels = BEAMS["cone"]
    pair = torch.stack([chords(rays), 2 * chords(rays)])
    both = filtered_back_projection(pair, rays, voxels)
    torch.testing.assert_close(both[1], 2 * both[0])
    with pytest.raises(InputError, match=r"one slice of 30 x 33 and the rows that see it take about .* of the GPU's"):
        form("cone", memory=1e4)


@emulated
def test_a_scan_that_memory_has_no_room_for_is_read_for_every_slab(
    on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = form("stack")
    monkeypatch.setattr(slabs, "free_memory", lambda: 1000)
    rays, voxels = BEAMS["stack"]
    data, asked = chords(rays).float(), []

    def read(views: torch.Tensor) -> torch.Tensor:
        asked.extend(views.tolist())
        return data[views]

    image = filtered_back_projection(read, rays, voxels, memory=150e3)
    assert len(asked) >= 2 * len(rays)
    torch.testing.assert_close(image, want)


@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path) -> None:
    for name in BEAMS:
        (tmp_path / name).mkdir()
        check(name, "cuda", tmp_path / name)
    rays, voxels = BEAMS["cone"]
    whole = form("cone", "cuda")
    assert whole.is_cuda
    pinned = chords(rays).float().pin_memory()
    parts = filtered_back_projection(pinned, rays, voxels, device="cuda", memory=150e3)
    torch.testing.assert_close(parts, whole.cpu(), rtol=1e-5, atol=1e-5)
    here = filtered_back_projection(pinned.cuda(), rays, voxels, device="cuda")
    assert torch.equal(here, whole)
