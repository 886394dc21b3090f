"""Non-local means: the matrix against its formula written out, and what is promised of it as a map."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from plugstream import NLM, InputError
from plugstream.denoisers.nlm import weights
from plugstream.runs.parts import build_denoiser
from plugstream.settings import DenoiserSettings


def dense(kept: Tensor) -> np.ndarray:
    """The matrix that the weights stand for, (H W, H W)."""
    span, _, height, width = kept.shape
    search, numbers, out = span // 2, kept.numpy(), np.zeros((height, width, height, width))
    for dy in range(-search, search + 1):
        for dx in range(-search, search + 1):
            for y in range(height):
                for x in range(width):
                    value = numbers[dy + search, dx + search, y, x]
                    if 0 <= y + dy < height and 0 <= x + dx < width:
                        out[y, x, y + dy, x + dx] = value
                    else:
                        assert value == 0
    return out.reshape(height * width, -1)


def written_out(guide: np.ndarray, h: float, search: int, patch: int, balance: int) -> np.ndarray:
    height, width = guide.shape
    padded = np.pad(guide, patch, mode="symmetric")
    around = 2 * patch + 1
    patches = [padded[y : y + around, x : x + around].ravel() for y in range(height) for x in range(width)]
    places = [(y, x) for y in range(height) for x in range(width)]
    affinity = np.zeros((len(places), len(places)))
    for s, (y, x) in enumerate(places):
        for r, (v, u) in enumerate(places):
            pyramid = max(0, 1 - abs(y - v) / (search + 1)) * max(0, 1 - abs(x - u) / (search + 1))
            affinity[s, r] = pyramid * np.exp(-np.mean((patches[s] - patches[r]) ** 2) / (2 * h * h))
    d = np.ones(len(places))
    for _ in range(balance):
        d = np.sqrt(d / (affinity @ d))
    scaled = d[:, None] * affinity * d
    rho = scaled.sum(1)
    return scaled / rho.max() + np.diag(1 - rho / rho.max())


def random_guide(height: int, width: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random((height, width)))


SIZES = st.integers(1, 7)


@given(SIZES, SIZES, st.integers(1, 4), st.integers(0, 3), st.integers(1, 5), st.floats(0.01, 3), st.integers(0, 99))
def test_the_matrix_is_its_formula(
    height: int, width: int, search: int, patch: int, balance: int, h: float, seed: int
) -> None:
    guide = random_guide(height, width, seed)
    got = dense(weights(guide, h, search, patch, balance))
    np.testing.assert_allclose(got, written_out(guide.numpy(), h, search, patch, balance), atol=1e-10)


@given(SIZES, SIZES, st.integers(1, 8), st.integers(0, 2), st.integers(1, 9), st.floats(1e-3, 1e3), st.integers(0, 99))
def test_the_matrix_is_symmetric_doubly_stochastic_and_positive(
    height: int, width: int, search: int, patch: int, balance: int, h: float, seed: int
) -> None:
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 2e-6)):
        matrix = dense(weights(random_guide(height, width, seed).to(dtype), h, search, patch, balance))
        np.testing.assert_array_equal(matrix, matrix.T)
        assert matrix.min() >= 0
        np.testing.assert_allclose(matrix.sum(1), 1, atol=tolerance)
        values = np.linalg.eigvalsh(matrix.astype(np.float64))
        assert values.min() >= -tolerance
        assert values.max() <= 1 + tolerance


def test_one_step_of_balancing_is_the_papers_normalisation() -> None:
    guide = random_guide(6, 5)
    matrix = written_out(guide.numpy(), 0.3, 3, 1, 1)
    padded = np.pad(guide.numpy(), 1, mode="symmetric")
    patches = np.array([padded[y : y + 3, x : x + 3].ravel() for y in range(6) for x in range(5)])
    y, x = np.divmod(np.arange(30), 5)
    hat = [np.clip(1 - np.abs(c[:, None] - c) / 4, 0, None) for c in (y, x)]
    affinity = hat[0] * hat[1] * np.exp(-((patches[:, None] - patches) ** 2).mean(-1) / 0.18)
    scale = 1 / np.sqrt(affinity.sum(1))
    scaled = scale[:, None] * affinity * scale
    scaled /= scaled.sum(1).max()
    np.testing.assert_allclose(matrix, scaled + np.diag(1 - scaled.sum(1)), atol=1e-12)
    np.testing.assert_allclose(dense(weights(guide, 0.3, 3, 1, 1)), matrix, atol=1e-12)


def test_balancing_takes_weight_off_the_pixel_itself() -> None:
    guide = random_guide(16, 16)
    shares = [float(weights(guide, 0.5, 5, 1, steps)[5, 5].mean()) for steps in (1, 3, 10)]
    assert shares[0] > shares[1] > shares[2]


def test_with_a_fixed_guide_it_is_linear_and_firmly_nonexpansive() -> None:
    guide = random_guide(12, 11)
    nlm = NLM(guide, search=4)
    assert nlm.averaged == 0.5
    x, y = torch.randn(2, 12, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    dx, dy = nlm(x, 0.2), nlm(y, 0.2)
    torch.testing.assert_close(nlm(2 * x - 3 * y, 0.2), 2 * dx - 3 * dy)
    assert float((dx - dy).square().sum()) <= float(((x - y) * (dx - dy)).sum()) + 1e-12
    matrix = torch.from_numpy(dense(weights(guide, 0.8 * 0.2, 4, 2, 10)))
    torch.testing.assert_close(dx.flatten(), matrix @ x.flatten())


def test_without_a_guide_nothing_is_claimed() -> None:
    nlm, z = NLM(search=4), random_guide(12, 11)
    assert nlm.averaged is None
    assert torch.equal(nlm(z, 0.2), NLM(z, search=4)(z, 0.2))
    assert not torch.allclose(nlm(2 * z, 0.2), 2 * nlm(z, 0.2), rtol=1e-3)


def test_constants_and_the_mean_are_kept() -> None:
    for nlm in (NLM(), NLM(random_guide(20, 19))):
        constant = torch.full((20, 19), 3.0, dtype=torch.float64)
        torch.testing.assert_close(nlm(constant, 0.1), constant)
        z = random_guide(20, 19, seed=1)
        assert float(nlm(z, 0.3).mean()) == pytest.approx(float(z.mean()), abs=1e-12)


def test_scales_and_shifts_with_the_image() -> None:
    z = random_guide(14, 13)
    expected = NLM()(z, 0.1)
    torch.testing.assert_close(NLM()(7 * z - 2, 0.7), 7 * expected - 2)


def test_it_removes_noise() -> None:
    y, x = torch.meshgrid(torch.arange(40.0), torch.arange(48.0), indexing="ij")
    clean = 0.5 + 0.3 * torch.sign(torch.sin(x / 5)) * torch.sign(torch.cos(y / 7))
    noisy = clean + 0.1 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    error = (NLM()(noisy, 0.1) - clean).square().mean()
    assert float(error) < 0.25 * float((noisy - clean).square().mean())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_batches_and_dtypes(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, 9, 8, generator=generator).to(dtype)
    sigma = torch.rand(2, 3, generator=generator)
    sigma[1, 0] = 0
    for nlm in (NLM(search=3), NLM(images[0, 0], search=3), NLM(images.flip(0), search=3)):
        out = nlm(images, sigma)
        assert out.dtype == dtype
        assert torch.equal(out[1, 0], images[1, 0])
        guide = None if nlm.guide is None else nlm.guide.expand(images.shape)[1, 2]
        alone = NLM(guide, search=3)(images[1, 2], float(sigma[1, 2].to(dtype)))
        assert torch.equal(out[1, 2], alone)
        assert torch.equal(nlm(images, sigma), out)
    assert NLM()(images[:0], sigma[:0]).shape == (0, 3, 9, 8)


def test_is_pure() -> None:
    guide, z = random_guide(10, 10), random_guide(10, 10, seed=1)
    nlm = NLM(guide, search=3)
    first = nlm(z, 0.1)
    other = nlm(z, 0.5)
    guide += 1  # the guide that was given is not the one that is used
    assert torch.equal(nlm(z, 0.1), first)
    assert torch.equal(nlm(z, 0.5), other)
    assert not torch.equal(first, other)


def test_gradients_are_those_of_a_symmetric_matrix() -> None:
    nlm = NLM(random_guide(9, 9), search=3)
    z = random_guide(9, 9, seed=1).requires_grad_()
    given_back = random_guide(9, 9, seed=2)
    (grad,) = torch.autograd.grad(nlm(z, 0.2), z, given_back)
    torch.testing.assert_close(grad, nlm(given_back, 0.2))


def test_wrong_input_is_refused_in_one_line() -> None:
    image = random_guide(9, 9)
    for make, message in (
        (lambda: NLM(search=0), "search"),
        (lambda: NLM(patch=-1), "patch"),
        (lambda: NLM(strength=0.0), "strength"),
        (lambda: NLM(strength=math.nan), "strength"),
        (lambda: NLM(balance=0), "balancing"),
        (lambda: NLM(torch.zeros(2, 9)), "at least 3 x 3"),
        (lambda: NLM(torch.full((9, 9), math.nan)), "the guide holds NaN"),
        (lambda: NLM()(torch.zeros(2, 9), 0.1), "at least 3 x 3"),
        (lambda: NLM()(torch.zeros(9, 9, dtype=torch.int32), 0.1), "floating point"),
        (lambda: NLM()(torch.full((9, 9), math.inf), 0.1), "the image holds NaN or infinity"),
        (lambda: NLM()(image, -0.1), "sigma must"),
        (lambda: NLM()(image, math.inf), "sigma must"),
        (lambda: NLM()(image[None], torch.tensor([-0.1])), "sigma must"),
        (lambda: NLM(image)(random_guide(9, 8), 0.1), "does not fit"),
    ):
        with pytest.raises(InputError, match=message) as error:
            make()
        assert "\n" not in str(error.value)


def test_settings_make_it() -> None:
    assert isinstance(build_denoiser(DenoiserSettings.of(name="nlm", low=None)), NLM)
