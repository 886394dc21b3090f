"""Fields of an object by guesses from coarser grids: the same as without, with fewer products of the fine grid."""

import numpy as np
import pytest
import torch

import plugstream.models.field_equation as module
from plugstream import BornGeometry, Grid, ScatteringModel
from plugstream.images.simulated import disc
from plugstream.models.coarse_grid import CoarseGrid
from plugstream.models.field_equation import FieldEquation
from plugstream.models.green_fft import GreenFFT
from plugstream.models.torus import Convolution, even_size, torus_symbol

F64, CPU = torch.float64, torch.device("cpu")


@pytest.fixture
def coarse(monkeypatch):
    """Coarse grids for the small boxes of tests."""
    monkeypatch.setitem(module._LEAST, "cpu", 300)


def _waves(shape, pixels, count=6, dtype=F64):
    """Plane waves of so many pixels a wavelength: (count, h w)."""
    y, x = (torch.arange(n, dtype=F64) for n in shape)
    angle = 2 * torch.pi * torch.arange(count, dtype=F64)[:, None, None] / count + 0.1
    phase = 2 * torch.pi / pixels * (torch.cos(angle) * x + torch.sin(angle) * y[:, None])
    return torch.polar(torch.ones_like(phase), phase).to(dtype.to_complex()).flatten(1)


def _equation(shape=(47, 40), pixels=18.0, strength=1.0, dtype=F64):
    grid = Grid(shape, 1.0)
    contrast = strength * (disc(grid, (-6.0, 3.0), 11.0) + 0.4 * disc(grid, (9.0, -4.0), 9.0))
    k = 2 * np.pi / pixels
    green = GreenFFT(shape, 1.0, k, k**2, device=CPU, dtype=dtype)
    return FieldEquation(torch.from_numpy(contrast).to(dtype), green)


def _count(monkeypatch):
    """Products with the fine grid: the length of what is returned."""
    taken, apply = [], FieldEquation.apply

    def watched(self, fields):
        if self.contrast.shape == (47, 40):
            taken.append(len(fields))
        return apply(self, fields)

    monkeypatch.setattr(FieldEquation, "apply", watched)
    return taken


