"""The windows from which bounds of L start: every view of a parallel beam within 1 %, by two products."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from numpy.testing import assert_allclose

from ct_scans import flat_scans
from plugstream.models import CTModel
from plugstream.models.ct_beams import fan_beam, parallel_beam
from plugstream.models.ct_fan_windows import fan_windows
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_lines import cross_planes
from plugstream.models.ct_windows import _overlaps, ray_windows

ANGLES = np.deg2rad([0, 3, 11, 26.565, 30, 44, 45, 52, 90, 135])


def overlaps(model: CTModel, view: int) -> np.ndarray:
    """A A' of a view, in double precision."""
    eye = torch.eye(model.data_shape[-1], dtype=torch.float64)[:, None]
    return model.forward(model.adjoint(eye, [view]), [view])[:, 0].numpy()


@pytest.mark.parametrize("pixel", [pytest.param(0.25, marks=pytest.mark.slow), 0.5, 0.8, 1.0, 1.3, 2.0])
def test_bounds_of_every_view_of_a_parallel_beam_are_within_one_percent(pixel: float) -> None:
    rays, voxels = parallel_beam(ANGLES, int(90 / pixel), pixel), Voxels((64, 64), 1.0)
    exact = CTModel(rays, voxels, dtype=torch.float64)
    norms = np.array([np.linalg.eigvalsh(overlaps(exact, view))[-1] for view in range(len(ANGLES))])
    bounds = CTModel(rays, voxels).squared_norm_bounds(torch.arange(len(ANGLES))).numpy()
    assert (bounds >= norms).all()
    assert (bounds <= 1.01 * norms).all(), bounds / norms


@pytest.mark.parametrize("curved", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("pixel", [pytest.param(0.5, marks=pytest.mark.slow), 0.8, 1.0, 1.3, 2.0])
def test_bounds_of_every_view_of_a_fan_are_within_one_percent(pixel: float, curved: bool) -> None:
    rays = fan_beam(ANGLES, int(74 / pixel), 1.4 * pixel, source=140.0, detector=56.0, curved=curved)
    voxels = Voxels((64, 64), 1.0)
    exact = CTModel(rays, voxels, dtype=torch.float64)
    norms = np.array([np.linalg.eigvalsh(overlaps(exact, view))[-1] for view in range(len(ANGLES))])
    bounds = CTModel(rays, voxels).squared_norm_bounds(torch.arange(len(ANGLES))).numpy()
    assert (bounds >= norms).all()
    assert (bounds <= 1.01 * norms).all(), bounds / norms


@settings(max_examples=12)
@given(flat_scans())
def test_whatever_the_rays_bounds_are_from_above(scan: tuple[Rays, Voxels]) -> None:
    rays, voxels = scan
    exact = CTModel(rays, voxels, dtype=torch.float64)
    bounds = exact.squared_norm_bounds(torch.arange(len(rays)))
    for view, bound in enumerate(bounds.tolist()):
        assert bound >= (1 - 1e-12) * np.linalg.eigvalsh(overlaps(exact, view))[-1]


def test_a_stack_has_the_bounds_of_its_slices() -> None:
    flat = CTModel(parallel_beam(ANGLES, 90, 1.0), Voxels((60, 60), 1.0))
    stack = CTModel(parallel_beam(ANGLES, (5, 90), 1.0), Voxels((5, 60, 60), 1.0))
    views = torch.arange(len(ANGLES))
    assert_allclose(stack.squared_norm_bounds(views), flat.squared_norm_bounds(views), rtol=1e-4)


def test_what_rays_share_is_known_without_following_them() -> None:
    voxels = Voxels((40, 40), 1.0)
    for degrees, pixel in ((0, 1.0), (45, 0.5), (27, 0.7), (44, 1.0)):
        rays = parallel_beam(np.deg2rad([degrees]), int(70 / pixel), pixel)
        exact = overlaps(CTModel(rays, voxels, dtype=torch.float64), 0)
        lines = cross_planes(rays, voxels)
        across = 1 - int(lines.axis[0, 0])
        found = lines.step[0, 0] ** 2 * _overlaps(lines.start[0, :, across], lines.slope[0, 0, across], 40, 40)
        middle = slice(len(exact) // 3, -len(exact) // 3)
        for d, band in enumerate(found):
            want = np.diag(exact, -d)
            # At its ends a ray may be half in the image: that is one plane at most, in which rays share 1 at most.
            assert np.abs(band[: len(want)] - want)[middle].max() < lines.step[0, 0] ** 2


def test_windows_are_positive_wherever_rays_run() -> None:
    for voxels in (Voxels((1, 1), 1.0), Voxels((7, 3), (0.3, 2.0), (5.0, -9.0))):
        for rays in (parallel_beam(ANGLES, 1, 3.0), parallel_beam(ANGLES, 33, 0.01), parallel_beam(ANGLES, 5, 40.0)):
            found = ray_windows(rays, voxels)
            assert found.shape == (len(ANGLES), rays.detector[0])
            assert (found > 0).all()
            assert (found <= 1).all()
        for columns, pixel in ((33, 0.01), (1, 3.0)):
            found = fan_windows(fan_beam(ANGLES, columns, pixel, source=40.0, detector=9.0), voxels)
            assert found.shape == (len(ANGLES), columns)
            assert (found > 0).all()
            assert (found <= 1).all()
