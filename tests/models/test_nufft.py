"""Non-uniform FFTs against the sum that defines them, their adjoints, and the Triton kernels in the interpreter."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from plugstream import InputError
from plugstream.models.nufft import FinufftNufft, finufft_is_here, make_nufft
from plugstream.models.nufft_grid import GridNufft, choose_kernel
from triton_interpreter import emulated, interpret

CPU = torch.device("cpu")
F64 = torch.float64


def direct(images, frequencies):
    rows, columns = (np.arange(n) - n // 2 for n in images.shape[-2:])
    return np.einsum(
        "nab,ja,jb->nj",
        images,
        np.exp(1j * np.outer(frequencies[:, 0], rows)),
        np.exp(1j * np.outer(frequencies[:, 1], columns)),
    )


@given(
    shape=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    count=st.integers(1, 3),
    reach=st.sampled_from([0.5, 3.2, 11.0]),
    eps=st.sampled_from([1e-3, 1e-5, 1e-9, 1e-13]),
    form=st.sampled_from([GridNufft, FinufftNufft] if finufft_is_here() else [GridNufft]),
    single=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_it_is_the_sum_and_its_adjoint_the_transpose(shape, count, reach, eps, form, single, seed):
    rng = np.random.default_rng(seed)
    single = single and eps >= 1e-5
    dtype = torch.float32 if single else F64
    frequencies = rng.uniform(-reach, reach, (60, 2))
    frequencies[:4] = [[0, 0], [np.pi, -np.pi], [-np.pi, 0], [2 * np.pi, 1e-9]]
    images = rng.standard_normal((count, *shape))
    plan = form(shape, frequencies, eps, device=CPU, dtype=dtype)
    got = plan.sample(torch.from_numpy(images).to(dtype))
    want = direct(images, frequencies)
    error = np.abs(got.numpy() - want) / np.sqrt((images**2).sum((1, 2), keepdims=True))[..., 0]
    assert np.sqrt((error**2).mean()) <= 2 * eps + 2e-14
    z = torch.from_numpy(rng.standard_normal((count, 60)) + 1j * rng.standard_normal((count, 60))).to(got.dtype)
    back = plan.adjoint(z)
    assert back.shape == images.shape
    left, right = float((got * z.conj()).real.sum()), float((back.double() * torch.from_numpy(images)).sum())
    assert abs(left - right) <= (1e-5 if single else 1e-13) * float(got.norm() * z.norm() + 1e-300)


def test_wider_kernels_are_more_accurate_and_what_was_asked():
    for eps in (1e-3, 1e-5, 1e-9, 1e-13):
        kernel = choose_kernel(eps, 256**2, 200**2)
        assert kernel.error <= eps
        assert kernel.error > eps / 200  # and not much more than was asked
    x = np.linspace(-3, 3, 20_001)
    kernel = choose_kernel(1e-5, 256**2, 200**2)
    numeric = [np.trapezoid(kernel(x) * np.cos(2 * np.pi * nu * x), x) for nu in (0.0, 0.2, 0.8)]
    assert np.allclose(numeric, kernel.transform(np.array([0.0, 0.2, 0.8])), atol=1e-6)
    with pytest.raises(InputError, match="beyond the non-uniform FFT"):
        choose_kernel(1e-18, 100, 100)


@pytest.mark.skipif(not finufft_is_here(), reason="finufft has no wheel for this machine")
def test_the_form_is_chosen_by_precision_and_size():
    points = np.zeros((10, 2))
    assert make_nufft((8, 8), points, 1e-5, device=CPU, dtype=torch.float32).name == "grid"
    assert make_nufft((8, 8), points, 1e-9, device=CPU, dtype=F64).name == "finufft"
    plan = make_nufft((8, 8), points, 1e-9, device=CPU, dtype=F64)
    for count in (1, 2, 3, 1, 2):  # plans are kept by the number of images
        plan.sample(torch.zeros(count, 8, 8, dtype=F64))
    assert len(plan._plans) == 3
    assert plan.held > 0


INTERPRETED = """
import os
import numpy as np, torch
THOROUGH = os.environ.get("PLUGSTREAM_THOROUGH")
from plugstream.models import nufft_triton
from plugstream.models.born_fast import expand, fold
from plugstream.models.nufft_grid import GridNufft
generator = torch.Generator().manual_seed(0)
for half in (1, 7, 130)[: 2 + (THOROUGH == "1")]:
    values = torch.randn(2, half, half, dtype=torch.complex128, generator=generator)
    total = torch.randn(2, dtype=torch.float64, generator=generator)
    assert torch.allclose(nufft_triton.expand(values, total), expand(values, total), rtol=1e-13, atol=1e-13), half
    products = torch.randn(2, 2 * half, 2 * half, dtype=torch.float64, generator=generator)
    assert torch.allclose(nufft_triton.fold(products), fold(products)[0], rtol=1e-13, atol=1e-13), half
