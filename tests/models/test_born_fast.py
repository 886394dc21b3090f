"""The fast Born method against the dense one and SciPy's direct sum, its adjoint, and where it is refused."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.special import hankel1

import plugstream.models.born_fast as fast_module
from effort import effort, thorough
from plugstream import BornGeometry, BornModel, Grid, InputError, LeastSquares, ring
from plugstream.instruments.base import Experiment
from plugstream.instruments.born import instrument_parts
from plugstream.models.born_expansion import (
    choose_directions,
    largest_gain,
    plan_expansion,
    smallest_radius,
    support_radius,
)
from plugstream.models.born_fast import expand, fold
from plugstream.models.nufft import finufft_is_here
from plugstream.runs.plan import plan
from plugstream.settings import Settings

F64 = torch.float64
FORMS = ["grid", "finufft"] if finufft_is_here() else ["grid"]


def relative(got, want):
    return float(torch.linalg.vector_norm(got.to(want.dtype) - want) / torch.linalg.vector_norm(want))


@st.composite
def geometries(draw, eps, single):
    """Any grid, wavelength and sources beyond the smallest radius, each at its own distance and angle."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    shape = (draw(st.integers(1, 24)), draw(st.integers(1, 24)))
    pixel = 0.01
    center = (draw(st.sampled_from([0.0, 0.031])), draw(st.sampled_from([0.0, -0.2])))
    grid = Grid(shape, pixel, center)
    wavelength = draw(st.floats(0.015, 0.2))  # from less than two pixels a wavelength, where frequencies fold, to waves
    background = draw(st.sampled_from([1.0, 2.3]))  # as long as the image
    k = 2 * np.pi * np.sqrt(background) / wavelength
    a = support_radius(grid)
    least = smallest_radius(k * a, 0.1 * eps, largest_gain(eps, single=single)) / k
    counts = draw(st.integers(1, 7)), draw(st.integers(1, 9))

    def outside(count):
        near = 1 + draw(st.sampled_from([1e-3, 0.2, 20.0])) * rng.random(count)
        angle = 2 * np.pi * rng.random(count)
        return np.array(center) + (least * near)[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)

    plane, far = draw(st.booleans()), draw(st.booleans())
    return BornGeometry(
        transmitters=None if plane else outside(counts[0]),
        plane_waves=ring(counts[0], 1.0, start=draw(st.floats(0, 360))) if plane else None,
        receivers=ring(counts[1], 2.0, start=draw(st.floats(0, 360))) if far else outside(counts[1]),
        far_field=far,
        wavelength=wavelength,
        background=background,
        grid=grid,
        mask=rng.random(counts) < 0.7 if draw(st.booleans()) else None,
    )


def white(shape, seed=0, dtype=F64):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def residual_scale(geometry, model, image):
    """The norm that eps is relative to: the data without a mask, which may hide all but the weakest part."""
    return torch.linalg.vector_norm(BornModel(replace(geometry, mask=None), method="dense", dtype=F64).forward(image))


@settings(max_examples=effort(10, 60))
@given(
    data=st.data(),
    eps=st.sampled_from([1e-3, 1e-5, 1e-6, 1e-9, 1e-12]),
    form=st.sampled_from(["auto", *FORMS]),
    single=st.booleans(),
    seed=st.integers(0, 100),
)
def test_it_agrees_with_the_dense_method(data, eps, form, single, seed):
    single = single and eps >= 1e-6
    dtype = torch.float32 if single else F64
    geometry = data.draw(geometries(eps, single))
    dense = BornModel(geometry, method="dense", dtype=F64)
    fast = BornModel(geometry, method="fast", eps=eps, dtype=dtype, nufft=form)
    assert (dense.method, fast.method) == ("dense", "fast")
    x = white(geometry.grid.shape, seed)
    y = dense.forward(x)
    # Few random numbers may cancel in the data; eps is meant for the sum of squares that is expected of them.
    expected = np.sqrt(
        sum(
            float((dense.engine.green.abs().square() @ dense.engine.fields[v].abs().square()).sum())
            for v in range(geometry.n_views)
        )
    )
    bound = eps * max(expected, float(residual_scale(geometry, dense, x)))
    assert float(torch.linalg.vector_norm(fast.forward(x.to(dtype)).to(y.dtype) - y)) <= bound
    z = torch.complex(white(y.shape, seed), white(y.shape, seed + 1))
    back = dense.adjoint(z)
    z_norm, spread = float(torch.linalg.vector_norm(z)), expected / np.sqrt(z.numel())
    error = float(torch.linalg.vector_norm(fast.adjoint(z.to(fast.data_dtype)).to(F64) - back))
    assert error <= 2 * eps * max(float(torch.linalg.vector_norm(back)), z_norm * spread)


