"""The Born model of a scan that grows, and bounds of its views that cost little."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plugstream import BornGeometry, BornModel, Grid, LeastSquares, MemoryScan, ring
from plugstream.models.born_dense import peak_intensities


def geometry(views: int, kind: str = "line", masked: bool = False, radius: float = 0.4) -> BornGeometry:
    rng = np.random.default_rng(0)
    every = ring(40, radius, arc=300)[:views]
    grid = Grid((12, 10), 0.01, (0.01, -0.02))
    fields = (rng.standard_normal((40, 12, 10)) + 1j * rng.standard_normal((40, 12, 10))).astype(np.complex64)
    return BornGeometry(
        receivers=ring(33, 0.5),
        wavelength=0.04,
        grid=grid,
        transmitters=every if kind == "line" else None,
        plane_waves=every if kind == "plane" else None,
        fields=fields[:views] if kind == "fields" else None,
        mask=(rng.random((40, 33)) < 0.8)[:views] if masked else None,
    )


@pytest.mark.parametrize(
    ("method", "kind", "masked"),
    [
        ("dense", "line", True), ("dense", "plane", False), ("dense", "fields", True), ("fast", "line", False),
        ("fast", "plane", True),
    ],
)  # fmt: skip
def test_a_grown_model_is_the_model_of_all_views(method, kind, masked):
    model = BornModel(geometry(3, kind, masked), method=method, dtype=torch.float64)
    for views in (4, 9, 20):
        model = model.with_geometry(geometry(views, kind, masked))
    whole = BornModel(geometry(20, kind, masked), method=method, dtype=torch.float64)
    x = torch.rand(12, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert model.n_views == 20
    torch.testing.assert_close(model.forward(x), whole.forward(x), rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(model.forward(x, [17, 2]), whole.forward(x)[[17, 2]], rtol=1e-8, atol=1e-12)
    z = whole.forward(x)
    torch.testing.assert_close(model.adjoint(z), whole.adjoint(z), rtol=1e-8, atol=1e-12)


def test_a_nearer_source_makes_the_fast_model_plan_anew():
    far, near = geometry(3), geometry(6, radius=0.3)
    both = np.concatenate([far.transmitters, near.transmitters[3:]])
    grown = BornGeometry(receivers=far.receivers, wavelength=0.04, grid=far.grid, transmitters=both)
    model = BornModel(far, method="fast").with_geometry(grown)
    x = torch.rand(12, 10)
    want = BornModel(grown, method="dense").forward(x)
    assert float((model.forward(x) - want).norm() / want.norm()) < 1e-5


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("method", "kind"), [("dense", "line"), ("dense", "fields"), ("fast", "line"), ("fast", "plane")]
)
def test_bounds_are_above_every_view_and_not_far(method, kind, masked):
    model = BornModel(geometry(12, kind, masked), method=method)
    views = torch.arange(12)
    bounds, found = model.squared_norm_bounds(views), model.squared_norms(views, 1e-3) / (1 + 1e-3)
    assert bool((bounds >= found).all())
    if kind != "fields" and not masked:
        assert float((bounds / found).max()) < 2.5
    assert torch.equal(model.squared_norm_bounds(views[3:5]), bounds[3:5])


def test_the_strongest_pixel_is_found():
    for kind in ("line", "plane", "fields"):
        g = geometry(9, kind)
        fields = g.fields if kind == "fields" else None
        if fields is None:
            from plugstream.models.born import incident_fields

            fields = incident_fields(g, np.complex128)
        want = np.abs(np.asarray(fields).reshape(9, -1)).max(1) ** 2
        assert np.allclose(peak_intensities(g), want, rtol=1e-6)


def test_with_very_many_views_the_step_goes_by_the_bound():
    g = geometry(20)
    model = BornModel(g)
    data = torch.zeros(20, 33, dtype=torch.complex64)
    exact, bounded = LeastSquares(model, data), LeastSquares(model, data, lipschitz_most=10)
    assert exact.lipschitz_max < bounded.lipschitz_max < 2.5 * exact.lipschitz_max
    assert bounded.lipschitz_max == float(model.squared_norm_bounds(torch.arange(20)).max())


def test_a_fidelity_grows_with_its_scan():
    g = geometry(20)
    whole = BornModel(g)
    x = torch.rand(12, 10, generator=torch.Generator().manual_seed(1))
    data = torch.randn(20, 33, dtype=torch.complex64, generator=torch.Generator().manual_seed(2))
    fidelity = LeastSquares(BornModel(geometry(5)), MemoryScan(data, g))
    assert len(fidelity.available) == 5
    torch.testing.assert_close(fidelity.gradient(x), LeastSquares(whole, data).gradient(x, range(5)))
    before = fidelity.lipschitz_max
    first, fidelity = fidelity, fidelity.with_views(fidelity.model.with_geometry(g))
    assert (len(first.available), first.lipschitz_max) == (5, before)
    assert fidelity.available.tolist() == list(range(20))
    assert fidelity.lipschitz_max >= before
    torch.testing.assert_close(fidelity.gradient(x), LeastSquares(whole, data).gradient(x))
    fidelity = fidelity.with_views(fidelity.model, torch.tensor([2, 3, 11]), lipschitz_max=7.0)
    assert fidelity.available.tolist() == [2, 3, 11]
    assert fidelity.lipschitz_max == 7.0
    torch.testing.assert_close(fidelity.gradient(x), LeastSquares(whole, data).gradient(x, [2, 3, 11]))


def test_passes_over_all_views_go_in_blocks(monkeypatch):
    g = geometry(20)
    data = torch.randn(20, 33, dtype=torch.complex64, generator=torch.Generator().manual_seed(2))
    x = torch.rand(12, 10, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr("plugstream.fidelity.base._BLOCK_BYTES", 3 * 33 * 8)
    sizes = []

    class CountingModel(MemoryScan):
        def read(self, views=None):
            sizes.append(len(views))
            return super().read(views)

    streamed, held = LeastSquares(BornModel(g), CountingModel(data, g)), LeastSquares(BornModel(g), data)
    weights = torch.rand(20)
    for call in (
        lambda f: f.gradient(x),
        lambda f: f.value(x),
        lambda f: f.value(torch.stack([x, 2 * x]), None, weights),
        lambda f: f.gradient(x, range(20), weights),
        lambda f: f.prox(x, 3.0),
        lambda f: f.backprojection(),
    ):
        torch.testing.assert_close(call(streamed), call(held), rtol=1e-4, atol=1e-6)
    assert max(sizes) == 3
