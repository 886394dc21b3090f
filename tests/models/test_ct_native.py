"""The native projector against its torch form: all beams, sizes, instruction sets and numbers of threads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from torch import Tensor

from ct_scans import ANGLES, FLAT, SOLID, flat_scans, mismatch, random, solid_scans
from effort import effort, thorough
from native_build import LEVELS, needs_native
from plugstream.models import CTModel, ct_joseph, ct_native, ct_stack
from plugstream.models.ct_beams import fan_beam, parallel_beam
from plugstream.models.ct_geometry import Rays, Voxels

pytestmark = needs_native


def rounding_scales(image: Tensor, data: Tensor, rays: Rays, voxels: Voxels) -> tuple[Tensor, Tensor]:
    """What errors of A x and A' y are parts of in single precision: sums of absolute values, with weights that add up.

    Of a sum of a_ij x_j single precision knows a part of the sum of a_ij |x_j|: values of either sign may cancel, so
    that nothing is left of the sum itself (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). And
    where a ray crosses a plane of voxels, the N-th at most, is known to N u voxels, u = 6e-8, and so are its weights t
    and 1 - t: a part of 1, which is no part of the weight where that is small, as of a ray that just touches the image.
    So |x_j| counts in the voxels next to j, too, and beside the image. Errors are at most 2 N u of this, and u a term.
    """
    wide = Voxels(
        tuple(n + 2 for n in voxels.shape),
        voxels.spacing,
        tuple(first - gap for first, gap in zip(voxels.origin, voxels.spacing, strict=True)),
    )
    largest = torch.nn.functional.max_pool2d if image.ndim == 2 else torch.nn.functional.max_pool3d
    around = torch.nn.functional.pad(image.double().abs(), (2,) * (2 * image.ndim))
    ahead = ct_joseph.project(largest(around[None, None], 3, 1)[0, 0], rays, wide)
    back = ct_joseph.back_project(data.double().abs(), rays, wide)
    return ahead, largest(back[None, None], 3, 1)[0, 0]


def check(rays: Rays, voxels: Voxels) -> None:
    """With every instruction set; the torch form takes most of the time."""
    image, data = random(*voxels.shape), random(len(rays), *rays.detector, seed=1)
    ahead = ct_joseph.project(image.double(), rays, voxels)
    back = ct_joseph.back_project(data.double(), rays, voxels)
    scales = rounding_scales(image, data, rays, voxels)
    whole = float((scales[0] * data.double().abs()).sum())
    for level in LEVELS:
        forward, adjoint = (
            ct_native.project(image, rays, voxels, level=level),
            ct_native.back_project(data, rays, voxels, level=level),
        )
        for found, exact, scale in zip((forward, adjoint), (ahead, back), scales, strict=True):
            assert float((found - exact).abs().max()) <= 4e-6 * float(scale.max()) + 1e-30, level
        left, right = (forward.double() * data.double()).sum(), (image.double() * adjoint.double()).sum()
        assert abs(float(left - right)) <= 1e-7 * whole + 1e-30, level  # with the same weights, whatever their error


@thorough
@settings(deadline=None, max_examples=effort(20, 80))
@given(flat_scans())
# Rays between two voxels whose values cancel: a fiftieth of them is left.
@example((FLAT["curved fan"](0.05, 1).select([0]), Voxels((1, 7), (0.5, 1.3), (-3.0, -7.5))))
@example((FLAT["curved fan"](0.05, 2).select([0]), Voxels((1, 7), (0.5, 1.3), (-3.0, -7.5))))
def test_images_as_the_torch_form_has_them(scan: tuple[Rays, Voxels]) -> None:
    check(*scan)


def some_of(names: list[str], pixels: list[float]) -> list[tuple[str, float]]:
    """Every name and every pixel two or three times, or all pairs."""
    pairs = [(name, pixel) for name in names for pixel in pixels]
    return effort([pairs[n] for n in range(len(pairs)) if (n // len(pixels) + n) % 3 == 0], pairs)


UPRIGHT = ["stack", "cone", "curved cone", "helical", "tilted"]


@thorough
@settings(deadline=None, max_examples=effort(20, 80))
@given(solid_scans())
# Rays that just touch the image, with a weight of a fiftieth.
@example((SOLID["curved cone"](4.0, (1, 2)).select([0]), Voxels((1, 2, 3), (0.5, 0.5, 1.0))))
def test_volumes_as_the_torch_form_has_them(scan: tuple[Rays, Voxels]) -> None:
    if ct_native.serves(random(*scan[1].shape), *scan):
        check(*scan)
    else:
        assert np.isfinite(scan[0].curvature)  # all but some curved detectors are served


@thorough
@pytest.mark.parametrize(
    ("name", "pixel"), some_of(["rolled", "tilted cone", "steep", *UPRIGHT], [0.2, 0.45, 0.64, 1.0, 1.4, 2.5])
)
def test_volumes_and_rays_of_all_widths(name: str, pixel: float) -> None:
    rays = SOLID[name](pixel, (min(60, round(36 / pixel)), 20)).select([1, 9])
    voxels = Voxels((39, 5, 7), 1.0)
    assert ct_native.serves(random(*voxels.shape), rays, voxels)
    check(rays, voxels)


# As fine and as wide as windows of registers reach, and a little more; wide images; a source at the image's side.
@thorough
@pytest.mark.parametrize(("name", "pixel"), some_of(list(FLAT), [0.2, 0.45, 0.6, 0.64, 0.8, 1.0, 1.4, 1.8, 2.0, 2.5]))
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