@settings(max_examples=effort(10, 40))
@given(
    data=st.data(),
    eps=st.sampled_from([1e-3, 1e-6, 1e-12]),
    form=st.sampled_from(FORMS),
    batch=st.lists(st.integers(1, 3), max_size=2),
)
def test_the_adjoint_is_exact_whatever_eps(data, eps, form, batch):
    geometry = data.draw(geometries(eps, False))
    model = BornModel(geometry, method="fast", eps=eps, dtype=F64, nufft=form)
    views = st.lists(st.integers(0, geometry.n_views - 1), min_size=1, max_size=12)
    index = data.draw(st.one_of(st.none(), views))
    count = geometry.n_views if index is None else len(index)
    x = white((*batch, *geometry.grid.shape), 1)
    z = torch.complex(white((*batch, count, geometry.n_receivers), 2), white((*batch, count, geometry.n_receivers), 3))
    y = model.forward(x, index)
    left = torch.sum(y * z.conj(), dim=(-2, -1)).real
    right = torch.sum(x * model.adjoint(z, index), dim=(-2, -1))
    scale = torch.linalg.vector_norm(y) * torch.linalg.vector_norm(z) + 1e-300
    assert float((left - right).abs().max() / scale) <= 1e-12


@pytest.mark.parametrize("eps", [1e-3, 1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize("form", FORMS)
def test_the_adjoint_is_exact_at_the_smallest_radius(eps, form):
    grid, k = Grid((24, 24), 0.01), 2 * np.pi / 0.05
    least = smallest_radius(k * support_radius(grid), 0.1 * eps, largest_gain(eps, single=False)) / k
    geometry = BornGeometry.rings(grid, 0.05, views=7, receivers=9, radius=1.0001 * least)
    model = BornModel(geometry, method="fast", eps=eps, dtype=F64, nufft=form)
    for seed in range(3):
        x = white((24, 24), seed)
        y = model.forward(x)
        z = torch.complex(white((7, 9), seed + 1), white((7, 9), seed + 2))
        gap = float((y * z.conj()).real.sum() - (x * model.adjoint(z)).sum())
        assert abs(gap) <= 1e-12 * float(torch.linalg.vector_norm(y) * torch.linalg.vector_norm(z))


def test_it_is_the_direct_sum():
    rng = np.random.default_rng(5)
    geometry = BornGeometry(
        transmitters=ring(3, 0.4, start=17) + np.array([0.02, 0.0]),
        receivers=0.45 * (1 + rng.random((5, 1))) * ring(5, 1.0, start=3),
        wavelength=0.031,
        grid=Grid((9, 12), 0.007, (0.01, -0.02)),
        background=1.3,
    )
    k0 = 2 * np.pi / geometry.wavelength
    k = k0 * np.sqrt(1.3)
    image = rng.standard_normal((9, 12))
    want = np.zeros((3, 5), dtype=complex)
    for i in range(9):
        for j in range(12):
            p = np.array([0.01 + (j - 6) * 0.007, -0.02 + (i - 4) * 0.007])
            u = 0.25j * hankel1(0, k * np.linalg.norm(geometry.transmitters - p, axis=1))
            g = 0.25j * hankel1(0, k * np.linalg.norm(geometry.receivers - p, axis=1))
            want += k0**2 * 0.007**2 * image[i, j] * np.outer(u, g)
    for eps in (1e-3, 1e-7, 1e-12):
        got = BornModel(geometry, method="fast", eps=eps, dtype=F64).forward(torch.from_numpy(image)).numpy()
        assert np.linalg.norm(got - want) <= eps * np.linalg.norm(want)


def test_far_field_and_plane_waves_are_limits_of_line_sources():
    grid = Grid((7, 6), 0.01, (0.03, 0.01))
    s, t = ring(5, 1.0, start=40), ring(4, 1.0, start=11)
    far = BornGeometry(plane_waves=t, receivers=s, far_field=True, wavelength=0.05, grid=grid)
    r = 3e6
    near = BornGeometry(transmitters=-r * t, receivers=r * s, wavelength=0.05, grid=grid)
    x, k = white((7, 6)), far.wavenumber
    y = BornModel(near, method="dense", dtype=F64).forward(x).numpy()
    source = 0.25j * hankel1(0, k * r)  # the wave of the line source at the origin, which the plane wave has as 1
    limit = y / source * np.sqrt(r) * np.exp(-1j * k * r)
    for method in ("dense", "fast"):
        got = BornModel(far, method=method, dtype=F64).forward(x).numpy()
        assert np.linalg.norm(got - limit) <= 2e-6 * np.linalg.norm(limit)


@thorough
@pytest.mark.parametrize("eps", [1e-3, 1e-5])
def test_the_papers_experiment_in_single_precision(eps):
    size = effort(32, 96)
    geometry = BornGeometry.paper(size)
    x = torch.rand(size, size, dtype=F64, generator=torch.Generator().manual_seed(0))
    dense, fast = BornModel(geometry, method="dense", dtype=F64), BornModel(geometry, method="fast", eps=eps)
    y = dense.forward(x)
    assert relative(fast.forward(x.float()), y) <= eps
    assert relative(fast.adjoint(y.to(torch.complex64)), dense.adjoint(y)) <= eps


@pytest.fixture
def pair():
    geometry = BornGeometry.rings(Grid((12, 10), 0.01), 0.05, views=7, receivers=9, radius=0.3, receiver_radius=0.25)
    mask = np.random.default_rng(3).random((7, 9)) < 0.8
    return {
        masked: (
            BornModel(replace(geometry, mask=mask if masked else None), method="dense", dtype=F64),
            BornModel(replace(geometry, mask=mask if masked else None), method="fast", eps=1e-12, dtype=F64),
        )
        for masked in (False, True)
    }


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("views", [None, [3], [6, 0, 6], list(range(7)) * 4])
def test_everything_else_agrees_too(pair, masked, views):
    dense, fast = pair[masked]
    count = 7 if views is None else len(views)
    x = white((3, 12, 10))
    y = torch.complex(white((count, 9)), white((count, 9), 1))
    weights = torch.linspace(0.5, 2, count, dtype=F64)
    w = weights[:, None]
    want = dense.adjoint(w * (dense.forward(x, views) - dense.restrict(y, views)), views)
    for model in (dense, fast):
        assert relative(model.gradient(x, model.restrict(y, views), views, weights), want) < 1e-10
        assert relative(model.gradient(x, y.expand(3, -1, -1), views, weights), want) < 1e-10
        one = model.gradient(x[0], y.expand(3, -1, -1), views)
        assert relative(one[1], dense.adjoint(dense.forward(x[0], views) - y, views)) < 1e-10
        normal = dense.adjoint(w * dense.forward(x, views), views)
        assert relative(model.normal(views, weights)(x), normal) < 1e-10
        assert relative(model.normal(views)(x[0]), dense.adjoint(dense.forward(x[0], views), views)) < 1e-10
        index = torch.arange(7) if views is None else torch.tensor(views)
        images = white((count, 12, 10), 5)
        each = torch.stack(
            [dense.adjoint(dense.forward(a, [int(v)]), [int(v)]) for a, v in zip(images, index, strict=True)]
        )
        assert relative(model.normal_each(images, index), each) < 1e-10


@pytest.mark.parametrize("masked", [False, True])
def test_norms_of_views_are_singular_values(pair, masked):
    dense, fast = pair[masked]
    basis = torch.eye(120, dtype=F64).reshape(120, 12, 10)
    matrix = dense.forward(basis).permute(1, 2, 0)  # (views, receivers, pixels)
    want = torch.linalg.matrix_norm(torch.cat([matrix.real, matrix.imag], 1), 2).square()
    for model in (dense, fast):
        got = model.squared_norms(torch.arange(7), 1e-4)
        assert bool((got >= want * (1 - 1e-9)).all())
        assert bool((got <= want * (1 + 1.1e-4)).all())


def test_the_gram_forms_of_the_normal_operator_are_used_and_right(monkeypatch):
    # P is about 30 here: few and many sources and receivers go through every branch.
    grid, x = Grid((9, 8), 0.01), white((2, 9, 8))
    for views, receivers in ((3, 5), (3, 40), (40, 5), (40, 40)):
        geometry = BornGeometry.rings(grid, 0.05, views=views, receivers=receivers, radius=0.3)
        dense = BornModel(geometry, method="dense", dtype=F64)
        fast = BornModel(geometry, method="fast", eps=1e-12, dtype=F64)
        weights = torch.linspace(1, 2, views, dtype=F64)
        assert relative(fast.normal(None, weights)(x), dense.normal(None, weights)(x)) < 1e-10
        assert relative(fast.forward(x), dense.forward(x)) < 1e-11
        z = torch.complex(white((2, views, receivers)), white((2, views, receivers), 1))
        assert relative(fast.adjoint(z), dense.adjoint(z)) < 1e-10


def test_blocks_of_images_change_nothing(pair, monkeypatch):
    _, fast = pair[True]
    x, views = white((5, 12, 10)), torch.tensor([0, 1, 2, 3, 3])
    y = fast.forward(x)
    want = [y, fast.adjoint(y), fast.gradient(x, y[0]), fast.normal_each(x, views), fast.squared_norms(views, 1e-3)]
    monkeypatch.setattr(fast_module, "_BLOCK_VALUES", 1)
    got = [
        fast.forward(x), fast.adjoint(y), fast.gradient(x, y[0]), fast.normal_each(x, views),
        fast.squared_norms(views, 1e-3),
    ]  # fmt: skip
    for a, b, tol in zip(got, want, [1e-12] * 4 + [2e-3], strict=True):  # Lanczos begins elsewhere in other blocks
        assert relative(a, b) < tol


def test_expand_is_the_table_of_products_and_fold_its_transpose():
    rng = np.random.default_rng(2)
    half, points = 5, rng.standard_normal((11, 2))
    s, x = rng.standard_normal((half, 2)), rng.standard_normal(11)
    waves = np.concatenate([np.cos(points @ s.T), np.sin(points @ s.T)], 1)  # (points, P)
    want = 2 * np.einsum("n,na,nb->ab", x, waves, waves)
    sign = np.where(np.tril(np.ones((half, half))), 1, -1)
    phase = points @ s.T
    values = np.einsum("n,npq->pq", x, np.exp(1j * (phase[:, :, None] + sign * phase[:, None, :])))
    got = expand(torch.from_numpy(values)[None], torch.tensor([x.sum()]))[0].numpy()
    assert np.allclose(got, want, atol=1e-12)
    gamma = white((1, 2 * half, 2 * half))
    a, total = fold(gamma)
    left = float((torch.from_numpy(want) * gamma).sum())
    right = float((torch.from_numpy(values) * a[0].conj()).real.sum() + x.sum() * total)
    assert left == pytest.approx(right, rel=1e-12)


def test_a_circle_through_the_corners_is_refused_with_the_smallest_radius():
    grid = Grid((32, 32), 0.01)
    corner = support_radius(grid)
    for eps, dtype in ((1e-5, torch.float32), (1e-9, F64), (1e-3, torch.float32)):

        def circle(radius):
            return BornGeometry.rings(grid, 0.05, views=5, receivers=6, radius=1.0, receiver_radius=radius)

        with pytest.raises(InputError, match=r"receiver \d is .* needs at least") as caught:
            BornModel(circle(corner), method="fast", eps=eps, dtype=dtype)
        assert "\n" not in str(caught.value)
        least = float(str(caught.value).split("at least ")[1].split(" m")[0])
        assert corner < least < 1.8 * corner
        with pytest.raises(InputError, match="needs at least"):
            BornModel(circle(0.995 * least), method="fast", eps=eps, dtype=dtype)
        geometry = circle(least)
        fast = BornModel(geometry, method="fast", eps=eps, dtype=dtype)
        dense = BornModel(geometry, method="dense", dtype=F64)
        x = white((32, 32))
        assert relative(fast.forward(x.to(dtype)), dense.forward(x)) <= eps
        automatic = BornModel(circle(corner), eps=eps, dtype=dtype)
        assert automatic.method == "dense"
        assert "needs at least" in automatic.describe()


def test_auto_takes_the_cheaper_and_says_so(small_geometry):
    small, large = BornModel(small_geometry), BornModel(BornGeometry.paper())
    assert (small.method, large.method) == ("dense", "fast")
    assert large.held < 40e6
    for model in (small, large):
        assert "MB with the fast method" in model.describe()
        assert "MB with the dense one" in model.describe()
    fields = BornGeometry(receivers=ring(4, 1.0), wavelength=0.05, grid=Grid((3, 3), 0.01), fields=np.ones((2, 3, 3)))
    assert BornModel(fields).method == "dense"
    with pytest.raises(InputError, match="not given fields"):
        BornModel(fields, method="fast")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "slow"}, "no method 'slow'"),
        ({"eps": 1e-2}, "eps must be from 1e-06 to 0.001 in float32, not 0.01"),
        ({"eps": 1e-7}, "eps must be from 1e-06"),
        ({"eps": 1e-13, "dtype": F64}, "eps must be from 1e-12 to 0.001 in float64"),
        ({"eps": float("nan")}, "eps must be"),
        ({"method": "fast", "nufft": "cufinufft"}, "cufinufft computes on cuda"),
        ({"method": "fast", "nufft": "fftw"}, "no non-uniform FFT 'fftw'"),
    ],
)
def test_bad_options_are_refused(small_geometry, options, message):
    with pytest.raises(InputError, match=message):
        BornModel(small_geometry, **options)


