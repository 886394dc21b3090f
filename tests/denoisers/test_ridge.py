"""The convex ridge denoiser: its guarantee, whatever the weights, and its solver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.optimize import minimize

from effort import effort, thorough
from plugstream.base.errors import InputError
from plugstream.denoisers import ridge_prior
from plugstream.denoisers.ridge import PROFILES, ConvexRidge, load_ridge, save_ridge
from plugstream.denoisers.ridge_prior import Ridges


def random_ridges(seed: int, size: int = 3, limit: float = 60.0) -> Ridges:
    rng = torch.Generator().manual_seed(seed)
    return Ridges(
        torch.randn(4, size, size, generator=rng),
        torch.randn(2, 4, 2, generator=rng) - 1,
        torch.randn(2, 4, generator=rng) - 1,
        torch.tensor([0.02, 0.2]),
        torch.tensor([1.0, 4.0]),
        torch.tensor(limit),
    ).requires_grad_(False)


def profiles(ridges: Ridges, sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """a and d of each filter and ratio at a noise level, from the definition, but for the stretch of the widths."""
    t = np.clip(np.log(sigma / 0.02) / np.log(10), 0, 1)
    amounts, widths = (p.double().numpy() for p in (ridges.amounts, ridges.widths))
    a = np.exp((1 - t) * amounts[0] + t * amounts[1])
    d = np.exp((1 - t) * widths[0] + t * widths[1])[:, None] * ridges.ratios.double().numpy()
    return np.tile(a, (2, 1)), np.tile(d, (2, 1))


def energy(ridges: Ridges, z: np.ndarray, sigma: float) -> Callable[[np.ndarray], float]:
    """x to 1/2 ||x - z||^2 + R(x) from the definition, with NumPy's mirrored borders."""
    size = ridges.size
    kernels = ridges.kernels().double().numpy()[:, 0]
    a, d = profiles(ridges, sigma)
    spectra = np.abs(np.fft.fft2(kernels, (256, 256))) ** 2
    d = d * max(1, np.einsum("i,ifg->fg", (a / d).sum(1), spectra).max() / float(ridges.limit))

    def value(x: np.ndarray) -> float:
        x = x.reshape(z.shape)
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, size // 2, mode="symmetric"), (size, size))
        u = np.abs(np.einsum("hwrc,irc->hwi", windows, kernels) / sigma)[..., None]
        return float(0.5 * ((x - z) ** 2).sum() + sigma**2 * (a * np.where(u < d, u * u / (2 * d), u - d / 2)).sum())

    return value


@thorough
@pytest.mark.parametrize(
    ("sigma", "limit"), effort([(0.01, 1e4), (0.05, 10.0)], [(0.01, 1e4), (0.05, 1e4), (0.5, 1e4), (0.05, 10.0)])
)
def test_the_result_minimises_the_energy_as_defined(sigma, limit):
    ridges = random_ridges(0, limit=limit)
    z = np.random.default_rng(1).random((4, 5))
    found = ConvexRidge(ridges, tol=1e-9, max_iterations=20_000)(torch.from_numpy(z), sigma).numpy()
    value = energy(ridges, z, sigma)
    best = minimize(value, found.ravel() + 1e-3, method="BFGS")
    # Where the limit binds, the widths are stretched for a bound that is up to 1 % above the reference's maximum.
    slack = 1e-12 if limit > 1e3 else 1e-4
    assert value(found) <= best.fun * (1 + slack)
    assert np.abs(best.x.reshape(z.shape) - found).max() < (1e-4 if limit > 1e3 else 2e-3)


@given(seed=st.integers(0, 1000), sigma=st.floats(1e-3, 1.0), scale=st.floats(0.01, 10))
@settings(max_examples=effort(6, 30))
def test_it_is_firmly_nonexpansive_whatever_the_weights(seed, sigma, scale):
    rng = torch.Generator().manual_seed(seed)
    one = torch.rand(2, 7, 8, generator=rng, dtype=torch.float64)
    one[1] = one[0] + scale * sigma * torch.randn(7, 8, generator=rng, dtype=torch.float64)
    d = ConvexRidge(random_ridges(seed), tol=1e-10, max_iterations=5000)(one, sigma)
    apart, before = d[1] - d[0], one[1] - one[0]
    assert float(apart.square().sum()) <= float((apart * before).sum()) + 1e-8


