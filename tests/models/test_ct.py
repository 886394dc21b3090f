"""Joseph's projector: against sums along lines, integrals that are known, and its own transpose; and what L is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from scipy.ndimage import map_coordinates

from ct_scans import FLAT, SOLID, flat_scans, mismatch, random, solid_scans
from effort import effort, thorough
from plugstream.base.errors import InputError
from plugstream.fidelity.least_squares import LeastSquares
from plugstream.models import CTModel, MatrixModel
from plugstream.models.base import ModelBase
from plugstream.models.ct_beams import cone_beam, fan_beam, parallel_beam
from plugstream.models.ct_geometry import Rays, Voxels

TURN = np.linspace(0, np.pi, 7) + 0.05


def line_sums(image: np.ndarray[Any, Any], rays: Rays, voxels: Voxels) -> np.ndarray[Any, Any]:
    """Ray by ray in double precision: SciPy's linear interpolation where a ray meets each plane of voxels."""
    points, directions = rays.lines()
    out = np.zeros(points.shape[:-1])
    spacing, origin = np.array(voxels.spacing), np.array(voxels.origin)
    for ray in np.ndindex(out.shape):
        place, way = points[ray][: image.ndim][::-1], directions[ray][: image.ndim][::-1]
        axis = int(np.argmax(np.abs(way) / spacing))
        planes = origin[axis] + spacing[axis] * np.arange(image.shape[axis])
        where = place[:, None] + (planes - place[axis]) / way[axis] * way[:, None]
        index = (where - origin[:, None]) / spacing[:, None]
        index[axis] = np.arange(image.shape[axis])
        values = map_coordinates(image, index, order=1, mode="grid-constant", cval=0.0)
        out[ray] = values.sum() * spacing[axis] * np.linalg.norm(way) / abs(way[axis])
    return out


def check_sums(rays: Rays, voxels: Voxels) -> None:
    image = random(*voxels.shape, dtype=torch.float64)
    expected = line_sums(image.numpy(), rays, voxels)
    scale = np.abs(expected).max() + 1e-12
    np.testing.assert_allclose(CTModel(rays, voxels, dtype=torch.float64).forward(image), expected, atol=1e-9 * scale)
    np.testing.assert_allclose(CTModel(rays, voxels).forward(image), expected, atol=1e-5 * scale)


@thorough
@settings(deadline=None, max_examples=effort(12, 25))
@given(flat_scans())
def test_images_are_summed_along_lines(scan: tuple[Rays, Voxels]) -> None:
    check_sums(*scan)


@thorough
@settings(deadline=None, max_examples=effort(8, 15))
@given(solid_scans())
def test_volumes_are_summed_along_lines(scan: tuple[Rays, Voxels]) -> None:
    check_sums(*scan)


@thorough
@settings(deadline=None, max_examples=effort(16, 40))
@given(flat_scans() | solid_scans())
def test_the_adjoint_is_the_transpose(scan: tuple[Rays, Voxels]) -> None:
    rays, voxels = scan
    for dtype, most in ((torch.float32, 1e-6), (torch.float64, 1e-14)):
        model = CTModel(rays, voxels, dtype=dtype)
        image, data = random(*voxels.shape, dtype=dtype), random(len(rays), *rays.detector, dtype=dtype, seed=1)
        assert mismatch(model.forward(image), data, image, model.adjoint(data)) <= most


def soft_ball(voxels: Voxels, middle: tuple[float, ...], radius: float) -> torch.Tensor:
    """(1 - r^2 / R^2)^2 inside a ball (or disc), which is smooth across its edge."""
    axes = [
        o + s * np.arange(n) - m for o, s, n, m in zip(voxels.origin, voxels.spacing, voxels.shape, middle, strict=True)
    ]
    square = sum(part**2 for part in np.meshgrid(*axes, indexing="ij")) / radius**2
    return torch.from_numpy(np.maximum(0, 1 - square) ** 2)


