"""The windows from which bounds of L start: every view of any beam within 1 %, by two products."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from numpy.testing import assert_allclose

from ct_scans import FLAT, SOLID, flat_scans, solid_scans
from effort import effort
from native_build import LEVELS, needs_native
from plugstream.models import CTModel
from plugstream.models.ct_beams import cone_beam, fan_beam, parallel_beam
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_overlaps import cross_view, ray_overlaps, share_voxels
from plugstream.models.ct_perron import solve_band, solve_bands
from plugstream.models.ct_windows import ray_windows

ANGLES = np.deg2rad(effort([0, 3, 26.565, 44, 45], [0, 3, 11, 26.565, 30, 44, 45, 52, 90, 135]))
NEAR = np.array([(0, 0), (0, 1), (0, 3), (1, 0), (1, 1), (1, -1), (2, -1), (3, 2)], dtype=np.int32)


def dense(rays: Rays, voxels: Voxels, mask: np.ndarray | None = None, dtype: torch.dtype = torch.float64) -> np.ndarray:
    """A A' of the first view, of weights in this precision."""
    model = CTModel(rays.select([0]), voxels, dtype=dtype, mask=None if mask is None else mask[:1])
    eye = torch.eye(int(np.prod(rays.detector)), dtype=dtype).reshape(-1, 1, *rays.detector)
    flat = model.adjoint(eye).reshape(len(eye), -1).double().numpy()
    return flat @ flat.T


def excess(rays: Rays, voxels: Voxels, mask: np.ndarray | None = None) -> np.ndarray:
    """By how much the bound of each view is too large, as a part of the true value, which is known to 1e-6."""
    bounds = CTModel(rays, voxels, mask=mask).squared_norm_bounds(torch.arange(len(rays))).numpy()
    each = [rays.select([view]) for view in range(len(rays))]
    masks = [None] * len(rays) if mask is None else [mask[view : view + 1] for view in range(len(rays))]
    norms = [
        np.linalg.eigvalsh(dense(one, voxels, some, torch.float32))[-1] for one, some in zip(each, masks, strict=True)
    ]
    return bounds / np.array(norms) - 1


@pytest.mark.parametrize("pixel", [pytest.param(0.25, marks=pytest.mark.slow), 0.5, 0.8, 1.0, 1.3, 2.0])
def test_bounds_of_every_view_of_a_parallel_beam_are_within_one_percent(pixel: float) -> None:
    found = excess(parallel_beam(ANGLES, int(90 / pixel), pixel), Voxels((64, 64), 1.0))
    assert found.min() > -1e-6
    assert found.max() < 0.005


