"""The CUDA form of the ridge prior's prox: its kernel on the CPU, thread by thread, and on a GPU the whole denoiser."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from cuda_on_cpu import emulated
from cuda_warps_on_cpu import CpuWarps
from effort import thorough
from plugstream.denoisers import ridge_cuda
from plugstream.denoisers.ridge import PROFILES, ConvexRidge
from plugstream.denoisers.ridge_prior import Ridges, prox


def some_ridges(size: int = 5, pairs: int = 4) -> Ridges:
    rng = torch.Generator().manual_seed(0)
    return Ridges(
        torch.randn(pairs, size, size, generator=rng),
        torch.randn(2, pairs, 2, generator=rng) - 1,
        torch.randn(2, pairs, generator=rng) - 1,
        torch.tensor([0.02, 0.2]),
        torch.tensor([1.0, 4.0]),
        torch.tensor(2.0),
    ).requires_grad_(False)


def away(found: Tensor, exact: Tensor, z: Tensor) -> Tensor:
    """The distance of each image, relative to the image without its mean."""
    return (found - exact).flatten(1).norm(dim=1) / (z - z.mean((-2, -1), keepdim=True)).flatten(1).norm(dim=1)


@emulated
@pytest.mark.parametrize("width", [35, 67])
def test_a_step_is_that_of_the_torch_form(width):
    """One image of two or three tiles by two blocks; a border cuts the last, and filters of 9 x 9 reach over it."""
    ridges = some_ridges(9)
    z = torch.rand(1, 1, 9, width, generator=torch.Generator().manual_seed(1))
    kernels = CpuWarps(ridge_cuda.read_source(16, 2))
    found, near = ridge_cuda.Solver(ridges, 1e-9, 0, kernels)(z, 0.1, None)
    want, _ = prox(some_ridges(9).double().at(torch.tensor([0.1])), z.double(), 0.0, 1, patience=1)
    assert near is not None
    assert near.tolist() == [False]
    assert float(away(found, want, z).max()) < 3e-6  # products have 22 bits


@thorough
@emulated
def test_each_image_reaches_the_tolerance_from_any_start():
    """Three images for two blocks: with noise of its own, with none, and a constant one."""
    ridges = some_ridges()
    rng = torch.Generator().manual_seed(2)
    z, start = torch.rand(2, 3, 1, 8, 12, generator=rng) - 5
    z[2] = 3.25
    levels = torch.tensor([0.1, 0.0, 0.1])
    kernels = CpuWarps(ridge_cuda.read_source(16, 2))
    solver = ridge_cuda.Solver(ridges, 1e-3, 40, kernels)
    exact, _ = prox(some_ridges().double().at(levels[:1].double()), z[:1].double(), 1e-8, 500, patience=200)
    for begin in (None, start):
        found, near = solver(z, levels, begin)
        assert near is None
        assert float(away(found[:1], exact, z[:1])) <= 1.01e-3
        assert torch.equal(found[1:], z[1:])


def test_products_of_fragments_are_products_of_matrices():
    """What a lane holds, put together as the PTX manual says, is the matrix, to 22 bits."""
    matrix = np.random.default_rng(0).standard_normal((32, 24))
    words = ridge_cuda._fragments(matrix).numpy()
    halves = words.view(np.float16).reshape(2, 3, 32, 2, 2, 2).astype(float).sum(3)  # front and rest
    for lane in range(32):
        for half in range(2):
            for pair in range(2):
                row, column = 8 * half + 2 * (lane % 4) + pair, lane // 4
                got = halves[:, :, lane, half, pair]
                np.testing.assert_allclose(got, matrix[row::16, column::8], rtol=1e-6, atol=1e-7)


def test_every_tap_has_one_place_backward():
    weights = np.arange(1.0, 82.0).reshape(1, 9, 9)
    assert sorted(x for x in ridge_cuda._backward_matrix(weights)[0] if x) == sorted(weights.ravel())
    assert sorted(x for x in ridge_cuda._forward_matrix(weights)[:, 0] if x) == sorted(weights.ravel())


def test_no_sum_of_units_overflows():
    assert 4 * 81 * ridge_cuda._UNITS < 2**31  # a pixel in a corner is given to from its mirror images too
    assert ridge_cuda._UNITS <= 2**22  # the last bits of 1.5 2^23 plus a number of units


def test_tables_of_a_known_level_are_kept_and_are_those_of_the_level():
    solver, cpu = ridge_cuda.Solver(ConvexRidge().ridges, 1e-4, 30), torch.device("cpu")
    kept = solver._rows_of(0.1, 2, cpu, 0)
    assert solver._rows_of(0.1, 2, cpu, 0) is kept
    assert all(torch.equal(row[None], solver._level_rows(torch.tensor([0.1]))) for row in kept)  # whatever is beside it
    torch.testing.assert_close(kept, solver._level_rows(torch.tensor([0.1, 0.1])), rtol=1e-5, atol=0)
    assert not torch.equal(solver._rows_of(0.2, 2, cpu, 0), kept)
    assert solver._rows_of(0.1, 2, cpu, 7) is not kept  # another stream, where they may not be computed yet
    for k in range(40):
        solver._rows_of(0.01 * (k + 1), 1, cpu, 0)
    assert len(solver._last_rows) == 16


@pytest.mark.gpu
@pytest.mark.parametrize("profile", PROFILES)
def test_on_a_gpu_it_is_as_near_as_promised_alone_and_with_others(profile):
    rng = torch.Generator().manual_seed(0)
    z = torch.rand(3, 70, 91, generator=rng).cumsum(-1) / 20
    sigma = torch.tensor([5 / 255, 25 / 255, 0.0])
    exact = ConvexRidge(profile, tol=1e-8, max_iterations=5000)(z.double(), sigma.double())
    denoiser = ConvexRidge(profile)
    found = denoiser(z.cuda(), sigma.cuda())
    spread = (z - z.mean((-2, -1), keepdim=True)).flatten(1).norm(dim=1)
    assert bool(((found.cpu() - exact).flatten(1).norm(dim=1) <= 1.1e-4 * spread).all())
    assert torch.equal(found[2].cpu(), z[2])
    for k in (0, 1):
        alone = [denoiser(z[k].cuda(), float(sigma[k])) for _ in range(4)]
        assert all(torch.equal(other, alone[0]) for other in alone[1:])
        # To rounding: the bound of the Hessian is a product of matrices, whose order is another with other images.
        assert float((alone[0] - found[k]).norm()) <= 1e-5 * float(spread[k])
    warm, _ = denoiser.denoise(z.cuda(), sigma.cuda(), found)
    assert bool(((warm.cpu() - exact).flatten(1).norm(dim=1) <= 1.1e-4 * spread).all())


@pytest.mark.gpu
def test_on_a_gpu_many_images_and_large_ones_are_those_of_one_block_a_tile():
    """More images than multiprocessors, and more tiles: blocks take several of either."""
    rng = torch.Generator().manual_seed(1)
    denoiser = ConvexRidge("fast")
    many = torch.rand(150, 9, 40, generator=rng).cumsum(-1).cuda() / 20
    alone = denoiser(many[149], 0.1)  # to rounding, as above
    assert float((denoiser(many, 0.1)[149] - alone).norm()) <= 1e-5 * float((many[149] - many[149].mean()).norm())
    large = (torch.rand(600, 500, generator=rng).cumsum(-1) / 100).cuda()
    exact = ConvexRidge("fast", tol=1e-6, max_iterations=5000)(large.double(), 0.1)
    assert float((denoiser(large, 0.1) - exact).norm()) <= 1.1e-4 * float((large - large.mean()).norm())


@pytest.mark.gpu
def test_on_a_gpu_a_scaled_image_or_one_with_nan_comes_out():
    z = torch.rand(40, 40, generator=torch.Generator().manual_seed(3)).cuda()
    want = ConvexRidge()(z, 0.1)
    for scale in (2.0**-60, 2.0**60):
        assert torch.equal(ConvexRidge(scale=scale)(scale * z, scale * 0.1), scale * want)
    z[3, 4] = torch.nan
    assert bool(ConvexRidge()(z, 0.1).isnan().any())
