"""`bm3d` and `bm3d_rgb`: PyPI's call without torch; channels and coloured noise against the torch form."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

import plugstream
from native_build import LEVELS, needs_native
from plugstream import BM3D, BM3DProfile, BM3DStages, InputError, _native, bm3d, bm3d_rgb
from plugstream.denoisers.bm3d import reference
from plugstream.denoisers.bm3d.spectrum import coloured_noise
from plugstream.denoisers.bm3d.transforms import dct, haar, native_matrices, principal_axes, transform

SMALL = BM3DProfile(step=3, radius=5, group1=4, group2=8)
SIGMA = 0.1
# Brightness, red against blue, green against both.
OPPONENT = np.array([[1, 1, 1], [1, 0, -1], [1, -2, 1]]) / np.sqrt([[3], [2], [6]])


def scene(*shape: int, seed: int = 0) -> np.ndarray:
    """Edges and a texture, with an angle for each channel."""
    height, width = shape[:2]
    y, x = np.mgrid[:height, :width].astype(float)
    planes = [
        0.5 + 0.2 * np.sin(x / 3 + y / (5 + c)) + 0.2 * np.sign(np.sin(x / 9) * np.sin((y + 3 * c) / 7))
        for c in range(shape[2] if len(shape) == 3 else 1)
    ]
    return np.stack(planes, -1).reshape(shape)


def noisy(*shape: int, seed: int = 0) -> np.ndarray:
    return scene(*shape) + SIGMA * np.random.default_rng(seed).standard_normal(shape)


def streaks(shape: tuple[int, int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noise of standard deviation SIGMA that is alike along slanted lines, and its power spectrum."""
    kernel = np.zeros(shape)
    for k in range(7):
        kernel[k, 2 * k % shape[1]] = 4 - abs(k - 3)
    gain = np.abs(np.fft.fft2(kernel)) * SIGMA / np.linalg.norm(kernel)
    white = np.random.default_rng(seed).standard_normal(shape)
    return np.fft.ifft2(np.fft.fft2(white) * gain).real, gain**2 * white.size


def test_it_is_bm3d_in_every_precision():
    z = noisy(33, 41)
    for kind in (np.float64, np.float32):
        got = bm3d(z.astype(kind), SIGMA)
        assert got.dtype == kind
        assert np.array_equal(got, BM3D()(torch.from_numpy(z.astype(kind)), SIGMA).numpy())
    assert bm3d(np.rint(255 * z).astype(np.int32), 25).dtype == np.float64
    assert np.array_equal(bm3d(z, SIGMA, "fast"), BM3D("fast")(z, SIGMA).numpy())
    assert np.array_equal(bm3d(z, 0), z.astype(np.float32))


def test_stages():
    z = noisy(30, 27)
    basic = bm3d(z, SIGMA, stage_arg=BM3DStages.HARD_THRESHOLDING)
    assert np.array_equal(basic, BM3D(stages=1)(z, SIGMA).numpy())
    assert np.array_equal(bm3d(z, SIGMA, stage_arg=basic), bm3d(z, SIGMA, stage_arg=BM3DStages.ALL_STAGES))
    clean = bm3d(z, SIGMA, stage_arg=scene(30, 27))
    assert np.abs(clean - scene(30, 27)).mean() < np.abs(bm3d(z, SIGMA) - scene(30, 27)).mean()