rng = np.random.default_rng(0)
for shape, points in (((9, 8), 50), ((16, 5), 3)):
    plan = GridNufft(shape, rng.uniform(-3, 3, (points, 2)), 1e-5, device=torch.device("cpu"), dtype=torch.float32)
    for matrix in (plan._read, plan._write):
        vectors = torch.randn(2, matrix.shape[1], 2, generator=generator)
        got = nufft_triton.product(
            matrix.starts, matrix.columns, matrix.values, vectors,
            row_sign=matrix.row_sign, column_sign=matrix.column_sign,
        )
        assert torch.allclose(got, matrix(vectors), rtol=1e-4, atol=1e-4), (shape, points)
for shape, reach in (((5, 11), 0.7), ((1, 1), 3.0), ((9, 8), 3.1), ((16, 5), 3.1))[: 4 if THOROUGH == "1" else 2]:
    points = rng.uniform(-reach, reach, (30, 2))
    plan = GridNufft(shape, points, 1e-5, device=torch.device("cpu"), dtype=torch.float64)
    images = torch.randn(2, *shape, dtype=torch.float64, generator=generator)
    padded = plan.pad_rows(images)
    assert torch.equal(nufft_triton.pad_rows(images, plan._scale, plan._columns), padded), shape
    back = torch.randn(padded.shape, dtype=torch.float64, generator=generator)
    assert torch.equal(nufft_triton.crop_rows(back, plan._scale, shape[1]), plan.crop_rows(back)), shape
    half = torch.fft.rfft(padded)
    columns = plan.take_columns(half)
    left, count = plan._left, plan._left + plan._right
    assert torch.equal(nufft_triton.take_columns(half, plan._rows, plan._columns, left, count), columns), shape
    grid = torch.randn(columns.shape, dtype=torch.complex128, generator=generator)
    got = nufft_triton.put_columns(grid, shape[0], plan._columns, left)
    assert torch.allclose(got, plan.put_columns(grid), rtol=1e-14, atol=1e-14), shape
import plugstream as ps
geometry = ps.BornGeometry.rings(ps.Grid((5, 4), 0.01), 0.05, views=4, receivers=6, radius=0.3)
dense = ps.BornModel(geometry, method="dense", dtype=torch.float64)
nufft_triton.serves = lambda values: True  # the whole of the fast model as it runs on CUDA
fast = ps.BornModel(geometry, method="fast", dtype=torch.float64, eps=1e-3, nufft="grid")
x = torch.randn(1, 5, 4, dtype=torch.float64, generator=generator)
y = dense.forward(x, [3, 1])
for got, want in (
    (fast.gradient(x, 0.5 * y, [3, 1]), dense.gradient(x, 0.5 * y, [3, 1])),
    (fast.normal()(x), dense.normal()(x)),
):
    assert (got - want).norm() <= 1e-3 * want.norm()
print("agree")
"""


@pytest.mark.thorough
@emulated
def test_the_kernels_are_the_torch_forms_in_the_interpreter():
    assert interpret("-c", INTERPRETED) == "agree\n"
