"""The CUDA form of Joseph's projector: its very text on the CPU here, on a GPU where there is one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from ct_scans import FLAT, SOLID, mismatch, random
from cuda_on_cpu import CpuKernels, emulated
from effort import effort, thorough
from plugstream.models import CTModel, ct_cells, ct_cuda, ct_joseph
from plugstream.models.ct_beams import cone_beam, parallel_beam
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_maps import map_detector
from plugstream.models.ct_problem import read_source

CURVED = ("curved fan", "curved cone")
NOT_GATHERED = {"curved fan", "curved cone"}


@pytest.fixture(scope="module")
def kernels() -> CpuKernels:
    return CpuKernels(read_source(), ("gather_even_cells", "gather_uneven_cells"))


def compare(projector: ct_cuda.CudaProjector, lead: tuple[int, ...], views: list[int]) -> float:
    """How far the kernels are from the torch form in float64, and forward and adjoint from each other."""
    rays, voxels, device = projector.rays.select(views), projector.voxels, projector.device
    image, data = random(*lead, *voxels.shape), random(*lead, len(rays), *rays.detector, seed=1)
    forward = projector.project(image.to(device), np.array(views)).cpu()
    exact = ct_joseph.project(image.double(), rays, voxels)
    worst = float((forward - exact).abs().max() / exact.abs().max().clamp_min(1e-30))
    if projector.gathers:
        adjoint = projector.back_project(data.to(device), np.array(views)).cpu()
        exact = ct_joseph.back_project(data.double(), rays, voxels)
        worst = max(worst, float((adjoint - exact).abs().max() / exact.abs().max().clamp_min(1e-30)))
        worst = max(worst, 10 * mismatch(forward, data, image, adjoint))
    return worst


def cases() -> Iterator[tuple[str, Rays, Voxels, tuple[int, ...]]]:
    """Beams, with detectors finer and coarser than the voxels, and one, two or many images."""
    for name, make in FLAT.items():
        for pixel, lead in ((0.3, (9,)), (0.7, (2,)), (2.0, ())):
            yield name, make(pixel, 19), Voxels((9, 11), (1.0, 0.8)), lead
    for name, make in SOLID.items():
        yield name, make(1.0, (5, 13)), Voxels((4, 5, 6), (0.9, 1.0, 1.1)), (2,)
        yield name, make(0.6, (9, 14)), Voxels((4, 6, 5), (0.9, 1.0, 1.1)), ()
        yield name, make(0.9, (36, 12)), Voxels((40, 9, 8), (0.9, 1.0, 0.9)), ()


@emulated
def test_the_kernels_are_the_torch_form(kernels: CpuKernels) -> None:
    for name, rays, voxels, lead in cases():
        projector = ct_cuda.CudaProjector(rays, voxels, torch.device("cpu"), kernels)
        assert projector.gathers == (name not in NOT_GATHERED), name
        assert compare(projector, lead, [1, 8, 3]) <= 1e-5, (name, rays.detector)


class Listed:
    """Launches kernels and keeps their names."""

    def __init__(self, kernels: CpuKernels) -> None:
        self.kernels, self.names = kernels, set[str]()

    def launch(self, name: str, *arguments: Any) -> None:
        self.names.add(name)
        self.kernels.launch(name, *arguments)


@emulated
@pytest.mark.parametrize("roll", [0.01, -0.8, 1.5, 3.1])
@pytest.mark.parametrize("beam", ["stack", "cone", "steep", "tilted cone"])
def test_a_detector_may_be_turned_by_any_angle(kernels: CpuKernels, beam: str, roll: float) -> None:
    """Rows then are columns for the kernel, or counted from the last, and heights have as many rows as cells or not."""
    listed = Listed(kernels)
    for pixel, detector in ((0.75, (30, 21)), (1.0, (17, 24)), (0.3, (9, 8))):
        rays = SOLID[beam](pixel, detector).roll_detector(roll)
        projector = ct_cuda.CudaProjector(rays, Voxels((19, 8, 9), (1.0, 1.1, 0.9)), torch.device("cpu"), listed)
        assert projector.gathers
        assert compare(projector, (), [1, 8, 3]) <= 1e-5, detector
    assert ("gather_uneven_cells" if "cone" in beam else "gather_even_cells") in listed.names


@emulated
def test_a_cone_far_away_is_even(kernels: CpuKernels) -> None:
    """Its rows are as good as equally far apart, within a thread's cells; then they are taken so."""
    rays = cone_beam(np.linspace(0, 6, 9), (40, 24), 2.0, source=3000, detector=3000).roll_detector(0.01)
    listed = Listed(kernels)
    projector = ct_cuda.CudaProjector(rays, Voxels((33, 12, 11), 1.0), torch.device("cpu"), listed)
    assert compare(projector, (), [1, 8, 3]) <= 1e-5
    assert "gather_even_cells" in listed.names


@emulated
def test_views_may_repeat_and_be_none(kernels: CpuKernels) -> None:
    for rays, voxels in (
        (parallel_beam(np.arange(5.0), (4, 9), 1.0), Voxels((4, 6, 6), 1.0)),
        (cone_beam(np.arange(5.0), (4, 9), 2.0, source=30, detector=30), Voxels((4, 6, 6), 1.0)),
    ):
        projector = ct_cuda.CudaProjector(rays, voxels, torch.device("cpu"), kernels)
        assert compare(projector, (), [2, 2, 4]) <= 1e-5
        nothing = np.array([], dtype=np.int64)
        assert projector.project(random(4, 6, 6), nothing).shape == (0, 4, 9)
        assert not projector.back_project(torch.zeros(0, 4, 9), nothing).any()


