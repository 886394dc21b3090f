"""The ridge prior on CUDA: gradients, products with the Hessian and the whole prox; `ridge_prior.py` specifies them.

An iteration is two launches. The first writes what each pixel gives to each of those around it, the second adds that
up, in a fixed order, and takes the step: the same bits every time. Which images rest is known to the device alone; the
host looks now and then whether all do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from plugstream._graphs import GraphCall
from plugstream.denoisers import _triton
from plugstream.denoisers.base import centre
from plugstream.denoisers.ridge_fold import fold_kernels

if TYPE_CHECKING:
    from plugstream.denoisers.ridge_prior import RidgePotential, Ridges

__all__ = ["Filters", "Solver", "Tables", "gradient", "hessian", "prox", "serves"]

_SPREAD = {"BLOCK": 64, "num_warps": 4}
_SETTLE = {"BLOCK": 256, "num_warps": 4}
_JUDGE = {"BLOCK": 1024, "num_warps": 4}
_DOT = "tf32x3"  # three products of tensor cores that together are as good as single precision
_TAPS, _PAIRS = 32, 16  # of a quadrant and of even or odd pairs, padded with zeros
_MOST_SHARES = 1 << 32  # bytes; larger batches are done in parts, and larger images by torch
_TOGETHER = 20  # iterations between two looks of the host, even


def serves(size: int, count: int, x: Tensor) -> bool:
    """Whether these are for our kernels: float32 on CUDA, at most 32 filters of up to 9 x 9 and their mirror images."""
    shares = 4 * size**2 * x.shape[-2] * x.shape[-1]
    fit = size <= 9 and count <= 2 * _PAIRS and shares <= _MOST_SHARES
    return x.is_cuda and x.dtype == torch.float32 and fit and len(x) > 0 and _triton.available()


class Filters:
    """Folded filters as the kernels read them: forward (4, taps, pairs) and backward (4, pairs, taps), padded."""

    def __init__(self, kernels: Tensor) -> None:
        forward, backward = (part.flatten(2) for part in fold_kernels(kernels))
        _, self.pairs, taps = forward.shape
        self.size = kernels.shape[-1]
        self.forward = forward.new_zeros(4, _TAPS, _PAIRS)
        self.forward[:, :taps, : self.pairs] = forward.transpose(1, 2)
        self.backward = backward.new_zeros(4, _PAIRS, _TAPS)
        self.backward[:, : self.pairs, :taps] = backward


class Tables:
    """The prior as the kernels read it: its filters, made from the potential's unless given, and its profiles.

    sigma psi'(u / sigma) = sum_j c_j clip(u, -r_j, r_j): slopes c and reaches r, (N, 2, ratios, pairs), for even and
    for odd filters.
    """

    def __init__(self, potential: RidgePotential, filters: Filters | None = None) -> None:
        filters = Filters(potential.kernels) if filters is None else filters
        self.forward, self.backward, self.size, pairs = filters.forward, filters.backward, filters.size, filters.pairs
        self.ratios = len(potential.profiles)
        height, reach = (torch.stack(part, 1)[..., 0, 0] for part in zip(*potential.profiles, strict=True))
        self.slopes, self.reaches = (
            self._pad(part[..., : 2 * pairs].unflatten(2, (2, pairs)).transpose(1, 2), pairs)
            for part in (height / reach, reach)
        )

    @staticmethod
    def _pad(part: Tensor, pairs: int) -> Tensor:
        padded = part.new_zeros(*part.shape[:-1], _PAIRS)
        padded[..., :pairs] = part
        return padded


def gradient(potential: RidgePotential, x: Tensor) -> Tensor:
    """grad R(x), (N, 1, H, W)."""
    return _alone(Tables(potential), x, None)


def hessian(potential: RidgePotential, at: Tensor, v: Tensor, tables: Tables | None = None) -> Tensor:
    """The Hessian of R at an image applied to v, both (N, 1, H, W)."""
    return _alone(Tables(potential) if tables is None else tables, at, v)


def _alone(tables: Tables, x: Tensor, v: Tensor | None) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    resting = torch.zeros(len(x), dtype=torch.int32, device=x.device)
    shares = torch.empty((len(x), tables.size**2, *x.shape[-2:]), device=x.device)
    _spread(tables, x, v, resting, shares)
    _settle(tables, x, x, out, None, None, resting, shares, None)
    return out


def _spread(tables: Tables, x: Tensor, v: Tensor | None, resting: Tensor, shares: Tensor) -> None:
    from plugstream.denoisers.ridge_triton_kernels import spread

    height, width = x.shape[-2:]
    spread[_triton.cover(height * width, _SPREAD["BLOCK"]), len(x)](
        x, x if v is None else v.contiguous(), tables.forward, tables.backward, tables.slopes, tables.reaches, resting,
        shares, height, width, SIDE=tables.size // 2 + 1, TAPS=_TAPS, PAIRS=_PAIRS, RATIOS=tables.ratios,
        HESSIAN=v is not None, PRECISION=_DOT, **_SPREAD,
    )  # fmt: skip


def _settle(
    tables: Tables, x: Tensor, z: Tensor, old: Tensor, step: Tensor | None, momentum: Tensor | None, resting: Tensor,
    shares: Tensor, squares: Tensor | None,
) -> None:  # fmt: skip
    from plugstream.denoisers.ridge_triton_kernels import settle

    height, width = x.shape[-2:]
    given: list[Any] = [x if t is None else t for t in (step, momentum)]
    settle[_triton.cover(height * width, _SETTLE["BLOCK"]), len(x)](
        x, z, old, *given, resting, shares, x if squares is None else squares, height, width,
        SIZE=tables.size, ALONE=step is None, **_SETTLE,
    )  # fmt: skip


def prox(potential: RidgePotential, z: Tensor, iterations: int) -> Tensor:
    """Just so many iterations toward the prox from z, an even number, without waiting for the device: (N, 1, H, W)."""
    z = z.contiguous()
    resting = torch.zeros(len(z), dtype=torch.int32, device=z.device)
    x, _ = _iterate(Tables(potential), potential, z, z.clone(), z.clone(), resting, None, iterations)
    return x


def _iterate(
    tables: Tables, potential: RidgePotential, z: Tensor, x: Tensor, old: Tensor, resting: Tensor,
    goal: Tensor | None, count: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`count` iterations, an even number, in place of x and old; returns the last two.

    With a goal, an image rests from the second iteration on whose squares do not exceed it, and is then `old`.
    """
    from plugstream.denoisers.ridge_triton_kernels import judge

    step, momentum = potential.heavy_ball()
    height, width = z.shape[-2:]
    parts = _triton.cover(height * width, _SETTLE["BLOCK"])
    squares = torch.empty((len(z), parts), device=z.device)
    shares = torch.empty((len(z), tables.size**2, height, width), device=z.device)
    for k in range(count):
        _spread(tables, x, None, resting, shares)
        _settle(tables, x, z, old, step, momentum, resting, shares, squares)
        x, old = old, x
        if goal is not None and k % 2:
            judge[(len(z),)](squares, goal, resting, parts, **_JUDGE)
    return x, old


