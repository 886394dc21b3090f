"""Bounds of ||A_i||^2 from the geometry of a beam, against dense matrices and the bounds by products."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from effort import effort, thorough
from plugstream.models.ct import CTModel
from plugstream.models.ct_beams import cone_beam, fan_beam, parallel_beam
from plugstream.models.ct_geometry import Voxels
from plugstream.models.ct_row_sums import row_sum_bounds

pytestmark = pytest.mark.timeout(60)


@thorough
@pytest.mark.parametrize("seed", range(effort(2, 4)))
def test_they_are_above_the_norms_of_dense_matrices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(size) for size in rng.integers(5, 24, 2))
    voxels = Voxels(shape, tuple(rng.uniform(0.5, 1.5, 2)), tuple(rng.normal(size=2) - np.array(shape) / 2))
    angles = np.concatenate([[0, np.pi / 4, np.pi / 2, np.arctan(0.5)], rng.uniform(0, np.pi, 6)])[: effort(6, 10)]
    rays = parallel_beam(angles, 40, rng.uniform(0.2, 2.5), center=rng.uniform(10, 30))
    model, bounds = CTModel(rays, voxels, dtype=torch.float64), row_sum_bounds(rays, voxels)
    assert bounds is not None
    basis = torch.eye(np.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    for view, bound in enumerate(bounds):
        norm = float(torch.linalg.matrix_norm(model.forward(basis, [view]).flatten(1), 2))
        assert norm**2 <= bound


@pytest.mark.parametrize("pixel", [0.7, 1.0, 1.3])
def test_the_largest_bound_is_the_same_number_from_few_views(pixel: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CTModel(parallel_beam(np.arange(90) * 2.4, 180, pixel), Voxels((128, 128), 1.0))
    views = torch.arange(90)
    every = model.squared_norm_bounds(views)
    rough = model.rough_norm_bounds(views)
    assert (rough > every).all()
    assert rough.sum() < 1.05 * every.sum()
    asked = []
    bounds = CTModel.squared_norm_bounds
    monkeypatch.setattr(CTModel, "squared_norm_bounds", lambda self, one: asked.append(one) or bounds(self, one))
    assert model.largest_norm_bound(views) == float(every.max())
    assert len(asked) < 20
    asked.clear()
    assert model.largest_norm_bound(views[:50], beyond=1.1 * float(every.max())) == 0.0  # as of a scan that grows
    assert not asked


def test_a_volume_seen_slice_by_slice_has_those_of_a_slice() -> None:
    angles = np.arange(6) * 0.7
    flat = row_sum_bounds(parallel_beam(angles, 30, 1.0), Voxels((20, 20), 1.0))
    stack = row_sum_bounds(parallel_beam(angles, (5, 30), 1.0), Voxels((5, 20, 20), 1.0))
    assert np.array_equal(flat, stack)
    assert row_sum_bounds(parallel_beam(angles, (4, 30), 1.0), Voxels((5, 20, 20), 1.0)) is None  # between two slices


@thorough
@pytest.mark.parametrize("seed", range(effort(2, 4)))
def test_those_of_fans_and_cones_are_above_the_norms_of_dense_matrices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    angles = np.concatenate([[0, np.pi / 4, np.pi / 2, np.arctan(0.5)], rng.uniform(0, 2 * np.pi, 6)])[: effort(6, 10)]
    distances = {"source": rng.uniform(55, 120), "detector": rng.uniform(0, 80)}
    more = {"center": rng.uniform(10, 30), "curved": bool(seed % 2)} | distances
    for shape, rays in (
        ((17, 22), fan_beam(angles, 40, rng.uniform(0.3, 3), **more)),
        ((4, 7, 9), cone_beam(angles, (9, 30), rng.uniform(0.5, 3), middle=rng.uniform(2, 6), **more)),
    ):
        spacing = tuple(rng.uniform(0.7, 1.5, len(shape)))
        origin = tuple(rng.normal(size=len(shape)) - np.array(shape) / 2)
        voxels = Voxels(shape, spacing, origin)
        model, bounds = CTModel(rays, voxels, dtype=torch.float64), row_sum_bounds(rays, voxels)
        assert bounds is not None
        basis = torch.eye(np.prod(shape), dtype=torch.float64).reshape(-1, *shape)
        for view, bound in enumerate(bounds):
            norm = float(torch.linalg.matrix_norm(model.forward(basis, [view]).flatten(1), 2))
            assert norm**2 <= bound <= 2.5 * norm**2 + 1e-9


@pytest.mark.parametrize("beam", ["fan", "cone"])
def test_fans_and_cones_have_the_same_number_from_fewer_views(beam: str, monkeypatch: pytest.MonkeyPatch) -> None:
    distances = {"source": 400.0, "detector": 400.0}
    fan = CTModel(fan_beam(np.arange(40) * 2.4, 95, 2.0, **distances), Voxels((64, 64), 1.0))
    cone = CTModel(cone_beam(np.arange(40) * 2.4, (30, 30), 2.0, **distances), Voxels((16, 20, 20), 1.0))
    model, asked, bounds = {"fan": fan, "cone": cone}[beam], list[torch.Tensor](), CTModel.squared_norm_bounds
    every = model.squared_norm_bounds(torch.arange(40))
    monkeypatch.setattr(CTModel, "squared_norm_bounds", lambda self, one: asked.append(one) or bounds(self, one))
    assert model.largest_norm_bound(torch.arange(40)) == float(every.max())
    assert len(asked) <= 30


def test_other_beams_have_none() -> None:
    near = fan_beam([0.1], 30, 1.0, source=25.0, detector=50.0)
    assert row_sum_bounds(near, Voxels((9, 9), 1.0)) is None
    tilted = cone_beam([0.1], (30, 30), 1.0, source=100.0, detector=50.0).roll_detector(0.1)
    assert row_sum_bounds(tilted, Voxels((9, 9, 9), 1.0)) is None
    assert row_sum_bounds(parallel_beam([0.1], 30, 0.01), Voxels((9, 9), 1.0)) is None
