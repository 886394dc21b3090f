"""The native projector against its torch form: all beams, sizes, instruction sets and numbers of threads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from ct_scans import ANGLES, FLAT, SOLID, flat_scans, mismatch, random, solid_scans
from effort import effort, thorough
from native_build import LEVELS, needs_native
from plugstream.models import CTModel, ct_joseph, ct_native, ct_stack
from plugstream.models.ct_beams import fan_beam, parallel_beam
from plugstream.models.ct_geometry import Rays, Voxels

pytestmark = needs_native


def check(rays: Rays, voxels: Voxels) -> None:
    """With every instruction set; the torch form takes most of the time."""
    image, data = random(*voxels.shape), random(len(rays), *rays.detector, seed=1)
    ahead = ct_joseph.project(image.double(), rays, voxels)
    back = ct_joseph.back_project(data.double(), rays, voxels)
    for level in LEVELS:
        forward, adjoint = (
            ct_native.project(image, rays, voxels, level=level),
            ct_native.back_project(data, rays, voxels, level=level),
        )
        for found, exact in ((forward, ahead), (adjoint, back)):
            assert float((found - exact).abs().max()) <= 1e-5 * float(exact.abs().max()) + 1e-30, level
        assert mismatch(forward, data, image, adjoint) <= 1e-6, level


@thorough
@settings(deadline=None, max_examples=effort(35, 80))
@given(flat_scans())
def test_images_as_the_torch_form_has_them(scan: tuple[Rays, Voxels]) -> None:
    check(*scan)


UPRIGHT = ["stack", "cone", "curved cone", "helical", "tilted"]


@thorough
@settings(deadline=None, max_examples=effort(35, 80))
@given(solid_scans())
def test_volumes_as_the_torch_form_has_them(scan: tuple[Rays, Voxels]) -> None:
    if ct_native.serves(random(*scan[1].shape), *scan):  # all but some curved detectors
        check(*scan)


@pytest.mark.parametrize("pixel", [0.2, 0.45, 0.64, 1.0, 1.4, 2.5])
@pytest.mark.parametrize("name", ["rolled", "tilted cone", "steep", *UPRIGHT])
def test_volumes_and_rays_of_all_widths(name: str, pixel: float) -> None:
    rays = SOLID[name](pixel, (min(60, round(36 / pixel)), 20)).select([1, 9])
    voxels = Voxels((39, 7, 12), 1.0)
    assert ct_native.serves(random(*voxels.shape), rays, voxels)
    check(rays, voxels)


# As fine and as wide as windows of registers reach, and a little more; wide images; a source at the image's side.
@pytest.mark.parametrize("pixel", [0.2, 0.45, 0.6, 0.64, 0.8, 1.0, 1.4, 1.8, 2.0, 2.5])
@pytest.mark.parametrize("name", FLAT)
def test_rays_of_all_widths(name: str, pixel: float) -> None:
    check(FLAT[name](pixel, round(60 / pixel)).select([0, 1, 8, 11]), Voxels((31, 44), 1.0))


def test_a_source_beside_the_image() -> None:
    near = fan_beam(ANGLES, 200, 0.7, source=24, detector=30)
    check(near, Voxels((40, 20), 1.0, (-30.0, -9.5)))
    check(near, Voxels((20, 40), 1.0, (-9.5, -3.0)))
    check(fan_beam(ANGLES, 90, 2.0, source=24, detector=30, curved=True), Voxels((1, 30), 1.0))


@pytest.mark.parametrize("middle", [None, 1.25])
def test_stacks_of_slices(middle: float | None) -> None:
    rays = SOLID["stack"](1.0, (5, 17)).select([0, 3, 9])
    rays = rays if middle is None else rays.shift_detector(0.3, [0.0, middle, -middle])
    assert ct_stack.is_stack(rays)
    assert not ct_stack.is_stack(rays.roll_detector(0.1))
    for depth in (1, 5, 19):  # fewer and more than are projected together
        check(rays, Voxels((depth, 13, 11), 1.0))
        check(rays, Voxels((depth, 11, 13), (0.6, 1.0, 1.0)))


@pytest.mark.parametrize("name", FLAT)
def test_the_same_bits_for_any_number_of_threads(name: str, one_thread: None) -> None:
    rays, voxels = FLAT[name](1.0, 150), Voxels((70, 53), 1.0)
    images, data = random(2, 70, 53), random(2, 12, 150, seed=1)
    expected = ct_native.project(images, rays, voxels), ct_native.back_project(data, rays, voxels)
    for threads in (2, 5):
        torch.set_num_threads(threads)
        assert torch.equal(ct_native.project(images, rays, voxels), expected[0])
        assert torch.equal(ct_native.back_project(data, rays, voxels), expected[1])


@pytest.mark.parametrize("name", ["rolled", "tilted cone", *UPRIGHT])
def test_volumes_have_the_same_bits_for_any_number_of_threads(name: str, one_thread: None) -> None:
    rays, voxels = SOLID[name](1.0, (20, 40)), Voxels((18, 21, 23), 1.0)
    volume, data = random(18, 21, 23), random(12, 20, 40, seed=1)
    expected = ct_native.project(volume, rays, voxels), ct_native.back_project(data, rays, voxels)
    for threads in (2, 5):
        torch.set_num_threads(threads)
        assert torch.equal(ct_native.project(volume, rays, voxels), expected[0])
        assert torch.equal(ct_native.back_project(data, rays, voxels), expected[1])


@pytest.mark.parametrize("name", ["fan", "cone", "stack"])
def test_many_views_are_worked_on_in_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flat = name in FLAT
    rays, voxels = (
        (FLAT[name](1.0, 20), Voxels((9, 11), 1.0)) if flat else (SOLID[name](1.0, (5, 20)), Voxels((8, 9, 11), 1.0))
    )
    image, data = random(2, *voxels.shape), random(2, 12, *rays.detector, seed=1)
    whole = ct_native.project(image, rays, voxels), ct_native.back_project(data, rays, voxels)
    monkeypatch.setattr(ct_native, "_COLUMNS_AT_ONCE", 100)
    assert torch.equal(ct_native.project(image, rays, voxels), whole[0])
    torch.testing.assert_close(ct_native.back_project(data, rays, voxels), whole[1], atol=1e-5, rtol=1e-5)


def test_the_model_takes_the_kernel_where_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    rays, voxels = parallel_beam([0.3], 9, 1.0), Voxels((6, 7), 1.0)
    image = random(6, 7)
    assert ct_native.serves(image, rays, voxels)
    assert not ct_native.serves(image.double(), rays, voxels)
    assert not ct_native.serves(image.clone().requires_grad_(), rays, voxels)
    solid = Voxels((3, 6, 7), 1.0)
    served = {name for name in SOLID if ct_native.serves(random(*solid.shape), SOLID[name](1.0, (3, 9)), solid)}
    assert served == set(SOLID)
    bent = SOLID["curved cone"](1.0, (60, 9))  # so high that some rays are steep
    assert not ct_native.serves(random(*solid.shape), bent, Voxels((3, 6, 7), (0.2, 1.0, 1.0)))
    found = CTModel(rays, voxels).forward(image)
    assert torch.equal(found, ct_native.project(image, rays, voxels))
    differentiable = image.clone().requires_grad_()
    CTModel(rays, voxels).forward(differentiable).sum().backward()
    torch.testing.assert_close(differentiable.grad, CTModel(rays, voxels).adjoint(torch.ones(1, 9)))


@pytest.mark.parametrize("kind", ["ramp", "noise"])
def test_a_large_image_is_near_to_double_precision(kind: str) -> None:
    """To 5e-6 of an attenuation's integrals; places are rounded to 3e-5 pixels, and noise is all edges."""
    rays, voxels = fan_beam([0.3, 1.1], 300, 4.0, source=3000, detector=1000), Voxels((600, 700), 1.0)
    image, most = random(600, 700), 4e-5
    if kind == "ramp":
        image, most = torch.from_numpy(np.add.outer(np.linspace(0, 1, 600), np.linspace(0, 2, 700))).float(), 5e-6
    exact = ct_joseph.project(image.double(), rays, voxels)
    found = ct_native.project(image, rays, voxels).double()
    assert float((found - exact).abs().max() / exact.abs().max()) < most
    data = random(2, 300, seed=1)
    assert mismatch(found, data, image, ct_native.back_project(data, rays, voxels)) <= 1e-6
