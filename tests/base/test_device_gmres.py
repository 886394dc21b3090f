"""The space whose steps need no host, its kernel run on the CPU: against direct solutions and `KrylovSpace`."""

import copy
import gc
import shutil

import numpy as np
import pytest
import torch

import plugstream.base.device_gmres as module
from cuda_on_cpu import CpuKernels
from plugstream.base.block_gmres import KrylovSpace
from plugstream.base.device_gmres import DeviceSpace, Problem, Rooms, find_kernels, read_source
from plugstream.base.errors import InputError


@pytest.fixture(scope="module")
def kernels():
    """Of either precision."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile CUDA kernels for the CPU")
    return {dtype: CpuKernels(read_source(dtype), ("orthonormalize",)) for dtype in (torch.complex64, torch.complex128)}


class Matrix:
    """A product with a matrix, which can be replaced."""

    def __init__(self, matrix):
        self.matrix = matrix.T.clone()

    def __call__(self, rows, out):
        torch.mm(rows, self.matrix, out=out)

    def load(self, matrix):
        self.matrix.copy_(matrix.T)


def _system(size, count, seed=0, spread=0.5):
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)

    return np.eye(size) + spread * draw(size, size) / np.sqrt(2 * size), draw(count, size)


def _space(kernels, matrix, dtype=torch.complex128, limit=400, rooms=None):
    a = torch.from_numpy(matrix).to(dtype)
    return DeviceSpace(Matrix, a, kernels[dtype], limit=limit, rooms=Rooms() if rooms is None else rooms)


def _off(matrix, b, values):
    return np.linalg.norm(b - values.numpy() @ matrix.T, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.emulated
@pytest.mark.parametrize("limit", [12, 400])
def test_solutions_are_the_direct_ones(kernels, limit):
    matrix, b = _system(60, 5)
    found = _space(kernels, matrix, limit=limit).solve(torch.from_numpy(b), tol=1e-11, max_iterations=400)
    assert np.abs(found.values.numpy() - np.linalg.solve(matrix, b.T).T).max() < 1e-9
    assert (_off(matrix, b, found.values) < 1.1e-11).all()
    assert np.allclose(_off(matrix, b, found.values), found.residuals, atol=1e-13)


@pytest.mark.emulated
def test_rows_of_any_scale_that_are_alike_or_zero(kernels):
    matrix, b = _system(40, 6, seed=1)
    b[1] *= 1e-6
    b[2] = b[0]
    b[3] = b[0] + 1e-7 * b[4]
    b[5] = 0
    found = _space(kernels, matrix).solve(torch.from_numpy(b), tol=1e-9)
    assert (found.residuals <= 1e-9).all()
    assert not found.values[5].any()
    assert (_off(matrix, b[:5], found.values[:5]) < 1.1e-9).all()


@pytest.mark.emulated
@pytest.mark.parametrize("spread", [0.3, 0.7, 0.95])
def test_it_takes_as_many_products_as_the_space_of_the_host(kernels, spread):
    matrix, b = _system(300, 10, seed=2, spread=spread)
    a, rows = torch.from_numpy(matrix.T).to(torch.complex64), torch.from_numpy(b).to(torch.complex64)
    host, device = KrylovSpace(lambda v: v @ a), _space(kernels, matrix, torch.complex64)
    for right in (rows, rows.flip(0).conj().resolve_conj(), rows.roll(3, 1)):
        want, got = (space.solve(right, tol=1e-3) for space in (host, device))
        assert abs(got.iterations - want.iterations) <= 1
        assert (got.residuals <= 1e-3).all()
        assert (_off(matrix, right.numpy(), got.values) < 1.1e-3).all()
    mixed = torch.randn(3, 10, dtype=rows.dtype) @ rows
    assert device.solve(mixed, tol=5e-3).iterations == 0  # of what is known, nothing is left to do


@pytest.mark.emulated
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_looks_change_no_bit(kernels, monkeypatch, dtype):
    """However many steps are ahead of them, and wherever the room ends."""
    matrix, b = _system(80, 4, seed=3)
    rows, results = torch.from_numpy(b).to(dtype), []
    for ahead, blocks in ((0, 24), (1, 24), (5, 24), (3, 2)):
        monkeypatch.setattr(module, "_AHEAD", ahead)
        monkeypatch.setattr(module, "_BLOCKS", blocks)
        space = _space(kernels, matrix, dtype)
        results.append([space.solve(right, tol=1e-5) for right in (rows, rows.roll(1, 1))])
    for found in results[1:]:
        for one, other in zip(results[0], found, strict=True):
            assert one.iterations == other.iterations
            assert torch.equal(one.values, other.values)
            assert (one.residuals == other.residuals).all()


@pytest.mark.emulated
def test_more_rows_than_a_block_and_fewer(kernels):
    matrix, b = _system(90, 37, seed=4)
    space = _space(kernels, matrix)
    for count in (2, 37, 3, 20):
        found = space.solve(torch.from_numpy(b[:count]), tol=1e-8)
        assert found.values.shape == (count, 90)
        assert (_off(matrix, b[:count], found.values) < 1.1e-8).all()


@pytest.mark.emulated
def test_what_has_not_converged_says_so(kernels):
    matrix, b = _system(50, 2, seed=3, spread=2.0)
    found = _space(kernels, matrix).solve(torch.from_numpy(b), tol=1e-8, max_iterations=5)
    assert found.iterations == 5
    assert (found.residuals > 1e-8).all()
    for broken in (np.zeros((50, 50)), np.full((50, 50), np.nan), np.full((50, 50), np.inf)):
        found = _space(kernels, broken).solve(torch.from_numpy(b), tol=1e-8)
        assert found.residuals == pytest.approx([1, 1], rel=1e-12)
        assert not found.values.any()


@pytest.mark.emulated
def test_what_autograd_would_follow_is_refused(kernels):
    matrix, b = _system(20, 2)
    space, rows = _space(kernels, matrix), torch.from_numpy(b).requires_grad_()
    with pytest.raises(InputError, match="autograd"):
        space.solve(rows, tol=1e-6)
    with torch.no_grad():
        assert (space.solve(rows, tol=1e-6).residuals <= 1e-6).all()


@pytest.mark.emulated
@pytest.mark.parametrize("tol", [1e-3, 1e-5])
def test_single_precision_reaches_its_tolerance(kernels, tol):
    matrix, b = _system(300, 10, seed=4, spread=0.8)
    b[7] = b[3] * (1 + 1e-4)
    found = _space(kernels, matrix, torch.complex64).solve(torch.from_numpy(b).to(torch.complex64), tol=tol)
    assert (found.residuals <= tol).all()
    assert (_off(matrix, b, found.values) < 1.2 * tol).all()


@pytest.mark.emulated
def test_rooms_are_used_again_and_few_are_kept(kernels):
    rooms, systems = Rooms(), [_system(30, 3, seed=seed) for seed in range(5)]
    living = []
    for matrix, b in systems:
        living.append(_space(kernels, matrix, rooms=rooms))
        living[-1].solve(torch.from_numpy(b), tol=1e-9)
    for space, (_, b) in zip(living, systems, strict=True):  # each has a room of its own
        assert space.solve(torch.from_numpy(b), tol=1e-8).iterations == 0
    room = living[-1]._room
    del living, space
    gc.collect()
    assert len(rooms._idle) == 2
    assert rooms.held > 0
    matrix, b = systems[0]
    again = _space(kernels, matrix, rooms=rooms)
    found = again.solve(torch.from_numpy(b), tol=1e-9)
    assert again._room is room
    assert (_off(matrix, b, found.values) < 1.1e-9).all()
    assert copy.deepcopy(rooms)._idle == []


@pytest.mark.emulated
@pytest.mark.parametrize("threads", [1, 7, 256])
@pytest.mark.parametrize("earlier", [0, 6])
def test_the_kernel_makes_products_orthonormal(kernels, earlier, threads):
    """Turned products are orthonormal, rows of zeros but for their rank; the triangle gives the products back."""
    rng = np.random.default_rng(5)
    rows, size = 6, 40

    def draw(*shape):
        return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)

    basis = np.linalg.qr(draw(size, max(1, earlier)))[0].T.conj()[:earlier]
    products, residual = draw(rows, size), draw(rows, size)
    products[4] = products[1] * 2j + 1e-7 * products[0]  # nearly explained by another
    solved = 2
    parts = products @ basis.conj().T
    rest = products - parts @ basis
    both = np.concatenate([rest, residual])
    norms = np.ones(rows)
    norms[solved] = 1e-6
    tensors = [torch.from_numpy(np.ascontiguousarray(x)) for x in (parts, rest @ both.conj().T, norms)]
    stride = earlier + rows
    turn, shares = (torch.zeros((rows, rows), dtype=torch.complex128) for _ in range(2))
    triangle = torch.eye(stride, dtype=torch.complex128)
    all_shares = torch.zeros((rows, stride), dtype=torch.complex128)
    order, rank, tol = torch.arange(stride), torch.zeros(1, dtype=torch.float64), torch.tensor([1e-3]).double()
    out = (tol, turn, shares, triangle, all_shares, order, rank)
    problem = Problem(
        rows, earlier, stride, 0, 1e-10, tensors[0].data_ptr() if earlier else None, None,
        *(x.data_ptr() for x in (*tensors[1:], *out)),
    )  # fmt: skip
    kernels[torch.complex128].launch("orthonormalize", (1, 1, 1), (threads, 1, 1), problem, None, None)
    assert rank.item() == rows - 2
    new = turn.numpy() @ rest
    kept = np.diag([1.0] * (rows - 2) + [0.0] * 2)
    assert np.allclose(new @ new.conj().T, kept, atol=1e-12)
    assert np.allclose(shares.numpy(), residual @ new.conj().T, atol=1e-12)
    assert torch.equal(all_shares[:, earlier:], shares)
    picked = order.numpy()[earlier : earlier + rows - 2] - earlier
    assert sorted(order.tolist()) == list(range(stride))
    assert solved not in picked
    given = triangle.numpy()[earlier : earlier + rows - 2] @ np.concatenate([basis, new])
    assert np.allclose(given, products[picked], atol=1e-12)
    assert np.allclose(np.triu(triangle.numpy(), 1), 0)


@pytest.mark.gpu
class TestOnAGpu:
    def make(self, rooms, matrix, dtype=torch.complex64):
        device = torch.device("cuda", torch.cuda.current_device())
        return DeviceSpace(
            Matrix, torch.from_numpy(matrix).to(device, dtype), find_kernels(dtype, device), limit=400, rooms=rooms
        )

    @pytest.mark.parametrize(
        ("dtype", "tol"), [(torch.complex64, 1e-3), (torch.complex64, 1e-5), (torch.complex128, 1e-9)]
    )
    def test_replays_are_eager_steps_to_the_bit(self, monkeypatch, dtype, tol):
        """Of other operators and sides in the same room; the first two are eager themselves."""
        rooms = Rooms()
        for seed in range(5):
            matrix, b = _system(200, 7, seed=seed, spread=0.7)
            sides = [torch.from_numpy(side).to("cuda", dtype) for side in (b, np.roll(b, 3, 1), b[:4])]
            results = []
            for graphs in ("1", "0"):
                monkeypatch.setenv("PLUGSTREAM_CUDA_GRAPHS", graphs)
                space = self.make(rooms if graphs == "1" else Rooms(), matrix, dtype)
                results.append([space.solve(side, tol=tol) for side in sides])
                del space
            for side, replayed, eager in zip(sides, *results, strict=True):
                assert torch.equal(replayed.values, eager.values)
                assert (replayed.residuals == eager.residuals).all()
                assert replayed.iterations == eager.iterations
                assert (_off(matrix, side.cpu().numpy(), replayed.values.cpu()) < 1.2 * tol).all()
        (room,) = rooms._idle
        assert 0 < len(room._graphs) <= 2 * len(room.products)

    def test_it_is_the_kernel_of_the_cpu(self, kernels):
        matrix, b = _system(120, 9, seed=8)
        there = self.make(Rooms(), matrix, torch.complex128).solve(torch.from_numpy(b).cuda(), tol=1e-9)
        here = _space(kernels, matrix).solve(torch.from_numpy(b), tol=1e-9)
        assert there.iterations == here.iterations
        assert torch.allclose(there.values.cpu(), here.values, atol=1e-8)

    def test_memory_does_not_grow_and_a_side_stream_has_its_own(self):
        rooms, used = Rooms(), []
        matrix, b = _system(300, 5, seed=9)
        side = torch.from_numpy(b).to("cuda", torch.complex64)
        for _ in range(8):
            found = self.make(rooms, matrix).solve(side, tol=1e-3)
            torch.cuda.synchronize()
            used.append(torch.cuda.memory_allocated())
        assert used[-1] == used[3]
        graphs = len(rooms._idle[0]._graphs)
        with torch.cuda.stream(torch.cuda.Stream()):
            again = [self.make(rooms, matrix).solve(side.clone(), tol=1e-3) for _ in range(4)]
        torch.cuda.synchronize()
        assert all(torch.equal(one.values, found.values) for one in again)
        assert sorted(len(room._graphs) for room in rooms._idle) == [0, graphs]
