"""The non-uniform FFT without tables, in two and three dimensions, against the sum that defines it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from effort import effort, thorough
from plugstream import InputError
from plugstream.models.nufft import FinufftNufft, finufft_is_here, make_nufft
from plugstream.models.nufft_grid import Kernel
from plugstream.models.nufft_points import fit_taps, read_cells, write_cells
from plugstream.models.nufft_spread import Axis, SpreadNufft

F64 = torch.float64


def direct(images, frequencies):
    """sum_n x[n] exp(i w (n - N // 2)), in double precision, axis by axis."""
    out = images.astype(np.complex128)
    phases = [
        np.exp(1j * np.outer(w, np.arange(n) - n // 2)) for w, n in zip(frequencies.T, images.shape[1:], strict=True)
    ]
    letters = "abc"[: len(phases)]
    terms = ",".join(f"j{letter}" for letter in letters)
    return np.einsum(f"n{letters},{terms}->nj", out, *phases, optimize=True)


@thorough
@settings(max_examples=effort(16, 300))
@given(
    shape=st.one_of(st.tuples(*[st.integers(1, 14)] * 2), st.tuples(*[st.integers(1, 9)] * 3)),
    periods=st.lists(st.booleans(), min_size=3, max_size=3),
    band=st.sampled_from([0.4, 2.0, np.pi]),
    eps=st.sampled_from([1e-3, 1e-5, 1e-9]),
    is_complex=st.booleans(),
    single=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_it_is_the_sum_and_its_adjoint_the_transpose(shape, periods, band, eps, is_complex, single, seed):
    rng = np.random.default_rng(seed)
    single = single and eps >= 1e-5
    dtype = torch.float32 if single else F64
    axes, columns = [], []
    for size, exact in zip(shape, periods, strict=False):
        period = size + int(rng.integers(0, 4)) if exact else None
        if period is None:
            columns.append(np.append(rng.uniform(-band, band, 38), [band, -band]))
        else:
            most = min(period // 2, int(band * period / (2 * np.pi)))
            columns.append(2 * np.pi / period * np.append(rng.integers(-most, most + 1, 38), [most, -most]))
        axes.append(Axis(band, period))
    frequencies = np.stack(columns, 1)
    if band > 3:
        frequencies += 2 * np.pi * rng.integers(-1, 2, frequencies.shape)  # any period is the same
    images = rng.standard_normal((2, *shape)) + (1j * rng.standard_normal((2, *shape)) if is_complex else 0)
    plan = SpreadNufft(shape, eps, axes=axes, is_complex=is_complex, dtype=dtype)
    points = plan.place(frequencies)
    x = torch.from_numpy(images).to(torch.complex64 if single and is_complex else dtype if not is_complex else None)
    got = plan.sample(x, points)
    error = np.abs(got.numpy() - direct(images, frequencies)) / np.linalg.norm(images.reshape(2, -1), axis=1)[:, None]
    assert np.sqrt((error**2).mean()) <= 2 * eps + (2e-6 if single else 2e-14)
    z = torch.from_numpy(rng.standard_normal((2, 40)) + 1j * rng.standard_normal((2, 40))).to(got.dtype)
    back = plan.adjoint(z, points)
    assert back.shape == images.shape
    assert back.is_complex() == is_complex
    left, right = float((got.conj() * z).real.sum()), float((x.conj() * back).real.double().sum())
    assert abs(left - right) <= (1e-5 if single else 1e-12) * float(got.norm() * z.norm() + 1e-300)


def test_two_thousand_points_of_a_volume():
    """As issues ask: a direct sum in double precision, and finufft's beside it where it is installed."""
    rng = np.random.default_rng(3)
    volume = rng.standard_normal((1, 10, 8, 9))
    frequencies = rng.uniform(-np.pi, np.pi, (2000, 3))
    want = direct(volume, frequencies)
    for eps, dtype in ((1e-4, torch.float32), (1e-10, F64)):
        plan = SpreadNufft(volume.shape[1:], eps, dtype=dtype)
        got = plan.sample(torch.from_numpy(volume).to(dtype), plan.place(frequencies)).numpy()
        assert np.linalg.norm(got - want) <= eps * np.linalg.norm(want)
    if not finufft_is_here():
        return
    other = FinufftNufft(volume.shape[1:], frequencies, 1e-10, device=torch.device("cpu"), dtype=F64)
    assert np.linalg.norm(other.sample(torch.from_numpy(volume)).numpy() - want) <= 1e-10 * np.linalg.norm(want)
    z = torch.from_numpy(want)
    plan = SpreadNufft(volume.shape[1:], 1e-10, dtype=F64)
    ours = plan.adjoint(z, plan.place(frequencies))
    assert float((other.adjoint(z) - ours).norm()) <= 1e-9 * float(ours.norm())


def test_only_what_a_band_needs_is_stored_and_no_more_is_read():
    narrow = SpreadNufft((32, 32, 32), 1e-3, axes=[Axis(0.5, 40), Axis(0.5), Axis(0.5)])
    assert narrow.cells[0] == 4  # 0 to 3 of 40, and their conjugates
    assert np.prod(narrow.cells) < 32**3 / 8
    with pytest.raises(InputError, match="beyond the band of axis 1"):
        narrow.place(np.array([[0.0, 1.5, 0.0]]))
    with pytest.raises(InputError, match="multiples of 2 pi / period"):
        narrow.place(np.array([[0.1, 0.0, 0.0]]))
    with pytest.raises(InputError, match="below its 32 pixels"):
        SpreadNufft((32, 32), 1e-3, axes=[Axis(), Axis(period=31)])
    with pytest.raises(InputError, match="two or three axes"):
        SpreadNufft((32,), 1e-3)


def test_polynomials_are_the_kernel_to_single_precision():
    offset = np.linspace(0, 1, 301, endpoint=False)
    for kernel in (Kernel(3, 2.0), Kernel(5, 1.75), Kernel(8, 1.5), Kernel(14, 2.0)):
        powers = (2 * offset - 1)[:, None] ** np.arange(kernel.width + 7)
        want = kernel(offset[:, None] + np.arange(kernel.width) - kernel.width / 2)
        assert np.abs(powers @ fit_taps(kernel) - want).max() <= 3e-8 * want.max()


def test_writing_is_the_transpose_of_reading_cell_by_cell():
    plan = SpreadNufft((3, 4, 5), 1e-3, dtype=F64)
    points = plan.place(np.random.default_rng(0).uniform(-3, 3, (6, 3)))
    size = int(np.prod(plan.cells))
    some = torch.arange(0, size, 37)
    units = torch.zeros((len(some), size), dtype=torch.complex128)
    units[torch.arange(len(some)), some] = 1
    read = read_cells(units.view(-1, *plan.cells), points)
    grid = plan.zeros(6)
    write_cells(torch.eye(6, dtype=torch.complex128), points, grid)
    assert torch.allclose(grid.flatten(1)[:, some], read.T, atol=1e-15)


def test_volumes_and_complex_images_get_it_by_themselves():
    rng = np.random.default_rng(0)
    cpu = torch.device("cpu")
    for shape, is_complex in (((6, 7, 8), False), ((9, 8), True), ((6, 5, 4), True)):
        frequencies = rng.uniform(-4, 4, (30, len(shape)))
        single = make_nufft(shape, frequencies, 1e-5, device=cpu, dtype=torch.float32, is_complex=is_complex)
        double = make_nufft(shape, frequencies, 1e-9, device=cpu, dtype=F64, is_complex=is_complex)
        assert (single.name, double.name) == ("spread", "finufft" if finufft_is_here() else "spread")
        assert single.held > 0
        image = rng.standard_normal((2, *shape)) + (1j * rng.standard_normal((2, *shape)) if is_complex else 0)
        want = direct(image, frequencies)
        for plan, kind, bound in ((single, torch.complex64, 1e-4), (double, torch.complex128, 1e-8)):
            x = torch.from_numpy(image).to(kind if is_complex else kind.to_real())
            got = plan.sample(x)
            assert np.linalg.norm(got.numpy() - want) <= bound * np.linalg.norm(want)
            back = plan.adjoint(got)
            assert back.dtype == x.dtype
            assert float((x.conj() * back).real.sum()) == pytest.approx(float(got.abs().square().sum()), rel=bound)
    with pytest.raises(InputError, match="real images of two axes"):
        make_nufft((4, 4, 4), np.zeros((1, 3)), 1e-3, device=cpu, dtype=F64, form="grid")


@pytest.mark.parametrize("shape", [(13, 10), (6, 9, 8)])
@pytest.mark.parametrize("band", [1.0, np.pi])
def test_along_all_axes_at_once(shape, band):
    """The same sums, and the exact transpose, on a grid that may be coarser."""
    rng = np.random.default_rng(8)
    frequencies = rng.uniform(-band, band, (50, len(shape)))
    images = rng.standard_normal((2, *shape)) + 1j * rng.standard_normal((2, *shape))
    axes = [Axis(band)] * len(shape)
    plan = SpreadNufft(shape, 1e-6, axes=axes, is_complex=True, box=True, dtype=F64)
    points = plan.place(frequencies)
    x = torch.from_numpy(images)
    got, want = plan.sample(x, points), direct(images, frequencies)
    assert np.abs(got.numpy() - want).max() <= 1e-4 * np.abs(want).max()
    z = torch.from_numpy(rng.standard_normal((2, 50)) + 1j * rng.standard_normal((2, 50)))
    left, right = (got.conj() * z).sum(), (x.conj() * plan.adjoint(z, points)).sum()
    assert abs(left - right) <= 1e-12 * abs(left)
    traced = x.clone().requires_grad_()
    assert torch.allclose(plan.sample(traced, points), got)
