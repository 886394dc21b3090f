"""The Triton kernels of the non-uniform FFT without tables: in the interpreter, and on a GPU where there is one."""

import numpy as np
import pytest
import torch

from plugstream.models import ODTModel
from plugstream.models.ct_geometry import Voxels
from plugstream.models.odt_geometry import Optics, poses_of_rotation
from triton_interpreter import emulated, interpret

INTERPRETED = """
import os
import numpy as np, torch
THOROUGH = os.environ.get("PLUGSTREAM_THOROUGH") == "1"
from plugstream.models import nufft_spread_triton
from plugstream.models.nufft_points import read_cells, write_cells
from plugstream.models.nufft_spread import Axis, SpreadNufft
rng = np.random.default_rng(0)
draw = torch.Generator().manual_seed(0)
eps, count = (1e-3, 20) if THOROUGH else (3e-2, 9)
for shape, axes, is_complex in (
    ((3, 5, 9), [Axis(), Axis(1.2, period=8), Axis(2.0)], False),
    ((9, 12), [Axis(1.0), Axis()], True),
    ((3, 3, 4), [Axis(1.0)] * 3, False),
)[: None if THOROUGH else 2]:
    for dtype in (torch.float32, torch.float64)[: None if THOROUGH else 1]:
        plan = SpreadNufft(shape, eps, axes=axes, is_complex=is_complex, dtype=dtype)
        columns = [
            rng.uniform(-axis.band, axis.band, count) if axis.period is None
            else 2 * np.pi / axis.period * rng.integers(-1, 2, count) for axis in axes
        ]
        points = plan.place(np.stack(columns, 1))
        kind = torch.complex64 if dtype == torch.float32 else torch.complex128
        grid = torch.randn((2, *plan.cells), dtype=kind, generator=draw)
        values = torch.randn((2, count), dtype=kind, generator=draw)
        bound = 1e-5 if dtype == torch.float32 else 1e-13
        want = points.conjugate(read_cells(grid, points))
        got = nufft_spread_triton.read(grid, points)
        assert (got - want).norm() <= bound * want.norm(), (shape, dtype)
        want, got = grid.clone(), grid.clone()
        write_cells(points.conjugate(values), points, want)
        nufft_spread_triton.write(values, points, got)
        assert (got - want).norm() <= bound * want.norm(), (shape, dtype)
        none = plan.place(np.zeros((0, len(shape))))
        assert nufft_spread_triton.read(grid, none).shape == (2, 0)
        nufft_spread_triton.write(values[:, :0], none, got)
print("agree")
"""


@pytest.mark.thorough
@emulated
def test_they_are_the_torch_form_in_the_interpreter():
    assert interpret("-c", INTERPRETED) == "agree\n"


@pytest.mark.gpu
@pytest.mark.parametrize("anywhere", [False, True])
def test_a_model_on_a_gpu_is_the_one_on_the_cpu_and_the_same_every_time(anywhere):
    poses = poses_of_rotation(np.linspace(0, 5, 7))
    if anywhere:
        turned = np.linalg.qr(np.random.default_rng(0).standard_normal((7, 3, 3)))[0]
        poses = np.concatenate([turned, turned[:, 2:]], 1)
    optics, voxels = Optics((40, 44), 1.39e-7, 6.47e-7, 1.335, 1.1), Voxels((32, 36, 40), 1.39e-7)
    exact = ODTModel(poses, optics, voxels, dtype=torch.float64, eps=1e-9)
    image = torch.rand(voxels.shape, dtype=torch.float64)
    want = exact.forward(image)
    for dtype, eps, bound in ((torch.float32, 1e-5, 1e-4), (torch.float64, 1e-9, 1e-8)):
        model = ODTModel(poses, optics, voxels, dtype=dtype, eps=eps, device="cuda")
        got = model.forward(image.to("cuda", dtype))
        assert float((got.cpu() - want).norm()) <= bound * float(want.norm())
        back = model.adjoint(want.to("cuda", got.dtype))
        there = exact.adjoint(want)
        assert float((back.cpu() - there).norm()) <= bound * float(there.norm())
        assert torch.equal(back, model.adjoint(want.to("cuda", got.dtype)))