@needs_native
def test_neither_torch_nor_anything_slow_is_imported():
    code = "import sys, numpy as np\nfrom plugstream import bm3d, bm3d_rgb\n"
    code += "bm3d(np.zeros((16, 17)), np.ones((16, 17))); bm3d_rgb(np.zeros((9, 9, 3)), 0.1)\n"
    code += "print(sorted({'torch', 'scipy', 'pydantic', 'zarr', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_channels_share_the_groups_of_the_first():
    z = noisy(26, 31, 3)
    got = bm3d(z, [SIGMA, 0, 2 * SIGMA], SMALL)
    assert np.array_equal(got[..., 0], bm3d(z[..., 0], SIGMA, SMALL))
    assert np.array_equal(got[..., 1], z[..., 1].astype(np.float32))
    stack = torch.from_numpy(np.moveaxis(z, -1, 0).copy()).float()
    want = reference.bm3d(stack, torch.tensor([SIGMA, 0, 2 * SIGMA]), SMALL, channels=3)
    assert np.abs(got - np.moveaxis(want.numpy(), 0, -1)).max() < 1e-4
    # A channel of noise alone cannot find its groups by itself.
    flat = z.copy()
    flat[..., 1] = z[..., 0] - scene(26, 31) + 0.05 * scene(26, 31)
    assert np.abs(bm3d(flat, SIGMA, SMALL)[..., 1] - bm3d(flat[..., 1], SIGMA, SMALL)).max() > 1e-3


def test_the_space_of_colours_is_the_opponent_one_and_of_others_the_dct():
    assert np.allclose(np.abs(dct(3)), np.abs(OPPONENT))
    z = noisy(28, 25, 3)
    turned = bm3d(z @ OPPONENT.T, SIGMA) @ OPPONENT
    assert np.abs(bm3d_rgb(z, SIGMA) - turned).max() < 1e-4
    alike = np.repeat(scene(28, 25)[..., None], 5, -1)
    series = alike + SIGMA * np.random.default_rng(2).standard_normal(alike.shape)
    alone = np.stack([bm3d(series[..., c], SIGMA) for c in range(5)], -1)
    assert ((bm3d_rgb(series, SIGMA) - alike) ** 2).mean() < 0.4 * ((alone - alike) ** 2).mean()


def test_principal_components_are_a_rotation_with_the_strongest_first():
    coils = noisy(30, 26)[..., None] * np.array([0.2, 1j, -0.7, 0.1 + 0.1j])
    rng = np.random.default_rng(5)
    z = coils + SIGMA * (rng.standard_normal(coils.shape) + 1j * rng.standard_normal(coils.shape))
    turn = principal_axes(z)
    assert np.allclose(turn @ turn.conj().T, np.eye(4))
    parts = z @ turn.T
    power = (np.abs(parts) ** 2).sum((0, 1))
    assert (np.diff(power) < 0).all()
    assert (parts[..., 0].real ** 2).sum() > 10 * (parts[..., 0].imag ** 2).sum()
    assert np.array_equal(bm3d_rgb(z, 0, colorspace="principal").shape, z.shape)
    assert np.abs(bm3d_rgb(z, 0, colorspace="principal") - z).max() < 1e-6
    alone = np.stack([bm3d(z[..., c], SIGMA) for c in range(4)], -1)
    jointly = bm3d_rgb(z, SIGMA, colorspace="principal")
    assert (np.abs(jointly - coils) ** 2).mean() < 0.7 * (np.abs(alone - coils) ** 2).mean()
    real = noisy(28, 25, 3)
    assert principal_axes(real).dtype == np.float64
    assert bm3d_rgb(real.astype(np.float32), SIGMA, colorspace="principal").dtype == np.float32


def test_noise_that_differs_among_colours_is_mixed():
    z, levels = noisy(28, 25, 3), np.array([0.05, 0.1, 0.2])
    mixed = np.sqrt(OPPONENT**2 @ levels**2)
    assert np.abs(bm3d_rgb(z, levels) - bm3d(z @ OPPONENT.T, mixed) @ OPPONENT).max() < 1e-4
    spectra = np.ones((28, 25, 1)) * levels**2 * 28 * 25
    assert ((bm3d_rgb(z, spectra) - bm3d_rgb(z, levels)) ** 2).mean() < 1e-6


