"""TV with bounds of its own at every pixel: the prox of TV on images that are zero outside a support."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from effort import effort, thorough
from plugstream import _native
from plugstream.base.errors import InputError
from plugstream.denoisers import Tiles
from plugstream.denoisers.support import Within, with_support
from plugstream.denoisers.tv import TV, _advance
from plugstream.denoisers.tv_problem import Problem, State
from plugstream.denoisers.wrap import Damping, FromFunction
from triton_interpreter import emulated, interpret

EXACT = {"tol": 1e-7, "max_iterations": 200_000, "check": 50}
FORMS = [False, pytest.param(True, marks=pytest.mark.skipif(_native.load() is None, reason="no native extension"))]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def disc(*shape: int) -> Tensor:
    rows, columns = (torch.arange(n) - n / 2 + 0.3 for n in shape[-2:])
    return torch.hypot(rows[:, None], columns[None]) < 0.45 * min(shape[-2:])


def primal_dual(z: NDArray[np.float64], strength: float, low: float, high: float, inside: NDArray[np.bool_]):
    """The same problem by Chambolle and Pock's method in plain numpy, whose primal step projects onto the set."""

    def gradient(x):
        down, across = np.zeros_like(x), np.zeros_like(x)
        down[:-1], across[:, :-1] = x[1:] - x[:-1], x[:, 1:] - x[:, :-1]
        return down, across

    def adjoint(down, across):
        out = np.zeros_like(down)
        out[:-1] -= down[:-1]
        out[1:] += down[:-1]
        out[:, :-1] -= across[:, :-1]
        out[:, 1:] += across[:, :-1]
        return out

    x = bar = np.where(inside, np.clip(z, low, high), 0)
    p = (np.zeros_like(z), np.zeros_like(z))
    tau = sigma = 1 / math.sqrt(8)
    for _ in range(3500):
        p = tuple(a + sigma * b for a, b in zip(p, gradient(bar), strict=True))
        shrink = np.maximum(1, np.hypot(*p) / strength)
        p = (p[0] / shrink, p[1] / shrink)
        new = (x - tau * adjoint(*p) + tau * z) / (1 + tau)
        new = np.where(inside, np.clip(new, low, high), 0)
        theta = 1 / math.sqrt(1 + tau)  # the data term is strongly convex with constant 1, so steps may change
        tau, sigma = theta * tau, sigma / theta
        bar, x = new + theta * (new - x), new
    return x


@functools.cache
def of_another_solver(low: float, high: float) -> NDArray[np.float64]:
    return primal_dual(noise(11, 9).numpy(), 0.36, low, high, disc(11, 9).numpy())


BOXES = [(-math.inf, math.inf), (0.0, 0.7), (0.2, math.inf)]
# The torch form is ten times slower, and has one box.
PROBLEMS = [(False, *box) for box in effort(BOXES[1:2], BOXES)]
PROBLEMS += [pytest.param(True, *box, marks=FORMS[1].marks) for box in BOXES[: effort(2, 3)]]


@thorough
@pytest.mark.parametrize(("native", "low", "high"), PROBLEMS)
def test_the_prox_is_that_of_another_solver(native, low, high):
    z, inside = noise(11, 9), disc(11, 9)
    x, _ = TV(low=low, high=high, support=inside, **EXACT)._solve(z, 0.6, None, native=native)
    assert np.abs(x.numpy() - of_another_solver(low, high)).max() < 1e-5
    assert (x[~inside] == 0).all()
    # A projection after TV is another image: the support changes what is inside, too.
    after = TV(low=low, high=high, **EXACT)(z, 0.6) * inside
    assert float((after - x).abs().max()) > 1e-2


def test_it_is_firmly_nonexpansive_and_does_not_see_what_is_outside():
    inside = disc(12, 14)
    tv = TV(low=0.0, high=0.8, support=inside, **EXACT)
    for seed in range(4):
        a, b = noise(12, 14, seed=seed), noise(12, 14, seed=seed + 10)
        da, db = tv(a, 0.5), tv(b, 0.5)
        assert float((da - db).square().sum()) <= float(((da - db) * (a - b)).sum()) + 1e-6
        assert torch.equal(tv(torch.where(inside, a, 1e3 * b), 0.5), da)


def test_the_whole_image_as_a_support_changes_nothing_but_rounding():
    z = noise(16, 17)
    everywhere = TV(low=0.0, support=torch.ones(16, 17), **EXACT)(z, 0.4)
    assert torch.allclose(everywhere, TV(low=0.0, **EXACT)(z, 0.4), atol=1e-7)


@pytest.mark.skipif(_native.load() is None, reason="no native extension")
@pytest.mark.parametrize("isotropic", [True, False])
@pytest.mark.parametrize("shape", [(2, 13, 30), (1, 5, 13, 30)])
def test_the_native_form_takes_the_iterations_of_the_torch_form(shape, isotropic):
    z, inside = noise(*shape).float(), disc(13, 30)
    tv = TV(isotropic=isotropic, low=0.0, high=0.9, support=inside, tol=0, max_iterations=9, ndim=len(shape) - 1)
    (x, p), (y, q) = (tv._solve(z, 0.7, None, native=native) for native in (True, False))
    assert torch.allclose(x, y, atol=1e-5)
    assert torch.allclose(p, q, atol=1e-4)