def test_masked_nan_is_never_looked_at(pair):
    _, fast = pair[True]
    x = white((12, 10))
    y = fast.forward(x)
    poisoned = torch.where(torch.from_numpy(fast.geometry.mask), y, complex("nan"))
    assert torch.equal(fast.adjoint(poisoned), fast.adjoint(y))
    assert torch.equal(fast.gradient(2 * x, poisoned), fast.gradient(2 * x, y))


def test_least_squares_is_the_same_through_either(pair):
    dense, fast = pair[True]
    y = torch.complex(white((7, 9)), white((7, 9), 1))
    a, b = (LeastSquares(model, y, lipschitz_tol=1e-3, prox_tol=1e-10) for model in (dense, fast))
    x = white((12, 10))
    assert b.lipschitz == pytest.approx(a.lipschitz, rel=2e-3)
    assert torch.allclose(a.lipschitz_views, b.lipschitz_views, rtol=2e-3)
    gamma = 10 / a.lipschitz
    assert relative(b.prox(x, gamma), a.prox(x, gamma)) < 1e-8
    assert relative(b.gradient(x, [1, 5]), a.gradient(x, [1, 5])) < 1e-10


@given(ka=st.floats(0, 60), far=st.floats(1.01, 50), tol=st.sampled_from([1e-4, 1e-8, 1e-13]))
def test_enough_plane_waves_give_the_field(ka, far, tol):
    # The field of one source from its plane waves at the rim of the disc, where the series is longest.
    kr = far * max(ka, smallest_radius(ka, tol, 100.0) / 1.01)
    directions = choose_directions(ka, kr, tol)
    assert directions is not None
    m = np.arange(-directions.order, directions.order + 1)
    theta = 2 * np.pi * np.arange(directions.count) / directions.count
    phi = np.linspace(0, 2 * np.pi, 7)
    coefficients = (hankel1(m, kr) * (1j) ** (-m % 4) * np.exp(-1j * np.outer(theta, m))).sum(1) / directions.count
    field = np.exp(1j * ka * np.cos(phi[:, None] - theta)) @ coefficients
    distance = np.sqrt(kr**2 + ka**2 - 2 * kr * ka * np.cos(phi))
    error = np.abs(field - hankel1(0, distance)).max() / abs(hankel1(0, kr))
    rounding = (1e-13 + 3e-16 * kr) * np.abs(hankel1(m, kr)).max() / abs(hankel1(0, kr))  # of phases up to kr, too
    assert error <= 2 * tol + rounding


