"""A denoiser of a convex prior that does not see constants: D(z + c) = D(z) + c, whatever c is."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from effort import effort, thorough
from plugstream import TV, ConvexRidge
from plugstream.denoisers.tv import differences_adjoint
from tv_admm import admm

OFFSETS = [-1e4, -3.7, 1.0, 1e3, 1e4]
BOXES = [(-math.inf, math.inf), (0.2, math.inf), (-math.inf, 0.7), (0.25, 0.75)]


def picture(*shape, seed=0, dtype=torch.float64):
    """Blocks with noise, about 0.5 with a spread of 0.3."""
    rng = np.random.default_rng(seed)
    blocks = np.kron(rng.random((*shape[:-2], 4, 4)), np.ones((-(-shape[-2] // 4), -(-shape[-1] // 4))))
    blocks = blocks[..., : shape[-2], : shape[-1]]
    return torch.from_numpy(blocks + 0.1 * rng.standard_normal(shape)).to(dtype)


def psnr(a, b):
    return float(-10 * torch.log10((a.double() - b.double()).square().mean()))


def test_the_case_of_the_issue():
    """sigma = 0.28 on a noisy picture: as good with 1000 added, where it used to return its input."""
    clean = torch.from_numpy(np.kron(np.random.default_rng(1).random((8, 8)), np.ones((12, 12)))).float()
    z = clean + 0.1 * torch.randn(96, 96, generator=torch.Generator().manual_seed(0))
    plain = psnr(TV()(z, 0.28), clean)
    assert plain > psnr(z, clean) + 5
    assert psnr(TV()(z + 1000, 0.28) - 1000, clean) == pytest.approx(plain, abs=0.02)
    learned = psnr(ConvexRidge()(z, 0.1), clean)
    assert psnr(ConvexRidge()(z + 1000, 0.1) - 1000, clean) == pytest.approx(learned, abs=0.02)


@pytest.mark.parametrize(("native", "isotropic"), [(None, True), (False, False)])
@pytest.mark.parametrize("box", BOXES)
@settings(max_examples=effort(4, 8))
@given(offset=st.sampled_from(OFFSETS) | st.floats(-1e4, 1e4), seed=st.integers(0, 1000))
def test_tv_commutes_with_a_constant(native, isotropic, box, offset, seed):
    """In double precision to the rounding of z + c, whose iterates are the same up to that."""
    z, low, high = picture(4, 5, seed=seed), *box
    plain = TV(isotropic=isotropic, low=low, high=high)._solve(z, 0.3, None, native=native)[0]
    moved = TV(isotropic=isotropic, low=low + offset, high=high + offset)._solve(z + offset, 0.3, None, native=native)[
        0
    ]
    assert float((moved - offset - plain).abs().max()) <= 2e-10 * (1 + abs(offset))


@thorough
@pytest.mark.parametrize("native", [None, False])
@pytest.mark.parametrize("box", effort(BOXES[::3], BOXES))
@pytest.mark.parametrize("offset", effort(OFFSETS[::4], OFFSETS))
def test_single_precision_loses_only_what_the_numbers_lose(native, box, offset):
    """Against the exact prox of the very numbers that z + c was rounded to: within tol, and one rounding."""
    z = (picture(10, 13, seed=3) + offset).float()
    low, high = float(np.float32(box[0] + offset)), float(np.float32(box[1] + offset))
    exact = TV(low=low, high=high, tol=1e-6, max_iterations=100_000)(z.double(), 0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the tolerance is reached, though float32 has 1e-3 between neighbours at 1e4
        x = TV(low=low, high=high)._solve(z, 0.3, None, native=native)[0]
    spread = float((z.double() - z.double().mean()).norm())
    rounding = float(np.spacing(np.float32(abs(offset) + 1))) * math.sqrt(z.numel())
    assert float((x.double() - exact).norm()) <= 1e-3 * spread + rounding
    assert float(x.min()) >= low
    assert float(x.max()) <= high


@thorough
@pytest.mark.parametrize("box", effort(BOXES[1::2], BOXES))
def test_against_admm(box):
    z = picture(6, 8, seed=5)
    expected = admm(z.numpy()[None], 2, 0.09, True, *box)[0]
    for offset in (0.0, 1e3):
        tv = TV(low=box[0] + offset, high=box[1] + offset, tol=1e-7, max_iterations=200_000)
        np.testing.assert_allclose(tv(z + offset, 0.3).numpy() - offset, expected, atol=2e-6)


@settings(max_examples=effort(5, 12))
@given(seed=st.integers(0, 1000), iterations=st.sampled_from([1, 3, 10, 40]), box=st.sampled_from(BOXES))
def test_the_error_is_at_most_the_root_of_the_gap(seed, iterations, box):
    """Not of twice the gap: which is what lets it stop earlier with the same promise."""
    z = picture(7, 9, seed=seed)
    exact = TV(low=box[0], high=box[1], tol=1e-8, max_iterations=200_000)(z, 0.4)
    tv = TV(low=box[0], high=box[1], tol=0, max_iterations=iterations)
    x, dual = tv.denoise(z, 0.4)
    assert float((x - exact).norm()) <= math.sqrt(float(tv.gap(z, 0.16, dual))) + 1e-7


def test_images_of_a_batch_with_their_own_offsets_and_a_common_box():
    """Each as alone, to the bit: with a box, each has a box of its own once its mean is taken out."""
    z = picture(5, 20, 70, dtype=torch.float32) + torch.tensor([0.0, -0.4, 0.2, 1e3, 0.0])[:, None, None]
    tv = TV(low=0.1, high=0.8)
    for native in (None, False):
        together, dual = tv._solve(z, 0.3, None, native=native)
        for n in range(5):
            alone, dual_alone = tv._solve(z[n], 0.3, None, native=native)
            assert torch.equal(alone, together[n])
            assert torch.equal(dual_alone, dual[n])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.1, -1 / 3, 1e4 + 0.1, 1e-30])
def test_a_constant_image_is_its_own_answer_from_any_start(dtype, value):
    z = torch.full((6, 13), value, dtype=dtype)
    warm = torch.randn(2, 6, 13, generator=torch.Generator().manual_seed(0), dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for native in (None, False):
            assert torch.equal(TV()._solve(z, 5.0, warm, native=native)[0], z)
        torch.testing.assert_close(ConvexRidge().denoise(z, 0.1, z + warm[0])[0], z, rtol=1e-6, atol=1e-12)


def test_the_dual_of_an_offset_image_is_a_warm_start():
    z = picture(20, 20)
    x, dual = TV(tol=1e-4).denoise(z, 0.3)
    again, _ = TV(tol=1e-4, max_iterations=1).denoise(z + 500, 0.3, dual)  # nothing left to do, so no warning
    torch.testing.assert_close(again - 500, x, atol=1e-10, rtol=0)
    torch.testing.assert_close(x, z - 0.09 * differences_adjoint(dual), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("dtype", "offset"), [(torch.float32, -1e4), (torch.float64, 10.0), (torch.float64, 1e3)])
def test_the_ridge_prior_commutes_with_a_constant(dtype, offset):
    z = (picture(2, 10, 9, seed=4, dtype=dtype) + offset) - offset  # what z + c can hold
    ridge = ConvexRidge()
    plain, moved = ridge(z, 0.1), ridge(z + offset, 0.1)
    spread = float((z - z.mean((1, 2), keepdim=True)).norm())
    rounding = abs(offset) * torch.finfo(dtype).eps * math.sqrt(z.numel())
    assert float((moved.double() - offset - plain.double()).norm()) <= 2e-4 * spread + 2 * rounding
    exact = ConvexRidge(tol=1e-9, max_iterations=5000)(z.double(), 0.1)
    assert float((moved.double() - offset - exact).norm()) <= 1e-4 * spread + 2 * rounding


def test_nan_and_infinity_come_out_without_a_word_and_soon():
    """Not after all iterations, which would not fix them, nor with a warning of NumPy's."""
    z = picture(2, 24, 24, dtype=torch.float32)
    z[0, 3, 3] = math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bool(ConvexRidge(max_iterations=100_000)(z, 0.1)[0].isnan().any())
        z[0, 3, 3] = math.inf
        assert not bool(TV()(z, 0.3)[0].isfinite().all())
