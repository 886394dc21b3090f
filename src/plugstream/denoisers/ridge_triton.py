"""The ridge prior on CUDA: gradients, products with the Hessian and the whole prox; `ridge_prior.py` specifies them.

An iteration is two launches. The first writes what each pixel gives to its neighbours, the second adds that up in a
fixed order and takes the step: the same bits every time. The device decides which images rest; the host checks now and
then whether all do.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from plugstream.base.cuda_graphs import GraphCall, stream_handle
from plugstream.denoisers import forms
from plugstream.denoisers.ridge_fold import fold_kernels

if TYPE_CHECKING:
    from plugstream.denoisers.ridge_prior import RidgePotential, Ridges


_SPREAD = {"BLOCK": 64, "num_warps": 4, "num_stages": 1}
_SETTLE = {"BLOCK": 256, "num_warps": 4}
_JUDGE = {"BLOCK": 1024, "num_warps": 4}
_FRAME = {"BLOCK": 256, "num_warps": 4}
_BEGIN = {"BLOCK": 4096, "num_warps": 32}
_TAPS, _PAIRS = (16, 32), 16  # of a quadrant, of filters up to 7 x 7 and 9 x 9, and of even or odd pairs, with zeros
_MOST_SHARES = 1 << 32  # bytes; larger batches are done in parts, and larger images by torch
_AT_ONCE = {16: 4, 32: 3}  # programs that fit on a processor, by the taps of a quadrant
_MOST_LEVELS = 16  # noise levels whose tables are remembered


def serves(size: int, count: int, x: Tensor) -> bool:
    """Whether the kernels take these: float32 on CUDA, at most 32 filters of up to 9 x 9 and their mirror images.

    Images so small that a filter sees their mirror images twice are left to torch.
    """
    large = min(x.shape[-2:]) >= size // 2 * 2 and _share_bytes(size, x) <= _MOST_SHARES
    fit = size <= 9 and count <= 2 * _PAIRS and large
    return forms.triton_serves(x) and fit and len(x) > 0


def _share_bytes(size: int, x: Tensor) -> int:
    """The memory of one image between two launches."""
    return 4 * size**2 * _giving(size, x)


def _giving(size: int, x: Tensor) -> int:
    """How many pixels give something to others: those of an image and around it, along the lines of its frame."""
    by = size // 2
    return (x.shape[-2] + 2 * by) * (x.shape[-1] + 4 * by) - 2 * by


class Filters:
    """Folded filters as the kernels read them: forward (2, 4, taps, pairs), backward (2, 4, pairs, taps), padded.

    First the front ten bits of each, then the rest, for tensor cores.
    """

    def __init__(self, kernels: Tensor) -> None:
        forward, backward = (part.flatten(2) for part in fold_kernels(kernels))
        _, self.pairs, taps = forward.shape
        self.size = kernels.shape[-1]
        self.taps = next(most for most in _TAPS if taps <= most)
        more = (0, self.taps - taps, 0, _PAIRS - self.pairs)
        self.forward = _in_two(pad(forward, more).transpose(1, 2).contiguous())
        self.backward = _in_two(pad(backward, more))


def _in_two(weights: Tensor) -> Tensor:
    front = (weights.view(torch.int32) & -8192).view(torch.float32)
    return torch.stack([front, weights - front])


class Tables:
    """The prior as the kernels read it: its filters, and a row an image.

    sigma psi'(u / sigma) = sum_j c_j clip(u, -r_j, r_j): slopes c and reaches r, (2, ratios, pairs) each, for even and
    for odd filters; then the step, the momentum and the noise level. rows: (N, 4 ratios pairs + 3).
    """

    def __init__(self, rows: Tensor, filters: Filters, ratios: int) -> None:
        self.rows, self.filters, self.ratios = rows, filters, ratios

    @classmethod
    def of(cls, potential: RidgePotential) -> Tables:
        filters = Filters(potential.kernels)
        return cls(prior_rows(potential, filters.pairs), filters, len(potential.profiles))


def prior_rows(potential: RidgePotential, pairs: int) -> Tensor:
    """`Tables.rows` of a potential with so many pairs of even filters, and of odd ones."""
    height, reach = (torch.stack(part, 1)[..., 0, 0] for part in zip(*potential.profiles, strict=True))
    parts = [
        pad(part[..., : 2 * pairs].unflatten(2, (2, pairs)).transpose(1, 2), (0, _PAIRS - pairs)).flatten(1)
        for part in (height / reach, reach)
    ]
    return torch.cat([*parts, *(part[:, None] for part in (*potential.heavy_ball(), potential.sigma))], 1)


def gradient(potential: RidgePotential, x: Tensor) -> Tensor:
    """grad R(x), (N, 1, H, W)."""
    return _alone(Tables.of(potential), x, None)


def hessian(potential: RidgePotential, at: Tensor, v: Tensor, tables: Tables | None = None) -> Tensor:
    """The Hessian of R at an image applied to v, both (N, 1, H, W)."""
    return _alone(Tables.of(potential) if tables is None else tables, at, v)


def _alone(tables: Tables, x: Tensor, v: Tensor | None) -> Tensor:
    x = x.contiguous()
    work = _Work(tables, x)
    framed = [work.frame(image) for image in (x, v) if image is not None]
    out = torch.empty_like(x)
    work.spread(framed[0][0], None if v is None else framed[1][0])
    work.settle(framed[0][0], out, alone=True)
    return out


class _Work:
    """The launches for a stack of images z (N, 1, H, W), contiguous, and the memory between them.

    Arguments: facts: (4, N), of each image its mean, the squares at which it may rest, and, as int32, whether there is
    nothing to do and whether it rests. Zeros if not given.
    """

    def __init__(self, tables: Tables, z: Tensor, facts: Tensor | None = None) -> None:
        from plugstream.denoisers import ridge_triton_kernels

        self.kernels: Any = ridge_triton_kernels
        self.tables, self.z = tables, z
        self.count, self.height, self.width = len(z), *z.shape[-2:]
        self.size = tables.filters.size
        self.by = self.size // 2
        facts = torch.zeros((4, self.count), device=z.device) if facts is None else facts
        self.means, self.goals = facts[:2]
        self.still, self.resting = facts[2:].view(torch.int32)
        self.parts = forms.cover(self.height * self.width, _SETTLE["BLOCK"])
        self.squares = torch.empty((self.count, self.parts), device=z.device)
        self.giving = _giving(self.size, z)
        self.shares = torch.empty((self.count, self.size**2, self.giving), device=z.device)

    def begin(self, tol: float) -> None:
        """Compute the facts."""
        self.kernels.begin[(self.count,)](
            self.z, self.tables.rows, self.means, self.goals, self.still, self.resting, self.height * self.width, tol,
            PRIOR=self.tables.rows.shape[1], **_BEGIN,
        )  # fmt: skip

    def frame(self, x: Tensor, to: Tensor | None = None) -> Tensor:
        """Images less their means in a frame of what they mirror, twice: (2, N, numbers of an image in its frame)."""
        framed = _framed(self.size, self.z)
        to = torch.empty((2, self.count, framed), device=x.device) if to is None else to
        self.kernels.frame[forms.cover(framed, _FRAME["BLOCK"]), self.count](
            x.contiguous(), self.z, self.still, self.means, to[0], to[1], self.height, self.width, FRAME=2 * self.by,
            **_FRAME,
        )  # fmt: skip
        return to

    def spread(self, x: Tensor, v: Tensor | None = None) -> None:
        """What each pixel gives to those around it, of images in their frames."""
        filters = self.tables.filters
        blocks = forms.cover(self.giving, _SPREAD["BLOCK"])
        at_once = forms.cover(_AT_ONCE[filters.taps] * _processors(x.device), self.count)
        self.kernels.spread[min(blocks, at_once), self.count](
            x, x if v is None else v, filters.forward, filters.backward, self.tables.rows, self.resting, self.shares,
            self.height, self.width, SIDE=self.by + 1, TAPS=filters.taps, PAIRS=_PAIRS, RATIOS=self.tables.ratios,
            HESSIAN=v is not None, **_SPREAD,
        )  # fmt: skip

    def settle(self, x: Tensor, old: Tensor, *, alone: bool = False) -> None:
        """The step, in place of `old`; or the sum of the shares, if alone."""
        self.kernels.settle[self.parts, self.count](
            x, self.z, self.means, old, self.tables.rows, self.resting, self.shares, self.squares, self.height,
            self.width, SIZE=self.size, PRIOR=self.tables.rows.shape[1], ALONE=alone, **_SETTLE,
        )  # fmt: skip

    def iterate(self, x: Tensor, old: Tensor, count: int, *, rest: bool) -> None:
        """`count` iterations, an even number, in place of x and old, which have frames.

        With `rest`, an image whose squares do not exceed its goal rests from the second iteration on, and is then
        `old`.
        """
        for k in range(count):
            self.spread(x)
            self.settle(x, old)
            x, old = old, x
            if rest and k % 2:
                self.kernels.judge[(self.count,)](self.squares, self.goals, self.resting, self.parts, **_JUDGE)

    def finish(self, x: Tensor, old: Tensor, out: Tensor) -> None:
        """The images with their means and without frames."""
        self.kernels.finish[forms.cover(self.height * self.width, _FRAME["BLOCK"]), self.count](
            x, old, self.means, self.z, self.resting, self.still, out, self.height, self.width, FRAME=2 * self.by,
            **_FRAME,
        )  # fmt: skip


def _framed(size: int, z: Tensor) -> int:
    """How many numbers an image has in the frame that filters of this size need."""
    frame = 4 * (size // 2)
    return (z.shape[-2] + frame) * (z.shape[-1] + frame)


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def prox(potential: RidgePotential, z: Tensor, iterations: int) -> Tensor:
    """Just so many iterations toward the prox from z, an even number, without waiting for the device: (N, 1, H, W)."""
    z = z.contiguous()
    work = _Work(Tables.of(potential), z)
    x, old = work.frame(z)
    work.iterate(x, old, iterations, rest=False)
    out = torch.empty_like(z)
    work.finish(x, old, out)
    return out


class Solver:
    """D(z, sigma) on CUDA: many heavy-ball iterations between two checks of the host, from a CUDA graph if small.

    Arguments: ridges: on the device, float32. tol, limit: as of `prox` in `ridge_prior.py`; limit is even.
    """

    def __init__(self, ridges: Ridges, tol: float, limit: int) -> None:
        self.ridges, self.tol, self.limit = ridges, tol, limit
        # Iterations between two checks of the host: enough for most images, and more cost little.
        self.together = max(2, limit // 3 * 2)
        self._parts = ridges.parts()
        self._filters = Filters(self._parts[0])
        self._rows = GraphCall(self._level_rows)
        self._begin, self._continue = (GraphCall(f, steady=(1,)) for f in (self._first, self._more))
        self._last_rows: OrderedDict[tuple[float, int, int], Tensor] = OrderedDict()

    def __call__(self, z: Tensor, level: float | Tensor, start: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The last image of each, (N, 1, H, W), and which reached the tolerance within `limit`, (N,); None if all did.

        Images with a level of 0 come out as they are.

        Arguments: z (N, 1, H, W); level, a number or (N,); start, from where to begin if not from z, (N, 1, H, W).
        """
        most = max(1, _MOST_SHARES // _share_bytes(self._filters.size, z))
        if len(z) > most:
            return self._in_parts(z, level, start, most)
        rows = self._rows(level) if isinstance(level, Tensor) else self._rows_of(level, len(z), z.device)
        state, iterations = self._begin(z, rows, start), self.together
        while not (rest := all(_resting(state, len(z)).tolist())) and iterations < self.limit:
            state, iterations = self._continue(z, rows, state), iterations + self.together
        answer = state[: z.numel()].view(z.shape).clone()  # so that the rest of the state can be freed
        return answer, None if rest else _resting(state, len(z)) > 0

    def _in_parts(
        self, z: Tensor, level: float | Tensor, start: Tensor | None, most: int
    ) -> tuple[Tensor, Tensor | None]:
        answers, near = [], []
        for k in range(0, len(z), most):
            part = slice(k, k + most)
            answer, resting = self(
                z[part], level[part] if isinstance(level, Tensor) else level, None if start is None else start[part]
            )
            answers.append(answer)
            near.append(torch.ones(len(answer), dtype=torch.bool, device=z.device) if resting is None else resting)
        return torch.cat(answers), torch.cat(near)

    def _rows_of(self, level: float, count: int, device: torch.device) -> Tensor:
        """The rows of images with one level, remembered for each stream, since most runs repeat it."""
        key = level, count, stream_handle(device)
        rows = self._last_rows.get(key)
        if rows is None:
            rows = self._level_rows(torch.full((count,), level, device=device))
            if len(self._last_rows) >= _MOST_LEVELS:
                self._last_rows.popitem(last=False)
            self._last_rows[key] = rows
        return rows

    def _level_rows(self, level: Tensor) -> Tensor:
        rows = prior_rows(self.ridges.at(level.clamp_min(1e-9), self._parts), self._filters.pairs)
        return torch.cat([rows[:, :-1], level[:, None]], 1)

    def _first(self, z: Tensor, rows: Tensor, start: Tensor | None) -> Tensor:
        state = torch.empty(z.numel() + 2 * len(z) * _framed(self._filters.size, z) + 4 * len(z), device=z.device)
        return self._go(z, rows, state, z if start is None else start)

    def _more(self, z: Tensor, rows: Tensor, state: Tensor) -> Tensor:
        return self._go(z, rows, state, None)

    def _go(self, z: Tensor, rows: Tensor, state: Tensor, source: Tensor | None) -> Tensor:
        """The state after more iterations, in place, starting from `source` if given.

        It holds the answers, the last two images in their frames without means, and four facts of each.
        """
        z = z.contiguous()
        images, facts = state[: -4 * len(z)], state[-4 * len(z) :].view(4, len(z))
        work = _Work(Tables(rows, self._filters, len(self.ridges.ratios)), z, facts)
        out, last = images[: z.numel()], images[z.numel() :].view(2, len(z), -1)
        if source is not None:
            work.begin(self.tol)
            work.frame(source, last)
        work.iterate(last[0], last[1], self.together, rest=True)
        work.finish(last[0], last[1], out)
        return state


def _resting(state: Tensor, count: int) -> Tensor:
    """Which images rest, of a solver's state: the last of its facts, int32 (N,)."""
    return state[-count:].view(torch.int32)
