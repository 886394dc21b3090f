"""The Born model of very many views: what is not kept is computed or read when it is needed, with the same result."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy.special import hankel1

import plugstream.models.born_dense as dense_module
import plugstream.models.born_expansion as expansion_module
import plugstream.models.born_fast as fast_module
import plugstream.models.born_fast as rows_module
from effort import effort, thorough
from plugstream import BornGeometry, BornModel, Grid, InputError, ring
from plugstream.base.errors import DamagedError
from plugstream.models.born import choose_method
from plugstream.models.born_dense import peak_intensities
from plugstream.models.born_expansion import Coefficients, Directions, plan_expansion

VIEWS = 23
DTYPES = (torch.float32, torch.float64)


class CountedRows:
    """Rows that are not in memory, as those of a scan on a disk, and the views that were read of them."""

    def __init__(self, rows: np.ndarray, damaged: tuple[int, ...] = ()) -> None:
        self._rows, self.damaged = rows, damaged
        self.shape, self.ndim, self.dtype = rows.shape, rows.ndim, rows.dtype
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index):
        views = np.arange(len(self))[index]
        bad = [view for view in self.damaged if view in views]
        if bad:
            raise DamagedError("scan", dict.fromkeys(bad, "its field is damaged"))
        self.read += views.tolist()
        return self._rows[views]

    def __array__(self, *args, **kwargs):
        raise AssertionError("all of it would be read")


def geometry(kind: str, *, views: int = VIEWS, masked: bool = False, far: bool = False) -> BornGeometry:
    rng = np.random.default_rng(0)
    directions = ring(VIEWS, 1.0, start=4)
    radii = {"circle": 0.6 * np.ones(VIEWS), "any": 0.6 + rng.random(VIEWS)}.get(kind)
    center = (0.01, -0.02)
    grid = Grid((14, 12), 0.01, center)
    fields = (rng.standard_normal((VIEWS, 14, 12)) + 1j * rng.standard_normal((VIEWS, 14, 12))).astype(np.complex64)
    return BornGeometry(
        receivers=ring(17, 1.0 if far else 0.5),
        far_field=far,
        wavelength=0.04,
        grid=grid,
        transmitters=None if radii is None else (np.array(center) + radii[:, None] * directions)[:views],
        plane_waves=directions[:views] if kind == "plane" else None,
        fields=fields[:views] if kind == "fields" else None,
        mask=(rng.random((VIEWS, 17)) < 0.8)[:views] if masked else None,
    )


def limited(monkeypatch, bytes_kept: int) -> None:
    monkeypatch.setattr(fast_module, "TABLE_BYTES", {"cpu": bytes_kept, "cuda": bytes_kept})
    monkeypatch.setattr(dense_module, "FIELD_BYTES", {"cpu": bytes_kept, "cuda": bytes_kept})


def everything(model: BornModel) -> list[torch.Tensor]:
    """What a model computes, for all views and for few."""
    numbers = torch.Generator().manual_seed(0)
    n = model.n_views
    x = torch.rand(2, *model.image_shape, dtype=model.dtype, generator=numbers)
    y = torch.randn(n, *model.data_shape, dtype=model.data_dtype, generator=numbers)
    out = []
    for views in (None, torch.tensor([5, 2, 5, n - 1]), torch.tensor([3])):
        index = torch.arange(n) if views is None else views
        data, weights = y[index], torch.linspace(1, 2, len(index))
        images = torch.rand(len(index), *model.image_shape, dtype=model.dtype, generator=numbers)
        out += [
            model.forward(x[0], views),
            model.forward(x, views),
            model.adjoint(data, views),
            model.gradient(x[0], data, views),
            model.gradient(x, data, views, weights),
            model.normal(views)(x[1]),
            model.normal(views, weights)(x),
            model.normal_each(images, index),
            model.squared_norm_bounds(index),
        ]
    out.append(model.squared_norms(torch.arange(n), 1e-2))
    return out


CASES = [
    (method, kind, far)
    for method in ("dense", "fast")
    for kind in ("circle", "any", "plane", "fields")
    for far in (False, True)
    if (method, kind) != ("fast", "fields")
]
# Every kind with every method, in one precision or the other, and a few views at a time in double.
USUAL = [
    (*CASES[number], torch.float32 if number in (0, 5, 9) else torch.float64, True)
    for number in (0, 3, 5, 6, 9, 10, 13)
]


@thorough
@pytest.mark.parametrize(
    ("method", "kind", "far", "dtype", "masked"),
    effort(USUAL, [(*case, dtype, masked) for case in CASES for dtype in DTYPES for masked in (False, True)]),
)
def test_nothing_changes_where_nothing_is_kept(method, kind, far, masked, dtype, monkeypatch):
    if masked == (dtype == torch.float64):  # a few views at a time
        monkeypatch.setattr(fast_module, "_ROW_VALUES", 5 * 60)
        monkeypatch.setattr(fast_module, "_COMPUTED_VALUES", 2 * 60)
        monkeypatch.setattr(expansion_module, "_BLOCK_VALUES", 1)
        monkeypatch.setattr(expansion_module, "_RADII", 3)
        monkeypatch.setattr(dense_module, "_BLOCK_VALUES", 5 * 14 * 12)
        monkeypatch.setattr(dense_module, "_POINTS", 4)
        monkeypatch.setattr("plugstream.models.born._VIEWS", 7)
    g = geometry(kind, masked=masked, far=far)
    kept = BornModel(g, method=method, dtype=dtype)
    want = everything(kept)
    limited(monkeypatch, 0)
    model = BornModel(g, method=method, dtype=dtype)
    assert model.held < kept.held
    for got, expected in zip(everything(model), want, strict=True):
        assert torch.equal(got, expected)
    few = BornModel(geometry(kind, masked=masked, far=far, views=9), method=method, dtype=dtype)
    for got, expected in zip(everything(few.with_geometry(g)), want, strict=True):
        assert torch.equal(got, expected)


def test_many_views_and_few_receivers_go_through_the_sources_gram(monkeypatch):
    # P is about 60: views and receivers below and above half of it.
    x = torch.rand(2, 14, 12, dtype=torch.float64)
    for views, receivers in ((3, 5), (3, 70), (70, 5), (70, 70)):
        g = BornGeometry.rings(Grid((14, 12), 0.01), 0.04, views=views, receivers=receivers, radius=0.6)
        weights = torch.linspace(1, 2, views, dtype=torch.float64)
        want = BornModel(g, method="dense", dtype=torch.float64).normal(None, weights)(x)
        with monkeypatch.context() as patch:
            patch.setattr(fast_module, "_ROW_VALUES", 11 * 60)
            kept = BornModel(g, method="fast", eps=1e-12, dtype=torch.float64).normal(None, weights)(x)
            limited(patch, 0)
            got = BornModel(g, method="fast", eps=1e-12, dtype=torch.float64).normal(None, weights)(x)
        assert torch.equal(got, kept)
        assert float((got - want).norm() / want.norm()) < 1e-10


@pytest.mark.parametrize("method", ["dense", "fast"])
def test_a_growing_model_lets_go_of_its_table_at_the_limit(method, monkeypatch):
    whole = geometry("any")
    columns = 14 * 12 if method == "dense" else plan_expansion(whole, 1e-5, single=True).directions.count
    limited(monkeypatch, 8 * columns * 12)  # of twelve views
    model = BornModel(geometry("any", views=9), method=method)
    of_all = BornModel(whole, method=method)
    alone = of_all.held
    assert model.held > alone
    for views in (12, 15, VIEWS):
        before, model = model.held, model.with_geometry(geometry("any", views=views))
        assert (model.held > before) == (views == 12)
    assert model.held < BornModel(geometry("any", views=9), method=method).held
    for got, expected in zip(everything(model), everything(of_all), strict=True):
        assert torch.equal(got, expected)


def test_masks_and_fields_on_a_disk_are_read_for_the_batch_only(monkeypatch):
    g = geometry("fields", masked=True)
    want = BornModel(g)
    limited(monkeypatch, 0)
    mask, fields = CountedRows(g.mask), CountedRows(g.fields)
    model = BornModel(replace(g, mask=mask, fields=fields))
    assert (mask.read, fields.read) == ([], [])
    x, views = torch.rand(14, 12), torch.tensor([7, 2])
    y = torch.randn(2, 17, dtype=torch.complex64)
    assert torch.equal(model.gradient(x, y, views), want.gradient(x, y, views))
    assert (mask.read, fields.read) == ([7, 2], [7, 2])
    assert torch.equal(model.restrict(y, [4, 3]), want.restrict(y, [4, 3]))
    assert (mask.read[2:], fields.read[2:]) == ([4, 3], [])
    for got, expected in zip(everything(model), everything(want), strict=True):
        assert torch.equal(got, expected)
    assert np.array_equal(fields._rows, geometry("fields").fields)  # nothing was multiplied where it lies


def test_few_fields_on_a_disk_are_read_once_and_masks_are_not_kept():
    g = geometry("fields", masked=True)
    mask, fields = CountedRows(g.mask), CountedRows(g.fields)
    model = BornModel(replace(g, mask=mask, fields=fields))
    for got, expected in zip(everything(model), everything(BornModel(g)), strict=True):
        assert torch.equal(got, expected)
    reads = [view for view in fields.read if view == 7]
    assert len(reads) == 2  # for the model, and once for the bounds
    read = len(mask.read)
    model.forward(torch.rand(14, 12), [1, 2])
    assert mask.read[read:] == [1, 2]


def test_a_damaged_field_stops_only_the_views_that_have_it():
    g = geometry("fields")
    model = BornModel(replace(g, fields=CountedRows(g.fields, damaged=(5,))))
    x = torch.rand(14, 12)
    assert torch.equal(model.forward(x, [4, 6]), BornModel(g).forward(x, [4, 6]))
    with pytest.raises(DamagedError, match="5"):
        model.forward(x, [4, 5])


def test_a_transmitter_on_a_pixel_is_named_before_any_work(monkeypatch):
    g = geometry("circle")
    moved = g.transmitters.copy()
    moved[19] = g.grid.center
    limited(monkeypatch, 0)
    monkeypatch.setattr(dense_module, "_POINTS", 8)
    with pytest.raises(InputError, match="transmitter 19 lies on the centre of a pixel"):
        BornModel(replace(g, transmitters=moved), method="dense")
    model = BornModel(g.with_views(np.arange(9)), method="dense")
    with pytest.raises(InputError, match="transmitter 19 lies on the centre of a pixel"):
        model.with_geometry(replace(g, transmitters=moved))


@given(
    data=st.data(),
    what=st.sampled_from(["transmitters", "plane_waves", "receivers"]),
    far=st.booleans(),
    order=st.integers(0, 40),
    extra=st.integers(0, 3),
    circle=st.booleans(),
)
def test_a_row_is_the_formula_whatever_its_company(data, what, far, order, extra, circle):
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    count = data.draw(st.integers(1, 90))
    radii = np.full((count, 1), 0.9) if circle else 0.5 + 3 * rng.random((count, 1))
    points = radii * ring(count, 1.0, start=data.draw(st.floats(0, 360)))
    other = {"plane_waves": points} if what == "plane_waves" else {"transmitters": points}
    g = BornGeometry(
        receivers=points, far_field=far, wavelength=0.13, grid=Grid((5, 4), 0.01, (0.01, 0.03)), background=1.4, **other
    )
    points = getattr(g, what)  # unit vectors, where they are directions
    directions = Directions(order, 2 * order + 2 + 2 * extra)
    whole = Coefficients(g, what, directions)(points)
    some = rng.permutation(count)[: data.draw(st.integers(1, count))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expansion_module, "_RADII", data.draw(st.sampled_from([2, 5, 64])))
        kept = Coefficients(g, what, directions)
        for _ in range(2):
            assert np.array_equal(kept(points[some]), whole[some])
            assert np.array_equal(kept(points[some[:1]]), whole[some[:1]])
        assert len(kept._cache[0]) <= expansion_module._RADII
    # W[t, p] = 1/P sum_m c_m i^{-m} exp(i m (phi_t - theta_p)), written out with SciPy's functions
    k, m, (half, p) = g.wavenumber, np.arange(-order, order + 1), (directions.half, directions.count)
    scale = (2 * np.pi / 0.13) ** 2 * 0.01**2 if what == "receivers" else 1.0
    theta = 2 * np.pi * np.arange(p) / p
    if what == "plane_waves" or (what == "receivers" and far):
        heading = -points if what == "receivers" else points
        scale *= np.exp(0.25j * np.pi) / np.sqrt(8 * np.pi * k) if what == "receivers" else 1.0
        series = np.exp(1j * k * heading @ np.array([0.01, 0.03]))[:, None] * np.ones(len(m))
    else:
        heading = points - np.array([0.01, 0.03])
        series = 0.25j * hankel1(m, k * np.hypot(*heading.T)[:, None]) * (1j) ** (-m % 4)
    phi = np.arctan2(heading[:, 1], heading[:, 0])
    waves = np.einsum("tm,tmp->tp", series, np.exp(1j * m[:, None] * (phi[:, None, None] - theta))) * scale / p
    want = np.concatenate([waves[:, :half] + waves[:, half:], 1j * (waves[:, :half] - waves[:, half:])], 1)
    assert np.abs(whole - want).max() <= 1e-12 * np.abs(want).max()


def test_peaks_of_many_views_are_those_of_each(monkeypatch):
    for kind in ("any", "plane", "fields"):
        g = geometry(kind)
        want = peak_intensities(g)
        monkeypatch.setattr(dense_module, "_POINTS", 4)
        monkeypatch.setattr(dense_module, "_BLOCK_VALUES", 3 * 14 * 12)
        assert np.array_equal(peak_intensities(g), want)
        views = np.array([4, 22, 4, 0, 9, 13])
        assert np.array_equal(peak_intensities(g, views), want[views])


def test_the_choice_counts_what_is_kept_and_what_is_computed_again():
    few, many = (
        choose_method(
            BornGeometry.rings(Grid((64, 64), 0.01), 0.06, views=views, receivers=30, radius=2.0),
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
        for views in (1_000, 1_000_000)
    )
    # "all views are expected to take A ms and B MB with the fast method, C ms and D MB with the dense one"
    a, b = ([float(word) for word in choice.reason.split() if word[0].isdigit()] for choice in (few, many))
    assert b[1] < a[1]
    assert b[3] < a[3]
    assert b[0] > 1000 * (a[0] - 1)
    assert b[2] > 2000 * a[2]


_MANY = """
import resource, sys
import numpy as np, torch
from plugstream import BornGeometry, BornModel, Grid, ring

