"""Diffraction tomography against sums in double precision that share no code with it, and the field of a ball."""

import math

import numpy as np
import pytest
import torch

from plugstream import InputError
from plugstream.base.linalg import largest_eigenvalue
from plugstream.models import ODTModel
from plugstream.models.ct_geometry import Voxels
from plugstream.models.odt_geometry import Optics, poses_of_light, poses_of_rotation

F64 = torch.float64
WAVE, MEDIUM, PIXEL = 0.647e-6, 1.335, 0.17e-6


def turned_poses(count, seed=0):
    """Cameras and light that stand anywhere: nothing along an axis."""
    rng = np.random.default_rng(seed)
    frames = np.linalg.qr(rng.standard_normal((count, 3, 3)))[0]
    light = np.einsum("va,vac->vc", rng.uniform(-0.2, 0.2, (count, 3)) + np.array([0, 0, 1]), frames)
    return np.concatenate([frames, (light / np.linalg.norm(light, axis=1, keepdims=True))[:, None]], 1)


def slow_field(volume, voxels, optics, pose, sizes):
    """The theorem written down once more: a sum over voxels for every wave, and over waves for every pixel."""
    k = 2 * np.pi * optics.medium / optics.wavelength
    z, y, x = (o + s * np.arange(n) for o, s, n in zip(voxels.origin, voxels.spacing, voxels.shape, strict=True))
    places = np.stack(np.meshgrid(x, y, z, indexing="ij"), -1).transpose(2, 1, 0, 3).reshape(-1, 3)
    filled = volume.reshape(-1) != 0
    places, values = places[filled], volume.reshape(-1)[filled]
    ex, ey, ez, light = pose
    a = (np.arange(optics.shape[0]) - (optics.shape[0] - 1) / 2) * optics.pixel
    b = (np.arange(optics.shape[1]) - (optics.shape[1] - 1) / 2) * optics.pixel
    field = np.zeros(optics.shape, complex)
    for m in range(-(sizes[0] // 2), (sizes[0] + 1) // 2):
        for n in range(-(sizes[1] // 2), (sizes[1] + 1) // 2):
            qy, qx = 2 * np.pi * m / (sizes[0] * optics.pixel), 2 * np.pi * n / (sizes[1] * optics.pixel)
            out_x, out_y = qx + k * light @ ex, qy + k * light @ ey
            square = out_x**2 + out_y**2
            if square > min((2 * np.pi / optics.wavelength * optics.aperture) ** 2, (0.995 * k) ** 2):
                continue
            kz = np.sqrt(k**2 - square)
            wave = out_x * ex + out_y * ey + kz * ez - k * light
            spectrum = (values * np.exp(-1j * places @ wave)).sum() * math.prod(voxels.spacing)
            factor = 1j * k**2 / (2 * kz) * np.exp(1j * (kz - k * light @ ez) * optics.distance)
            area = sizes[0] * sizes[1] * optics.pixel**2
            field += factor * spectrum / area * np.exp(1j * (qy * a[:, None] + qx * b))
    return field


@pytest.mark.parametrize(
    ("poses", "spacing"),
    [
        (poses_of_rotation([0.0, 0.7, 2.0]), PIXEL),
        (poses_of_rotation([0.3, -1.1], axis="x"), PIXEL),
        (poses_of_light([[0.3, -0.2, 0.9], [0.0, 0.4, 0.8]]), (0.8 * PIXEL, PIXEL, PIXEL)),
        (turned_poses(2), (0.9 * PIXEL, 1.1 * PIXEL, PIXEL)),
    ],
    ids=["rotation", "about x", "light", "anywhere"],
)
def test_it_is_the_sum_over_voxels_and_its_adjoint_the_transpose(poses, spacing):
    rng = np.random.default_rng(1)
    optics = Optics((5, 6), PIXEL, WAVE, MEDIUM, 1.1, distance=0.6e-6)
    voxels = Voxels((3, 4, 5), spacing)
    volume = rng.standard_normal(voxels.shape)
    for absorbing in (False, True):
        model = ODTModel(poses, optics, voxels, absorbing=absorbing, eps=1e-9, dtype=F64)
        image = torch.from_numpy(volume).to(model.dtype)
        if absorbing:
            image = image + 1j * torch.from_numpy(rng.standard_normal(voxels.shape))
        got = model.forward(image)
        views = [len(poses) - 1, 0]
        for n in views[: 1 if absorbing else 2]:
            want = slow_field(image.numpy(), voxels, optics, poses[n], model.sizes)
            assert np.abs(got[n].numpy() - want).max() <= 1e-7 * np.abs(want).max()
        assert torch.allclose(model.forward(image, views), got[views], rtol=1e-12, atol=1e-12 * float(got.abs().max()))
        z = torch.from_numpy(rng.standard_normal((2, 2, *optics.shape)) + 1j).to(got.dtype)
        two = torch.stack([image, 0.5 * image.flip(0)])
        left = float((model.forward(two, views).conj() * z).real.sum())
        right = float((two.conj() * model.adjoint(z, views)).real.sum())
        assert abs(left - right) <= 1e-11 * float(model.forward(two, views).norm() * z.norm())


def test_the_axis_of_rotation_needs_no_interpolation():
    optics, voxels = Optics((20, 20), PIXEL, WAVE, MEDIUM, 1.0), Voxels((16, 16, 16), PIXEL)
    turning = ODTModel(poses_of_rotation([0.1, 1.0]), optics, voxels)
    assert [line.width == 1 for line in turning.nufft._lines] == [True, False, False]
    light = ODTModel(poses_of_light([[0.1, 0.2, 1.0]]), optics, voxels)
    assert [line.width == 1 for line in light.nufft._lines] == [True, True, False]
    anywhere = ODTModel(turned_poses(2), optics, voxels)
    assert [line.width == 1 for line in anywhere.nufft._lines] == [False, False, False]


def test_a_ball_has_the_field_that_books_give_it():
    """Its spectrum is 4 pi (sin Ka - Ka cos Ka) / K^3 of a contrast of 1, turned as it likes."""
    radius, contrast = 1.6e-6, 0.02
    optics = Optics((48, 48), PIXEL, WAVE, MEDIUM, 0.9, distance=1e-6)
    fine = 4  # places a voxel along each axis, whose share in the ball is counted
    voxels = Voxels((28, 28, 28), PIXEL)
    axis = (np.arange(28 * fine) - (28 * fine - 1) / 2) * PIXEL / fine
    inside = axis[:, None, None] ** 2 + axis[:, None] ** 2 + axis**2 <= radius**2
    volume = contrast * inside.reshape(28, fine, 28, fine, 28, fine).mean((1, 3, 5))
    model = ODTModel(poses_of_rotation([0.4]), optics, voxels, eps=1e-6, padding=1.0, dtype=F64)
    got = model.forward(torch.from_numpy(volume))[0].numpy()
    k = optics.wavenumber
    q = 2 * np.pi * np.fft.fftfreq(48, PIXEL)
    square = q[:, None] ** 2 + q**2
    passed = square <= optics.reach**2
    kz = np.sqrt(np.where(passed, k**2 - square, 1.0))
    size = np.maximum(np.sqrt(square + (kz - k) ** 2) * radius, 1e-3)
    ball = contrast * 4 * np.pi * radius**3 * (np.sin(size) - size * np.cos(size)) / size**3
    spectrum = np.where(passed, 1j * k**2 / (2 * kz) * np.exp(1j * (kz - k) * optics.distance) * ball, 0)
    shift = np.exp(-1j * q * 23.5 * PIXEL)
    want = np.fft.ifft2(spectrum * shift[:, None] * shift) / PIXEL**2
    assert np.linalg.norm(got - want) <= 0.01 * np.linalg.norm(want)


def test_green_s_function_summed_over_voxels_is_what_it_makes_of_a_small_object():
    """In real space: exp(ikR) / 4 pi R from every voxel, far enough for evanescent waves to have died."""
    optics = Optics((72, 72), PIXEL, WAVE, MEDIUM, distance=2.0e-6)
    voxels = Voxels((7, 7, 7), PIXEL)
    axis = (np.arange(7) - 3) * PIXEL
    z, y, x = np.meshgrid(axis, axis, axis, indexing="ij")
    volume = 0.02 * np.exp(-(x**2 + (y - PIXEL) ** 2 + z**2) / (2 * (1.4 * PIXEL) ** 2))
    k = optics.wavenumber
    lateral = (np.arange(72) - 35.5) * PIXEL
    want = np.zeros((72, 72), complex)
    for value, a, b, c in zip(volume.ravel(), x.ravel(), y.ravel(), z.ravel(), strict=True):
        apart = np.sqrt((lateral - a) ** 2 + (lateral[:, None] - b) ** 2 + (optics.distance - c) ** 2)
        want += k**2 * value * PIXEL**3 * np.exp(1j * k * (apart + c)) / (4 * np.pi * apart)
    want *= np.exp(-1j * k * optics.distance)
    model = ODTModel(poses_of_rotation([0.0]), optics, voxels, padding=3.0, eps=1e-6, dtype=F64)
    got = model.forward(torch.from_numpy(volume))[0].numpy()
    middle = (slice(20, 52),) * 2
    assert np.linalg.norm((got - want)[middle]) <= 0.02 * np.linalg.norm(want[middle])


@pytest.mark.parametrize("poses", [poses_of_rotation([0.0, 0.8]), poses_of_light([[0.3, 0.1, 1]]), turned_poses(1)])
def test_bounds_are_above_every_view_s_norm_and_near_it(poses):
    optics, voxels = Optics((10, 10), PIXEL, WAVE, MEDIUM, 1.0), Voxels((6, 5, 7), PIXEL)
    model = ODTModel(poses, optics, voxels, dtype=F64, eps=1e-3)
    bounds = model.squared_norm_bounds(torch.arange(len(poses)))
    for n, bound in enumerate(bounds.tolist()):
        normal = model.normal([n])
        found = float(
            largest_eigenvalue(
                lambda x, normal=normal: normal(x[0])[None],
                torch.empty((1, *voxels.shape), dtype=F64),
                tol=0.02,
                ndim=3,
            )
        )
        assert found <= bound * 1.02
        assert bound <= 3 * found
    assert torch.equal(model.squared_norms(torch.tensor([0]), 0.1), bounds[:1])


def test_it_can_be_differentiated():
    optics, voxels = Optics((10, 10), PIXEL, WAVE, MEDIUM, 1.0), Voxels((6, 6, 6), PIXEL)
    model = ODTModel(poses_of_rotation([0.2, 0.9]), optics, voxels)
    image = torch.rand((6, 6, 6), requires_grad=True)
    value = 0.5 * (model.forward(image) - 0.1).abs().square().sum()
    value.backward()
    want = model.gradient(image.detach(), torch.full((2, 10, 10), 0.1 + 0j))
    assert float((image.grad - want).norm()) <= 1e-3 * float(want.norm())


def test_masked_pixels_count_for_nothing_and_single_precision_is_near():
    optics, voxels = Optics((12, 12), PIXEL, WAVE, MEDIUM, 1.0), Voxels((8, 8, 8), PIXEL)
    poses = poses_of_rotation([0.2, 0.9])
    mask = np.ones((2, 12, 12), bool)
    mask[1, 3:6] = False
    image = torch.from_numpy(np.random.default_rng(0).standard_normal((8, 8, 8)))
    exact = ODTModel(poses, optics, voxels, mask=mask, dtype=F64, eps=1e-9)
    want = exact.forward(image)
    assert not want[1, 3:6].any()
    assert bool(want[0, 3:6].any())
    data = want.clone()
    data[1, 4] = float("nan")
    assert torch.equal(exact.restrict(data), want)
    assert bool(torch.isfinite(exact.adjoint(data)).all())
    single = ODTModel(poses, optics, voxels, mask=mask, eps=1e-5)
    assert float((single.forward(image.float()) - want).norm()) <= 1e-4 * float(want.norm())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"poses": np.zeros((1, 3, 3))}, r"must be \(views, 4, 3\)"),
        ({"poses": 2 * poses_of_rotation([0.0])}, "view 0: the axes of its camera are not orthonormal"),
        ({"poses": poses_of_light([[0.99, 0, 0.14]])}, "view 0: its light is beyond the aperture"),
        ({"poses": poses_of_light([[0, 0, -1.0]])}, "view 0: its light goes away from the camera"),
        ({"voxels": Voxels((4, 4), PIXEL)}, "sees a volume"),
        ({"padding": 0.5}, "padding must be >= 1"),
        ({"mask": np.ones((1, 2, 2), bool)}, "the mask has shape"),
    ],
)
def test_what_cannot_be_is_refused(change, said):
    given = {"poses": poses_of_rotation([0.0]), "voxels": Voxels((4, 4, 4), PIXEL), **change}
    optics = Optics((6, 6), PIXEL, WAVE, MEDIUM, 1.0)
    with pytest.raises(InputError, match=said):
        ODTModel(given.pop("poses"), optics, given.pop("voxels"), **given)
    with pytest.raises(InputError, match="must be > 0"):
        Optics((6, 6), -1.0, WAVE)
    with pytest.raises(InputError, match="not 'z'"):
        poses_of_rotation([0.0], axis="z")
