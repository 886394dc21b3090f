"""The Triton form of Joseph's adjoint: in Triton's interpreter here, on a GPU where there is one."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from ct_scans import FLAT, SOLID, random
from effort import effort, thorough
from plugstream.models import ct_joseph, ct_triton
from plugstream.models.ct_geometry import Rays, Voxels
from triton_interpreter import DEVICE, interpret, needs_triton

CURVED = {"curved fan", "curved cone"}
# Those whose adjoint is not in `ct_cuda`.
BEAMS = ("rolled", "tilted", "steep", "tilted cone")


def compare(rays: Rays, voxels: Voxels, count: int) -> float:
    """How far the kernels are from the torch form."""
    data = random(count, len(rays), *rays.detector, seed=1)
    adjoint = ct_triton.back_project(data.to(DEVICE), rays, voxels).cpu()
    exact = ct_joseph.back_project(data.double(), rays, voxels)
    return float((adjoint - exact).abs().max() / exact.abs().max().clamp_min(1e-30))


def check() -> dict[str, float]:
    answer = {}
    for name in BEAMS:
        rays = SOLID[name](1.0, (5, 13)).select(effort([8], [1, 8]))
        answer[name] = compare(rays, Voxels((4, 5, 6), (0.9, 1.0, 1.1)), 1)
    return answer


@thorough
@needs_triton
def test_the_kernels_are_the_torch_form_in_the_interpreter() -> None:
    answer = json.loads(interpret(__file__))
    assert set(answer) == set(BEAMS)
    assert max(answer.values()) <= 1e-5, answer


def test_maps_are_for_flat_detectors_that_are_not_far_too_fine() -> None:
    flat, solid = Voxels((9, 11), 1.0), Voxels((4, 6, 7), 1.0)
    assert {name for name in FLAT if ct_triton.find_maps(FLAT[name](1.0, 19), flat) is None} == {"curved fan"}
    assert {name for name in SOLID if ct_triton.find_maps(SOLID[name](1.0, (5, 13)), solid) is None} == {"curved cone"}
    assert ct_triton.find_maps(FLAT["parallel"](0.1, 99), flat) is None


@pytest.mark.parametrize("name", [*FLAT, *SOLID])
def test_rays_with_a_weight_are_among_those_that_a_map_finds(name: str) -> None:
    """Every voxel by itself: the pixels that see it are within the reach of the map's."""
    if name in CURVED:
        return
    flat = name in FLAT
    rays = FLAT[name](0.9, 30) if flat else SOLID[name](0.9, (9, 16))
    voxels = Voxels((9, 11) if flat else (4, 6, 7), 1.0)
    found = ct_triton.find_maps(rays, voxels)
    assert found is not None
    maps = found[0].astype(np.float64)
    shape = (1, *voxels.shape) if flat else voxels.shape
    eye = torch.eye(int(np.prod(shape)), dtype=torch.float64).reshape(-1, *voxels.shape)
    seen = ct_joseph.project(eye, rays, voxels).reshape(len(eye), len(rays), *((1,) if flat else ()), *rays.detector)
    for number, view, row, column in seen.nonzero().tolist():
        place = np.array([*np.unravel_index(number, shape), 1.0])
        a, b, w = maps[view, :12].reshape(3, 4) @ place
        assert abs(column - a / w) <= maps[view, 12]
        assert flat or abs(row - b / w) <= maps[view, 13]


@pytest.mark.gpu
@needs_triton
def test_on_a_gpu() -> None:
    answer = check()
    assert max(answer.values()) <= 1e-5, answer


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(check()))