class Mask:
    def __init__(self, views): self.shape, self.ndim, self.dtype = (views, 20), 2, np.dtype(bool)
    def __len__(self): return self.shape[0]
    def __getitem__(self, index):
        assert len(index) <= 4096
        return (index[:, None] * 7 + np.arange(20)) % 5 != 0

def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def make(views, mask): return BornGeometry(receivers=ring(20, 1.0), transmitters=views, wavelength=0.04,
                                           grid=Grid((24, 20), 0.01), mask=mask)

method, count = sys.argv[1], 1_000_000
rng = np.random.default_rng(0)
points = ring(count, 1.0) * (1 + rng.random((count, 1)) if sys.argv[2] == "any" else 1.0)
# the nearest among them, so that both models plan for the same
views = torch.from_numpy(np.append(rng.integers(0, count, 9), np.argmin(np.hypot(*points.T))))
x, y = torch.rand(24, 20), torch.randn(10, 20, dtype=torch.complex64)

def use(model, views):
    return [model.forward(x, views), model.adjoint(y, views), model.gradient(x, y, views), model.normal(views)(x),
            model.squared_norm_bounds(views)]

few = BornModel(make(points[views.numpy()], Mask(count)[views.numpy()]), method=method)
want = use(few, torch.arange(10))
geometry = make(points, Mask(count))
before = peak()
model = BornModel(geometry, method=method)
for got, expected in zip(use(model, views), want, strict=True):
    assert torch.equal(got, expected)
