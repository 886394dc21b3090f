"""The native kernels of the non-uniform FFT are their torch form, with the same bits however they are run."""

import numpy as np
import pytest
import torch
from scipy.sparse import random_array

from native_build import LEVELS, needs_native
from plugstream import _native
from plugstream.models import nufft_native, nufft_table
from plugstream.models.nufft_points import read_cells, write_cells
from plugstream.models.nufft_spread import Axis, SpreadNufft

pytestmark = [
    needs_native,
    pytest.mark.skipif(
        not hasattr(_native.load(), "nufft_read"), reason="the native extension was built before it had this"
    ),
]

CASES = [
    ((9, 12), [Axis(), Axis()], False),
    ((7, 8, 9), [Axis(), Axis(2.0), Axis()], False),
    ((7, 8, 9), [Axis(), Axis(period=12), Axis(1.5)], False),
    ((6, 7, 8), [Axis(), Axis(period=9), Axis(period=8)], True),
    ((5, 6, 4), [Axis(period=6), Axis(period=6), Axis(period=4)], False),
]


def problem(shape, axes, is_complex, eps=1e-4, count=500):
    rng = np.random.default_rng(len(shape))
    plan = SpreadNufft(shape, eps, axes=axes, is_complex=is_complex)
    columns = [
        rng.uniform(-axis.band, axis.band, count)
        if axis.period is None
        else 2 * np.pi / axis.period * rng.integers(-(axis.period // 2), axis.period // 2 + 1, count)
        for axis in axes
    ]
    points = plan.place(np.stack(columns, 1))
    draw = torch.Generator().manual_seed(0)
    grid = torch.randn((2, *plan.cells), dtype=torch.complex64, generator=draw)
    values = torch.randn((2, count), dtype=torch.complex64, generator=draw)
    return plan, points, grid, values


@pytest.mark.parametrize(("shape", "axes", "is_complex"), CASES)
def test_they_are_the_torch_form(shape, axes, is_complex):
    plan, points, grid, values = problem(shape, axes, is_complex)
    want = points.conjugate(read_cells(grid, points))
    got = nufft_native.read(grid, points)
    assert float((got - want).norm()) <= 1e-6 * float(want.norm())
    want = torch.full((2, *plan.cells), 0.5 + 0j, dtype=torch.complex64)
    got = want.clone()
    write_cells(points.conjugate(values), points, want)
    nufft_native.write(values, points, got)
    assert float((got - want).norm()) <= 1e-6 * float(want.norm())


@pytest.mark.parametrize("eps", [0.02, 1e-3, 1e-6])
def test_threads_and_instruction_sets_change_no_bit(eps):
    _, points, grid, values = problem((9, 10, 11), [Axis()] * 3, False, eps)
    found = set()
    threads = torch.get_num_threads()
    try:
        for level in LEVELS:
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                out = torch.zeros_like(grid)
                nufft_native.write(values, points, out, level=level)
                read = nufft_native.read(grid, points, level=level)
                found.add((out.numpy().tobytes(), read.numpy().tobytes()))
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 1


def test_the_plan_uses_them_and_nothing_is_a_result_too():
    plan, points, grid, values = problem((7, 8, 9), [Axis()] * 3, False)
    assert nufft_native.serves(grid)
    assert torch.equal(plan.read(grid, points), nufft_native.read(grid, points))
    none = plan.place(np.zeros((0, 3)))
    assert plan.read(grid, none).shape == (2, 0)
    before = grid.clone()
    plan.write(values[:, :0], none, grid)
    assert torch.equal(grid, before)


def test_cells_that_are_not_there_are_refused():
    _, points, grid, _ = problem((7, 8, 9), [Axis()] * 3, False)
    for wrong in (-1, grid.shape[1]):
        first = points.first.clone()
        first[7, 0] = wrong
        moved = type(points)(first, points.offset, points.flipped, points.widths, points.kernel)
        with pytest.raises(ValueError, match="touches a cell that is not there"):
            nufft_native.read(grid, moved)
    for widths, said in (
        ((2, 2, 2), "or that of the kernel"),
        ((points.kernel.width, 1, 1), "the last axis must have"),
    ):
        odd = type(points)(points.first, points.offset, points.flipped, widths, points.kernel)
        with pytest.raises(ValueError, match=said):
            nufft_native.read(grid, odd)


@pytest.mark.skipif(not hasattr(_native.load(), "nufft_multiply"), reason="the native extension was built before it")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("signs", [(False, False), (True, False), (False, True)])
def test_products_with_tables_are_those_of_scipy(dtype, signs, one_thread):
    rng = np.random.default_rng(0)
    table = random_array((700, 90), density=0.05, format="csr", rng=rng, dtype=np.float64)
    table[300:320] = 0  # rows that have nothing
    table.eliminate_zeros()
    arrays = (table.indptr.astype(np.int32), table.indices.astype(np.int32), table.data)
    starts, columns, values = map(torch.from_numpy, arrays)
    vectors = torch.from_numpy(rng.standard_normal((3, 90, 2))).to(dtype)
    row_sign, column_sign = (
        torch.from_numpy(rng.choice([-1.0, 1.0], size)).to(dtype) if given else None
        for size, given in zip(table.shape, signs, strict=True)
    )
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        given = {"row_sign": row_sign, "column_sign": column_sign}
        found.append(nufft_table.product(starts, columns, values.to(dtype), vectors, **given))
        assert torch.equal(found[0], found[-1])
    expected = np.stack([table @ vector for vector in _signed(vectors.double().numpy(), column_sign)])
    expected = _signed(expected, row_sign)
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-13)


def _signed(pairs, sign):
    return pairs if sign is None else pairs * np.stack([np.ones(len(sign)), sign.double().numpy()], -1)