class Guarded:
    """Launches a cone's adjoint on data that lie between NaN."""

    def __init__(self, kernels: CpuKernels) -> None:
        self.kernels = kernels

    def launch(self, name: str, grid: Any, block: Any, problem: Any, source: Any, target: Any) -> None:
        if name.startswith("gather_cone"):
            around = torch.full((200_000,), torch.nan)
            source = torch.cat([around, source.flatten(), around])[200_000:]
        self.kernels.launch(name, grid, block, problem, source, target)


@emulated
@pytest.mark.parametrize(("depth", "source"), [(1, 60.0), (2, 60.0), (33, 60.0), (129, 200.0), (2, 30.0)])
def test_rows_beyond_the_data_are_zeros(kernels: CpuKernels, depth: int, source: float) -> None:
    """Also near a source, and where a warp goes on to slices that there are not: its last row is among the zeros."""
    rays = cone_beam(np.arange(5.0), (40, 11), 1.5, source=source, detector=20)
    voxels = Voxels((depth, 8, 8), 1.0)
    projector = ct_cuda.CudaProjector(rays, voxels, torch.device("cpu"), Guarded(kernels))
    assert projector.gathers
    assert compare(projector, (), [0]) <= 1e-5
    mapped = map_detector(rays, voxels)
    assert mapped is not None
    last = np.array([128 * -(-depth // 128), 3.5, 3.5, 1.0])
    row = (mapped[0][:, 1] @ last) / (mapped[0][:, 2] @ last)
    assert projector._gather_cone == "gather_cone_beyond" or row.max() <= 40 + projector._row_margin


@emulated
def test_launches_of_few_views_add_up(kernels: CpuKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ct_cuda, "_AT_ONCE", 1)  # a view a launch
    monkeypatch.setattr(ct_cells, "_AT_ONCE", 1)
    for rays in (
        parallel_beam(np.arange(6.0), (5, 9), 1.0),
        SOLID["helical"](1.0, (5, 9)),
        SOLID["steep"](1.0, (5, 9)),
    ):
        projector = ct_cuda.CudaProjector(rays, Voxels((5, 6, 7), 1.0), torch.device("cpu"), kernels)
        assert compare(projector, (), [0, 1, 2, 3, 4]) <= 1e-5


@thorough
@emulated
def test_a_projector_grows_with_its_views(kernels: CpuKernels) -> None:
    """To the bits of one of all views; two may grow out of one, and new views are all that is looked at."""
    looked_at: list[int] = []

    class Counted(ct_cuda.CudaProjector):
        def __init__(self, rays: Rays, *others: Any) -> None:
            looked_at.append(len(rays))
            super().__init__(rays, *others)

    for name, rays, voxels, lead in itertools.islice(cases(), 0, None, effort(3, 1)):  # one or all of each beam
        whole = ct_cuda.CudaProjector(rays, voxels, torch.device("cpu"), kernels)
        few = ct_cuda.CudaProjector(rays.select([0, 1, 2]), voxels, torch.device("cpu"), kernels)
        other = few.grow(rays.select([0, 1, 2, 7, 7])).grow(rays.select([0, 1, 2, 7, 7, 6]))
        grown = few.grow(rays.select([0, 1, 2, 3])).grow(rays.select(slice(0, 5))).grow(rays)
        views, image, data = np.array([1, 8, 3]), random(*lead, *voxels.shape), random(*lead, 3, *rays.detector)
        assert torch.equal(grown.project(image, views), whole.project(image, views)), name
        assert torch.equal(other.project(image, np.array([1, 5, 3])), whole.project(image, np.array([1, 6, 7]))), name
        if whole.gathers:
            assert torch.equal(grown.back_project(data, views), whole.back_project(data, views)), name
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ct_cuda, "CudaProjector", Counted)
        rays = parallel_beam(np.arange(40.0), 12, 1.0)
        projector = Counted(rays.select(slice(0, 30)), Voxels((8, 8), 1.0), torch.device("cpu"), kernels)
        for count in range(31, 41):
            projector = projector.grow(rays.select(slice(0, count)))
    assert looked_at == [30, *[1] * 10]


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    device = torch.device("cuda", 0)
    for name, rays, voxels, lead in cases():
        assert compare(ct_cuda.make_projector(rays, voxels, device), lead, [1, 8, 3]) <= 1e-5, (name, rays.detector)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "rays",
    [
        cone_beam(np.linspace(0, 6, 9), (70, 90), 2.0, source=300, detector=300),
        cone_beam(np.linspace(0, 6, 9), (70, 90), 2.0, source=300, detector=300).roll_detector(0.05),
        parallel_beam(np.linspace(0, 3, 9), (61, 90), 1.0),
    ],
    ids=["cone", "rolled", "stack"],
)
def test_a_model_on_a_gpu_is_that_on_the_cpu(rays: Rays) -> None:
    voxels = Voxels((61, 64, 67), 1.0)
    model, there = CTModel(rays, voxels), CTModel(rays, voxels, device="cuda")
    image, data = random(*voxels.shape).abs(), random(9, *rays.detector).abs()
    for got, want in (
        (there.forward(image.cuda()), model.forward(image)),
        (there.adjoint(data.cuda()), model.adjoint(data)),
    ):
        assert float((got.cpu() - want).abs().max() / want.abs().max()) <= 1e-5
    assert torch.equal(there.adjoint(data.cuda()), there.adjoint(data.cuda()))
    bounds, expected = (one.squared_norm_bounds(torch.arange(9)) for one in (there, model))
    torch.testing.assert_close(bounds, expected, rtol=1e-4, atol=0)


def test_the_source_travels_with_the_package() -> None:
    assert "gather_cone_inside" in read_source()
    assert "gather_even_cells" in read_source()