@pytest.mark.parametrize("curved", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("pixel", [pytest.param(0.5, marks=pytest.mark.slow), 0.8, 1.0, 1.3, 2.0])
def test_bounds_of_every_view_of_a_fan_are_within_one_percent(pixel: float, curved: bool) -> None:
    rays = fan_beam(ANGLES, int(74 / pixel), 1.4 * pixel, source=140.0, detector=56.0, curved=curved)
    found = excess(rays, Voxels((64, 64), 1.0))
    assert found.min() > -1e-6
    assert found.max() < 0.005


@pytest.mark.parametrize("name", sorted(SOLID))
@pytest.mark.parametrize("pixel", [1.0, *(pytest.param(p, marks=pytest.mark.slow) for p in (0.7, 1.6))])
def test_bounds_of_every_view_of_a_volume_are_within_one_percent(name: str, pixel: float) -> None:
    rays = SOLID[name](pixel, (int(7 / pixel) + 2, int(17 / pixel))).select([1, 8])
    found = excess(rays, Voxels((6, 11, 12), 1.0))
    assert found.min() > -1e-6
    assert found.max() < 0.005


@pytest.mark.parametrize("far", [14.0, pytest.param(25.0, marks=pytest.mark.slow)])
def test_bounds_of_cones_next_to_the_source_and_of_fine_rays_are_within_one_percent(far: float) -> None:
    for pixel in (0.4, 1.0):
        rays = cone_beam(ANGLES[[1, 3]], (int(5 / pixel), int(14 / pixel)), 2 * pixel, source=far, detector=far)
        found = excess(rays, Voxels((4, 12, 11), 1.0))
        assert found.min() > -1e-6
        assert found.max() < 0.01


def test_bounds_of_masked_detectors_are_within_one_percent() -> None:
    draw = np.random.default_rng(0)
    for rays, voxels in (
        (cone_beam(ANGLES[1:3], (9, 17), 1.2, source=30.0, detector=6.0), Voxels((6, 11, 12), 1.0)),
        (parallel_beam(ANGLES[1:3], (7, 17), 0.9), Voxels((6, 11, 12), 1.0)),
        (parallel_beam(ANGLES[1:3], (6, 17), 1.0), Voxels((6, 11, 12), 1.0)),
        (fan_beam(ANGLES[1:3], 60, 1.0, source=60.0, detector=6.0), Voxels((33, 31), 1.0)),
        (parallel_beam(ANGLES[1:3], 60, 1.0), Voxels((33, 31), 1.0)),
    ):
        mask = draw.random((2, *rays.detector)) < 0.9
        mask[..., 8:12] = False
        found = excess(rays, voxels, mask)
        assert found.min() > -1e-6
        assert found.max() < 0.005


@pytest.mark.parametrize("height", [0.5, 1.0, 1.3])
def test_bounds_of_stacks_whose_rows_see_two_slices_are_within_one_percent(height: float) -> None:
    found = excess(parallel_beam(ANGLES[1:3], (8, 17), (height, 1.0)), Voxels((7, 11, 12), 1.0))
    assert found.min() > -1e-6
    assert found.max() < 0.005


@settings(max_examples=effort(12, 200))
@given(flat_scans())
def test_whatever_the_rays_bounds_are_from_above(scan: tuple[Rays, Voxels]) -> None:
    rays, voxels = scan
    for view, bound in enumerate(
        CTModel(rays, voxels, dtype=torch.float64).squared_norm_bounds(torch.arange(len(rays)))
    ):
        norm = np.linalg.eigvalsh(dense(rays.select([view]), voxels))[-1]
        assert (1 - 1e-12) * norm <= float(bound) <= 1.03 * norm + 1e-12


@settings(max_examples=effort(8, 200))
@given(solid_scans())
def test_whatever_the_rays_of_a_volume_bounds_are_from_above(scan: tuple[Rays, Voxels]) -> None:
    rays, voxels = scan
    for view, bound in enumerate(
        CTModel(rays, voxels, dtype=torch.float64).squared_norm_bounds(torch.arange(len(rays)))
    ):
        norm = np.linalg.eigvalsh(dense(rays.select([view]), voxels))[-1]
        assert (1 - 1e-12) * norm <= float(bound) <= 1.03 * norm + 1e-12


def test_two_products_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    for name in ("forward", "adjoint"):
        before: Callable[..., torch.Tensor] = getattr(CTModel, name)

        def count(self: CTModel, *arguments: object, before: Callable[..., torch.Tensor] = before) -> torch.Tensor:
            calls.append(before)
            return before(self, *arguments)

        monkeypatch.setattr(CTModel, name, count)
    rays = cone_beam(ANGLES, (12, 21), 1.2, source=30.0, detector=6.0)
    CTModel(rays, Voxels((8, 13, 15), 1.0)).squared_norm_bounds(torch.arange(len(ANGLES)))
    assert len(calls) == 2 * len(ANGLES)


def test_a_stack_has_the_bounds_of_its_slices() -> None:
    flat = CTModel(parallel_beam(ANGLES, 90, 1.0), Voxels((60, 60), 1.0))
    stack = CTModel(parallel_beam(ANGLES, (5, 90), 1.0), Voxels((5, 60, 60), 1.0))
    views = torch.arange(len(ANGLES))
    assert_allclose(stack.squared_norm_bounds(views), flat.squared_norm_bounds(views), rtol=1e-4)


def test_a_masked_stack_has_the_bounds_of_its_blocks_to_the_bit() -> None:
    """By which a volume that is reconstructed in blocks of slices has the step of the volume at once."""
    views, mask = torch.arange(len(ANGLES)), np.random.default_rng(0).random((len(ANGLES), 7, 40)) < 0.9
    mask[:, 2] = False
    for rows in (7, 9):  # two of them beside the volume
        seen = np.pad(mask, ((0, 0), (0, rows - 7), (0, 0)), constant_values=True)
        rays = parallel_beam(ANGLES, (rows, 40), 1.0).shift_detector(rows=(rows - 7) / 2)
        whole = CTModel(rays, Voxels((7, 20, 22), 1.0), mask=seen).squared_norm_bounds(views)
        blocks = [
            CTModel(
                parallel_beam(ANGLES, (last - first, 40), 1.0),
                Voxels((last - first, 20, 22), 1.0),
                mask=mask[:, first:last],
            ).squared_norm_bounds(views)
            for first, last in ((0, 2), (2, 3), (3, 7))
        ]
        assert torch.equal(torch.stack(blocks).amax(0), whole)


@pytest.mark.parametrize("name", ["near fan", "curved cone", "steep", "tilted cone"])
def test_what_rays_share_is_what_their_weights_say(name: str) -> None:
    voxels = Voxels((11, 9), (1.0, 0.8)) if name in FLAT else Voxels((6, 9, 8), (1.0, 0.8, 1.1))
    rays = FLAT[name](0.8, 17) if name in FLAT else SOLID[name](0.8, (8, 13))
    for view in (1, 8):  # the first along a diagonal, where some rays advance along one axis and some along another
        one = rays.select([view])
        lines, matrix = cross_view(one, voxels), dense(one, voxels)
        rows, columns = lines.axis.shape
        for (down, across), band in zip(NEAR, share_voxels(lines, NEAR), strict=True):
            want = np.zeros((rows, columns))
            for row in range(rows - down):
                for column in range(max(0, -across), columns - max(0, across)):
                    ray = row * columns + column
                    want[row, column] = matrix[ray, ray + down * columns + across]
            assert_allclose(band, want, atol=1e-9 * matrix.max())


@needs_native
@pytest.mark.parametrize("level", LEVELS)
def test_the_kernel_finds_what_the_specification_does(level: str) -> None:
    for name, make in (*FLAT.items(), *SOLID.items()):
        voxels = Voxels((20, 17), 0.5) if name in FLAT else Voxels((4, 6, 5), (1.0, 0.8, 1.1))
        rays = make(0.7, 37) if name in FLAT else make(0.8, (5, 19))  # type: ignore[arg-type]
        lines = cross_view(rays.select([9]), voxels)
        want = share_voxels(lines, NEAR)
        for threads in (1, 3):
            found = ray_overlaps(lines, NEAR, threads=threads, level=level)
            assert_allclose(found, want, atol=1e-5 * max(want.max(), 1e-9))


def test_windows_are_positive_wherever_rays_run() -> None:
    for voxels in (Voxels((1, 1), 1.0), Voxels((7, 3), (0.3, 2.0), (5.0, -9.0))):
        for rays in (
            *(parallel_beam(ANGLES, columns, pixel) for columns, pixel in ((1, 3.0), (33, 0.01), (5, 40.0))),
            *(fan_beam(ANGLES, columns, pixel, source=40.0, detector=9.0) for columns, pixel in ((33, 0.01), (1, 3.0))),
        ):
            found = ray_windows(rays, voxels)
            assert found.shape == (len(ANGLES), *rays.detector)
            assert (found > 0).all()
            assert (found <= 1).all()


def test_windows_of_matrices_are_near_their_first_eigenvector_from_above() -> None:
    draw = np.random.default_rng(1)
    for size, apart in ((1, [0]), (40, [0, 1, 2]), (60, [0, 1, 9, 10, 11])):
        bands = draw.random((len(apart), size)) / (1 + np.arange(len(apart)))[:, None]
        for band, d in zip(bands, apart, strict=True):
            band[size - d :] = 0
        matrix = sum(
            np.diag(band[: size - d], -d) + (np.diag(band[: size - d], d) if d else 0)
            for band, d in zip(bands, apart, strict=True)
        )
        top = np.linalg.eigvalsh(matrix)[-1]
        for w in (
            solve_bands(bands, np.array(apart)),
            *([solve_band(bands)] if apart == list(range(len(apart))) else []),
        ):
            assert (w > 0).all()
            assert top * (1 - 1e-12) <= (matrix @ w / w).max() < 1.005 * top
    assert (solve_band(np.zeros((2, 5))) == 1).all()
    assert (solve_bands(np.zeros((2, 5)), np.array([0, 3])) == 1).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_bounds_on_a_gpu_are_those_of_the_cpu() -> None:
    for name in ("stack", "cone", "tilted"):
        rays, voxels, views = SOLID[name](1.0, (11, 20)), Voxels((8, 13, 15), 1.0), torch.arange(4)
        here, there = (CTModel(rays, voxels, device=device).squared_norm_bounds(views) for device in ("cpu", "cuda"))
        assert_allclose(there, here, rtol=1e-4)


@needs_native
@pytest.mark.parametrize(("rows", "size", "center"), [(21, 40, None), (33, 24, 20.0)])
def test_a_few_slices_of_a_stack_give_the_bits_of_all(rows: int, size: int, center: float | None) -> None:
    """As the base class computes them, from all slices."""
    from plugstream.models.base import ModelBase

    angles = 0.01 + np.linspace(0, np.pi, 9, endpoint=False)
    rays = parallel_beam(angles, (rows, 3 * size // 2), 1e-3, center=center)
    model, views = CTModel(rays, Voxels((rows, size, size), 1e-3)), torch.arange(9)
    starts = model.windows(views)
    whole = [ModelBase._nonnegative_bound(model, views[n : n + 1], starts[n : n + 1]) for n in range(9)]
    assert model.squared_norm_bounds(views).tolist() == whole
