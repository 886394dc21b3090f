"""The convex ridge denoiser: its guarantee, whatever the weights, its solver, and its training's gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.optimize import minimize

from plugstream.denoisers.ridge import ConvexRidge, Ridges, load_ridge, prox, save_ridge
from plugstream.errors import InputError
from plugstream.training.fit import Training, fit
from plugstream.training.patches import Patches
from plugstream.training.ridge import ridge_gradients, train_ridge


def random_ridges(seed: int, size: int = 3) -> Ridges:
    rng = torch.Generator().manual_seed(seed)
    return Ridges(
        torch.randn(5, size, size, generator=rng),
        torch.randn(2, 5, 3, generator=rng),
        torch.tensor([0.02, 0.2]),
        torch.tensor([0.2, 0.8, 2.0]),
    ).requires_grad_(False)


def energy(ridges: Ridges, x: np.ndarray, z: np.ndarray, sigma: float) -> float:
    """1/2 ||x - z||^2 + R(x), pixel by pixel, from the definition."""
    size = ridges.size
    kernels = ridges.kernels().double().numpy()[:, 0]
    amounts = ridges.amounts_at(torch.tensor([sigma])).double().numpy()[0]
    total = 0.5 * ((x - z) ** 2).sum()
    for i, kernel in enumerate(kernels):
        for r in range(x.shape[0] - size + 1):
            for c in range(x.shape[1] - size + 1):
                u = abs((kernel * x[r : r + size, c : c + size]).sum() / sigma)
                for a, delta in zip(amounts[i], ridges.knots.double().numpy(), strict=True):
                    total += sigma**2 * a * (u * u / (2 * delta) if u < delta else u - delta / 2)
    return float(total)


@pytest.mark.parametrize("sigma", [0.01, 0.05, 0.5])
def test_the_result_minimises_the_energy_as_defined(sigma):
    ridges = random_ridges(0)
    z = np.random.default_rng(1).random((6, 7))
    found = ConvexRidge(ridges, tol=1e-9)(torch.from_numpy(z), sigma).numpy()
    best = minimize(lambda x: energy(ridges, x.reshape(z.shape), z, sigma), found.ravel() + 1e-3, method="BFGS")
    assert energy(ridges, found, z, sigma) <= best.fun + 1e-12
    assert np.abs(best.x.reshape(z.shape) - found).max() < 1e-4


@given(seed=st.integers(0, 1000), sigma=st.floats(1e-3, 1.0), scale=st.floats(0.01, 10))
@settings(max_examples=30)
def test_it_is_firmly_nonexpansive_whatever_the_weights(seed, sigma, scale):
    rng = torch.Generator().manual_seed(seed)
    one = torch.rand(2, 12, 11, generator=rng, dtype=torch.float64)
    one[1] = one[0] + scale * sigma * torch.randn(12, 11, generator=rng, dtype=torch.float64)
    d = ConvexRidge(random_ridges(seed), tol=1e-10, max_iterations=5000)(one, sigma)
    apart, before = d[1] - d[0], one[1] - one[0]
    assert float(apart.square().sum()) <= float((apart * before).sum()) + 1e-8


@given(height=st.integers(3, 20), width=st.integers(3, 20), seed=st.integers(0, 50))
@settings(max_examples=20)
def test_the_bound_of_the_curvature_holds(height, width, seed):
    potential = random_ridges(seed).at(torch.tensor([0.1]))
    x = torch.zeros(1, 1, height, width)  # the curvature is largest at zero
    eye = torch.eye(height * width).reshape(-1, 1, height, width)
    hessian = potential.hessian(potential.curvature(x), eye).reshape(len(eye), -1)
    assert float(torch.linalg.eigvalsh((hessian + hessian.T) / 2).max()) <= float(potential.bound()) * (1 + 1e-5)


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


def test_training_follows_the_true_gradient():
    """Against finite differences of the loss, in double precision."""
    ridges = random_ridges(6).double().requires_grad_(True)
    rng = torch.Generator().manual_seed(2)
    clean, noise = (torch.rand(2, 8, 9, generator=rng, dtype=torch.float64) for _ in range(2))
    sigma = torch.tensor([0.05, 0.15], dtype=torch.float64)

    def loss() -> float:
        with torch.no_grad():
            z = clean[:, None] + sigma[:, None, None, None] * noise[:, None]
            found, done = prox(ridges.at(sigma), z, 1e-13, 100_000)
            assert done
            return float(((found - clean[:, None]) / sigma[:, None, None, None]).square().mean())

    value = ridge_gradients(ridges, clean, noise, sigma, tol=1e-12, most=2000)
    assert value == pytest.approx(loss(), rel=1e-6)
    for parameter in (ridges.filters, ridges.amounts):
        direction = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
        h = 1e-5
        with torch.no_grad():
            parameter += h * direction
            above = loss()
            parameter -= 2 * h * direction
            below = loss()
            parameter += h * direction
        slope = float((parameter.grad * direction).sum())
        assert slope == pytest.approx((above - below) / (2 * h), rel=2e-3, abs=1e-7)


def patches() -> Patches:
    rng = torch.Generator().manual_seed(0)
    waves = [torch.sin(torch.arange(24.0)[:, None] / (2 + k)) * torch.ones(26) / 2 + 0.5 for k in range(3)]
    return Patches([w + 0.01 * torch.rand(w.shape, generator=rng) for w in waves], 16)


def test_training_lowers_the_loss_and_resumes_to_the_bit(tmp_path):
    losses: list[float] = []
    whole = train_ridge(patches(), steps=12, batch=2, rate=0.1, progress=lambda k, loss: losses.append(loss))
    assert np.mean(losses[-3:]) < np.mean(losses[:3])

    class Stopped(Exception):
        pass

    def stop(step: int, loss: float) -> None:
        if step == 7:
            raise Stopped

    file = tmp_path / "c.safetensors"
    with pytest.raises(Stopped):
        _train(file, stop)
    parts = _train(file, None)
    assert torch.equal(parts.filters, whole.filters)
    assert torch.equal(parts.amounts, whole.amounts)


def _train(file, progress):
    """The same, with a checkpoint after every step."""
    from unittest import mock

    from plugstream.training import ridge

    with mock.patch.object(ridge, "fit", lambda *a, **k: fit(*a, **k, every=1)):
        return train_ridge(patches(), steps=12, batch=2, rate=0.1, checkpoint=file, progress=progress)


def test_a_loss_that_is_not_a_number_stops_and_says_so():
    training = Training({"p": torch.zeros(2, requires_grad=True)}, {})
    with pytest.raises(InputError, match="nan at step 0"):
        fit(training, lambda step: float("nan"), steps=3, rate=0.1)


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    file = tmp_path / "c.safetensors"
    Training({"p": torch.zeros(2)}, {"seed": 1}).save(file)
    with pytest.raises(InputError, match="seed = 1, not 2"):
        Training({"p": torch.zeros(2)}, {"seed": 2}).load(file)
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(InputError, match="cannot be read"):
        Training({"p": torch.zeros(2)}, {"seed": 1}).load(file)


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
    with pytest.raises(InputError, match="at least 3 pixels"):
        ConvexRidge(random_ridges(0))(torch.rand(2, 9), 0.1)


def test_patches_are_a_function_of_seed_and_step(tmp_path):
    p = patches()
    assert torch.equal(p.draw(3, 4), p.draw(3, 4))
    assert not torch.equal(p.draw(3, 4), p.draw(4, 4))
    with pytest.raises(InputError, match="no folder"):
        Patches.from_folder(tmp_path / "nowhere", 8)
    with pytest.raises(InputError, match="no pictures"):
        Patches.from_folder(tmp_path, 8)