@pytest.mark.parametrize("shape", [(24, 31), (13, 6)])
def test_polynomials_go_to_the_coarse_grid_and_back(shape):
    grid = CoarseGrid(shape, device=CPU, dtype=F64)
    half = tuple(-(-n // 2) for n in shape)

    def field(rows, columns):
        r, c = (rows / shape[0])[:, None], columns / shape[1]
        return (1 + r - 2 * r**2 + 3j * r**5) * (2 - 1j * c + c**2)

    fine = field(*(torch.arange(n, dtype=F64) for n in shape))
    below = field(*(2 * torch.arange(n, dtype=F64) + 0.5 for n in half))
    assert torch.allclose(grid.sample(fine[None])[0], below, atol=1e-11)
    if min(half) >= 6:
        assert torch.allclose(grid.interpolate(below[None])[0], fine, atol=1e-11)
    image = torch.rand(shape, dtype=F64)
    assert torch.allclose(grid.average(image)[2, 1], image[4:6, 2:4].mean())
    assert torch.allclose(4 * grid.average(image).sum(), image.sum())


@pytest.mark.parametrize(("dtype", "tol"), [(torch.float32, 1e-3), (F64, 1e-9)])
def test_the_fields_are_those_without_coarse_grids(coarse, monkeypatch, dtype, tol):
    taken = _count(monkeypatch)
    incident = _waves((47, 40), 18.0, dtype=dtype)
    equation = _equation(dtype=dtype)
    found = equation.solve(incident, tol=tol, max_iterations=100)
    guessed = len(taken)
    assert (found.residuals <= tol).all()
    rest = torch.linalg.vector_norm(incident - equation.apply(found.values), dim=1)
    assert torch.allclose(
        rest / torch.linalg.vector_norm(incident, dim=1), torch.from_numpy(found.residuals).to(dtype), rtol=0.05
    )
    monkeypatch.setitem(module._LEAST, "cpu", 10**9)
    taken.clear()
    plain = _equation(dtype=dtype).solve(incident, tol=tol, max_iterations=100)
    assert float((plain.values - found.values).norm() / plain.values.norm()) < 5 * tol
    assert guessed <= 0.6 * len(taken), (guessed, len(taken))


@pytest.mark.parametrize("pixels", [4.0, 6.0])
def test_waves_that_no_coarse_grid_can_tell_are_found_without(coarse, monkeypatch, pixels):
    monkeypatch.setattr(module, "_A_WAVELENGTH", 0.5)
    equation = _equation(pixels=pixels)
    assert equation._guess is not None
    incident = _waves((47, 40), pixels)
    found = equation.solve(incident, tol=1e-6, max_iterations=150)
    assert (found.residuals <= 1e-6).all()
    rest = torch.linalg.vector_norm(incident - equation.apply(found.values), dim=1)
    assert bool((rest < 1.1e-6 * torch.linalg.vector_norm(incident, dim=1)).all())


def test_a_grid_that_is_too_coarse_is_not_tried(coarse):
    assert _equation(pixels=18.0)._guess is not None
    assert _equation(pixels=12.0)._guess is None
    assert _equation(pixels=18.0, strength=4.0)._guess is None


def test_what_is_not_found_says_so(coarse):
    found = _equation().solve(_waves((47, 40), 18.0), tol=1e-9, max_iterations=2)
    assert found.iterations == 2
    assert (found.residuals > 1e-9).all()


def test_the_gradient_with_coarse_grids_is_that_of_differences(coarse):
    grid = Grid((30, 26), 0.002)
    geometry = BornGeometry.rings(grid, 0.04, views=3, receivers=9, radius=0.3)
    model = ScatteringModel(geometry, dtype=F64, tolerance=1e-12)
    x = torch.from_numpy(disc(grid, (0.001, 0.002), 0.018))
    assert model.scatterer(x).equation._guess is not None
    y = model.forward(0.7 * x)
    direction = torch.randn(30, 26, dtype=F64)

    def value(t):
        return float((model.forward(x + t * direction) - y).abs().square().sum()) / 2

    h = 1e-3
    slopes = [(value(s * h) - value(-s * h)) / (2 * s * h) for s in (1, 2)]
    want = (4 * slopes[0] - slopes[1]) / 3
    assert abs(float((model.gradient(x, y) * direction).sum()) - want) < 1e-6 * abs(want)
    pushed = model.derivative(x, direction)
    z = torch.randn(3, 9, dtype=torch.complex128)
    left, right = float((pushed * z.conj()).real.sum()), float((direction * model.linearize(x)[1](z)).sum())
    assert abs(left - right) < 1e-10 * float(pushed.norm() * z.norm())


@pytest.mark.parametrize("spans", [((0, 20, 20), (0, 17, 17)), ((3, 5, 40), (30, 3, 33)), ((0, 1, 1), (0, 33, 33))])
@pytest.mark.parametrize("at_once", [1, 10])
def test_convolutions_are_sums_over_pixels(monkeypatch, spans, at_once):
    kernel = torch.randn(40, 33, dtype=torch.complex128)
    sizes = [2 * even_size(-(-(length + wanted - 1) // 2)) for _, length, wanted in spans]
    symbol = torus_symbol(kernel, spans, (sizes[0], sizes[1]))
    (top, h, rows), (left, w, columns) = spans
    fields, factor = torch.randn(3, h, w, dtype=torch.complex128), torch.randn(h, w, dtype=F64)
    base = torch.randn(3, rows, columns, dtype=torch.complex128)
    i = (torch.arange(rows)[:, None] - torch.arange(top, top + h)).abs()
    j = (torch.arange(columns)[:, None] - torch.arange(left, left + w)).abs()
    pairs = kernel[i[:, None, :, None], j[None, :, None]]
    want = base + torch.einsum("rchw,hw,khw->krc", pairs, factor.to(pairs.dtype), fields)
    monkeypatch.setattr("plugstream.models.torus._CACHE_BYTES", at_once * symbol.nbytes)
    assert torch.allclose(Convolution(symbol, spans, factor)(base, fields), want, atol=1e-11)


@pytest.mark.gpu
def test_coarse_grids_on_a_gpu(monkeypatch):
    monkeypatch.setitem(module._LEAST, "cpu", 300)
    monkeypatch.setitem(module._LEAST, "cuda", 300)
    grid = Grid((60, 52), 0.001)
    geometry = BornGeometry.rings(grid, 0.04, views=5, receivers=19, radius=0.3)
    x = torch.from_numpy(disc(grid, (0.001, 0.002), 0.018)).float()
    here, there = ScatteringModel(geometry), ScatteringModel(geometry, device="cuda")
    assert there.scatterer(x.cuda()).equation._guess is not None
    y = here.forward(0.7 * x)
    got, want = there.gradient(x.cuda(), y.cuda()).cpu(), here.gradient(x, y)
    assert float((got - want).norm() / want.norm()) < 5e-3