def test_the_gap_is_that_of_the_problem_with_a_support():
    tv, z = TV(low=0.0, support=disc(20, 20), tol=1e-6), noise(20, 20)
    x, dual = tv.denoise(z, 0.5)
    gap = float(tv.gap(z, 0.25, dual))
    cost = 0.5 * float((x - z).square().sum()) + 0.25 * float(tv.value(x))
    better = TV(low=0.0, support=disc(20, 20), **EXACT)(z, 0.5)
    best = 0.5 * float((better - z).square().sum()) + 0.25 * float(tv.value(better))
    assert -1e-9 <= cost - best <= gap + 1e-9
    assert math.isinf(float(tv.value(x + 0.1)))


def test_complex_images_channels_and_volumes_have_supports():
    inside = disc(10, 12)
    waves = torch.complex(noise(10, 12), noise(10, 12, seed=1))
    assert (TV(support=inside)(waves, 0.3)[~inside] == 0).all()
    colours = TV(support=inside, channels=True)(noise(3, 10, 12), 0.3)
    assert (colours[:, ~inside] == 0).all()
    volume = TV(support=inside, ndim=3)(noise(4, 10, 12), 0.3)
    assert (volume[:, ~inside] == 0).all()
    assert bool((volume[:, inside] != 0).any())


def test_windows_tiles_and_sizes():
    inside, z = disc(40, 44), noise(40, 44)
    tv = TV(low=0.0, support=inside)
    part = tv.window((slice(3, 20), slice(5, 30)))
    assert torch.equal(part.support, inside[3:20, 5:30])
    tiled = Tiles(tv, 24, 16)(z, 0.1)
    assert (tiled[~inside] == 0).all()
    assert float((tiled - tv(z, 0.1)).abs().max()) < 0.05
    for wrong in (TV(support=disc(40, 40)), Within(FromFunction(lambda x: x), disc(40, 40))):
        with pytest.raises(InputError, match="the support is 40 x 40"):
            wrong(z, 0.1)
    with pytest.raises(InputError, match="empty"):
        TV(support=torch.zeros(4, 4))


def test_other_denoisers_are_kept_within_it_from_outside():
    inside, z = disc(20, 22), noise(20, 22)
    blur = with_support(FromFunction(lambda x: 0.5 * x + 1.0), inside)
    assert isinstance(blur, Within)
    assert torch.equal(blur(z, 0.1), torch.where(inside, 0.5 * z + 1.0, 0.0))
    damped = with_support(Damping(TV(), 0.5), inside)
    assert isinstance(damped, Damping)
    assert damped.denoiser.support is not None
    assert with_support(TV(), None) == TV()


INTERPRETED = """
import torch
from plugstream import TV
from plugstream.denoisers import tv_triton
from plugstream.denoisers.tv_problem import Problem, State
from plugstream.denoisers.tv import _advance
generator = torch.Generator().manual_seed(0)
for ndim, lead, coupled, spatial in ((2, (2,), False, (6, 9)), (2, (2, 3), True, (5, 7)), (3, (2,), False, (3, 4, 5))):
    tv = TV(ndim=ndim)
    z = torch.rand(*lead, *spatial, generator=generator)
    p = tv._feasible(torch.randn(*lead, ndim, *spatial, generator=generator), coupled)
    strength = 0.3 * torch.rand(2, *[1] * (len(lead) - 1), *[1] * ndim, generator=generator)
    inside = torch.rand(*[1] * len(lead), *spatial, generator=generator) > 0.3
    low, high = (torch.where(inside, bound, 0.1) for bound in (0.2, float("inf")))
    problem = Problem(z, strength, low, high, ndim, coupled, mapped=True)
    state = State(p, p, z, torch.full((2,), torch.inf, dtype=torch.float64))
    active = torch.ones(2, dtype=torch.bool)
    got = tv_triton.advance(tv, problem, state, [0.0, 0.4], active)
    want = _advance(tv, problem, state, [0.0, 0.4], active)
    for name in ("p", "s", "x", "gap"):
        a, b = getattr(got, name), getattr(want, name)
        assert torch.allclose(a, b, rtol=1e-4, atol=2e-5), (ndim, coupled, name, float((a - b).abs().max()))
print("agree")
"""


@emulated
def test_the_triton_form_has_bounds_of_every_pixel():
    assert interpret("-c", INTERPRETED) == "agree\n"


@pytest.mark.gpu
def test_on_a_gpu_it_is_what_it_is_on_the_cpu():
    inside, z = disc(120, 130), noise(120, 130).float()
    tv = TV(low=0.0, high=0.9, support=inside, tol=1e-4)
    there = tv(z.cuda(), 0.4).cpu()
    assert (there[~inside] == 0).all()
    assert torch.allclose(there, tv(z, 0.4), atol=1e-3)


def test_maps_and_numbers_are_the_same_problem():
    z, strength = noise(1, 9, 8), torch.full((1, 1, 1), 0.2, dtype=torch.float64)
    start = State(torch.zeros(1, 2, 9, 8).double(), torch.zeros(1, 2, 9, 8).double(), z, torch.zeros(1).double())
    maps = Problem(z, strength, torch.zeros(1, 9, 8).double(), torch.full((1, 9, 8), 0.5).double(), mapped=True)
    a = _advance(TV(), maps, start, [0.0, 0.3], torch.ones(1, dtype=torch.bool))
    b = _advance(TV(), Problem(z, strength, 0.0, 0.5), start, [0.0, 0.3], torch.ones(1, dtype=torch.bool))
    assert torch.equal(a.x, b.x)
