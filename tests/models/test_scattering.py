"""Multiple scattering against exact series of cylinders, a dense solution, differences, and its own adjoint."""

import copy
import gc
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import hankel1

from cylinders import exact_field
from plugstream import BornGeometry, BornModel, Grid, InputError, LeastSquares, PlugstreamWarning, ring
from plugstream.images.simulated import disc
from plugstream.models.base import Model
from plugstream.models.born_dense import green_matrix, incident_fields
from plugstream.models.green_fft import GreenFFT, truncated_green
from plugstream.models.scattering import ScatteringModel

F64 = torch.float64


def _geometry(kind="transmitters", shape=(12, 10), views=4, receivers=7, masked=False, background=1.3):
    rng = np.random.default_rng(5)
    sources = {
        "transmitters": {"transmitters": ring(views, 0.3, start=7)},
        "plane_waves": {"plane_waves": ring(views, 1.0, start=7)},
        "fields": {"fields": rng.standard_normal((views, *shape)) + 1j * rng.standard_normal((views, *shape))},
        "far_field": {"plane_waves": ring(views, 1.0, start=7), "far_field": True},
    }[kind]
    mask = rng.random((views, receivers)) < 0.7 if masked else None
    return BornGeometry(
        receivers=ring(receivers, 0.25), wavelength=0.05, grid=Grid(shape, 0.006, (0.003, -0.002)),
        background=background, mask=mask, **sources,
    )  # fmt: skip


def _object(shape, *lead, seed=0, strength=1.5, empty=2):
    """A random object with an empty border of some pixels."""
    x = torch.zeros(*lead, *shape, dtype=F64)
    inside = np.random.default_rng(seed).random((*lead, *(n - 2 * empty for n in shape)))
    x[..., empty:-empty, empty:-empty] = strength * torch.from_numpy(inside)
    return x


