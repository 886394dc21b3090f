"""Multi-coil MRI on a GPU: the model of every kind of path, its NUFFT in Triton, and whole reconstructions."""

import numpy as np
import pytest
import torch

from plugstream._native import load
from plugstream.cli import main
from plugstream.instruments.mri_simulation import ring_coils
from plugstream.models import kspace
from plugstream.models.ct_geometry import Voxels
from plugstream.models.kspace import centered_voxels
from plugstream.models.mri import MRIModel
from plugstream.models.trajectories import cartesian_lines, radial_spokes, spiral_interleaves

pytestmark = pytest.mark.gpu

SHAPE, COILS = (40, 36), 5


def path_of(kind, voxels):
    """Views of a path, (views, samples, 2)."""
    if kind == "radial":
        return radial_spokes(voxels, 12)
    if kind == "spiral":
        return spiral_interleaves(voxels, 6, 2.0)
    return cartesian_lines(voxels, np.arange(0, voxels.shape[-2], 3))


def near(got, want, bound):
    """Whether values on the GPU are those in double precision, but for this part of their norm."""
    return float((got.cpu() - want).norm()) <= bound * float(want.norm())


@pytest.mark.parametrize("stack", [False, True])
@pytest.mark.parametrize("kind", ["radial", "spiral", "cartesian"])
def test_a_model_is_the_one_on_the_cpu_in_double_precision(kind, stack):
    """Forward, adjoint, H^H H, overlap and norms, of all views and of some, density and a mask; the same every time."""
    shape = (3, *SHAPE) if stack else SHAPE
    plane, voxels = centered_voxels(SHAPE, 1e-3), centered_voxels(shape, 1e-3)
    draw = np.random.default_rng(0)
    path = path_of(kind, plane)
    maps = ring_coils(shape, COILS).reshape(COILS, *shape)
    data_shape = (len(path), *shape[:-2], COILS, path.shape[1])
    rest = {"mask": draw.random(data_shape) < 0.9, "density": draw.random(path.shape[:2])}
    exact = MRIModel(path, voxels, maps, dtype=torch.float64, **rest)
    image = torch.from_numpy(draw.standard_normal(shape) + 1j * draw.standard_normal(shape))
    for dtype, eps, bound in ((torch.float32, 1e-5, 1e-4), (torch.float64, 1e-9, 1e-7)):
        model = MRIModel(path, voxels, maps, dtype=dtype, eps=eps, device="cuda", **rest)
        for views in (None, torch.tensor([4, 1, 1])):
            want = exact.forward(image, views)
            got = model.forward(image.to("cuda", model.dtype), views)
            assert got.is_cuda
            assert near(got, want, bound)
            data = want.to("cuda", model.data_dtype)
            back = model.adjoint(data, views)
            assert near(back, exact.adjoint(want, views), bound)
            assert torch.equal(back, model.adjoint(data, views))
            assert near(model.restrict(data, views), exact.restrict(want, views), bound)
            there = model.normal(views)(image.to("cuda", model.dtype))
            assert near(there, exact.normal(views)(image), 2 * bound)
            assert near(model.overlap(views), exact.overlap(views), 3e-2)  # a bound, which is rough
        norms = exact.squared_norms(torch.tensor([0, 3]), 1e-3)
        bounds = model.squared_norm_bounds(torch.tensor([0, 3])).cpu()
        assert bool((bounds >= 0.999 * norms).all() and (bounds <= 1.3 * norms).all())


