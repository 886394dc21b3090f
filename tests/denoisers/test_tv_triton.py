"""The fused TV iteration against the torch form: in Triton's interpreter here, on a GPU where there is one."""

import pytest
import torch

from effort import effort, thorough
from plugstream import TV
from triton_interpreter import emulated, interpret

INTERPRETED = """
import torch
from plugstream import TV
from plugstream.denoisers import tv_triton
from plugstream.denoisers.tv_problem import Problem, State
from plugstream.denoisers.tv import _advance
generator = torch.Generator().manual_seed(0)
for isotropic, low, high in ((True, -float("inf"), float("inf")), (False, 0.1, 0.8), (True, 0.2, float("inf"))):
    for shape in SHAPES:
        tv = TV(isotropic=isotropic, low=low, high=high)
        z = torch.rand(shape, generator=generator)
        p = tv._feasible(torch.randn(shape[0], 2, *shape[1:], generator=generator))
        s = tv._feasible(torch.randn(shape[0], 2, *shape[1:], generator=generator))
        strength = 0.3 * torch.rand(shape[0], 1, 1, generator=generator)
        moved = 0.1 * torch.rand(shape[0], 1, 1, generator=generator)  # each image has a box of its own
        problem = Problem(z, strength, low + moved, high + moved if high < 1 else high)
        state = State(p, s, z, torch.full((shape[0],), torch.inf, dtype=torch.float64))
        active = torch.arange(shape[0]) != 1
        copies = [t.clone() for t in (p, s, z)]
        got = tv_triton.advance(tv, problem, state, [0.0, 0.3, 0.5], active)
        want = _advance(tv, problem, state, [0.0, 0.3, 0.5], active)
        for name in ("p", "s", "x", "gap"):
            a, b = getattr(got, name), getattr(want, name)
            assert torch.allclose(a, b, rtol=1e-4, atol=2e-5), (isotropic, shape, name, float((a - b).abs().max()))
        for before, now in zip(copies, (p, s, z)):
            assert torch.equal(before, now)
print("agree")
"""


SHAPES = effort("((3, 5, 7), (2, 8, 1))", "((3, 5, 7), (1, 1, 9), (2, 8, 1), (2, 30, 41))")

COUPLED = """
import torch
from plugstream import TV
from plugstream.denoisers import tv_triton
from plugstream.denoisers.tv_problem import Problem, State
from plugstream.denoisers.tv import _advance
generator = torch.Generator().manual_seed(0)
free, boxed, sums = (True, -float("inf"), float("inf")), (True, 0.2, 0.7), (False, 0.1, 0.8)
for ndim, components, spatial, *modes in CASES:
    for isotropic, low, high in modes:
        coupled = components is not None
        lead = (3, components) if coupled else (3,)
        ones = [1] * ndim
        tv = TV(isotropic=isotropic, ndim=ndim)
        z = torch.rand(*lead, *spatial, generator=generator)
        p, s = (tv._feasible(torch.randn(*lead, ndim, *spatial, generator=generator), coupled) for _ in range(2))
        strength = 0.3 * torch.rand(3, *[1] * (len(lead) - 1), *ones, generator=generator)
        moved = 0.1 * torch.rand(*lead, *ones, generator=generator)  # each component has a box of its own
        problem = Problem(z, strength, low + moved, high + moved if high < 1 else high, ndim, coupled)
        state = State(p, s, z, torch.full((3,), torch.inf, dtype=torch.float64))
        active = torch.arange(3) != 1
        copies = [t.clone() for t in (p, s, z)]
        got = tv_triton.advance(tv, problem, state, [0.0, 0.4], active)
        want = _advance(tv, problem, state, [0.0, 0.4], active)
        for name in ("p", "s", "x", "gap"):
            a, b = getattr(got, name), getattr(want, name)
            assert a.shape == b.shape
            error = float((a - b).nan_to_num(posinf=0).abs().max())
            assert torch.allclose(a, b, rtol=1e-4, atol=2e-5), (isotropic, ndim, components, spatial, name, error)
        for before, now in zip(copies, (p, s, z)):
            assert torch.equal(before, now)
print("agree")
"""


CASES = effort(
    "((3, None, (3, 4, 5), boxed), (3, None, (1, 3, 6), free), (3, 2, (2, 3, 4), sums), (2, 2, (5, 7), free))",
    """(
    (3, None, (4, 5, 9), free, boxed, sums), (3, None, (1, 1, 1), boxed), (3, None, (1, 20, 33), free),
    (3, 5, (2, 3, 7), free, boxed, sums), (2, 2, (5, 7), free, sums), (2, 3, (20, 31), boxed), (2, 1, (6, 5), sums),
)""",
)


@thorough
@emulated
def test_volumes_and_components_are_the_torch_form_in_the_interpreter():
    assert interpret("-c", COUPLED.replace("CASES", CASES)) == "agree\n"


KINDS = {
    "volume": ((2, 20, 31, 37), {"ndim": 3}, torch.float32),
    "complex": ((2, 61, 83), {}, torch.complex64),
    "channels": ((2, 3, 61, 83), {"channels": True}, torch.float32),
    "complex channels of volumes": ((2, 3, 9, 20, 33), {"ndim": 3, "channels": True}, torch.complex64),
}


@pytest.mark.gpu
@pytest.mark.parametrize("isotropic", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_volumes_and_components_have_the_same_prox(kind, isotropic):
    shape, options, dtype = KINDS[kind]
    z = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=dtype)
    sigma = torch.tensor([0.2, 0.5])
    tv = TV(isotropic=isotropic, tol=1e-3, max_iterations=5000, **options)
    want, _ = tv.denoise(z.to(torch.complex128 if dtype.is_complex else torch.float64), sigma)
    got, dual = tv.denoise(z.cuda(), sigma.cuda())
    error = (got.cpu() - want).flatten(1).norm(dim=1) / want.flatten(1).norm(dim=1)
    assert float(error.max()) < 5e-3
    assert got.dtype == dtype
    alone, _ = tv.denoise(z[1].cuda(), sigma[1].cuda())
    assert torch.equal(alone, got[1])
    again, _ = tv.denoise(z.cuda(), sigma.cuda(), dual)
    assert float((again - got).norm() / got.norm()) < 5e-3


@thorough
@emulated
def test_the_kernel_is_the_torch_form_in_the_interpreter():
    assert interpret("-c", INTERPRETED.replace("SHAPES", SHAPES)) == "agree\n"


@pytest.mark.gpu
@pytest.mark.parametrize("isotropic", [True, False])
def test_on_a_gpu_it_is_the_same_prox(isotropic):
    generator = torch.Generator().manual_seed(1)
    z = torch.rand(4, 61, 83, generator=generator)
    sigma = torch.tensor([0.1, 0.0, 0.4, 0.2])
    tv = TV(isotropic=isotropic, low=0.0, tol=1e-3)
    want, _ = tv.denoise(z.double(), sigma)
    got, dual = tv.denoise(z.cuda(), sigma.cuda())
    error = (got.cpu() - want).flatten(1).norm(dim=1) / want.flatten(1).norm(dim=1)
    assert float(error.max()) < 2e-3
    alone, _ = tv.denoise(z[2].cuda(), sigma[2].cuda())  # a number of Python would be squared in double precision
    assert torch.equal(alone, got[2])
    again, _ = tv.denoise(z.cuda(), sigma.cuda(), dual)
    assert float((again - got).norm() / got.norm()) < 2e-3
