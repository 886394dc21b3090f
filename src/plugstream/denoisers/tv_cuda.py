"""Total variation of volumes on CUDA, in CUDA C++ (`tv_cuda.cu`); `tv.py` is its specification.

The first steps have no momentum: they are 3.8 and 1.3 times 1/L in turn. The long one alone would diverge, but what it
enlarges the short one makes smaller: (1 - 3.8 t) (1 - 1.3 t) lies between -1 and 1 for t from 0 to 1, the eigenvalues
times 1/L. Within PnP-SGD four of them do what six with momentum do. What they do not reach soon is left to momentum.
The gap alone says when x is near enough, so that the lengths of steps decide about time only.

Two of these steps are one pass, which reads the volume and the dual and writes a dual: seven numbers a voxel, 3.8 GB at
512^3, for which the memory of an H200 would take 0.9 ms (it takes 1.4, and 1.1 for one step alone). A look at the gap
moves five numbers (0.8 ms), and a step with momentum ten (1.9 ms). The first pass finds the gap before it as well.

Reference: Young, J. Math. Phys. 32, 1953, for steps that are too long by themselves.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from plugstream.base.cuda_source import Kernels, compile_kernels, takes
from plugstream.denoisers.tv_problem import Penalty

PACES = (3.8, 1.3) * 16  # how long the first steps are, times 1/L
LOOKS = (4, 2, 2, 2)  # iterations with momentum before each of the first looks at the gap
_FAR = 32.0  # a gap relative to its goal that four steps are usually not enough for; as in tv_cuda.cu
_AT_ONCE = 2  # steps in a pass, or 1
_INNER = 28  # columns and rows of a tile that two steps in one pass are right for
_PLANES, _PLANES_TWICE = (4, 16), (8, 64)  # that a thread goes through, at least and at most
_BLOCKS = 1056  # that fill a device


class Variation(Penalty, Protocol):
    """What the kernels ask of a `TV`."""

    @property
    def max_iterations(self) -> int: ...


class Problem(ctypes.Structure):
    """What every kernel is given; `tv_cuda.cu` has the meaning of each field."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("depth", "height", "width", "isotropic", "planes")),
        *((name, ctypes.c_float) for name in ("low", "high", "beta", "pace", "pace_after")),
        *((name, ctypes.c_void_p) for name in ("z", "strength", "mean", "p", "before", "next", "x", "sums")),
        *((name, ctypes.c_void_p) for name in ("moments", "within")),
        ("tolerance", ctypes.c_double),
    )


@cache
def read_source() -> str:
    """The text of the kernels."""
    return Path(__file__).with_suffix(".cu").read_text(encoding="utf-8")


def find_kernels(device: torch.device) -> Kernels | None:
    """The kernels for a CUDA device; None where torch has no compiler for them."""
    return compile_kernels(read_source(), device)


def serves(volumes: Tensor) -> bool:
    """Whether the kernels take these: float32 on CUDA, not differentiated."""
    return takes(volumes, read_source())


def solve(
    tv: Variation,
    volume: Tensor,
    strength: Tensor,
    warm: Tensor | None,
    groups: Iterable[list[float]],
    kernels: Kernels,
) -> tuple[Tensor, Tensor, bool]:
    """x and the dual of one volume, and whether it is within `tv.tol`.

    Arguments: tv; volume (D, H, W); strength, sigma^2 w, one number; warm (3, D, H, W); groups, the momentum of
    iterations between two looks at the gap, for what the first steps leave; kernels.
    """
    run = _Run(tv, volume, strength, warm, kernels)
    if tv.tol == 0:
        for momentum in groups:
            run.accelerate(momentum)
        run.look()
        return run.x, run.dual, True
    paces = PACES[: tv.max_iterations]
    more = paces[_AT_ONCE : 2 * _AT_ONCE]
    before, ratio = run.begin(paces[:_AT_ONCE], more)
    taken = min(_AT_ONCE, len(paces)) + (len(more) if before > 1 else 0)
    more_steps = 0 if before < _FAR else 2
    while True:
        if more_steps:
            run.descend(paces[taken : taken + more_steps])
            taken = min(taken + more_steps, len(paces))
            ratio = run.look()
        needed = taken * ratio**0.8  # as the gap falls about as the number of steps to the power of -1.25
        if ratio <= 1 or taken == len(paces) or needed > len(PACES):
            break
        more_steps = 2 * math.ceil(min(needed - taken, taken) / 2)
    for momentum in filter(None, groups):
        if not (ratio > 1 and taken < tv.max_iterations):
            break
        some = momentum[: tv.max_iterations - taken]
        run.accelerate(some)
        taken += len(some)
        ratio = run.look()
    return run.x, run.dual, not ratio > 1


