"""Multi-coil MRI against the sum that defines it: any trajectory, stacks, masks, density, places of the image."""

import numpy as np
import pytest
import torch

from plugstream import InputError
from plugstream.models.ct_geometry import Voxels
from plugstream.models.kspace import KSpace, ToeplitzNormal, centered_voxels, find_period
from plugstream.models.mri import MRIModel
from plugstream.models.nufft import finufft_is_here

F64, STEP = torch.float64, 2e-3


def complex_normal(rng, *shape):
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


def direct(image, trajectory, voxels, maps):
    """(coils, views, samples) by the sum over pixels, in double precision."""
    places = [o + d * np.arange(n) for n, d, o in zip(voxels.shape, voxels.spacing, voxels.origin, strict=True)]
    r = np.stack([axis.ravel() for axis in np.meshgrid(*places, indexing="ij")], 1)
    waves = np.exp(-2j * np.pi * np.einsum("vsa,na->vsn", trajectory, r))
    return np.einsum("vsn,cn->cvs", waves, (maps * image).reshape(len(maps), -1)) / np.sqrt(r.shape[0])


def spokes(views, samples, extent):
    """Radial samples out to `extent`, 1/m."""
    angles = np.arange(views) * np.pi * (np.sqrt(5) - 1) / 2
    along = (np.arange(samples) - samples // 2) / (samples // 2) * extent
    return along[None, :, None] * np.stack([np.sin(angles), np.cos(angles)], 1)[:, None]


def lines(rows, columns, shape, steps, wider=1):
    """Phase-encode lines (views, columns, 2) on the grid of a field of view that is `wider` times the image's."""
    ky = np.asarray(rows) / (shape[0] * steps[0])
    kx = (np.arange(columns) - columns // 2) / (wider * shape[1] * steps[1])
    return np.stack(np.broadcast_arrays(ky[:, None], kx), 2)


CASES = {
    "radial": (centered_voxels((12, 15), STEP), spokes(5, 24, 0.5 / STEP)),
    "elsewhere": (Voxels((12, 15), (STEP, 0.7 * STEP), (-3.25 * STEP, 1.5 * STEP)), spokes(5, 24, 0.5 / STEP)),
    "lines": (centered_voxels((12, 14), STEP), lines([-6, -3, 0, 1, 5], 14, (12, 14), (STEP, STEP))),
    "lines read twice as fine": (
        Voxels((12, 14), STEP, (-5.5 * STEP, -7.5 * STEP)),
        lines([-6, 0, 5], 28, (12, 14), (STEP, STEP), 2),
    ),
    "volume": (
        centered_voxels((6, 8, 7), STEP),
        np.concatenate([np.full((5, 16, 1), 1 / (6 * STEP)), spokes(5, 16, 0.5 / STEP)], 2),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_it_is_the_sum_and_its_adjoint_the_transpose(name, dtype):
    voxels, trajectory = CASES[name]
    rng = np.random.default_rng(0)
    maps, image = complex_normal(rng, 3, *voxels.shape), complex_normal(rng, 2, *voxels.shape)
    density = rng.uniform(0.5, 2, trajectory.shape[:2])
    model = MRIModel(trajectory, voxels, maps, density=density, dtype=dtype)
    assert model.data_shape == (3, trajectory.shape[1])
    assert model.kspace.is_exact == name.startswith("lines")
    x = torch.from_numpy(image).to(model.dtype)
    want = np.stack([direct(one, trajectory, voxels, maps) for one in image]).swapaxes(1, 2)
    want = want * np.sqrt(density)[:, None]
    got = model.forward(x)
    tol = 1e-3 if dtype == torch.float32 else 1e-9
    assert np.abs(got.numpy() - want).max() <= tol * np.abs(want).max()
    some = [3, 1, 1] if len(trajectory) > 3 else [2, 1, 1]
    assert torch.allclose(model.forward(x, some), got[:, some], rtol=0, atol=float(tol * got.abs().max()))
    z = torch.from_numpy(complex_normal(rng, 2, *model.forward(x[0], some).shape)).to(model.dtype)
    left = (model.forward(x, some).conj() * z).sum()
    right = (x.conj() * model.adjoint(z, some)).sum()
    assert abs(left - right) <= (1e-4 if dtype == torch.float32 else 1e-12) * abs(left)


def test_two_thousand_samples():
    """As issues ask: a direct sum in double precision on 2,000 points, in single precision and through finufft."""
    rng = np.random.default_rng(1)
    voxels = centered_voxels((40, 36), STEP)
    trajectory = rng.uniform(-0.5 / STEP, 0.5 / STEP, (4, 500, 2))
    image, maps = complex_normal(rng, 40, 36), complex_normal(rng, 1, 40, 36)
    want = direct(image, trajectory, voxels, maps).swapaxes(0, 1)
    for dtype, tol in ((torch.float32, 2e-4), (F64, 1e-9)):
        model = MRIModel(trajectory, voxels, maps, dtype=dtype)
        assert model.kspace.form == ("finufft" if dtype == F64 and finufft_is_here() else "spread")
        got = model.forward(torch.from_numpy(image).to(model.dtype)).numpy()
        assert np.linalg.norm(got - want) <= tol * np.linalg.norm(want)


def test_gradient_is_autograds():
    rng = np.random.default_rng(2)
    voxels, trajectory = CASES["radial"]
    model = MRIModel(trajectory, voxels, complex_normal(rng, 2, 12, 15), dtype=F64, form="spread")
    x = torch.from_numpy(complex_normal(rng, 12, 15)).requires_grad_()
    y = torch.from_numpy(complex_normal(rng, 5, *model.data_shape))
    value = (model.forward(x) - y).abs().square().sum() / 2
    (slope,) = torch.autograd.grad(value, x)
    found = model.gradient(x.detach(), y)
    assert float((found - slope).norm()) <= 1e-10 * float(slope.norm())


@pytest.mark.parametrize("name", ["radial", "lines", "lines read twice as fine", "volume"])
def test_normal_is_forward_and_adjoint(name):
    rng = np.random.default_rng(3)
    voxels, trajectory = CASES[name]
    mask = rng.random((len(trajectory), 1, trajectory.shape[1])) < 0.8
    both = np.broadcast_to(mask, (len(trajectory), 2, trajectory.shape[1]))
    density = rng.uniform(0.5, 2, trajectory.shape[:2])
    maps = complex_normal(rng, 2, *voxels.shape)
    x = torch.from_numpy(complex_normal(rng, 3, *voxels.shape))
    weights = torch.tensor([0.5, 2.0])
    for which in (both, both.copy()):
        if which is not both:
            which[:, 0, 3] = ~which[:, 1, 3]  # coils with masks of their own
        model = MRIModel(trajectory, voxels, maps, mask=which, density=density, dtype=F64)
        want = model.adjoint(model.spread(weights) * model.forward(x, [0, 2]), [0, 2])
        got = model.normal([0, 2], weights)(x)
        assert float((got - want).norm()) <= 1e-9 * float(want.norm())


def test_a_stack_is_its_slices():
    rng = np.random.default_rng(4)
    voxels, trajectory = centered_voxels((3, 12, 15), STEP), CASES["radial"][1]
    maps, image = complex_normal(rng, 2, 3, 12, 15), complex_normal(rng, 3, 12, 15)
    stack = MRIModel(trajectory, voxels, maps, dtype=F64)
    assert stack.data_shape == (3, 2, 24)
    x = torch.from_numpy(image)
    seen, back = stack.forward(x), stack.adjoint(stack.forward(x))
    for n in range(3):
        one = MRIModel(trajectory, CASES["radial"][0], maps[:, n], dtype=F64)
        assert torch.allclose(seen[:, n], one.forward(x[n]))
        assert torch.allclose(back[n], one.adjoint(seen[:, n]))
    assert torch.allclose(stack.coil_maps, torch.from_numpy(maps))


def test_coils_some_at_a_time_are_the_same(monkeypatch):
    rng = np.random.default_rng(5)
    voxels, trajectory = CASES["radial"]
    model = MRIModel(trajectory, voxels, complex_normal(rng, 5, 12, 15), dtype=F64)
    x = torch.from_numpy(complex_normal(rng, 2, 12, 15))
    whole = model.forward(x)
    normal, back = model.normal()(x), model.adjoint(whole)
    monkeypatch.setattr(KSpace, "images_at_once", 3)
    assert torch.allclose(model.forward(x), whole)
    assert torch.allclose(model.adjoint(whole), back)
    assert torch.allclose(model.normal()(x), normal)


@pytest.mark.parametrize("name", ["radial", "lines", "lines read twice as fine"])
def test_norms_are_bounded_from_above(name):
    rng = np.random.default_rng(6)
    voxels, trajectory = CASES[name]
    maps = complex_normal(rng, 2, *voxels.shape)
    maps /= np.sqrt((np.abs(maps) ** 2).sum(0))
    model = MRIModel(trajectory, voxels, maps, dtype=F64)
    size = int(np.prod(voxels.shape))
    eye = torch.eye(size, dtype=model.dtype).view(size, *voxels.shape)
    columns = model.forward(eye).flatten(2).permute(1, 2, 0)  # (views, data, pixels)
    true = torch.linalg.matrix_norm(columns, 2).square()
    bounds = model.squared_norm_bounds(torch.arange(len(trajectory)))
    assert bool((bounds >= 0.999 * true).all())
    assert float(bounds.max()) <= 2.1 * float(true.max())
    every = torch.arange(len(trajectory))
    whole = float(torch.linalg.matrix_norm(columns.flatten(0, 1), 2) ** 2)
    assert ToeplitzNormal(model.kspace, every).bound >= 0.999 * whole
    assert 0.98 * whole <= float(model.overlap().max()) <= 4.2 * whole
    if name == "lines":  # which share no samples, so that all of them allow the step that each does
        assert float(model.overlap().max()) == pytest.approx(1, rel=1e-3)


def test_periods_are_found():
    assert find_period(np.array([-0.5, 0.25, 0.0]), 12) == 12
    assert find_period(np.array([1 / 24, 0.25]), 12) == 24
    assert find_period(np.arange(-6, 6) / 13, 12) == 13
    assert find_period(np.array([0.1, 0.2345678]), 12) is None
    assert find_period(np.zeros(3), 5) == 5


def test_masked_samples_may_hold_anything():
    rng = np.random.default_rng(7)
    voxels, trajectory = CASES["radial"]
    mask = rng.random((5, 1, 24)) < 0.7
    model = MRIModel(trajectory, voxels, mask=mask)
    data = torch.full((5, 1, 24), torch.nan, dtype=torch.complex64)
    assert float(model.restrict(data)[torch.from_numpy(~mask)].abs().sum()) == 0
    assert float(model.forward(torch.ones(12, 15))[torch.from_numpy(~mask)].abs().sum()) == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trajectory": np.zeros((2, 3, 4))}, "2 or 3 axes"),
        ({"trajectory": np.full((2, 3, 2), np.nan)}, "NaN"),
        ({"coil_maps": np.zeros((2, 4, 4), complex)}, "coil maps are"),
        ({"density": -np.ones((2, 3))}, "not negative"),
        ({"density": np.ones((2, 4))}, "the density has shape"),
        ({"mask": np.ones((2, 4, 4), bool)}, "the mask has shape"),
        ({"dtype": torch.float16}, "float32 or float64"),
        ({"form": "fast"}, "auto, spread and finufft"),
    ],
)
def test_what_is_no_scan_is_refused(changes, said):
    usual = {"trajectory": np.zeros((2, 3, 2)), "voxels": centered_voxels((4, 5), STEP)}
    with pytest.raises(InputError, match=said):
        MRIModel(**(usual | changes))


@pytest.mark.parametrize("seed", range(3))
def test_bounds_with_several_coils_hold_and_are_as_near_as_they_say(seed):
    """Never below the largest eigenvalue, and at most 2.6 times it for smooth maps with a sum of squares of 1."""
    rng = np.random.default_rng(seed)
    voxels, coils = centered_voxels((9, 9), STEP), (2, 4, 8)[seed]
    y, x = np.meshgrid(np.linspace(-1, 1, 9), np.linspace(-1, 1, 9), indexing="ij")
    angles = rng.uniform(0, 2 * np.pi, coils)
    maps = np.stack([np.exp(-((y - np.sin(a)) ** 2 + (x - np.cos(a)) ** 2) + 1j * (x * a - y)) for a in angles])
    maps /= np.sqrt((np.abs(maps) ** 2).sum(0))
    paths = [spokes(2, 18, 0.5 / STEP), rng.uniform(-0.5, 0.5, (2, 30, 2)) / STEP]
    for path in paths:
        model = MRIModel(path, voxels, maps.astype(np.complex64), dtype=F64)
        bounds = model.squared_norm_bounds(torch.arange(2))
        true = super(MRIModel, model).squared_norms(torch.arange(2), 3e-3)
        assert (bounds >= true * (1 - 5e-3)).all()
        assert 1.0 < float(bounds.max() / true.max()) < 2.6
