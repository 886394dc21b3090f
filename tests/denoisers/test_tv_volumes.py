"""Total variation of volumes, complex images and channels: against a solver written differently, and its properties."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from torch import Tensor

from averaged_pairs import excess, slack
from effort import effort, thorough
from native_build import needs_native
from plugstream import TV, InputError, PlugstreamWarning, RealImaginary, Slices, adapt
from plugstream.denoisers import describe
from plugstream.denoisers.tv_field import differences, differences_adjoint
from tv_admm import admm

F64, C128 = torch.float64, torch.complex128
EXACT = {"tol": 2e-6, "max_iterations": 100_000, "check": 50}
TOLERANCE = {torch.float32: 2e-5, F64: 1e-12, torch.complex64: 2e-5, C128: 1e-12}

# What an image may be: its shape, what TV has to know of it, and its type.
KINDS = {
    "volume": ((3, 4, 5), {"ndim": 3}, F64),
    "complex": ((7, 8), {}, C128),
    "channels": ((3, 6, 7), {"channels": True}, F64),
    "complex volume": ((2, 4, 5), {"ndim": 3}, C128),  # of (3, 4, 5) ADMM needs 40,000 steps
    "channels of volumes": ((2, 3, 4, 5), {"ndim": 3, "channels": True}, F64),
    "complex channels": ((2, 6, 5), {"channels": True}, C128),
    "complex channels of volumes": ((2, 3, 4, 3), {"ndim": 3, "channels": True}, C128),
}


# Every kind isotropic or not, and a few with the torch form, which is slower and compared with the native one below.
KIND_AND_ISOTROPIC = [(kind, one) for n, kind in enumerate(KINDS) for one in effort((n % 2 == 0,), (True, False))]
FEW = ("volume", "complex", "channels")
KIND_AND_FORM = [*((kind, None) for kind in KINDS), *((kind, False) for kind in effort(FEW, KINDS))]


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=C128 if dtype.is_complex else F64)
    return drawn.to(dtype)


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def components(image: Tensor, ndim: int) -> NDArray[np.float64]:
    """An image as (K, *spatial) of real numbers."""
    spatial = image.shape[image.ndim - ndim :]
    both = torch.stack([image.real, image.imag]) if image.is_complex() else image
    return both.reshape(-1, *spatial).numpy()


FORMS = [*((*pair, None) for pair in KIND_AND_ISOTROPIC), *((kind, True, False) for kind in FEW)]


@thorough
@pytest.mark.parametrize(("kind", "isotropic", "native"), FORMS)
def test_against_admm(kind, isotropic, native):
    shape, options, dtype = KINDS[kind]
    z, weight, sigma = noise(*shape, dtype=dtype), 0.9, 0.7
    tv = TV(weight, isotropic=isotropic, **options, **EXACT)
    x, _ = tv._solve(z, sigma, None, native=native)
    want = admm(components(z, tv.ndim), tv.ndim, weight * sigma**2, isotropic, -math.inf, math.inf)
    got = components(x, tv.ndim)
    assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)


@thorough
@pytest.mark.parametrize(
    ("kind", "low", "high", "native"),
    effort(
        [("volume", 0.0, math.inf, None), ("channels", -0.2, 0.5, None), ("channels", 0.0, math.inf, False)],
        list(itertools.product(("volume", "channels"), (0.0, -0.2), (math.inf, 0.5), (None, False))),
    ),
)
def test_the_box_against_admm(kind, low, high, native):
    shape, options, dtype = KINDS[kind]
    # Channels about different values, so that the box cuts into each of them elsewhere.
    z = noise(*shape, dtype=dtype) + 0.3 * torch.arange(shape[0])[:, None, None]
    tv = TV(low=low, high=high, **options, **EXACT)
    x, _ = tv._solve(z, 0.6, None, native=native)
    want = admm(components(z, tv.ndim), tv.ndim, 0.36, True, low, high)
    assert np.linalg.norm(components(x, tv.ndim) - want) <= 1e-5 * np.linalg.norm(want)
    assert float(x.min()) >= low
    assert float(x.max()) <= high


def test_against_scikit_image_in_3d():
    from skimage.restoration import denoise_tv_chambolle

    z = noise(4, 5, 6)
    x = TV(ndim=3, **EXACT)(z, 0.5)
    theirs = denoise_tv_chambolle(z.numpy(), weight=0.25, eps=0, max_num_iter=6000)
    assert relative(torch.from_numpy(theirs), x) <= 1e-4  # it converges slowly


@pytest.mark.parametrize("ndim", [2, 3])
@given(sides=st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6)), seed=st.integers(0, 2**31))
def test_the_adjoint_is_the_adjoint(ndim, sides, seed):
    x, field = noise(2, *sides[-ndim:], seed=seed), noise(2, ndim, *sides[-ndim:], seed=seed + 1)
    forward, back = (differences(x, ndim) * field).sum(), (x * differences_adjoint(field, ndim)).sum()
    assert abs(float(forward - back)) <= 1e-12 * float(x.norm() * field.norm())
    assert float(differences(x, ndim).norm()) ** 2 <= 4 * ndim * float(x.norm()) ** 2  # what the step relies on


@thorough
@pytest.mark.parametrize(
    ("place", "isotropic", "native"),
    [(0, True, None), (1, False, None), (2, True, False), *effort([], [(0, True, False), (2, True, None)])],
)
def test_an_image_is_a_volume_of_one_plane(place, isotropic, native):
    # By another rate, so equal up to the tolerance and not to the bit.
    z = noise(5, 7)
    flat = TV(isotropic=isotropic, **EXACT)._solve(z, 0.6, None, native=native)[0]
    volume = TV(isotropic=isotropic, ndim=3, **EXACT)._solve(z.unsqueeze(place), 0.6, None, native=native)[0]
    assert relative(volume.squeeze(place), flat) <= 1e-5


@pytest.mark.parametrize("native", [None, False])
@pytest.mark.parametrize("isotropic", [True, False])
def test_one_component_is_none(isotropic, native):
    for ndim, shape in ((2, (9, 11)), (3, (5, 6, 7))):
        z, tv = noise(*shape), TV(isotropic=isotropic, ndim=ndim, tol=0, max_iterations=50)
        plain, dual = tv._solve(z, 0.6, None, native=native)
        one = TV(isotropic=isotropic, ndim=ndim, channels=True, tol=0, max_iterations=50)
        x, p = one._solve(z[None], 0.6, None, native=native)
        torch.testing.assert_close(x[0], plain, atol=1e-13, rtol=0)
        torch.testing.assert_close(p[0], dual, atol=1e-13, rtol=0)
        x, p = tv._solve(torch.complex(z, torch.zeros_like(z)), 0.6, None, native=native)
        torch.testing.assert_close(x.real, plain, atol=1e-13, rtol=0)
        torch.testing.assert_close(p.real, dual, atol=1e-13, rtol=0)
        assert not bool(x.imag.any())


def test_complex_images_are_two_channels_and_blind_to_a_global_phase():
    z, tv = noise(8, 9, dtype=C128), TV(**EXACT)
    x = tv(z, 0.6)
    both = TV(channels=True, **EXACT)(torch.stack([z.real, z.imag]), 0.6)
    torch.testing.assert_close(torch.complex(both[0], both[1]), x, atol=1e-12, rtol=0)
    turn = torch.exp(torch.tensor(0.9j, dtype=C128))
    torch.testing.assert_close(tv(turn * z, 0.6), turn * x, atol=1e-5, rtol=0)
    # The parts on their own are not: their edges are not shared.
    assert relative(RealImaginary(tv)(z, 0.6), x) > 1e-2


def test_equal_channels_have_equal_edges():
    # sqrt(K) |Dx| for K equal channels, and K times the distance: the prox of one with strength / sqrt(K).
    z = noise(8, 9)
    x = TV(channels=True, **EXACT)(z.expand(4, 8, 9), 0.6)
    alone = TV(0.5, **EXACT)(z, 0.6)
    for channel in x:
        torch.testing.assert_close(channel, alone, atol=1e-5, rtol=0)


shapes = st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 9), st.integers(1, 14), st.integers(1, 40))


@needs_native
@thorough
@settings(max_examples=effort(20, 60))
@given(
    shape=shapes,
    ndim=st.sampled_from([2, 3]),
    channels=st.booleans(),
    dtype=st.sampled_from(list(TOLERANCE)),
    isotropic=st.booleans(),
    boxed=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_the_native_form_is_the_torch_form(shape, ndim, channels, dtype, isotropic, boxed, seed):
    shape = (shape[0], *(shape[1:2] if channels else ()), *shape[-ndim:])
    z = noise(*shape, seed=seed, dtype=dtype)
    box = {"low": -0.3, "high": 0.8} if boxed and not dtype.is_complex else {}
    tv = TV(0.7, isotropic=isotropic, tol=0, max_iterations=17, ndim=ndim, channels=channels, **box)
    warm = noise(*shape[: len(shape) - ndim], ndim, *shape[-ndim:], seed=seed + 1, dtype=dtype)
    for start in (None, warm):
        x, dual = tv._solve(z, 0.6, start, native=True)
        want, dual_want = tv._solve(z, 0.6, start, native=False)
        assert x.dtype == z.dtype == dual.dtype
        assert dual.shape == warm.shape
        assert float((x - want).abs().max()) <= TOLERANCE[dtype] * float(z.abs().max() + 1)
        assert float((dual - dual_want).abs().max()) <= TOLERANCE[dtype]


@thorough
@pytest.mark.parametrize(("kind", "native"), KIND_AND_FORM)
def test_an_image_does_not_know_its_batch(kind, native):
    shape, options, dtype = KINDS[kind]
    single = torch.complex64 if dtype.is_complex else torch.float32
    z = noise(4, *shape, dtype=single) * torch.tensor([1.0, 0.3, 5.0, 0.0]).reshape(-1, *[1] * len(shape))
    sigma, tv = torch.tensor([0.5, 0.3, 0.2, 1.0]), TV(tol=1e-2, max_iterations=5000, **options)
    _, warm = tv._solve(z + 0.1 * noise(4, *shape, seed=1, dtype=single), sigma, None, native=native)
    for start in (None, warm):
        together, dual = tv._solve(z, sigma, start, native=native)
        for n in range(4):
            alone, dual_alone = tv._solve(z[n], sigma[n], None if start is None else start[n], native=native)
            assert torch.equal(alone, together[n])
            assert torch.equal(dual_alone, dual[n])


@thorough
@pytest.mark.parametrize(("kind", "isotropic"), KIND_AND_ISOTROPIC)
def test_the_tolerance_is_kept_and_the_gap_bounds_the_error(kind, isotropic):
    shape, options, dtype = KINDS[kind]
    z = noise(*shape, dtype=dtype)
    exact = TV(isotropic=isotropic, **options, **EXACT)(z, 0.5)
    spread = float((z - z.mean(tuple(range(z.ndim - TV(**options).ndim, z.ndim)), keepdim=True)).norm())
    for tol in (1e-2, 1e-3, 1e-4):
        assert float((TV(isotropic=isotropic, tol=tol, **options)(z, 0.5) - exact).norm()) <= tol * spread
    for iterations in (1, 5, 20):
        tv = TV(isotropic=isotropic, tol=0, max_iterations=iterations, **options)
        x, dual = tv.denoise(z, 0.5)
        gap = float(tv.gap(z, 0.25, dual))
        assert float(tv.gap(z[None], torch.full((1, *[1] * z.ndim), 0.25), dual[None])) == pytest.approx(gap)
        assert float((x - exact).norm()) <= math.sqrt(gap) + 2e-6 * spread


@pytest.mark.parametrize("kind", KINDS)
def test_the_optimum_costs_less_than_its_neighbours(kind):
    shape, options, dtype = KINDS[kind]
    z, tv = noise(*shape, dtype=dtype), TV(1.1, **options, **EXACT)
    x = tv(z, 0.5)

    def cost(v: Tensor) -> float:
        return float((v - z).abs().square().sum() / 2 + 0.25 * tv.value(v))

    assert all(cost(x + 0.01 * noise(*shape, seed=k, dtype=dtype)) >= cost(x) for k in range(1, 20))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4)
@given(seed=st.integers(0, 500), sigma=st.floats(0.1, 1.0), isotropic=st.booleans())
def test_firmly_nonexpansive(kind, seed, sigma, isotropic):
    shape, options, dtype = KINDS[kind]
    a, b = noise(*shape, seed=seed, dtype=dtype), noise(*shape, seed=seed + 1, dtype=dtype)
    tv = TV(isotropic=isotropic, tol=1e-5, max_iterations=100_000, **options)
    assert excess(tv, 0.5, a, b, sigma) <= slack(a, b)


@thorough
@pytest.mark.parametrize(("kind", "native"), KIND_AND_FORM)
def test_offsets_of_components_lose_nothing(kind, native):
    shape, options, dtype = KINDS[kind]
    z, tv = noise(*shape, dtype=dtype), TV(**options)
    offset = 1e4 * noise(*shape[: len(shape) - tv.ndim], *[1] * tv.ndim, seed=5, dtype=dtype)
    plain, moved = tv._solve(z, 0.5, None, native=native)[0], tv._solve(z + offset, 0.5, None, native=native)[0]
    assert float((moved - offset - plain).abs().max()) <= 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_a_warm_start_changes_only_how_soon(kind):
    shape, options, dtype = KINDS[kind]
    z, tv = noise(2, *shape, dtype=dtype), TV(tol=1e-4, **options)
    exact = TV(**options, **EXACT)(z, 0.5)
    clean, dual = tv.denoise(z, 0.5)
    before = dual.clone()
    for start in (dual, 100 * noise(*dual.shape, seed=2, dtype=dtype)):  # the second is not even a dual
        assert relative(tv.denoise(z, 0.5, start)[0], exact) <= 2e-4
    # From the answer there is nothing left to do, so that even one iteration gives no warning.
    again, _ = TV(tol=1.001e-4, max_iterations=1, **options).denoise(z, 0.5, dual)
    torch.testing.assert_close(again, clean, atol=1e-9, rtol=0)
    assert torch.equal(dual, before)


@pytest.mark.parametrize("kind", KINDS)
def test_simple_cases(kind):
    shape, options, dtype = KINDS[kind]
    z, tv = noise(2, *shape, dtype=dtype), TV(**options)
    assert torch.equal(tv(z, 0.0), z)
    assert tv(z, 0.0).data_ptr() != z.data_ptr()
    assert tv(z[:0], 1.0).shape == (0, *shape)
    flat = torch.full_like(z, 0.7 - 0.2j if dtype.is_complex else 0.7)
    assert torch.equal(tv(flat, 5.0), flat)
    assert torch.equal(tv(z.transpose(-1, -2), 0.3), tv(z.transpose(-1, -2).contiguous(), 0.3))
    clean = tv(z, 0.5)
    z[0].view(-1)[3] = torch.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = tv(z, 0.5)
    assert bool(x[0].isnan().any())
    assert torch.equal(x[1], clean[1])
    assert tv.value(clean).shape == (2,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_solved_in_single(dtype):
    z = noise(5, 6, 7).to(dtype)
    x, dual = TV(ndim=3).denoise(z, 0.5)  # without a warning that the tolerance was not reached
    assert x.dtype == dual.dtype == dtype
    assert torch.equal(x, TV(ndim=3)(z.float(), 0.5).to(dtype))


def test_conjugate_views_are_taken_as_they_are():
    z = noise(6, 7, dtype=C128)
    torch.testing.assert_close(TV()(z.conj(), 0.4), TV()(z, 0.4).conj(), atol=1e-12, rtol=0)


def test_adapt_takes_the_form_of_its_own():
    for ndim, channels, complex in itertools.product((2, 3), (False, True), (False, True)):
        shape = (*((2,) if channels else ()), *((5, 6, 7)[-ndim:]))
        made = adapt(TV(0.3, tol=1e-4), shape, channels=channels, complex=complex)
        assert made == TV(0.3, tol=1e-4, ndim=ndim, channels=channels)
    assert isinstance(adapt(TV(), (5, 6, 7), volume=1), Slices)
    assert isinstance(adapt(TV(low=0.0), (5, 6), complex=True, parts="real-imaginary"), RealImaginary)
    assert describe(TV(ndim=3, channels=True)) == "TV in 3D, channels sharing edges; 1/2-averaged"


def test_mistakes_are_said_in_one_line():
    cases = [
        (lambda: TV(ndim=1), "2 or 3 spatial axes"),
        (lambda: TV(ndim=3)(noise(5, 5), 0.1), "needs 3 axes, D x H x W"),
        (lambda: TV(ndim=3).denoise(torch.zeros(2, 0, 6, 3), 0.1), "none of them empty"),
        (lambda: TV(channels=True).denoise(torch.zeros(0, 6, 3), 0.1), "none of them empty"),
        (lambda: TV(ndim=3)(torch.ones(3, 3, 3, dtype=torch.int64), 0.1), "floating point or complex"),
        (lambda: TV(low=0.0)(noise(5, 5, dtype=C128), 0.1), "complex values have no order"),
        (lambda: TV(high=1.0).value(noise(5, 5, dtype=C128)), "complex values have no order"),
        (lambda: adapt(TV(low=0.0), (5, 5), complex=True), "complex values have no order"),
        (lambda: TV(ndim=3).denoise(noise(4, 4, 4), 0.1, noise(2, 4, 4, 4)), "warm start has shape"),
        (lambda: TV().denoise(noise(4, 4), 0.1, noise(2, 4, 4, dtype=C128)), "warm start has shape"),
        (lambda: TV(channels=True)(noise(2, 3, 4, 4), torch.ones(2, 3)), "sigma has shape"),
    ]
    for call, words in cases:
        with pytest.raises(InputError, match=words) as told:
            call()
        assert "\n" not in str(told.value)
    with pytest.warns(PlugstreamWarning, match="short of its relative tolerance"):
        TV(ndim=3, tol=1e-9, max_iterations=3)(noise(6, 6, 6), 0.5)