def jacobian(denoiser: ConvexRidge, z: torch.Tensor, sigma: float) -> torch.Tensor:
    """Of D at z, by central differences: D is piecewise affine, so they are exact but for kinks and the tolerance."""
    h = 1e-7
    around = torch.eye(z.numel(), dtype=z.dtype).reshape(-1, *z.shape) * h
    return ((denoiser(z + around, sigma) - denoiser(z - around, sigma)) / (2 * h)).flatten(1)


@pytest.mark.parametrize("sigma", [0.01, 0.1])
def test_its_jacobians_are_symmetric_with_eigenvalues_from_0_to_1(sigma):
    for seed in range(effort(1, 3)):
        z = torch.rand(5, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        j = jacobian(ConvexRidge(random_ridges(seed), tol=1e-13, max_iterations=20_000), z, sigma)
        assert float((j - j.T).abs().max()) < 1e-4
        values = torch.linalg.eigvalsh((j + j.T) / 2)
        assert float(values[0]) > -1e-4
        assert float(values[-1]) < 1 + 1e-4
        assert float(torch.linalg.matrix_norm(2 * j - torch.eye(len(j)), 2)) < 1 + 1e-4
        assert float(values[0]) < 0.9  # it does something


@given(height=st.integers(1, 20), width=st.integers(1, 20), seed=st.integers(0, 50), size=st.sampled_from([3, 5]))
@settings(max_examples=effort(12, 30))
def test_the_bound_of_the_curvature_holds_with_mirrored_borders(height, width, seed, size):
    height, width = max(height, size // 2), max(width, size // 2)
    potential = random_ridges(seed, size).double().at(torch.tensor([0.1], dtype=torch.float64))
    x = torch.zeros(1, 1, height, width, dtype=torch.float64)  # the curvature is largest at zero
    eye = torch.eye(height * width, dtype=torch.float64).reshape(-1, 1, height, width)
    curvature = potential.curvature(x).expand(len(eye), -1, -1, -1)
    hessian = potential.hessian(curvature, eye).reshape(len(eye), -1)
    assert torch.allclose(hessian, hessian.T, atol=1e-10)
    values = torch.linalg.eigvalsh(hessian)
    assert float(values[0]) > -1e-9
    assert float(values[-1]) <= float(potential.bound) * (1 + 1e-9)
    assert float(potential.bound) <= 60 * (1 + 1e-9)


def test_the_bound_is_not_far_above_the_largest_eigenvalue():
    potential = random_ridges(1).double().at(torch.tensor([0.1], dtype=torch.float64))
    v = torch.randn(1, 1, 48, 48, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    curvature = potential.curvature(torch.zeros_like(v))
    for _ in range(300):
        v = potential.hessian(curvature, v / v.norm())
    assert float(v.norm()) > 0.95 * float(potential.bound)


@pytest.mark.parametrize("axis", [-1, -2])
def test_a_mirrored_image_gives_the_mirrored_result(axis):
    denoiser = ConvexRidge(random_ridges(2, 5), tol=1e-10, max_iterations=5000)
    z = torch.rand(11, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.allclose(denoiser(z.flip(axis), 0.1), denoiser(z, 0.1).flip(axis), atol=1e-8)


def test_precision_and_axes_are_kept():
    denoiser = ConvexRidge(random_ridges(3, 5), tol=2e-5, max_iterations=5000)
    z = torch.rand(2, 3, 10, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sigma = torch.rand(2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64) / 5
    double, single = denoiser(z, sigma), denoiser(z.float(), sigma.float())
    assert (double.dtype, single.dtype) == (torch.float64, torch.float32)
    assert double.shape == single.shape == z.shape
    assert torch.allclose(double.float(), single, atol=1e-4)
    assert torch.allclose(double[1, 2], denoiser(z[1, 2], float(sigma[1, 2])), atol=1e-4)


def test_images_of_a_batch_do_not_see_each_other_and_zero_noise_changes_nothing():
    denoiser = ConvexRidge(random_ridges(3))
    z = torch.rand(3, 10, 12, generator=torch.Generator().manual_seed(0))
    sigma = torch.tensor([0.1, 0.0, 0.3])
    together = denoiser(z, sigma)
    assert torch.equal(together[1], z[1])
    for k in (0, 2):
        assert torch.allclose(together[k], denoiser(z[k], float(sigma[k])), atol=1e-6)


def test_constants_pass_and_add():
    denoiser = ConvexRidge(random_ridges(4), tol=1e-10, max_iterations=5000)
    z = torch.rand(9, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.allclose(denoiser(z + 3, 0.2), denoiser(z, 0.2) + 3, atol=1e-8)
    flat = torch.full((9, 9), 0.7, dtype=torch.float64)
    assert torch.allclose(denoiser(flat, 0.2), flat, atol=1e-8)


def test_a_range_is_a_scale():
    z = torch.rand(9, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    a = ConvexRidge(random_ridges(4), tol=1e-9)(z, 0.1)
    b = ConvexRidge(random_ridges(4), tol=1e-9, scale=255)(255 * z, 25.5)
    assert torch.allclose(255 * a, b, atol=1e-5)


def test_a_warm_start_changes_how_soon_not_what():
    denoiser = ConvexRidge(random_ridges(5), tol=1e-8, max_iterations=5000)
    z = torch.rand(9, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    cold, warm = denoiser.denoise(z, 0.2)
    again, _ = denoiser.denoise(z, 0.2, warm)
    assert torch.allclose(cold, again, atol=1e-6)


def test_weights_are_written_and_read_back(tmp_path):
    file = tmp_path / "r.safetensors"
    save_ridge(file, random_ridges(7), {"data": "none"})
    again, card = load_ridge(file)
    assert torch.equal(again.filters, random_ridges(7).filters)
    assert card == {"data": "none"}


@pytest.mark.parametrize("content", [None, b"", b"not safetensors"])
def test_wrong_weights_are_one_line(tmp_path, content):
    file = tmp_path / "r.safetensors"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        ConvexRidge(file)
    assert "\n" not in str(caught.value)


def test_small_images_are_refused():
    with pytest.raises(InputError, match="at least 2 pixels"):
        ConvexRidge(random_ridges(0, 5))(torch.rand(1, 9), 0.1)


def test_rows_taken_apart_give_the_same(monkeypatch):
    """Gradient, Hessian and the gradient of training, with all rows at once and a few at a time."""
    rng = torch.Generator().manual_seed(3)
    x, v = (torch.rand(2, 1, 17, 8, generator=rng, dtype=torch.float64) for _ in range(2))
    found = []
    for numbers in (2**30, 1):
        monkeypatch.setattr(ridge_prior, "_NUMBERS_CPU", numbers)
        ridges = random_ridges(8).double().requires_grad_(True)
        potential = ridges.at(torch.tensor([0.05, 0.2], dtype=torch.float64))
        gradient = potential.gradient(x)
        gradient.backward(v)
        found.append([gradient, potential.hessian(potential.curvature(x), v), ridges.filters.grad, ridges.widths.grad])
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(whole, parts)


def picture(side: int, top: int = 100, left: int = 150) -> torch.Tensor:
    from skimage import data

    return torch.from_numpy(data.camera()[top : top + side, left : left + side] / 255.0)


def noisy(x: torch.Tensor, sigma: float) -> torch.Tensor:
    return x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)


@thorough
@pytest.mark.parametrize("sigma", effort([25 / 255], [5 / 255, 25 / 255]))
def test_what_ships_is_averaged(sigma):
    """Its whole Jacobian at a photograph's detail: symmetric, eigenvalues from 0 to 1, 2 D - I nonexpansive."""
    z = noisy(picture(effort(6, 8)), sigma)
    j = jacobian(ConvexRidge(tol=1e-13, max_iterations=5000), z, sigma)
    assert float((j - j.T).abs().max()) < 1e-4
    values = torch.linalg.eigvalsh((j + j.T) / 2)
    assert float(values[0]) > -1e-4
    assert float(values[-1]) < 1 + 1e-4
    assert float(torch.linalg.matrix_norm(2 * j - torch.eye(len(j)), 2)) < 1 + 1e-4
    assert float(values[0]) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("sigma", [2 / 255, 5 / 255, 25 / 255, 50 / 255])
def test_what_ships_is_averaged_at_many_images(profile, sigma):
    """The largest singular value of 2 D - I by power iteration, at twelve photographs' details and at noise alone."""
    places = [(t, c) for t in (40, 140, 240, 340) for c in (60, 200, 380)]
    z = torch.stack([noisy(picture(24, *place), sigma) for place in places])
    z = torch.cat([z, torch.rand(2, 24, 24, generator=torch.Generator().manual_seed(1), dtype=z.dtype)])
    denoiser, h = ConvexRidge(profile, tol=1e-11, max_iterations=5000), 1e-6
    v = torch.randn(z.shape, generator=torch.Generator().manual_seed(2), dtype=z.dtype)
    for _ in range(8):
        v = v / torch.linalg.vector_norm(v, dim=(1, 2), keepdim=True)
        v = (denoiser(z + h * v, sigma) - denoiser(z - h * v, sigma)) / h - v
        assert float(torch.linalg.vector_norm(v, dim=(1, 2)).max()) < 1 + 1e-4


@pytest.mark.parametrize("profile", PROFILES)
@given(seed=st.integers(0, 1000), sigma=st.floats(1 / 255, 60 / 255), apart=st.floats(0.01, 30))
@settings(max_examples=effort(3, 8))
def test_what_ships_is_firmly_nonexpansive_between_any_two_images(profile, seed, sigma, apart):
    rng = torch.Generator().manual_seed(seed)
    one = noisy(picture(10, 150 + seed % 100, 200), sigma)
    two = one + apart * sigma * torch.randn(one.shape, generator=rng, dtype=one.dtype)
    d = ConvexRidge(profile, tol=1e-9, max_iterations=5000)(torch.stack([one, two]), sigma)
    gap, before = d[1] - d[0], two - one
    assert float(gap.square().sum()) <= float((gap * before).sum()) + 1e-7


@pytest.mark.parametrize(("sigma", "gain"), [(5 / 255, 0.25), (25 / 255, 0.4)])
def test_what_ships_denoises_a_photograph_better_than_tv_at_its_best(sigma, gain):
    from plugstream import TV

    x = picture(96)
    z = noisy(x, sigma).float()

    def psnr(y: torch.Tensor) -> float:
        return float(-10 * (y.double() - x).square().mean().log10())

    best = max(psnr(TV(weight=c / sigma)(z, sigma)) for c in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8))
    normal, fast = (psnr(ConvexRidge(profile)(z, sigma)) for profile in PROFILES)
    assert normal > best + gain
    assert best + 0.2 < fast <= normal


@pytest.mark.parametrize(("profile", "iterations"), [("normal", 60), ("fast", 30)])
def test_what_ships_says_how_it_was_made_and_takes_few_iterations(profile, iterations):
    card = load_ridge(PROFILES[profile])[1]
    assert {"data", "seed", "steps", "command", "psnr_bsd68"} <= set(card)
    z = noisy(picture(64), 25 / 255).float()
    denoiser = ConvexRidge(profile, max_iterations=iterations)
    assert denoiser(z, 25 / 255).shape == z.shape  # without a warning, which is an error here


def test_a_profile_is_a_name_and_a_file_of_that_name_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_ridge("fast", random_ridges(7), {})
    sizes = [ConvexRidge(weights).ridges.size for weights in (None, "normal", "fast", Path("fast"), "./fast")]
    assert sizes == [9, 9, 7, 3, 3]


def test_what_ships_serves_every_noise_level_without_jumps():
    """Two levels a hundredth apart, from far below what it was trained for to far above, give almost the same."""
    z = noisy(picture(12), 0.05)
    denoiser = ConvexRidge(tol=1e-7)
    for sigma in np.geomspace(1e-4, 1.0, effort(4, 7)):
        one, two = denoiser(z, float(sigma)), denoiser(z, float(1.01 * sigma))
        assert float((one - two).norm()) < 0.02 * float((z - one).norm()) + 1e-6


@pytest.mark.gpu
def test_a_gpu_gives_what_the_cpu_gives():
    z = torch.stack([noisy(picture(64), 0.1), noisy(picture(64, 200, 200), 0.1)]).float()
    sigma = torch.tensor([0.02, 0.1])
    here, there = ConvexRidge(tol=1e-5)(z, sigma), ConvexRidge(tol=1e-5)(z.cuda(), sigma.cuda())
    assert there.is_cuda
    assert torch.allclose(here, there.cpu(), atol=1e-3)