def test_a_plan_names_what_stands_too_close():
    geometry = BornGeometry.rings(Grid((32, 32), 0.01), 0.05, views=5, receivers=6, radius=1.0)
    moved = geometry.transmitters.copy()
    moved[3] *= 0.2
    with pytest.raises(InputError, match=r"transmitter 3 is 0\.2 m from the grid's centre"):
        plan_expansion(replace(geometry, transmitters=moved), 1e-5, single=True)


def test_settings_reach_the_model(small_geometry):
    def planned(geometry, **asked):
        experiment = Experiment(*instrument_parts(geometry), geometry.n_views, truth=None)
        return plan(Settings(algorithm={"sigma": 0.1}, sampler={"batch": 1}, instrument=asked), experiment), experiment

    fast, experiment = planned(small_geometry, method="fast", eps=1e-4)
    model = fast.model(experiment.columns, experiment.n_views)
    assert (model.method, model.eps) == ("fast", 1e-4)
    assert planned(small_geometry)[0].model(experiment.columns, experiment.n_views).method == "dense"
    near = BornGeometry.rings(Grid((32, 32), 0.01), 0.05, views=5, receivers=6, radius=0.25)
    for asked in ({"method": "fast"}, {"eps": 1e-9}):
        with pytest.raises(InputError, match=r"needs at least|eps must be from"):  # before anything is written
            planned(near, **asked)


@pytest.mark.slow
def test_without_finufft_it_works_and_says_what_is_missing():
    code = """
import sys
sys.modules["finufft"] = None
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "finufft" else real(name, *rest)
import torch, plugstream as ps
geometry = ps.BornGeometry.rings(ps.Grid((8, 8), 0.01), 0.05, views=4, receivers=6, radius=0.3)
model = ps.BornModel(geometry, method="fast", dtype=torch.float64)
assert model.engine.nufft.name == "grid"
try:
    ps.BornModel(geometry, method="fast", nufft="finufft")
except ps.InputError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "finufft is not installed" in done.stdout, done.stderr
