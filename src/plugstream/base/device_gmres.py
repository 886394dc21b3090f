"""Block GMRES on a GPU that seldom waits for the host: steps are CUDA graphs, and their small matrices stay there."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from plugstream.base.block_gmres import ONCE, SHARE, Solutions, take_away
from plugstream.base.cuda_graphs import GraphStore, capture_work, on_device, stream_handle
from plugstream.base.cuda_source import Kernels, compile_kernels

MOST = 16  # rows of a block, as `device_gmres.cu` has it
_CYCLE = 2  # steps between two looks at the residuals
_BLOCKS, _ROOM_BYTES = 24, 1 << 30  # of directions and products that there is room for at first
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
    r"""What `KrylovSpace` does, without a look at the residuals but for one in two steps.

    A step takes all residuals R as directions, whether they are solved or not, and makes the products orthonormal with
    Cholesky's factors: with P the products so far, Q = A R, E = Q P^H and Q' = Q - E P = L P_new,

        R <- R - (R P_new^H) P_new,        A D = T P,  T lower triangular, of rows (E, L).

    Products of solved residuals, and those that others nearly explain, are left out as rows of zeros. So every step is
    the same work on the same memory, whatever the numbers are, and one graph. A step with nothing left to solve changes
    nothing: how many are taken between two looks changes no bit of the solutions.

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
        self._blocks = 0

    def solve(self, b: Tensor, *, tol: float, max_iterations: int = 200) -> Solutions:
        """As `KrylovSpace.solve`, some rows after the others if they are more than a block."""
        if self._room is None:
            key = (self._name, min(max(1, len(b)), MOST), b.shape[1], b.dtype, b.device, stream_handle(b.device))
            self._room = self._rooms.take(key, self._values) or _Room(key, self._make(self._values), self._kernels)
            weakref.finalize(self, self._rooms.give, self._room).atexit = False
        with on_device(b):
            parts = [self._solve(part, tol, max_iterations) for part in b.split(self._room.rows)]
        if len(parts) == 1:
            return parts[0]
        residuals = np.concatenate([part.residuals for part in parts])
        return Solutions(torch.cat([part.values for part in parts]), residuals, sum(part.iterations for part in parts))

    def _solve(self, b: Tensor, tol: float, max_iterations: int) -> Solutions:
        room, count, start = self._room, len(b), self._blocks
        assert room is not None
        if count < room.rows:
            b = torch.cat([b, b.new_zeros((room.rows - count, b.shape[1]))])
        most = max(1, self._limit // room.rows)
        twice, earlier = tol < ONCE[b.dtype], None
        room.reserve(start + 1, start)
        units = room.begin(b, start, tol)
        norms = room.look(start, 0)[0] if start else None
        iterations = 0
        while iterations < max_iterations and (norms is None or bool((norms > tol).any())):
            if self._blocks == most:
                earlier = room.combine(most, units, earlier)
                room.restart(most)
                self._blocks = 0
            steps = min(_CYCLE, max_iterations - iterations, most - self._blocks)
            room.reserve(self._blocks + steps, self._blocks)
            for step in range(self._blocks, self._blocks + steps):
                room.step(step, twice)
            norms, new = room.look(self._blocks, steps)
            iterations, self._blocks = iterations + new, self._blocks + new
            if new < steps:
                break
        norms = room.look(self._blocks, 0)[0] if norms is None else norms
        return Solutions(room.combine(self._blocks, units, earlier)[:count], norms[:count], iterations)


class Rooms:
    """Rooms that no space uses now, the last few, with the graphs of their steps."""

    def __init__(self) -> None:
        self._idle: list[_Room] = []
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Rooms, ()  # a copy has rooms of its own

    @property
    def held(self) -> int:
        """Bytes of idle rooms, without the memory that graphs keep for themselves."""
        return sum(room.held for room in self._idle)

    def take(self, key: Any, values: Tensor) -> _Room | None:
        """A room of this kind, for an operator of these values; None if there is none."""
        with self._lock:
            found = next((room for room in reversed(self._idle) if room.key == key), None)
            if found is not None:
                self._idle.remove(found)
        if found is not None:
            found.product.load(values)
        return found

    def give(self, room: _Room) -> None:
        """Leave a room for the next space; that which was left first goes if there are too many."""
        with self._lock:
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
        kind = {"dtype": dtype, "device": device}
        self._real = {"dtype": dtype.to_real(), "device": device}
        self.turn, self.new_shares = (torch.zeros((self.rows, self.rows), **kind) for _ in range(2))
        self._both = torch.zeros((2 * self.rows, self._size), **kind)  # one matrix, for one product with the first half
        self.new, self.residual = self._both.chunk(2)
        self.tolerance = torch.zeros(1, **self._real)
        self._make_room(None, max(1, min(_BLOCKS, _ROOM_BYTES // (2 * self.rows * self._size * dtype.itemsize))), kind)

    @property
    def held(self) -> int:
        """Bytes."""
        return self.directions.nbytes + self.products.nbytes + self.triangle.nbytes + self.shares.nbytes

    def _make_room(self, used: int | None, blocks: int, kind: dict[str, Any]) -> None:
        """For so many blocks, with those that are used; graphs of the old memory go."""
        self._graphs: GraphStore[torch.cuda.CUDAGraph] = GraphStore(2 * blocks)
        old = vars(self).copy()
        rows, wide = self.rows, {"dtype": torch.complex128, "device": kind["device"]}
        self.directions, self.products = (torch.empty((blocks, rows, self._size), **kind) for _ in range(2))
        self.triangle = torch.zeros((blocks * rows, blocks * rows), **wide)
        self.shares = torch.zeros((rows, blocks * rows), **wide)
        self.order = torch.zeros(blocks * rows, dtype=torch.int64, device=kind["device"])
        self.report = torch.zeros((blocks + 1, rows + 1), **self._real)  # norms before each step, and its rank
        if used is not None:
            cells = used * rows
            self.directions[:used], self.products[:used] = old["directions"][:used], old["products"][:used]
            self.triangle[:cells, :cells] = old["triangle"][:cells, :cells]
            self.shares[:, :cells] = old["shares"][:, :cells]
            self.order[:cells] = old["order"][:cells]
            self.report[: used + 1] = old["report"][: used + 1]

    def reserve(self, blocks: int, used: int) -> None:
        """Have room for so many blocks, of which some are used."""
        if blocks > len(self.products):
            kind = {"dtype": self.products.dtype, "device": self.products.device}
            self._make_room(used, max(blocks, 2 * len(self.products)), kind)

    def begin(self, b: Tensor, blocks: int, tol: float) -> Tensor:
        """The residuals of b, in units of its norms, less what is known; returns the units, (rows,)."""
        norms = _norms(b)
        units = torch.where(norms > 0, norms, torch.ones_like(norms))
        torch.div(b, units[:, None], out=self.residual)
        if blocks:
            self.shares[:, : blocks * self.rows] = take_away(self.residual, self.products[:blocks].flatten(0, 1))
        self.tolerance.fill_(tol)
        self._measure(blocks)
        return units

    def step(self, place: int, twice: bool) -> None:
        """Take the residuals as directions, and from them what the products explain; from a graph if it can be."""

        def work() -> None:
            self._step(place, twice)

        graph = self._graphs.find((place, twice), self.products, lambda: capture_work(work, self._graphs.pool))
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
        threads = _THREADS if overlaps.is_cuda else 1
        self._kernels.launch("orthonormalize", (1, 1, 1), (threads, 1, 1), problem, None, None)

    def _measure(self, place: int) -> None:
        self.report[place, : self.rows] = _norms(self.residual)

    def look(self, place: int, steps: int) -> tuple[Any, int]:
        """The norms after steps from a place on, and how many of them found something new."""
        report = self.report[place : place + steps + 1].cpu().double().numpy()
        idle = np.flatnonzero(report[:-1, -1] == 0)
        new = int(idle[0]) if len(idle) else steps
        return report[new, :-1], new

    def restart(self, blocks: int) -> None:
        """Go on with the residuals after so many blocks, without these."""
        self.report[0] = self.report[blocks]

    def combine(self, blocks: int, units: Tensor, earlier: Tensor | None) -> Tensor:
        """The solutions of the shares so far, added to earlier ones: (rows, n)."""
        if not blocks:
            return torch.zeros_like(self.residual) if earlier is None else earlier
        cells = blocks * self.rows
        turned = torch.linalg.solve_triangular(
            self.triangle[:cells, :cells], self.shares[:, :cells], upper=False, left=False
        )
        parts = torch.empty_like(turned).index_copy_(1, self.order[:cells], turned).mul_(units[:, None])
        solution = parts.to(self.directions.dtype) @ self.directions[:blocks].flatten(0, 1)
        return solution if earlier is None else earlier + solution


def _norms(rows: Tensor) -> Tensor:
    """Of each row of complex numbers: (B, n) to (B,)."""
    norms: Tensor = torch.linalg.vector_norm(torch.view_as_real(rows).flatten(1), dim=1)
    return norms
