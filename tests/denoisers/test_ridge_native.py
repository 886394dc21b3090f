"""The native form of the ridge prior does what the torch form says, on every instruction set, for any threads."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor

from effort import effort
from native_build import LEVELS, needs_native
from plugstream import _native
from plugstream.base.errors import PlugstreamWarning
from plugstream.denoisers import ridge_native
from plugstream.denoisers.ridge import ConvexRidge
from plugstream.denoisers.ridge_native import Solver
from plugstream.denoisers.ridge_prior import Ridges, prox

pytestmark = [needs_native, pytest.mark.usefixtures("one_thread")]

LEVEL = torch.tensor([0.03, 0.4])


def random_ridges(size: int = 5, pairs: int = 2, ratios: int = 2, limit: float = 2.0) -> Ridges:
    rng = torch.Generator().manual_seed(size + pairs)
    return Ridges(
        torch.randn(2 * pairs, size, size, generator=rng),
        torch.randn(2, 2 * pairs, ratios, generator=rng) - 1,
        torch.randn(2, 2 * pairs, generator=rng) - 1,
        torch.tensor([0.02, 0.2]),
        torch.linspace(1, 4, ratios),
        torch.tensor(limit),
    ).requires_grad_(False)


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape[0], 1, *shape[1:], generator=torch.Generator().manual_seed(seed))


def solve(solver: Solver, z: Tensor, level: Tensor = LEVEL, start: Tensor | None = None, **given) -> Tensor:
    options = {"tol": 1e-4, "patience": 1000, "max_iterations": 2000} | given
    return solver(z, level, start, **options)[0]


def gradient(ridges: Ridges, z: Tensor, level: Tensor, instructions: str) -> Tensor:
    """By one long step from z without momentum, of which it is nearly all: no digit of it is lost."""
    solver, step = Solver(ridges), 1024.0
    for sigma in level.tolist():
        long = solver.profiles(sigma)._replace(rates=np.array([step, 0, 0, 0], np.float32))
        solver._levels[sigma] = long
    found = solve(solver, z, level, tol=0.0, max_iterations=1, instructions=instructions)
    return (z.double() - found.double()) / step


# Filters around what fits into registers at once, in number and size; images from as narrow as a filter reaches, over
# one pixel more than it, to widths around multiples of 4, 8 and 16 strips; one ratio to five.
CASES = [
    (3, 1, 1, (1, 4)),
    (3, 2, 2, (9, 17)),
    (5, 3, 3, (2, 2)),
    (9, 12, 2, (4, 10)),
    (9, 12, 2, (10, 33)),
    (7, 13, 5, (8, 64)),
    (13, 3, 2, (14, 31)),
    (15, 7, 4, (8, 100)),
    (9, 25, 2, (5, 5)),
]


@pytest.mark.parametrize(("size", "pairs", "ratios", "shape"), CASES)
def test_its_gradient_is_that_of_the_torch_form_to_rounding(size, pairs, ratios, shape):
    ridges, z = random_ridges(size, pairs, ratios), images(2, *shape)
    expected = Solver(ridges)._ridges.at(LEVEL.double()).gradient(z.double())
    for level in LEVELS:
        error = gradient(ridges, z, LEVEL, level) - expected
        assert float(error.abs().max()) <= 5e-7 * float(expected.abs().max()), level


@pytest.mark.parametrize(("size", "pairs", "ratios", "shape"), CASES[:3])
@pytest.mark.parametrize("patience", [1000, 3])
def test_it_is_as_near_to_the_prox_as_tol_promises(size, pairs, ratios, shape, patience):
    """By the heavy ball alone, and by Nesterov's method after three of its iterations; from z and from elsewhere."""
    ridges, z = random_ridges(size, pairs, ratios), images(2, *shape)
    exact, done = prox(Solver(ridges)._ridges.at(LEVEL.double()), z.double(), 1e-8, 20_000, patience=patience)
    assert done
    spread = (z - z.mean((2, 3), keepdim=True)).flatten(1).norm(dim=1)
    for level in LEVELS:
        for start in (None, images(2, *shape, seed=1)):
            found = solve(Solver(ridges), z, start=start, patience=patience, instructions=level)
            assert bool(((found - exact).flatten(1).norm(dim=1) <= 1.01e-4 * spread).all()), level


def test_it_iterates_as_the_torch_form_does():
    """Just as many iterations, with the change of method in between: the same image, not only one near the prox."""
    ridges, z = random_ridges(), images(2, 12, 19)
    expected, _ = prox(Solver(ridges)._ridges.at(LEVEL.double()), z.double(), 0.0, 7, patience=3)
    found = solve(Solver(ridges), z, tol=0.0, patience=3, max_iterations=7)
    assert float((found - expected).abs().max()) < 1e-5


@pytest.mark.parametrize("shape", effort([(1, 130, 20), (5, 50, 9)], [(1, 130, 40), (3, 64, 33), (5, 50, 20)]))
def test_the_same_bits_for_any_number_of_threads(shape):
    ridges, z = Solver(random_ridges(9)), images(*shape)
    level = torch.linspace(0.02, 0.3, len(z))
    one = solve(ridges, z, level)
    for threads in (2, 3, 8):
        torch.set_num_threads(threads)
        for _ in range(2):  # who does what differs from run to run
            assert torch.equal(solve(ridges, z, level), one)


def test_an_image_has_the_same_bits_alone_and_in_a_batch():
    z, level = images(5, 50, 20), torch.tensor([0.1, 0.0, 0.02, 0.3, 0.1])
    solver = Solver(random_ridges())
    torch.set_num_threads(2)
    together = solve(solver, z, level)
    for k in range(5):
        assert torch.equal(solve(solver, z[k : k + 1], level[k : k + 1])[0], together[k])
    assert torch.equal(together[1], z[1])


