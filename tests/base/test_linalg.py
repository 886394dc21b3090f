"""Sums of images by one thread: to the bit what torch says, whatever the numbers, shapes and kinds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from effort import cases
from plugstream.base.linalg import add_scaled, extrapolate, largest_norm, norm

SPECIAL = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, 3e38, -1.0])


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(torch.isnan(a), torch.isnan(b)) and torch.equal(
        torch.nan_to_num(a, 0.5), torch.nan_to_num(b, 0.5)
    )  # fmt: skip


SHAPES = [(1025, 1025), (7, 5), (2, 3, 40, 61), (0, 4)]


@pytest.mark.parametrize(("shape", "dtype"), cases(SHAPES, [torch.float32, torch.float64, torch.complex64]))
def test_sums_are_those_of_torch_to_the_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, y = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype, seed=1)
    for scale in (0.1, -1.0, 1 / 3, 0.0):
        assert same_bits(add_scaled(x, scale, y), x + scale * y)
        assert same_bits(add_scaled(x, -scale, y), x - scale * y)


def test_numbers_that_are_none_come_out_as_those_of_torch() -> None:
    x, y = SPECIAL[:, None].expand(8, 8), SPECIAL[None].expand(8, 8)
    for scale in (1.0, -0.3, 1e30, 0.0):
        assert same_bits(add_scaled(x, scale, y), x + scale * y)


def test_images_that_broadcast_or_are_differentiated_are_left_to_torch() -> None:
    x, y = draw(3, 4, 5), draw(4, 5, seed=1)
    assert torch.equal(add_scaled(x, 0.7, y), x + 0.7 * y)
    assert torch.equal(add_scaled(x, 0.7, y.double().expand(3, 4, 5)), x + 0.7 * y.double())
    x.requires_grad_()
    add_scaled(x, 0.7, draw(3, 4, 5, seed=2)).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones_like(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_the_largest_norm(dtype: torch.dtype) -> None:
    x = draw(3, 40, 61, dtype=dtype)
    assert largest_norm(x) == pytest.approx(float(norm(x).max()), rel=1e-5)
    assert largest_norm(x, 3) == pytest.approx(float(norm(x, 3)), rel=1e-5)
    x[1, 2, 3] = math.inf
    assert largest_norm(x) == math.inf
    x[0, 2, 3] = math.nan
    assert math.isnan(largest_norm(x))


def test_extrapolation_is_two_scaled_sums() -> None:
    x, before = draw(3, 4, 5), draw(3, 4, 5, seed=1)
    assert same_bits(extrapolate(x, 0.7, before), add_scaled(x, 0.7, x - before))


@pytest.mark.gpu
def test_on_a_gpu_both_are_one_kernel() -> None:
    x, y = draw(3, 4, 5), draw(3, 4, 5, seed=1)
    torch.testing.assert_close(add_scaled(x.cuda(), 0.7, y.cuda()).cpu(), x + 0.7 * y)
    torch.testing.assert_close(extrapolate(x.cuda(), 0.7, y.cuda()).cpu(), x + 0.7 * (x - y))