def test_the_kernel_is_greens_function():
    """Of a Gaussian: far away (i/4) H_0(k r) times its transform at k, and the integral at its centre."""
    size, pixel, k = 64, 0.01, 40.0
    width = 3.2 * pixel
    green = GreenFFT((size, size), pixel, k, 1.0, device=torch.device("cpu"), dtype=F64)
    grid = Grid((size, size), pixel)
    r = np.hypot(*grid.points().T).reshape(size, size)
    source = torch.from_numpy(np.exp(-(r**2) / (2 * width**2))).to(torch.complex128)
    got = green.apply(source[None])[0].numpy()
    far = r > 7 * width
    want = 0.25j * hankel1(0, k * r[far]) * 2 * np.pi * width**2 * np.exp(-((k * width) ** 2) / 2)
    assert np.abs(got[far] - want).max() < 1e-9 * np.abs(got).max()

    def radial(part):
        def f(rho):
            return getattr(0.25j * hankel1(0, k * rho), part) * np.exp(-(rho**2) / (2 * width**2)) * 2 * np.pi * rho

        return quad(f, 0, 10 * width, limit=200)[0]

    center = radial("real") + 1j * radial("imag")
    assert abs(got[size // 2, size // 2] - center) < 1e-9 * abs(center)


@pytest.mark.parametrize(
    "box", [(slice(3, 11), slice(5, 16)), (slice(0, 4), slice(16, 17)), (slice(0, 20), slice(0, 17))]
)
def test_boxes_are_parts_of_the_whole(box):
    green = GreenFFT((20, 17), 0.01, 60.0, 3.0, device=torch.device("cpu"), dtype=F64)
    full = torch.zeros(2, 20, 17, dtype=torch.complex128)
    full[:, *box] = torch.randn(full[:, *box].shape, dtype=torch.complex128)
    assert torch.allclose(green.apply(full)[:, *box], green.apply(full[:, *box]), atol=1e-14)
    base = torch.randn_like(full)
    assert torch.allclose(base + green.apply(full), green.spread(base, full[:, *box], box), atol=1e-14)


@pytest.mark.parametrize(
    ("kind", "method"),
    [("transmitters", "dense"), ("transmitters", "fast"), ("plane_waves", "fast"), ("fields", "dense"),
     ("far_field", "dense"), ("far_field", "fast")],
)  # fmt: skip
def test_forward_is_the_dense_solution(kind, method):
    geometry = _geometry(kind, masked=True)
    x = _object((12, 10), empty=1)
    (h, w), k0 = geometry.grid.shape, 2 * np.pi / geometry.wavelength
    kernel = k0**2 * truncated_green((h, w), geometry.grid.pixel, geometry.wavenumber)
    i, j = np.divmod(np.arange(h * w), w)
    g = kernel[np.abs(i[:, None] - i), np.abs(j[:, None] - j)]
    fields = geometry.fields.reshape(-1, h * w) if kind == "fields" else incident_fields(geometry, np.complex128)
    total = np.linalg.solve(np.eye(h * w) - g * x.numpy().ravel(), fields.T)
    want = (green_matrix(geometry, np.complex128) @ (x.numpy().ravel()[:, None] * total)).T * geometry.mask
    model = ScatteringModel(geometry, dtype=F64, tolerance=1e-12, method=method)
    assert isinstance(model, Model)
    got = model.forward(x).numpy()
    assert np.abs(got - want).max() < 1e-8 * np.abs(want).max()
    single = ScatteringModel(geometry, tolerance=1e-4, method=method).forward(x.float()).numpy()
    assert np.linalg.norm(single - want) < 1e-3 * np.linalg.norm(want)


@pytest.mark.parametrize(
    ("cylinders", "most", "least_order"),
    [
        ([(3.0, -2.0, 15.0, 3.0)], 0.01, 1.7),
        ([(-19.0, 3.0, 16.0, 2.0), (15.0, -4.0, 15.0, 2.5)], 0.01, 1.7),
        ([(0.7, -1.3, 25.0, 12.0)], 0.08, 1.4),
    ],
    ids=["one", "two", "resonant"],
)
def test_cylinders_have_their_exact_field_at_second_order(cylinders, most, least_order):
    """1 % at 11 pixels a wavelength inside, and four times less with twice the pixels; strong discs do less well."""
    errors = []
    inside = 0.05 / np.sqrt(max(c[3] for c in cylinders))
    for pixels in (11, 22, 33):
        d = inside / pixels
        n = 2 * int(np.ceil(1e-3 * max(np.abs(c[:2]).max() + c[2] for c in cylinders) / d)) + 2
        geometry = BornGeometry.rings(Grid((n, n), d), 0.05, views=3, receivers=60, radius=0.5)
        image = sum((eps - 1) * disc(geometry.grid, (1e-3 * x, 1e-3 * y), 1e-3 * r) for x, y, r, eps in cylinders)
        got = ScatteringModel(geometry, dtype=F64, tolerance=1e-7).forward(torch.from_numpy(image)).numpy()
        want = exact_field(geometry, cylinders, orders=24 if len(cylinders) == 1 else 14)
        errors.append(np.linalg.norm(got - want) / np.linalg.norm(want))
    assert errors[0] < most, errors
    order = np.log(errors[0] / errors[2]) / np.log(3)
    assert order > least_order, errors


def test_the_gradient_is_that_of_differences():
    geometry = _geometry(masked=True)
    model = ScatteringModel(geometry, dtype=F64, tolerance=1e-12)
    truth, x = _object((12, 10), seed=1), _object((12, 10), seed=2)
    y = model.forward(truth)
    direction = torch.randn(12, 10, dtype=F64)
    weights = torch.tensor([0.5, 1.0, 0.25], dtype=F64)
    views = [2, 0, 2]

    def value(t):
        residual = model.forward(x + t * direction, views) - y[views]
        return float((weights * residual.abs().square().sum(-1)).sum()) / 2

    h = 1e-3
    slopes = [(value(s * h) - value(-s * h)) / (2 * s * h) for s in (1, 2)]
    want = (4 * slopes[0] - slopes[1]) / 3
    got = float((model.gradient(x, y[views], views, weights) * direction).sum())
    assert abs(got - want) < 1e-6 * abs(want)


# A box that is as good as the grid, and one that is not.
@pytest.mark.parametrize(("kind", "empty"), [("transmitters", 1), ("plane_waves", 3), ("fields", 3), ("far_field", 1)])
def test_the_derivative_and_its_adjoint(kind, empty):
    geometry = _geometry(kind, masked=True)
    model = ScatteringModel(geometry, dtype=F64, tolerance=1e-12)
    x, v = _object((12, 10), 2, seed=3, empty=empty), torch.randn(2, 12, 10, dtype=F64)
    views = [3, 1, 1]
    prediction, pullback = model.linearize(x, views)
    assert torch.allclose(prediction, model.forward(x, views))
    z = torch.randn(2, 3, 7, dtype=torch.complex128)
    pushed = model.derivative(x, v, views)
    left, right = (pushed * z.conj()).real.sum((-2, -1)), (v * pullback(z)).sum((-2, -1))
    scale = torch.linalg.vector_norm(pushed, dim=(-2, -1)) * torch.linalg.vector_norm(z, dim=(-2, -1))
    assert float(((left - right).abs() / scale).max()) < 1e-10
    h = 1e-4
    differences = (model.forward(x + h * v, views) - model.forward(x - h * v, views)) / (2 * h)
    assert float((differences - pushed).abs().max()) < 1e-6 * float(pushed.abs().max())
    # Images of a stack are each on their own, though they share a box.
    assert torch.allclose(model.derivative(x[1], v[1], views), pushed[1], rtol=1e-9, atol=1e-12)


def test_near_zero_it_is_born():
    geometry = _geometry(masked=True)
    model, born = ScatteringModel(geometry, dtype=F64), BornModel(geometry, dtype=F64)
    zero, v = torch.zeros(12, 10, dtype=F64), torch.randn(12, 10, dtype=F64)
    assert not model.forward(zero).any()
    assert isinstance(model.linearized(), BornModel)
    assert model.linearized(zero) is model.linearized()
    assert torch.allclose(model.derivative(zero, v), born.forward(v), rtol=1e-8)
    z = torch.randn(4, 7, dtype=torch.complex128)
    assert torch.allclose(model.linearize(zero)[1](z), born.adjoint(z), rtol=1e-8, atol=1e-14)
    weak = 1e-5 * _object((12, 10))
    assert float((model.forward(weak) - born.forward(weak)).norm() / born.forward(weak).norm()) < 1e-4
    fidelity, linear = LeastSquares(model, born.forward(v)), LeastSquares(born, born.forward(v))
    assert fidelity.local_lipschitz(zero) == pytest.approx(linear.lipschitz_max, rel=0.06)
    assert torch.allclose(fidelity.backprojection(), linear.backprojection())


def test_the_derivative_at_an_image_is_a_linear_model():
    geometry = _geometry()
    model = ScatteringModel(geometry, dtype=F64, tolerance=1e-12)
    x, v = _object((12, 10)), torch.randn(3, 12, 10, dtype=F64)
    near = model.linearized(x)
    assert near.linear
    assert near.linearized(v[0]) is near
    assert torch.allclose(near.forward(v), model.derivative(x.expand(3, 12, 10), v))
    z = torch.randn(3, 4, 7, dtype=torch.complex128)
    left, right = (near.forward(v) * z.conj()).real.sum((-2, -1)), (v * near.adjoint(z)).sum((-2, -1))
    assert torch.allclose(left, right, rtol=1e-9, atol=1e-12)
    images, views = v[:2], torch.tensor([3, 1])
    pairs = zip(images, views.split(1), strict=True)
    each = torch.stack([near.adjoint(near.forward(image, view), view) for image, view in pairs])
    assert torch.allclose(near.normal_each(images, views), each, rtol=1e-8, atol=1e-14)
    weights = torch.rand(4, dtype=F64)
    want = near.adjoint(weights[:, None] * near.forward(v[0]))
    assert torch.allclose(near.normal(None, weights)(v[0]), want, rtol=1e-8, atol=1e-14)


def test_blocks_of_views_change_nothing(monkeypatch):
    import plugstream.models.scattering as module

    geometry = _geometry(masked=True)
    model = ScatteringModel(geometry, dtype=F64, tolerance=1e-10)
    x, y = _object((12, 10)), torch.randn(4, 7, dtype=torch.complex128)
    whole, slope = model.forward(x), model.gradient(x, y)
    pulled = model.linearize(x)[1](y)
    monkeypatch.setattr(module, "_VIEWS", 1)
    assert torch.allclose(model.forward(x), whole, rtol=1e-8, atol=1e-14)
    assert torch.allclose(model.gradient(x, y), slope, rtol=1e-7, atol=1e-13)
    assert torch.allclose(model.linearize(x)[1](y), pulled, rtol=1e-7, atol=1e-13)


def test_what_is_asked_for_again_is_the_same_to_the_bit():
    geometry = _geometry(masked=True)
    model = ScatteringModel(geometry)
    x, y = _object((12, 10), 2).float(), torch.randn(3, 7, dtype=torch.complex64)
    views, other = [3, 0, 3], [3, 0, 1]
    model.gradient(x, y, views)
    for image, some in ((x, views), (x, other), (x[:1], views), (0.9 * x, views)):
        anew = ScatteringModel(geometry).forward(image, some)
        assert torch.equal(model.forward(image, some), anew)
    model.forward(x, views).zero_()  # whoever has it may change it
    assert torch.equal(model.forward(x, views), ScatteringModel(geometry).forward(x, views))


@pytest.mark.parametrize("method", ["dense", "fast"])
def test_a_scan_that_grows(method):
    geometry = _geometry()
    first = geometry.with_views([0, 1])
    x = _object((12, 10))
    grown = ScatteringModel(first, dtype=F64, method=method).with_geometry(geometry)
    assert grown.n_views == 4
    assert torch.allclose(grown.forward(x), ScatteringModel(geometry, dtype=F64, method=method).forward(x), rtol=1e-7)


def test_a_field_that_was_not_found_names_its_view():
    model = ScatteringModel(_geometry(), dtype=F64, max_iterations=3)
    with pytest.warns(PlugstreamWarning, match=r"^the field of view 2 has a relative residual of .* after 3 iter"):
        model.forward(_object((12, 10), strength=5.0), [2, 3])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tolerance": 1e-9}, "tolerance must be from 1e-05 to 0.1 in float32"),
        ({"tolerance": 0.5}, "tolerance must be from"),
        ({"max_iterations": 0}, "max_iterations must be at least 1"),
        ({"method": "slow"}, "there is no method 'slow'"),
    ],
)
def test_arguments_that_cannot_be(arguments, message):
    with pytest.raises(InputError, match=message):
        ScatteringModel(_geometry(), **arguments)
    with pytest.raises(InputError, match="its last axes must be"):
        ScatteringModel(_geometry()).forward(torch.zeros(3, 3))