def soft_ball_integrals(rays: Rays, middle: tuple[float, ...], radius: float) -> np.ndarray[Any, Any]:
    """The integral of it along a line at distance d: 16/15 (R^2 - d^2)^(5/2) / R^4."""
    points, directions = rays.lines()
    way = directions / np.linalg.norm(directions, axis=-1, keepdims=True)
    place = points - np.array([*middle[::-1], 0.0][:3])
    off = ((place - (place * way).sum(-1, keepdims=True) * way) ** 2).sum(-1)
    return np.asarray(16 / 15 * np.maximum(0, radius**2 - off) ** 2.5 / radius**4)


FINE: dict[str, tuple[Rays, tuple[float, ...]]] = {
    "parallel": (parallel_beam(TURN, 41, 0.5), (1.5, -2.0)),
    "fan": (fan_beam(TURN, 41, 0.7, source=60, detector=25), (1.5, -2.0)),
    "cone": (cone_beam(TURN[:3], (9, 11), 2.0, source=60, detector=25), (0.5, 1.5, -2.0)),
}


@pytest.mark.parametrize("name", FINE)
def test_integrals_of_discs_and_balls_are_right_to_second_order(name: str) -> None:
    rays, middle = FINE[name]
    exact, errors = soft_ball_integrals(rays, middle, 6.0), []
    for count in (16, 32, 64):
        voxels = Voxels((count,) * len(middle), 20 / count)
        found = CTModel(rays, voxels, dtype=torch.float64).forward(soft_ball(voxels, middle, 6.0))
        errors.append(float(np.abs(found.numpy() - exact).max()) / exact.max())
    assert errors[-1] < 4e-3
    assert errors[0] > 3 * errors[1] > 9 * errors[2]


def test_a_view_along_an_axis_is_a_sum_of_rows_or_columns() -> None:
    image = random(5, 8)
    voxels = Voxels((5, 8), 0.5)
    for angle, sums in ((0.0, image.sum(0)), (np.pi, image.sum(0).flip(0))):
        found = CTModel(parallel_beam([angle], 8, 0.5), voxels).forward(image)[0]
        torch.testing.assert_close(found, 0.5 * sums, atol=1e-5, rtol=0)
    found = CTModel(parallel_beam([np.pi / 2], 5, 0.5), voxels).forward(image)[0]
    torch.testing.assert_close(found, 0.5 * image.sum(1), atol=1e-5, rtol=0)


def test_a_stack_is_its_slices() -> None:
    volume, voxels = random(4, 9, 8), Voxels((4, 9, 8), 0.5)
    stack = CTModel(parallel_beam(TURN, (4, 11), 0.5), voxels).forward(volume)
    slices = CTModel(parallel_beam(TURN, 11, 0.5), Voxels((9, 8), 0.5)).forward(volume)
    torch.testing.assert_close(stack, slices.transpose(0, 1), atol=1e-5, rtol=1e-5)


def dense(model: CTModel, view: int) -> torch.Tensor:
    eye = torch.eye(int(np.prod(model.image_shape)), dtype=model.dtype).reshape(-1, *model.image_shape)
    return model.forward(eye, [view]).flatten(1).T


@pytest.mark.parametrize("name", [*FLAT, *SOLID])
def test_bounds_of_l_hold_and_are_near(name: str) -> None:
    flat = name in FLAT
    rays = FLAT[name](1.0, 28) if flat else SOLID[name](1.0, (5, 11))
    voxels = Voxels((16, 16) if flat else (5, 6, 6), 1.0)
    model = CTModel(rays, voxels, dtype=torch.float64)
    views = torch.tensor([0, 1, 8, 10])
    for view, bound in zip(views.tolist(), model.squared_norm_bounds(views).tolist(), strict=True):
        exact = float(torch.linalg.matrix_norm(dense(model, view), 2) ** 2)
        assert exact <= bound <= 1.4 * exact  # the less the larger the image; see below