class Solver:
    """D(z, sigma) on CUDA: heavy-ball iterations, many to a look of the host, replayed from a CUDA graph where small.

    Arguments: ridges: on the device, float32. tol, limit: as of `prox` in `ridge_prior.py`; limit is even.
    """

    def __init__(self, ridges: Ridges, tol: float, limit: int) -> None:
        self.ridges, self.tol, self.limit = ridges, tol, limit
        self._parts = ridges.parts()
        self._filters = Filters(self._parts[0])
        self._begin, self._continue = GraphCall(self._first), GraphCall(self._more)

    def __call__(self, z: Tensor, level: Tensor, start: Tensor | None) -> tuple[Tensor, Tensor]:
        """The last image of each, (N, 1, H, W), and which reached the tolerance, (N,), by so many iterations or fewer.

        Images with a level of 0 come out as they are.
        """
        state = self._begin(z, level, start)
        for _ in range(_TOGETHER, self.limit, _TOGETHER):
            if bool((state[:, -1] > 0).all()):
                break
            state = self._continue(z, level, state)
        near = state[:, -1] > 0
        x, old = state[:, :-1].unflatten(1, (2, *z.shape[1:])).unbind(1)
        return torch.where(near[:, None, None, None], old, x), near

    def _problem(self, z: Tensor, level: Tensor) -> tuple[RidgePotential, Tensor, Tensor, Tensor]:
        flat, mean = centre(z[:, 0])
        goal = (self.tol * torch.linalg.vector_norm(flat, dim=(1, 2))).square()
        return self.ridges.at(level.clamp_min(1e-9), self._parts), flat[:, None].contiguous(), mean[:, None], goal

    def _first(self, z: Tensor, level: Tensor, start: Tensor | None) -> Tensor:
        potential, flat, mean, goal = self._problem(z, level)
        resting = ((level <= 0) | (goal == 0)).int()
        still = (resting > 0)[:, None, None, None]
        x = flat.clone() if start is None else torch.where(still, flat, start - mean)
        return self._go(potential, flat, mean, goal, x, x.clone(), resting, still, z)

    def _more(self, z: Tensor, level: Tensor, state: Tensor) -> Tensor:
        potential, flat, mean, goal = self._problem(z, level)
        x, old = (part - mean for part in state[:, :-1].unflatten(1, (2, *z.shape[1:])).unbind(1))
        resting = state[:, -1].int()
        still = ((level <= 0) | (goal == 0))[:, None, None, None]
        return self._go(potential, flat, mean, goal, x.contiguous(), old.contiguous(), resting, still, z)

    def _go(
        self, potential: RidgePotential, flat: Tensor, mean: Tensor, goal: Tensor, x: Tensor, old: Tensor,
        resting: Tensor, still: Tensor, z: Tensor,
    ) -> Tensor:  # fmt: skip
        """The state after some iterations: the last two images and whether the second is the answer, (N, 2 H W + 1)."""
        count = min(_TOGETHER, self.limit)
        x, old = _iterate(Tables(potential, self._filters), potential, flat, x, old, resting, goal, count)
        x, old = (torch.where(still, z, part + mean) for part in (x, old))
        return torch.cat([x.flatten(1), old.flatten(1), resting[:, None].to(x)], 1)
