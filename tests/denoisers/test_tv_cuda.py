"""Total variation of volumes on CUDA: the kernels' very text on the CPU here, on a GPU where there is one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from cuda_on_cpu import CpuKernels, emulated
from plugstream import TV
from plugstream.base.errors import PlugstreamWarning
from plugstream.denoisers import tv_cuda

CASES = [
    (True, -math.inf, math.inf, (5, 6, 7)),
    (False, 0.2, 0.7, (70, 4, 5)),
    (True, 0.0, math.inf, (1, 8, 9)),
    (True, 0.1, 0.9, (6, 1, 35)),
    (True, 0.2, math.inf, (19, 5, 8)),  # four voxels a thread
    (False, -math.inf, 0.8, (3, 9, 36)),
]


@pytest.fixture(scope="module")
def kernels() -> CpuKernels:
    return CpuKernels(tv_cuda.read_source(), ("begin_twice", "descend_twice"))


def volume(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@emulated
@pytest.mark.parametrize(("isotropic", "low", "high", "shape"), CASES)
def test_it_is_the_prox_of_tv(
    kernels: CpuKernels,
    monkeypatch: pytest.MonkeyPatch,
    isotropic: bool,
    low: float,
    high: float,
    shape: tuple[int, int, int],
) -> None:
    """Against the specification in float64, from zero and from a warm start of another strength."""
    monkeypatch.setattr(tv_cuda, "PACES", tv_cuda.PACES[:6])  # so that steps with momentum follow
    monkeypatch.setattr(tv_cuda, "_AT_ONCE", 1)  # two are the same to the bit, and slow here
    tv = TV(isotropic=isotropic, low=low, high=high, ndim=3, tol=3e-4)
    exact = TV(isotropic=isotropic, low=low, high=high, ndim=3, tol=1e-8, max_iterations=20000)
    z, warm = volume((2, *shape)), None
    for sigma in (0.3, 0.2):
        strength = torch.full((2, 1, 1, 1), sigma**2)
        x, warm = tv._solve_volumes(z, strength, warm, kernels)
        want = exact.denoise(z.double(), sigma)[0]
        for got, one, of in zip(x, want, z, strict=True):
            assert (got - one).norm() <= 3e-4 * (of - of.mean()).norm()
        assert ((x >= low) & (x <= high)).all()
        gaps = tv.gap(z.double(), sigma**2, warm.double())
        assert (gaps <= 1.1 * 9e-8 * (z - z.mean((1, 2, 3), keepdim=True)).square().sum((1, 2, 3))).all()


@emulated
def test_what_is_close_already_is_not_iterated(kernels: CpuKernels) -> None:
    tv = TV(ndim=3)
    z = volume((1, 6, 7, 8))
    strength = torch.full((1, 1, 1, 1), 0.04)
    x, dual = tv._solve_volumes(z, strength, None, kernels)
    again, same = tv._solve_volumes(z, strength, dual, kernels)
    assert torch.equal(x, again)
    assert torch.equal(dual, same)


@emulated
def test_four_voxels_a_thread_or_one_are_the_same(kernels: CpuKernels) -> None:
    """To the bit, as a volume that begins off a multiple of 16 bytes has one."""
    tv, strength = TV(ndim=3, low=0.3, tol=3e-4), torch.full((1, 1, 1, 1), 0.04)
    z = volume((1, 6, 7, 8))
    off = torch.empty(z.numel() + 1)[1:].reshape(z.shape).copy_(z)
    assert off.data_ptr() % 16
    got, want = (tv._solve_volumes(start, strength, None, kernels) for start in (off, z))
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


@emulated
@pytest.mark.parametrize("shape", [(9, 30, 33), (5, 61, 20), (1, 3, 4), (2, 1, 40)])
@pytest.mark.parametrize("isotropic", [True, False])
def test_two_steps_in_one_pass_are_two_steps(
    kernels: CpuKernels, monkeypatch: pytest.MonkeyPatch, isotropic: bool, shape: tuple[int, int, int]
) -> None:
    """To the bit, also at the borders of tiles, and with the same gap; from a dual that is too long."""
    monkeypatch.setattr(tv_cuda, "_PLANES_TWICE", (1, 4))
    tv, warm = TV(ndim=3, isotropic=isotropic, low=0.3, high=0.9), 2 * volume((3, *shape), seed=1) - 1
    one, two = (tv_cuda._Run(tv, volume(shape), torch.tensor([0.03]), warm, kernels) for _ in range(2))
    gaps = [run._step("begin", paces).sum(1) for run, paces in ((one, [3.8]), (two, [3.8, 1.5]))]
    one.descend([1.5])
    assert torch.equal(one.dual, two.dual)
    torch.testing.assert_close(*gaps)
    one.descend([2.0])
    one.descend([1.0])
    two.descend([2.0, 1.0])
    assert torch.equal(one.dual, two.dual)


@emulated
def test_a_volume_near_the_last_one_takes_four_steps_and_one_look(kernels: CpuKernels) -> None:
    """At the strength of a step of PnP-SGD; two steps are one pass, and the first looks at the gap as well."""

    class Counted:
        def __init__(self) -> None:
            self.names: list[str] = []

        def launch(self, name: str, *arguments: Any) -> None:
            self.names.append(name.rpartition("_")[0] or name)
            kernels.launch(name, *arguments)

    tv, z, strength = TV(ndim=3), torch.zeros(1, 12, 12, 12), torch.full((1, 1, 1, 1), 4e-4)
    z[0, 3:8, 4:9, 2:7] = 1
    z += 0.02 * volume((1, 12, 12, 12))
    _, dual = tv._solve_volumes(z, strength, None, kernels)
    counted = Counted()
    tv._solve_volumes(z + 0.005 * volume((1, 12, 12, 12), seed=1), strength, dual, counted)
    assert counted.names == ["add_up", "begin", "decide", "descend", "look"]


@emulated
def test_iterations_are_limited(kernels: CpuKernels) -> None:
    """To fewer than there are long steps, and to more; the bound is of what it returns."""
    z, strength = volume((1, 6, 7, 8)), torch.full((1, 1, 1, 1), 0.09)
    gaps = []
    for limit in (1, 2, 5, 8, 41):
        tv = TV(ndim=3, tol=1e-6, max_iterations=limit)
        with pytest.warns(PlugstreamWarning, match=f"after {limit} iterations"):
            x, dual = tv._solve_volumes(z, strength, None, kernels)
        gaps.append(float(tv.gap(z.double(), 0.09, dual.double())))
        assert (x - TV(ndim=3, tol=1e-7, max_iterations=20000)(z.double(), 0.3)).square().sum() <= 1.01 * gaps[-1]
    assert gaps == sorted(gaps, reverse=True)


@emulated
def test_a_warm_start_may_be_infeasible_and_is_left_alone(kernels: CpuKernels) -> None:
    tv = TV(ndim=3, tol=3e-4)
    z, strength = volume((1, 6, 7, 8)), torch.full((1, 1, 1, 1), 0.04)
    warm = 3 * volume((1, 3, 6, 7, 8), seed=1)
    copy = warm.clone()
    x, dual = tv._solve_volumes(z, strength, warm, kernels)
    assert torch.equal(warm, copy)
    assert dual.square().sum(1).max() <= 1.0001
    assert (x - TV(ndim=3, tol=1e-7, max_iterations=20000).denoise(z.double(), 0.2)[0]).norm() <= 3e-4 * z.std() * 18.4
    flat, _ = tv._solve_volumes(torch.full((1, 6, 7, 8), 0.3), strength, warm, kernels)
    torch.testing.assert_close(flat, torch.full((1, 6, 7, 8), 0.3))


@emulated
def test_a_fixed_number_of_iterations_is_the_torch_forms(kernels: CpuKernels) -> None:
    tv = TV(ndim=3, tol=0, max_iterations=7)
    z = volume((1, 9, 8, 7))
    x, dual = tv._solve_volumes(z, torch.full((1, 1, 1, 1), 0.04), None, kernels)
    want, field = tv._solve(z, 0.2, None, native=False)
    torch.testing.assert_close(x, want, rtol=0, atol=1e-5)
    torch.testing.assert_close(dual, field, rtol=0, atol=3e-4)


@pytest.mark.gpu
@pytest.mark.parametrize(("isotropic", "low", "high", "shape"), [*CASES, (True, 0.0, 1.0, (65, 40, 70))])
def test_on_a_gpu(isotropic: bool, low: float, high: float, shape: tuple[int, int, int]) -> None:
    tv = TV(isotropic=isotropic, low=low, high=high, ndim=3, tol=3e-4)
    z = volume(shape)
    assert tv_cuda.serves(z.cuda())
    got, dual = tv.denoise(z.cuda(), 0.3)
    want = TV(isotropic=isotropic, low=low, high=high, ndim=3, tol=1e-6, max_iterations=20000).denoise(z.double(), 0.3)[
        0
    ]
    assert (got.cpu() - want).norm() <= 3e-4 * (z - z.mean()).norm()
    assert torch.equal(got, tv.denoise(z.cuda(), 0.3)[0])
    assert torch.equal(tv.denoise(z.cuda(), 0.3, dual)[0], got)