bounds = model.squared_norm_bounds(torch.arange(count))
assert torch.equal(bounds[views], want[-1])
grown = model.with_geometry(make(np.concatenate([points, 2 * points[:5]]), Mask(count + 5)))
assert torch.equal(grown.forward(x, views), want[0])
assert model.held <= few.held  # of the rows that were asked for, each once (`RecentRows`), and of no other view
for batch in torch.arange(64 * 500).view(500, 64) * 31:  # more rows than the 16 MiB that are kept
    model.forward(x, batch)
    assert model.held <= few.held + (16 << 20) + (1 << 16)  # and the series of 64 radii, 664 bytes each
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("method", "kind"), [("fast", "circle"), ("fast", "any"), ("dense", "any")])
def test_a_million_views_take_little_memory(method, kind):
    # A table of the sources would take 656 MB (82 waves), the fields 3.8 GB, the mask 20 MB.
    done = subprocess.run([sys.executable, "-c", _MANY, method, kind], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100e6


@pytest.mark.gpu
@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize(
    ("method", "kind"), [("dense", "any"), ("dense", "fields"), ("fast", "any"), ("fast", "plane")]
)
def test_on_a_gpu_nothing_changes_either(method, kind, blocks, monkeypatch):
    if blocks:
        monkeypatch.setattr(fast_module, "_ROW_VALUES", 5 * 60)
    g = geometry(kind, masked=True)
    x, y = torch.rand(14, 12, device="cuda"), torch.randn(VIEWS, 17, dtype=torch.complex64, device="cuda")
    batches = [torch.tensor(views) for views in ([5, 2, 5, 1], [0, 22, 7, 7], [1, 2, 3, 4], [9, 8, 9, 8], [6, 6, 6, 6])]

    def use(model: BornModel) -> list[torch.Tensor]:
        out = [model.forward(x, batches[0]), model.adjoint(y), model.normal()(x), model.gradient(x, y)]
        # the later ones of these are replayed from a graph
        return out + [model.gradient(x, y[views.cuda()], views) for views in batches]

    kept = BornModel(g, method=method, device="cuda")
    want = use(kept)
    exact = BornModel(g, method="dense", dtype=torch.float64)
    limited(monkeypatch, 0)
    model = BornModel(g, method=method, device="cuda")
    assert model.held < kept.held
    for got, expected in zip(use(model), want, strict=True):
        assert torch.equal(got, expected)
    for got, views in zip(want[4:], batches, strict=True):
        wanted = exact.gradient(x.cpu().double(), y[views.cuda()].cpu(), views)
        assert float((got.cpu() - wanted).norm() / wanted.norm()) < 1e-5


def test_places_that_come_again_are_not_computed_again_and_few_are_kept(monkeypatch):
    rng = np.random.default_rng(0)
    places, computed = rng.standard_normal((40, 2)), []

    def compute(points):
        computed.extend(points[:, 0].tolist())
        return torch.from_numpy(np.repeat(points, 8, axis=1) + 1j)

    a_row = 16 * 16
    monkeypatch.setattr(rows_module, "_BYTES", 12 * a_row)
    recent, distinct = rows_module.RecentRows(), rows_module.RecentRows()
    assert recent.find(places[:0], compute).shape == (0, 16)
    for _ in range(100):
        batch = places[rng.integers(0, 10, 5)]
        assert torch.equal(recent.find(batch, compute), torch.from_numpy(np.repeat(batch, 8, axis=1) + 1j))
        assert recent.held <= 10 * a_row
    assert sorted(computed) == sorted(places[:10, 0].tolist())  # each place once
    for first in range(0, 40, 5):
        distinct.find(places[first : first + 5], compute)
        assert distinct.held <= 12 * a_row
    for rows, count in ((distinct, 5), (recent, 0)):
        rows.find(places[35:], compute)  # to recent these are new, and there is no room for them beside the others
        computed.clear()
        rows.find(places[35:], compute)
        assert len(computed) == count  # where places hardly ever came again none are kept
    assert recent.held == 5 * a_row
    recent.find(places[rng.integers(0, 40, 100)], compute)
    assert len(computed) == 100  # nor is any looked for in a pass over all views
