"""BM4D on CUDA against the native form, and against the torch form on what is small."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import plugstream as ps
from plugstream.denoisers.bm4d import cuda_form, reference
from plugstream.denoisers.bm4d.profile import Profile

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SMALL = Profile(radius=2, step1=3, group1=8, group2=16)


def noisy(*shape: int) -> Tensor:
    axes = torch.meshgrid(*(torch.linspace(-1, 1, size) for size in shape), indexing="ij")
    clean = (sum(axis.square() for axis in axes) < 0.5).float() + 0.2 * axes[1]
    return clean + 0.1 * torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("mapped", [False, True])
def test_it_finds_the_same_cubes_and_the_same_volume(channels: int, mapped: bool) -> None:
    z = torch.stack([noisy(11, 9, 37), noisy(11, 9, 37).flip(0)])[:channels].cuda()
    sigma = (
        (0.05 + 0.1 * torch.rand(z.shape[1:], device="cuda")) if mapped else torch.full((1, 1, 1), 0.1, device="cuda")
    )
    for stage in (1, 2):
        assert torch.equal(cuda_form.match(z, sigma, SMALL, stage), reference.match(z, sigma, SMALL, stage))
    one = reference.bm4d(z[None], sigma[None], SMALL, stages=1)
    torch.testing.assert_close(cuda_form.bm4d(z[None], sigma[None], SMALL, stages=1), one, rtol=0, atol=2e-5)
    both = reference.bm4d(z[None], sigma[None], SMALL)
    assert float((cuda_form.bm4d(z[None], sigma[None], SMALL) - both).square().mean().sqrt()) < 1e-3


def test_it_gives_the_same_bits_every_time_and_whatever_is_at_work_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    z = noisy(40, 41, 42).cuda()
    first = ps.BM4D()(z, 0.1)
    monkeypatch.setattr(cuda_form, "_AT_ONCE", 1000)
    assert torch.equal(ps.BM4D()(z, 0.1), first)


def test_it_agrees_with_the_cpu_and_scales_to_the_bit() -> None:
    z = noisy(40, 41, 42)
    out = ps.BM4D()(z.cuda(), 0.1)
    assert float((out.cpu() - ps.BM4D()(z, 0.1)).square().mean().sqrt()) < 1e-3
    assert torch.equal(ps.BM4D()(2 * z.cuda(), 0.2), 2 * out)
    assert torch.equal(ps.BM4D()(z.cuda(), torch.full(z.shape, 0.1)), out)
    assert torch.equal(ps.BM4D()(z.cuda(), 0.0), z.cuda())
    wave = torch.complex(z, z.flip(1))
    assert float((ps.BM4D()(wave.cuda(), 0.1).cpu() - ps.BM4D()(wave, 0.1)).abs().square().mean().sqrt()) < 1e-3