@pytest.mark.parametrize("kind", ["radial", "cartesian"])
def test_graphs_give_the_bits_of_eager_products(monkeypatch, kind):
    """Of other views each time, off the middle, with a density; and without tables of all samples."""
    voxels = Voxels(SHAPE, (1e-3, 1e-3), (0.0, -5e-3))
    path, draw = path_of(kind, centered_voxels(SHAPE, 1e-3)), np.random.default_rng(0)
    model = MRIModel(path, voxels, ring_coils(SHAPE, COILS)[:, 0], density=draw.random(path.shape[:2]), device="cuda")
    for views in ([4, 1, 1], [0, 2, 3], [5, 5, 1], [7, 8, 9], [2, 1, 0], None, None, None, None):
        image = torch.randn(SHAPE, dtype=torch.complex64, device="cuda")
        results = []
        for graphs in ("1", "0"):
            monkeypatch.setenv("PLUGSTREAM_CUDA_GRAPHS", graphs)
            data = model.forward(image, views)
            results.append((data, model.adjoint(data, views), model.normal(views)(image)))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    # Of three views, and of all; and for whatever views.
    assert {name: len(call._graphs) for name, call in model._graphs.items()} == {
        "forward": 2,
        "adjoint": 2,
        "normal": 1,
    }
    monkeypatch.setattr(kspace, "_CACHE_BYTES", 0)
    plain = MRIModel(path, voxels, ring_coils(SHAPE, COILS)[:, 0], density=model._roots.square().cpu(), device="cuda")
    assert not plain.kspace.is_tabled
    torch.testing.assert_close(plain.forward(image), data, rtol=0, atol=1e-5 * float(data.abs().max()))
    torch.testing.assert_close(plain.adjoint(data), results[0][1], rtol=1e-4, atol=1e-4)


def test_many_coils_go_in_parts(monkeypatch):
    """Where finer grids of all coils do not fit, some go after others, with the same result."""
    voxels = centered_voxels(SHAPE, 1e-3)
    model = MRIModel(radial_spokes(voxels, 8), voxels, ring_coils(SHAPE, COILS)[:, 0], device="cuda")
    image = torch.randn(SHAPE, dtype=torch.complex64, device="cuda")
    want, normal = model.forward(image), model.normal()(image)
    back = model.adjoint(want)
    monkeypatch.setattr(type(model.kspace), "images_at_once", property(lambda self: 2))
    torch.testing.assert_close(model.forward(image), want, rtol=0, atol=1e-5 * float(want.abs().max()))
    torch.testing.assert_close(model.adjoint(want), back, rtol=0, atol=1e-5 * float(back.abs().max()))
    torch.testing.assert_close(model.normal()(image), normal, rtol=0, atol=1e-5 * float(normal.abs().max()))


@pytest.mark.parametrize("trajectory", ["radial", "spiral", "cartesian"])
@pytest.mark.parametrize("denoiser", ["tv", "bm3d", "tnrd"])
def test_a_reconstruction_is_that_of_the_cpu(tmp_path, monkeypatch, trajectory, denoiser):
    """By command, few views a step: the same image on both, resumed to the bit on the GPU."""
    monkeypatch.chdir(tmp_path)
    words = ["--size", "48", "--trajectory", trajectory, "--acceleration", "2", "--coils", "4"]
    assert main(["simulate", "scan.zarr", "--instrument", "mri", *words]) == 0
    run = ["reconstruct", "scan.zarr", "--denoiser", denoiser, "--batch", "4", "--report", "none"]
    # BM3D takes seconds a step on a CPU without the native kernels.
    steps = "4" if denoiser == "bm3d" and load() is None else "20"
    images = {}
    for device in ("cpu", "cuda"):
        assert main([*run, "--device", device, "--iterations", steps, "--out", device]) == 0
        images[device] = np.load(f"{device}/result.npy")
    off = np.linalg.norm(images["cuda"] - images["cpu"]) / np.linalg.norm(images["cpu"])
    assert off < (2e-2 if denoiser == "bm3d" else 5e-3)  # TV stops by a tolerance, BM3D compares values
    assert main([*run, "--device", "cuda", "--iterations", "2", "--out", "part"]) == 0
    assert main(["resume", "part", "--iterations", steps]) == 0
    assert np.array_equal(np.load("part/result.npy"), images["cuda"])


def test_cg_sense_is_that_of_the_cpu(tmp_path, monkeypatch):
    from plugstream import open_scan
    from plugstream.scans.baselines.first_image import form_image

    monkeypatch.chdir(tmp_path)
    words = ["--size", "48", "--acceleration", "2", "--coils", "4"]
    assert main(["simulate", "scan.zarr", "--instrument", "mri", *words]) == 0
    scan = open_scan("scan.zarr")
    for method in ("cg-sense", "gridding"):
        want = form_image(scan, method, iterations=6)
        got = form_image(scan, method, iterations=6, device="cuda")
        assert got.is_cuda
        assert near(got, want, 1e-3)