def test_complex_images_are_two_parts_with_one_grouping():
    z = noisy(24, 30, 2) @ np.array([1, 1j])
    got = bm3d(z.astype(np.complex64), SIGMA)
    assert got.dtype == np.complex64
    want = bm3d(np.stack([z.real, z.imag], -1).astype(np.float32), SIGMA)
    assert np.array_equal(got, want[..., 0] + 1j * want[..., 1])
    assert bm3d_rgb(np.stack([z, z], -1), SIGMA).shape == (24, 30, 2)


def test_a_white_spectrum_is_a_number():
    z = noisy(40, 36)
    got = bm3d(z, np.full(z.shape, SIGMA**2 * z.size))
    assert np.abs(got - bm3d(z, SIGMA)).max() < 2e-3
    assert ((got - bm3d(z, SIGMA)) ** 2).mean() < 1e-7


def test_shared_noise_is_that_of_the_coefficients():
    """Against averages of products of coefficients over many draws of the noise, at all positions."""
    shape, rng = (24, 28), np.random.default_rng(0)
    _, psd = streaks(shape)
    noise = coloured_noise(psd[None], radius=4)
    assert noise.sigma[0] == pytest.approx(SIGMA)
    reach = noise.shared.shape[2] - 1
    assert reach == 8
    for stage, name in enumerate(("bior15", "dct")):
        basis = np.zeros((64, *shape))
        basis[:, :8, :8] = np.einsum("ui,vj->uvij", transform(name), transform(name)).reshape(64, 8, 8)
        power = np.abs(np.fft.fft2(basis)) ** 2 * psd / psd.sum() * 1.0
        exact = np.fft.ifft2(power).real * power[0].size  # of coefficients at all offsets, by Wiener and Khinchin
        for dy, dx in rng.integers(-reach, reach + 1, (20, 2)):
            dy, dx = (dy, dx) if dy >= 0 else (-dy, -dx)
            assert np.allclose(noise.shared[stage, 0, dy, reach + dx], exact[:, dy, dx], atol=1e-5)


@needs_native
@pytest.mark.parametrize("tables", [1, 2])
def test_coloured_noise_native_as_in_torch(tables: int):
    z, psd = np.stack([noisy(27, 34, seed=k) for k in (0, 1)]).astype(np.float32), streaks((27, 34))[1]
    spectra = np.stack([psd, psd.T.reshape(psd.shape)])[:tables]
    noise = coloured_noise(spectra, SMALL.radius)
    sigma = np.full(2, SIGMA, np.float32)
    for stages in (1, 2):
        options = {"shared": torch.from_numpy(noise.shared), "offsets": torch.from_numpy(noise.offsets)}
        want = reference.bm3d(*map(torch.from_numpy, (z, sigma)), SMALL, stages=stages, channels=2, **options).numpy()
        bits = []
        for level in LEVELS:
            for threads in (1, 3):
                out = np.empty_like(z)
                settings = vars(SMALL) | native_matrices(SMALL.kaiser)
                _native.kernels().bm3d(
                    z, sigma, out, **settings, stages=stages, threads=threads, channels=2, shared=noise.shared,
                    offsets=noise.offsets, level=level,
                )  # fmt: skip
                assert np.abs(out - want).max() < 2e-4
                bits.append(out.tobytes())
        assert len(set(bits)) == len(LEVELS)


