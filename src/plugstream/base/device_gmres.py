"""Block GMRES on a GPU that seldom waits for the host: steps are CUDA graphs, and their small matrices stay there."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.block_gmres import ONCE, SHARE, Solutions, take_away
from plugstream.base.cuda_graphs import GraphStore, capture_work, on_device, stream_handle
from plugstream.base.cuda_source import Kernels, compile_kernels
from plugstream.base.errors import InputError

Norms = NDArray[np.float64]

MOST = 16  # rows of a block, as `device_gmres.cu` has it
_AHEAD = 1  # steps that are started before the host has seen the residuals of the last one
# Of directions and products that there is room for at first, and of a device's memory.
_BLOCKS, _ROOM_BYTES, _PART = 24, 1 << 30, 32
_KEPT = 2  # rooms that wait for the next space, with their graphs
_THREADS = 256


class Product(Protocol):
    """A linear operator on rows (k, n), complex, which another one of its kind can take the place of."""

    def __call__(self, rows: Tensor, out: Tensor, /) -> object:
        """A of rows, written to `out`."""

    def load(self, values: Tensor, /) -> None:
        """Become the operator of other values, where the old ones were."""


class Problem(ctypes.Structure):
    """What the kernel is given; `device_gmres.cu` has the meaning of each field."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("rows", "earlier", "stride", "second")),
        ("share", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in (
            "parts", "more_parts", "overlaps", "norms", "tolerance", "turn", "shares", "triangle",
            "all_shares", "order", "rank",
        )),
    )  # fmt: skip


@cache
def read_source(dtype: torch.dtype) -> str:
    """The text of the kernel for complex numbers of this type."""
    real = "float" if dtype == torch.complex64 else "double"
    return f"#define REAL {real}\n" + Path(__file__).with_suffix(".cu").read_text(encoding="utf-8")


def find_kernels(dtype: torch.dtype, device: torch.device) -> Kernels | None:
    """The kernel for a device; None where there is no CUDA or no compiler for it."""
    return compile_kernels(read_source(dtype), device) if device.type == "cuda" else None