class _Run:
    """One volume with its dual, and the kernels that work on them.

    Attributes: dual, the present one; x, the image at the last look.
    """

    def __init__(self, tv: Variation, volume: Tensor, strength: Tensor, warm: Tensor | None, kernels: Kernels) -> None:
        depth, height, width = volume.shape
        self.tv, self.volume, self.kernels = tv, volume, kernels
        self.dual = volume.new_zeros((3, *volume.shape)) if warm is None else warm
        self.x = torch.empty_like(volume)
        self._warm, self._before = warm, self.dual
        self._spare: list[Tensor] = []
        aligned = all(tensor.data_ptr() % 16 == 0 for tensor in (volume, self.dual))
        self._across = 4 if width % 4 == 0 and aligned else 1
        self._strength = strength.contiguous()
        p = Problem(depth, height, width, int(tv.isotropic), low=tv.low, high=tv.high)
        p.z, p.strength = volume.data_ptr(), self._strength.data_ptr()
        self._problem = p
        self._moments = self._launch("add_up").sum(1)
        self._mean = self._moments[:1] / volume.numel()
        p.mean = self._mean.data_ptr()

    def begin(self, paces: Sequence[float], more: Sequence[float]) -> tuple[float, float]:
        """Take steps, and look; returns the gap before all of them and after, relative to the goal.

        If the first is within the goal, no step is taken, and the look is at the dual as it was; if it is far from it,
        there is no look. The device decides that, so that the host waits once.

        Arguments: paces of the first one or two steps; more, of the one or two after these, or none.
        """
        start, p = self.dual, self._problem
        numbers = torch.cat([self._moments, self._step("begin", paces).sum(1)])
        within = torch.empty(1, dtype=torch.float64, device=numbers.device)
        p.moments, p.tolerance, p.within = numbers.data_ptr(), self.tv.tol, within.data_ptr()
        self.kernels.launch("decide", (1, 1, 1), (1, 1, 1), p, None, None)
        self.descend(more)
        seen = self._look(start)
        p.within = None
        total, squares, gap, beyond, *seen_numbers = torch.cat([numbers, seen]).tolist()  # waits for the device
        energy = squares - total * (total / self.volume.numel())
        self._goal = self.tv.tol**2 * energy
        if start is self._warm and energy <= 1e-14 * squares:
            # A constant volume is its own answer, to which another dual would not lead within a relative error.
            self.dual = self._before = torch.zeros_like(start)
            return self.begin(paces, more)
        ratio = self._relative(gap, beyond)
        if ratio <= 1:
            self.dual = self._before = start
        return ratio, self._relative(*seen_numbers)

    def descend(self, paces: Sequence[float]) -> None:
        """Take steps without momentum."""
        for first in range(0, len(paces), _AT_ONCE):
            self._step("descend", paces[first : first + _AT_ONCE])

    def accelerate(self, momentum: Sequence[float]) -> None:
        """Take steps, each followed by this momentum."""
        for following in momentum:
            self._step("accelerate" if self._problem.beta else "descend", [1.0])
            self._problem.beta = following

    def look(self) -> float:
        """Form x, and return the gap relative to the goal."""
        sums = self._look(self.dual)
        return self._relative(*sums.tolist()) if self.tv.tol > 0 else math.inf

    def _look(self, start: Tensor) -> Tensor:
        """Launch a look at the dual, or at the one at the start if that is within; returns its two sums."""
        p = self._problem
        p.p, p.before, p.x = self.dual.data_ptr(), start.data_ptr(), self.x.data_ptr()
        return self._launch("look").sum(1)

    def _relative(self, gap: float, beyond: float) -> float:
        if beyond > 0 or gap > self._goal == 0:
            return math.inf
        return gap / self._goal if gap > self._goal else 0.0  # a NaN counts as within, which no iteration would cure

    def _step(self, name: str, paces: Sequence[float]) -> Tensor:
        """Launch one or two steps; returns the sums of `begin`."""
        p, before = self._problem, self._before
        free = [] if before is self._warm or before is self.dual else [before]
        if name != "accelerate":  # which alone reads the one before
            self._spare += free
            free = []
        target = self._spare.pop() if self._spare else torch.empty_like(self.dual)
        p.p, p.before, p.next, p.x = self.dual.data_ptr(), before.data_ptr(), target.data_ptr(), None
        p.pace, p.pace_after = paces[0], paces[-1]
        sums = self._launch(name, twice=len(paces) == 2)
        self._spare += free
        self._before, self.dual = self.dual, target
        return sums

    def _launch(self, name: str, *, twice: bool = False) -> Tensor:
        """Launch a kernel; returns the sums that it may write."""
        depth, height, width = self.volume.shape
        if twice:
            across, block, (least, most) = 1, (32, 8, 1), _PLANES_TWICE
            tiles = -(-width // _INNER), -(-height // _INNER)
            threads = 256 * tiles[0] * tiles[1]
        else:
            across, (least, most) = self._across, _PLANES
            lanes = width // across
            wide = min(32, 1 << (lanes - 1).bit_length())
            block = (wide, 256 // wide, 1)
            tiles = -(-lanes // wide), -(-height // block[1])
            threads = lanes * height
        planes = max(least, min(most, depth * tiles[0] * tiles[1] // _BLOCKS))
        grid = (*tiles, -(-depth // planes))
        sums = torch.empty((2, threads * grid[2]), dtype=torch.float64, device=self.volume.device)
        self._problem.planes, self._problem.sums = planes, sums.data_ptr()
        self.kernels.launch(f"{name}_{'twice' if twice else across}", grid, block, self._problem, None, None)
        return sums