@pytest.mark.gpu
def test_on_a_gpu_it_is_the_same():
    geometry = replace(_geometry(shape=(48, 40), views=6, receivers=31), mask=None)
    x = _object((48, 40), strength=0.8)
    exact = ScatteringModel(geometry, dtype=F64, tolerance=1e-9)
    y = exact.forward(0.5 * x)
    there = ScatteringModel(geometry, device="cuda")
    got = there.gradient(x.float().cuda(), y.to(torch.complex64).cuda()).cpu().double()
    want = exact.gradient(x, y)
    assert float((got - want).norm() / want.norm()) < 5e-3
    assert float((there.forward(x.float().cuda()).cpu() - exact.forward(x)).norm() / exact.forward(x).norm()) < 2e-3


@pytest.mark.gpu
def test_graphs_of_steps_on_a_gpu_give_the_bits_of_eager_ones(monkeypatch):
    """Of images that come one after the other, with boxes of their own, and of two at a time; few rooms are kept."""
    geometry = replace(_geometry(shape=(48, 40), views=19, receivers=31), mask=None)
    model, plain = (ScatteringModel(geometry, device="cuda") for _ in range(2))
    whole = 0.05 * torch.ones(48, 40)
    images = [_object((48, 40), strength=strength).float() for strength in (0.5, 0.8, 0.3)] + [whole, whole + 0.01]
    for image in [*images, *images, torch.stack(images[:2]), *images]:
        x = image.cuda()
        results = []
        for one, graphs in ((model, "1"), (plain, "0")):
            monkeypatch.setenv("PLUGSTREAM_CUDA_GRAPHS", graphs)
            y = 0.9 * one.forward(x)
            results.append((y, one.gradient(x, y)))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    gc.collect()
    assert 0 < len(model.green.rooms._idle) <= 2
    assert any(len(room._graphs) for room in model.green.rooms._idle)
    assert not any(len(room._graphs) for room in plain.green.rooms._idle)
    assert copy.deepcopy(model).forward(x).shape == y.shape