class DeviceSpace:
    r"""What `KrylovSpace` does, without a GPU that waits for the host: it looks at a step while the next one runs.

    A step takes all residuals R as directions, whether they are solved or not, and makes the products orthonormal with
    Cholesky's factors: with P the products so far, Q = A R, E = Q P^H and Q' = Q - E P = L P_new,

        R <- R - (R P_new^H) P_new,        A D = T P,  T lower triangular, of rows (E, L).

    Products of solved residuals, and those that others nearly explain, are left out as rows of zeros. So every step is
    the same work on the same memory, whatever the numbers are, and one graph. A step with nothing left to solve changes
    nothing: how far steps are ahead of the host changes no bit of the solutions.

    Holds as `KrylovSpace`: residuals are measured, to `tol`, whatever rounding leaves of orthogonality.

    Arguments:
        make: A of some values, to which others can be loaded later. values: those of this space's A.
        kernels: from `find_kernels`. limit: of stored directions.
        rooms: memory and graphs of earlier spaces; those of the same `name` may become this one's.
    Reference: as of `KrylovSpace`; for the factors, Stathopoulos and Wu, SIAM J. Sci. Comput. 23(6), 2002.
    """

    def __init__(
        self,
        make: Callable[[Tensor], Product],
        values: Tensor,
        kernels: Kernels,
        *,
        limit: int,
        rooms: Rooms,
        name: Any = None,
    ) -> None:
        self._make, self._values, self._kernels = make, values, kernels
        self._limit, self._rooms, self._name = limit, rooms, name
        self._room: _Room | None = None
        self._leave: Callable[[], object] | None = None
        self._blocks = 0

    def solve(self, b: Tensor, *, tol: float, max_iterations: int = 200) -> Solutions:
        """As `KrylovSpace.solve`, some rows after the others if they are more than a block."""
        if torch.is_grad_enabled() and (b.requires_grad or self._values.requires_grad):
            raise InputError("autograd does not go through GMRES; use the gradient of the model, or torch.no_grad()")
        with on_device(b):
            room = self._enter(b)
            parts = [self._solve(room, part, tol, max_iterations) for part in b.split(room.rows)]
        if len(parts) == 1:
            return parts[0]
        residuals = np.concatenate([part.residuals for part in parts])
        return Solutions(torch.cat([part.values for part in parts]), residuals, sum(part.iterations for part in parts))

    def _enter(self, b: Tensor) -> _Room:
        """The room of this space, which begins anew in another one if b has more rows than its blocks."""
        rows = min(max(1, len(b)), MOST)
        if self._room is None or self._room.rows < rows:
            key = (self._name, rows, b.shape[1], b.dtype, b.device, stream_handle(b.device))
            if self._leave is not None:
                self._leave()
            self._room = self._rooms.take(key, self._values) or _Room(key, self._make(self._values), self._kernels)
            self._leave = leave = weakref.finalize(self, self._rooms.give, self._room)
            leave.atexit = False
            self._blocks = 0
        return self._room

    def _solve(self, room: _Room, b: Tensor, tol: float, max_iterations: int) -> Solutions:
        count, start = len(b), self._blocks
        most = max(1, self._limit // room.rows)
        twice, earlier = tol < ONCE[b.dtype], None
        room.reserve(start + 1, start)
        room.begin(b, start, tol)
        norms = room.norms_at(start) if start else None
        place = ahead = start
        iterations = 0
        while iterations < max_iterations and (norms is None or bool((norms > tol).any())):
            if place == most:
                earlier = room.combine(most, earlier)
                room.restart(most)
                place = ahead = 0
            end = min(place + 1 + _AHEAD, place + max_iterations - iterations, most)
            room.reserve(end, ahead)
            for step in range(ahead, end):
                room.step(step, twice)
            ahead = end
            rank, after = room.look(place)
            if rank == 0:  # nothing is left to solve, or nothing new was found
                break
            norms, place, iterations = after, place + 1, iterations + 1
        self._blocks = place
        norms = room.norms_at(place) if norms is None else norms
        return Solutions(room.combine(place, earlier)[:count], norms[:count], iterations)


class Rooms:
    """Rooms that no space uses now, the last few, with the graphs of their steps."""

    def __init__(self) -> None:
        self._idle: list[_Room] = []  # without a lock: a space may end within any of these calls

    def __reduce__(self) -> tuple[Any, ...]:
        return Rooms, ()  # a copy has rooms of its own

    @property
    def held(self) -> int:
        """Bytes of idle rooms, without the memory that graphs keep for themselves."""
        return sum(room.held for room in self._idle)

    def take(self, key: Any, values: Tensor) -> _Room | None:
        """A room of this kind, for an operator of these values; None if there is none."""
        for room in [room for room in reversed(self._idle) if room.key == key]:
            with suppress(ValueError):  # another thread took it
                self._idle.remove(room)
                room.product.load(values)
                return room
        return None

    def give(self, room: _Room) -> None:
        """Leave a room for the next space; that which was left first goes if there are too many."""
        self._idle.append(room)
        del self._idle[:-_KEPT]


class _Room:
    """Directions, products and small matrices of a space, in memory that steps find where it was, and their graphs.

    Arguments: key of spaces that may have it, with the rows of a block, n, and their type and device; product; kernels.
    """

    def __init__(self, key: Any, product: Product, kernels: Kernels) -> None:
        _, self.rows, self._size, dtype, device, _ = self.key = key
        self.product, self._kernels = product, kernels
        self._share = SHARE[dtype]
        self._kind = {"dtype": dtype, "device": device}
        self._real = {"dtype": dtype.to_real(), "device": device}
        self.turn, self.new_shares = (torch.zeros((self.rows, self.rows), **self._kind) for _ in range(2))
        self._both = torch.zeros((2 * self.rows, self._size), **self._kind)
        self.new, self.residual = self._both.chunk(2)  # parts of one matrix, for one product with both
        self.solution = torch.zeros_like(self.residual)
        self.units, self.tolerance = torch.zeros(self.rows, **self._real), torch.zeros(1, **self._real)
        most = torch.cuda.get_device_properties(device).total_memory // _PART if device.type == "cuda" else _ROOM_BYTES
        blocks = min(_ROOM_BYTES, most) // (2 * self.rows * self._size * dtype.itemsize)
        self._make_room(None, max(1, min(_BLOCKS, blocks)))

    @property
    def held(self) -> int:
        """Bytes."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, Tensor))

    def _make_room(self, used: int | None, blocks: int) -> None:
        """For so many blocks, with those that are used; graphs of the old memory go."""
        old, rows, device = vars(self).copy(), self.rows, self._kind["device"]
        wide = {"dtype": torch.complex128, "device": device}
        self._graphs: GraphStore[torch.cuda.CUDAGraph] = GraphStore(4 * blocks)
        self.directions, self.products = (torch.empty((blocks, rows, self._size), **self._kind) for _ in range(2))
        self.triangle = torch.zeros((blocks * rows, blocks * rows), **wide)
        self.shares = torch.zeros((rows, blocks * rows), **wide)
        self.order = torch.zeros(blocks * rows, dtype=torch.int64, device=device)
        self.report = torch.zeros((blocks + 1, rows + 1), **self._real)  # norms before each step, and its rank
        self._seen = torch.zeros(self.report.shape, dtype=self.report.dtype, pin_memory=device.type == "cuda")
        self._ends = [torch.cuda.Event() if device.type == "cuda" else None for _ in range(blocks)]
        if used is not None:
            cells = used * rows
            self.directions[:used], self.products[:used] = old["directions"][:used], old["products"][:used]
            self.triangle[:cells, :cells] = old["triangle"][:cells, :cells]
            self.shares[:, :cells] = old["shares"][:, :cells]
            self.order[:cells] = old["order"][:cells]
            self.report[: used + 1] = old["report"][: used + 1]
            self._seen[: used + 1] = self.report[: used + 1].cpu()  # after all steps so far

    def reserve(self, blocks: int, used: int) -> None:
        """Have room for so many blocks, of which some are used."""
        if blocks > len(self.products):
            self._make_room(used, max(blocks, 2 * len(self.products)))

    def begin(self, b: Tensor, blocks: int, tol: float) -> None:
        """The residuals of b, in units of its norms, less what is known."""
        self.residual[: len(b)] = b
        self.residual[len(b) :] = 0
        self.tolerance.fill_(tol)
        self._run(("begin", blocks), lambda: self._begin(blocks))

    def _begin(self, blocks: int) -> None:
        norms = _norms(self.residual)
        torch.where(norms > 0, norms, torch.ones_like(norms), out=self.units)
        self.residual.div_(self.units[:, None])
        if blocks:
            self.shares[:, : blocks * self.rows] = take_away(self.residual, self.products[:blocks].flatten(0, 1))
        self._measure(blocks)

    def step(self, place: int, twice: bool) -> None:
        """Take the residuals as directions, and from them what the products explain."""
        self._run((place, twice), lambda: self._step(place, twice))
        end = self._ends[place]
        if end is not None:
            self._seen[place : place + 2].copy_(self.report[place : place + 2], non_blocking=True)
            end.record()

    def _run(self, key: Any, work: Callable[[], None]) -> None:
        """Work on this memory, from a graph if it can be."""
        graph = self._graphs.find(key, self.products, lambda: capture_work(work, self._graphs.pool))
        work() if graph is None else graph.replay()

    def _step(self, place: int, twice: bool) -> None:
        earlier = self.products[:place].flatten(0, 1)
        self.directions[place] = self.residual
        self.product(self.residual, self.new)
        parts = [take_away(self.new, earlier) for _ in range(2 if twice else 1)] if place else []
        self._orthonormalize(place, parts)
        if twice:
            self.new.copy_(self.turn @ self.new)
            self._orthonormalize(place, None)
        self.residual.addmm_(self.new_shares, torch.mm(self.turn, self.new, out=self.products[place]), alpha=-1)
        self._measure(place + 1)

    def _orthonormalize(self, place: int, parts: list[Tensor] | None) -> None:
        """`turn` is to make products orthonormal; parts were subtracted from them, None if they were turned before."""
        overlaps = self.new @ self._both.mH  # with each other, and with the residuals
        report, addresses = self.report[place], [part.data_ptr() for part in parts or []]
        problem = Problem(
            self.rows, place * self.rows, len(self.order), parts is None, self._share,
            *addresses, *[None] * (2 - len(addresses)), overlaps.data_ptr(), report.data_ptr(),
            self.tolerance.data_ptr(), self.turn.data_ptr(), self.new_shares.data_ptr(), self.triangle.data_ptr(),
            self.shares.data_ptr(), self.order.data_ptr(), report[-1:].data_ptr(),
        )  # fmt: skip
        self._kernels.launch("orthonormalize", (1, 1, 1), (_THREADS, 1, 1), problem, None, None)

    def _measure(self, place: int) -> None:
        _norms(self.residual, out=self.report[place, : self.rows])

    def look(self, place: int) -> tuple[int, Norms]:
        """The rank of a step, and the norms after it, for which the host waits."""
        end = self._ends[place]
        if end is not None:
            end.synchronize()
        report = (self._seen if end is not None else self.report)[place : place + 2].double().numpy()
        return int(report[0, -1]), report[1, :-1]

    def norms_at(self, place: int) -> Norms:
        """The norms before a step, after all that was started."""
        norms: Norms = self.report[place, :-1].cpu().double().numpy()
        return norms

    def restart(self, blocks: int) -> None:
        """Go on with the residuals after so many blocks, without these."""
        self.report[0] = self.report[blocks]

    def combine(self, blocks: int, earlier: Tensor | None) -> Tensor:
        """The solutions of the shares so far, added to earlier ones: (rows, n)."""
        if not blocks:
            return torch.zeros_like(self.residual) if earlier is None else earlier
        self._run(("combine", blocks), lambda: self._combine(blocks))
        return self.solution.clone() if earlier is None else earlier + self.solution

    def _combine(self, blocks: int) -> None:
        cells = blocks * self.rows
        turned = torch.linalg.solve_triangular(
            self.triangle[:cells, :cells], self.shares[:, :cells], upper=False, left=False
        )
        parts = torch.empty_like(turned).index_copy_(1, self.order[:cells], turned).mul_(self.units[:, None])
        torch.mm(parts.to(self.solution.dtype), self.directions[:blocks].flatten(0, 1), out=self.solution)


def _norms(rows: Tensor, out: Tensor | None = None) -> Tensor:
    """Of each row of complex numbers: (B, n) to (B,)."""
    norms: Tensor = torch.linalg.vector_norm(torch.view_as_real(rows).flatten(1), dim=1, out=out)
    return norms