def test_the_bound_of_l_is_within_one_percent_and_takes_two_products_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    voxels = Voxels((32, 32), 1e-3)
    model = CTModel(parallel_beam(np.linspace(0, np.pi, 5), 47, 1e-3), voxels)
    calls = []

    def count(name: str) -> None:
        method = getattr(model, name)

        def counted(*arguments: Any) -> Any:
            calls.append(name)
            return method(*arguments)

        monkeypatch.setattr(model, name, counted)

    count("forward")
    count("adjoint")
    fidelity = LeastSquares(model, torch.zeros(5, 47))
    bounds = fidelity.lipschitz_views
    assert sorted(calls) == ["adjoint"] * 5 + ["forward"] * 5
    exact = CTModel(model.rays, voxels, dtype=torch.float64)
    exact.nonnegative = False
    norms = exact.squared_norms(torch.arange(5), 1e-4)
    assert (bounds >= norms * (1 - 1e-4)).all()
    assert float(bounds.max()) <= 1.01 * float(norms.max())
    assert fidelity.lipschitz_max == float(bounds.max())


def test_any_model_without_negative_entries_has_the_bound() -> None:
    matrices = [random(7, 12, seed=seed).abs() for seed in range(4)]
    model = MatrixModel(matrices, (3, 4))
    model.nonnegative = True
    bounds = ModelBase.squared_norm_bounds(model, torch.arange(4))
    for matrix, bound in zip(matrices, bounds, strict=True):
        exact = float(torch.linalg.matrix_norm(matrix, 2) ** 2)
        assert exact <= float(bound) <= float((matrix @ matrix.T).sum(1).max()) * (1 + 1e-4)


def test_masked_pixels_are_zero_and_the_adjoint_knows() -> None:
    rays, voxels = FLAT["fan"](1.0, 21), Voxels((12, 13), 1.0)
    mask = (random(12, 21) > 0).numpy()
    model, plain = CTModel(rays, voxels, mask=mask), CTModel(rays, voxels)
    image, data = random(12, 13), random(3, 21, seed=1)
    views = [2, 2, 7]
    rows = torch.from_numpy(mask[views])
    assert torch.equal(model.forward(image, views), plain.forward(image, views) * rows)
    spoiled = torch.where(rows, data, torch.nan)
    torch.testing.assert_close(model.adjoint(spoiled, views), plain.adjoint(data * rows, views))
    assert torch.equal(model.restrict(spoiled, views), data * rows)


def test_leading_axes_are_independent_images() -> None:
    rays, voxels = SOLID["cone"](1.0, (4, 9)), Voxels((4, 6, 5), 1.0)
    model = CTModel(rays, voxels)
    images, data = random(2, 3, 4, 6, 5), random(2, 3, 2, 4, 9)
    out, back = model.forward(images, [1, 5]), model.adjoint(data, [1, 5])
    for place in np.ndindex(2, 3):
        torch.testing.assert_close(out[place], model.forward(images[place], [1, 5]))
        torch.testing.assert_close(back[place], model.adjoint(data[place], [1, 5]))


def test_what_cannot_be_is_refused_in_one_line() -> None:
    rays, voxels = FLAT["fan"](1.0, 21), Voxels((12, 13), 1.0)
    with pytest.raises(InputError, match="sees an image of two axes"):
        CTModel(rays, Voxels((3, 12, 13), 1.0))
    with pytest.raises(InputError, match="view 0: the source lies inside the image"):
        CTModel(rays, Voxels((200, 200), 1.0))
    with pytest.raises(InputError, match="the mask has shape"):
        CTModel(rays, voxels, mask=np.ones((3, 3), bool))
    with pytest.raises(InputError, match="dtype"):
        CTModel(rays, voxels, dtype=torch.float16)
    with pytest.raises(InputError, match="view 12 does not exist"):
        CTModel(rays, voxels).forward(torch.zeros(12, 13), [12])