def test_a_nan_makes_its_own_image_nan_and_ends():
    z = images(3, 10, 12)
    z[1, 0, 4, 5] = torch.nan
    for level in LEVELS:
        found = solve(Solver(random_ridges()), z, torch.full((3,), 0.1), instructions=level)
        assert bool(found[1].isnan().all())
        assert bool(found[[0, 2]].isfinite().all())


def test_values_that_are_not_finite_do_no_harm():
    """Neither to the image that has them nor to one that the same solver is given next."""
    for level in LEVELS:
        solver, fine = Solver(random_ridges()), images(1, 10, 12)
        expected = solve(solver, fine, LEVEL[:1], max_iterations=20, instructions=level)
        for value in (torch.inf, -torch.inf, 1e38, -3e38):
            z = images(1, 10, 12)
            z[0, 0, 3:5, 7] = value
            before = z.clone()
            solve(solver, z, LEVEL[:1], max_iterations=20, instructions=level)
            assert torch.equal(z, before)
            again = solve(solver, fine, LEVEL[:1], max_iterations=20, instructions=level)
            assert torch.equal(again, expected)


def test_a_constant_image_comes_back_from_any_start():
    z = torch.full((1, 1, 9, 12), 0.7)
    assert torch.equal(solve(Solver(random_ridges()), z, LEVEL[:1], images(1, 9, 12)), z)


def test_calls_from_several_threads_at_once():
    torch.set_num_threads(2)
    solver = Solver(random_ridges())
    stacks = [images(1, 30 + 9 * k, 70 - 7 * k, seed=k) for k in range(4)]
    expected = [solve(solver, z, LEVEL[1:]) for z in stacks]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda z: solve(solver, z, LEVEL[1:]), stacks * 2))
    assert all(torch.equal(a, b) for a, b in zip(found, expected * 2, strict=True))


def test_the_denoiser_uses_it_and_is_as_near_as_promised(monkeypatch):
    """What ships, with a scale and a warm start, against double precision, which the kernel does not serve."""
    z = 255 * images(2, 3, 20, 24).cumsum(-1).reshape(2, 3, 20, 24)[:, :1] / 10
    sigma = torch.tensor([[5.0], [25.0]])
    denoiser = ConvexRidge(scale=255)
    calls = []
    original = ridge_native.Solver.__call__
    monkeypatch.setattr(ridge_native.Solver, "__call__", lambda *a, **k: calls.append(1) or original(*a, **k))
    found, warm = denoiser.denoise(z, sigma)
    again, _ = denoiser.denoise(z, sigma, warm)
    assert len(calls) == 2
    exact = ConvexRidge(scale=255, tol=1e-7)(z.double(), sigma.double())
    assert len(calls) == 2
    spread = (z - z.mean((-2, -1), keepdim=True)).flatten(1).norm(dim=1)
    for one in (found, again):
        assert bool(((one - exact).flatten(1).norm(dim=1) <= 1.01e-4 * spread).all())
    assert denoiser(z[:0], 5.0).shape == (0, 1, 20, 24)


def test_too_few_iterations_are_a_warning():
    denoiser = ConvexRidge(random_ridges(), max_iterations=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        denoiser(images(1, 9, 9), 0.4)
    assert [one.category for one in caught] == [PlugstreamWarning]


def test_profiles_of_many_levels_are_formed_anew_not_kept_forever():
    solver = Solver(random_ridges())
    first = solver.profiles(0.1)
    assert solver.profiles(0.1) is first
    for k in range(70):
        solver.profiles(0.2 + k / 1000)
    assert len(solver._levels) <= 64
    assert np.array_equal(solver.profiles(0.1).slopes, first.slopes)


def test_arrays_that_do_not_fit_are_refused():
    module, solver = _native.kernels(), Solver(random_ridges())
    known = solver.profiles(0.1)
    z, ones = images(1, 9, 12).numpy()[:, 0], np.ones(1, bool)
    out = np.zeros_like(z)
    good = {
        "taps": solver.taps,
        "slopes": known.slopes[None],
        "reaches": known.reaches[None],
        "rates": known.rates[None],
    }
    good |= {"tol": 1e-3, "patience": 5, "most": 5, "threads": 1}
    module.ridge(z, None, ones, out, ones, **good)
    for arrays in ((z[:, :1].copy(), None, ones, out[:, :1].copy(), ones), (z, z[:, :3].copy(), ones, out, ones),
                   (z, None, np.ones(2, bool), out, ones), (z, None, ones, out[:, :9, :9].copy(), ones),
                   (z, None, ones, out, np.ones(2, bool)), (z.astype(np.float64), None, ones, out, ones),
                   (z[:, :, ::-1], None, ones, out, ones)):  # fmt: skip
        with pytest.raises((TypeError, ValueError)):
            module.ridge(*arrays, **good)
    for name in ("taps", "slopes", "reaches", "rates"):
        with pytest.raises(ValueError, match="must have"):
            module.ridge(z, None, ones, out, ones, **(good | {name: np.repeat(good[name], 2, 0)}))
    for wrong in ({"taps": solver.taps[:, :, :1, :1].copy()}, {"most": 0}, {"tol": -1.0}, {"level": "abacus"}):
        with pytest.raises(ValueError, match=r"must|no such"):
            module.ridge(z, None, ones, out, ones, **(good | wrong))


def test_it_serves_single_precision_on_the_cpu():
    assert ridge_native.serves(images(1, 8, 8))
    assert not ridge_native.serves(images(1, 8, 8).double())
    assert not ridge_native.serves(images(1, 8, 8).to("meta"))