def test_variances_of_groups_are_those_of_the_noise():
    """v of the torch form against the sum over all pixels of the group's basis, by the covariance matrix."""
    shape = (14, 16)
    _, psd = streaks(shape)
    table = torch.from_numpy(coloured_noise(psd[None], 4).shared[1, 0]).double()
    group = torch.tensor([[0, 3, 11, 30]])
    got = reference._variances(group, shape[1] - 7, torch.from_numpy(haar(4)), table)[0]
    covariance = np.fft.ifft2(psd).real / psd.size / SIGMA**2
    y, x = (axis.ravel() for axis in np.mgrid[: shape[0], : shape[1]])
    matrix = covariance[(y[:, None] - y) % shape[0], (x[:, None] - x) % shape[1]]
    blocks = np.zeros((4, 64, *shape))
    for k, at in enumerate(group[0].tolist()):
        row, column = divmod(at, shape[1] - 7)
        blocks[k, :, row : row + 8, column : column + 8] = np.einsum("ui,vj->uvij", dct(8), dct(8)).reshape(64, 8, 8)
    basis = np.tensordot(haar(4), blocks, 1).reshape(4, 64, -1)
    want = np.einsum("gcp,pq,gcq->gc", basis, matrix, basis)
    # The image is so small that a distance of 8 is also one of 6 the other way round: compare near blocks' part.
    assert np.allclose(got.numpy(), np.maximum(want, 1e-3), atol=2e-3)


def test_streaks_are_removed_where_their_spectrum_is_known():
    shape = (64, 64)
    noise, psd = streaks(shape)
    z, clean = scene(*shape) + noise, scene(*shape)
    known, taken_as_white = (((bm3d(z, s) - clean) ** 2).mean() for s in (psd, SIGMA))
    assert known < 0.8 * taken_as_white


def test_without_native_kernels_the_torch_form_serves(monkeypatch: pytest.MonkeyPatch):
    z, psd = noisy(20, 22, 2), streaks((20, 22))[1]
    want = [bm3d(z, psd, SMALL), bm3d(z, SIGMA, SMALL, z), bm3d(z, SIGMA, SMALL, BM3DStages.HARD_THRESHOLDING)]
    monkeypatch.setattr(plugstream._native, "load", lambda: None)
    got = [bm3d(z, psd, SMALL), bm3d(z, SIGMA, SMALL, z), bm3d(z, SIGMA, SMALL, BM3DStages.HARD_THRESHOLDING)]
    for ours, theirs in zip(got, want, strict=True):
        assert np.abs(ours - theirs).max() < 2e-4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bm3d(np.zeros((7, 9)), 0.1), "at least 8 x 8"),
        (lambda: bm3d(np.zeros(9), 0.1), "at least 8 x 8"),
        (lambda: bm3d(np.full((9, 9), np.nan), 0.1), "NaN or infinity"),
        (lambda: bm3d(np.zeros((9, 9)), -1), "sigma must be a number >= 0"),
        (lambda: bm3d(np.zeros((9, 9)), [0.1, 0.2]), "sigma must be a number >= 0, or one for each of 1 channels"),
        (lambda: bm3d(np.zeros((9, 9)), np.zeros((8, 9))), "a power spectrum is shaped like the image"),
        (lambda: bm3d(np.zeros((9, 9)), np.zeros((9, 9))), "some are more than 0"),
        (lambda: bm3d(np.zeros((9, 9)), "much"), "sigma_psd must be a tensor or an array"),
        (lambda: bm3d(np.zeros((9, 9)), 0.1, "refilter"), "no BM3D profile 'refilter'"),
        (lambda: bm3d(np.zeros((9, 9)), 0.1, stage_arg=np.zeros((9, 8))), "the estimate in stage_arg"),
        (lambda: bm3d(np.zeros((9, 9)), 0.1, stage_arg=BM3DStages.WIENER_FILTERING), "stage_arg is ALL_STAGES"),
        (lambda: bm3d_rgb(np.zeros((9, 9)), 0.1), r"\(H, W, C\)"),
        (lambda: bm3d_rgb(np.zeros((9, 9, 3)), 0.1, colorspace="YCbCr"), "opp or principal"),
        (lambda: bm3d_rgb(np.zeros((9, 9, 3)), [0.1, 0.1]), "one for each of 3 channels"),
        (lambda: bm3d(np.zeros((9, 9)), 0.1, blockmatches=(True, True)), "blockmatches are neither"),
    ],
)
def test_mistakes(call, message):
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
