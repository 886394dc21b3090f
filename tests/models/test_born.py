"""The Born model against its definition: a direct sum with SciPy's Hankel function, and adjointness."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy.special import hankel1

import plugstream.models.born_dense as dense_module
from plugstream import BornGeometry, BornModel, Grid, InputError, Model, ring

F64 = torch.float64


def direct_sum(geometry: BornGeometry, image: np.ndarray) -> np.ndarray:
    """The scattered field, pixel by pixel and receiver by receiver, as a physicist would write it."""
    k0 = 2 * np.pi / geometry.wavelength
    k = k0 * np.sqrt(geometry.background)
    (h, w), d = geometry.grid.shape, geometry.grid.pixel
    out = np.zeros((geometry.n_views, geometry.n_receivers), dtype=complex)
    for v, t in enumerate(geometry.transmitters):
        for m, r in enumerate(geometry.receivers):
            for i in range(h):
                for j in range(w):
                    p = np.array(geometry.grid.center) + d * np.array([j - w // 2, i - h // 2])
                    incident = 0.25j * hankel1(0, k * np.linalg.norm(t - p))
                    green = 0.25j * hankel1(0, k * np.linalg.norm(r - p))
                    out[v, m] += k0**2 * green * incident * image[i, j] * d * d
    return out


@pytest.mark.parametrize(
    ("shape", "center", "background"), [((5, 4), (0.0, 0.0), 1.0), ((3, 6), (0.02, -0.01), 1.7), ((1, 1), (0, 0), 1)]
)
def test_forward_is_the_direct_sum(shape, center, background):
    rng = np.random.default_rng(0)
    geometry = BornGeometry(
        transmitters=ring(3, 0.2, start=10),
        receivers=0.15 + 0.1 * rng.random((4, 2)),
        wavelength=0.03,
        grid=Grid(shape, 0.007, center),
        background=background,
    )
    image = rng.standard_normal(shape)
    got = BornModel(geometry, dtype=F64).forward(torch.from_numpy(image)).numpy()
    want = direct_sum(geometry, image)
    assert np.abs(got - want).max() <= 1e-12 * np.abs(want).max()


@given(
    shape=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    counts=st.tuples(st.integers(1, 6), st.integers(1, 7)),
    batch=st.lists(st.integers(1, 3), max_size=2),
    data=st.data(),
)
def test_adjoint_is_the_adjoint(shape, counts, batch, data):
    views, receivers = counts
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    mask = rng.random(counts) < 0.7 if data.draw(st.booleans()) else None
    fields = None
    if data.draw(st.booleans()):
        fields = rng.standard_normal((views, *shape)) + 1j * rng.standard_normal((views, *shape))
    geometry = BornGeometry(
        receivers=ring(receivers, 0.4),
        transmitters=ring(views, 0.5, start=3) if fields is None else None,
        wavelength=0.04,
        grid=Grid(shape, 0.01),
        mask=mask,
        fields=fields,
    )
    model = BornModel(geometry, dtype=F64)
    index = data.draw(st.one_of(st.none(), st.lists(st.integers(0, views - 1), min_size=1, max_size=8)))
    x = torch.from_numpy(rng.standard_normal((*batch, *shape)))
    count = views if index is None else len(index)
    z = torch.from_numpy(rng.standard_normal((*batch, count, receivers, 2))).contiguous()
    z = torch.view_as_complex(z)
    left = torch.sum(model.forward(x, index) * z.conj(), dim=(-2, -1)).real
    right = torch.sum(x * model.adjoint(z, index), dim=(-2, -1))
    scale = torch.linalg.vector_norm(model.forward(x, index)) * torch.linalg.vector_norm(z) + 1e-300
    assert float((left - right).abs().max() / scale) <= 1e-12


def test_blocks_of_views_change_nothing(small_geometry, monkeypatch):
    model = BornModel(small_geometry, method="dense", dtype=F64)
    x = torch.randn(2, 12, 10, dtype=F64)
    z = model.forward(x)
    whole = model.adjoint(z)
    monkeypatch.setattr(dense_module, "_BLOCK_VALUES", 1)  # one view at a time
    assert float((model.forward(x) - z).abs().max() / z.abs().max()) < 1e-13
    assert float((model.adjoint(z) - whole).abs().max() / whole.abs().max()) < 1e-13


def test_subsets_repeats_and_batches_agree_with_single_views(small_geometry):
    model = BornModel(small_geometry, dtype=F64)
    x = torch.randn(3, 12, 10, dtype=F64)
    views = [4, 0, 4]
    together = model.forward(x, views)
    for b in range(3):
        for place, view in enumerate(views):
            alone = model.forward(x[b], [view])[0]
            assert float((together[b, place] - alone).abs().max() / alone.abs().max()) < 1e-13


def test_normal_each_is_forward_then_adjoint(small_geometry):
    mask = np.random.default_rng(1).random((7, 9)) < 0.8
    geometry = replace(small_geometry, mask=mask)
    model = BornModel(geometry, dtype=F64)
    images, views = torch.randn(4, 12, 10, dtype=F64), torch.tensor([6, 1, 1, 3])
    want = torch.stack(
        [model.adjoint(model.forward(x, [int(v)]), [int(v)]) for x, v in zip(images, views, strict=True)]
    )
    assert float((model.normal_each(images, views) - want).norm() / want.norm()) < 1e-13


def test_masked_receivers_are_zero_and_ignored(small_geometry):
    mask = np.ones((7, 9), dtype=bool)
    mask[2, 5] = False
    geometry = replace(small_geometry, mask=mask)
    model, plain = BornModel(geometry, dtype=F64), BornModel(small_geometry, dtype=F64)
    x = torch.randn(12, 10, dtype=F64)
    y = model.forward(x)
    assert y[2, 5] == 0
    assert torch.equal(y[torch.from_numpy(mask)], plain.forward(x)[torch.from_numpy(mask)])
    poisoned = y.clone()
    poisoned[2, 5] = complex("nan")
    assert torch.equal(model.adjoint(poisoned), model.adjoint(y))


def test_single_precision_agrees_with_double():
    geometry = BornGeometry.paper(32)
    x = torch.rand(32, 32, dtype=F64)
    exact = BornModel(geometry, dtype=F64).forward(x)
    single = BornModel(geometry).forward(x.float())
    assert single.dtype == torch.complex64
    assert float((single - exact).abs().max() / exact.abs().max()) < 2e-6


def test_the_model_is_a_model(small_geometry):
    model = BornModel(small_geometry)
    assert isinstance(model, Model)
    assert (model.n_views, model.image_shape, model.data_shape) == (7, (12, 10), (9,))


def test_it_holds_no_more_than_green_and_fields(small_geometry):
    model = BornModel(small_geometry, method="dense")
    held = sum(t.numel() for t in vars(model.engine).values() if isinstance(t, torch.Tensor))
    assert model.held == 8 * held
    assert held == 9 * 120 + 7 * 120


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"receivers": np.zeros((4, 3))}, r"receivers have shape \(4, 3\)"),
        ({"receivers": [[np.nan, 0.0]]}, "receivers hold NaN or infinity at index 0"),
        ({"wavelength": 0.0}, "wavelength must be a number > 0"),
        ({"transmitters": None}, "either transmitters or fields or plane_waves"),
        ({"plane_waves": np.ones((7, 2))}, "only one of them"),
        (
            {"plane_waves": np.zeros((7, 2)), "transmitters": None},
            r"plane_waves are directions, but number 0 is \(0, 0\)",
        ),
        ({"receivers": np.zeros((7, 2)), "far_field": True}, "receivers of the far field are directions"),
        ({"mask": np.ones((2, 2), dtype=bool)}, r"mask has shape \(2, 2\)"),
        ({"fields": np.zeros((7, 3, 3)), "transmitters": None}, "must be"),
    ],
)
def test_bad_geometry_is_refused(small_geometry, change, message):
    good = {
        "receivers": small_geometry.receivers,
        "transmitters": small_geometry.transmitters,
        "wavelength": 0.05,
        "grid": small_geometry.grid,
    }
    with pytest.raises(InputError, match=message):
        BornGeometry(**{**good, **change})


def test_a_receiver_on_a_pixel_is_refused(small_geometry):
    geometry = BornGeometry(
        receivers=[[1.0, 1.0], [0.0, 0.0]], transmitters=ring(2, 1.0), wavelength=0.05, grid=Grid((4, 4), 0.01)
    )
    with pytest.raises(InputError, match="receiver 1 lies on the centre of a pixel"):
        BornModel(geometry)


def test_bad_calls_are_refused(small_geometry):
    model = BornModel(small_geometry)
    with pytest.raises(InputError, match=r"image has shape \(3, 3\)"):
        model.forward(torch.zeros(3, 3))
    with pytest.raises(InputError, match="view 7 does not exist: there are views 0 to 6"):
        model.forward(torch.zeros(12, 10), [7])
    with pytest.raises(InputError, match="data has shape"):
        model.adjoint(torch.zeros(6, 9, dtype=torch.complex64))


def test_rings_start_at_zero_and_leave_the_end_out():
    points = ring(4, 2.0)
    assert np.allclose(points, [[2, 0], [0, 2], [-2, 0], [0, -2]], atol=1e-12)
    ends = ring(3, 1.0, arc=180.0)
    assert np.allclose(ends, [[1, 0], [0, 1], [-1, 0]], atol=1e-12)


def test_the_papers_geometry_is_as_its_code_ran_it():
    geometry = BornGeometry.paper()
    assert (geometry.n_views, geometry.n_receivers, geometry.grid.shape) == (60, 360, (256, 256))
    assert geometry.wavenumber == pytest.approx(1489, abs=1)
    assert np.allclose(np.hypot(*geometry.receivers.T), 1.6)
    pixels = geometry.grid.points()
    assert np.allclose(pixels[0], -0.09)
    assert np.allclose(pixels[128 * 256 + 128], 0)
