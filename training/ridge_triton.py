"""The ridge prior on CUDA, for training: gradients, products with the Hessian and a number of iterations.

`denoisers/ridge_prior.py` specifies them. An iteration is two launches. The first writes what each pixel gives to its
neighbours, the second adds that up in a fixed order and takes the step: the same bits every time.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from plugstream.denoisers import forms
from plugstream.denoisers.ridge_fold import fold_kernels

if TYPE_CHECKING:
    from plugstream.denoisers.ridge_prior import RidgePotential


_SPREAD = {"BLOCK": 64, "num_warps": 4, "num_stages": 1}
_SETTLE = {"BLOCK": 256, "num_warps": 4}
_FRAME = {"BLOCK": 256, "num_warps": 4}
_TAPS, _PAIRS = (16, 32), 16  # of a quadrant, of filters up to 7 x 7 and 9 x 9, and of even or odd pairs, with zeros
_MOST_SHARES = 1 << 32  # bytes; larger images are done by torch
_AT_ONCE = {16: 4, 32: 3}  # programs that fit on a processor, by the taps of a quadrant


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
    for odd filters; then the step and the momentum. rows: (N, 4 ratios pairs + 2).
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
    return torch.cat([*parts, *(part[:, None] for part in potential.heavy_ball())], 1)


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
    """The launches for a stack of images z (N, 1, H, W), contiguous, and the memory between them."""

    def __init__(self, tables: Tables, z: Tensor) -> None:
        from training import ridge_kernels

        self.kernels: Any = ridge_kernels
        self.tables, self.z = tables, z
        self.count, self.height, self.width = len(z), *z.shape[-2:]
        self.size = tables.filters.size
        self.by = self.size // 2
        self.parts = forms.cover(self.height * self.width, _SETTLE["BLOCK"])
        self.giving = _giving(self.size, z)
        self.shares = torch.empty((self.count, self.size**2, self.giving), device=z.device)

    def frame(self, x: Tensor) -> Tensor:
        """Images in a frame of what they mirror, twice: (2, N, numbers of an image in its frame)."""
        framed = (self.height + 4 * self.by) * (self.width + 4 * self.by)
        to = torch.empty((2, self.count, framed), device=x.device)
        self.kernels.frame[forms.cover(framed, _FRAME["BLOCK"]), self.count](
            x.contiguous(), to[0], to[1], self.height, self.width, FRAME=2 * self.by, **_FRAME
        )
        return to

    def spread(self, x: Tensor, v: Tensor | None = None) -> None:
        """What each pixel gives to those around it, of images in their frames."""
        filters = self.tables.filters
        blocks = forms.cover(self.giving, _SPREAD["BLOCK"])
        at_once = forms.cover(_AT_ONCE[filters.taps] * _processors(x.device), self.count)
        self.kernels.spread[min(blocks, at_once), self.count](
            x, x if v is None else v, filters.forward, filters.backward, self.tables.rows, self.shares,
            self.height, self.width, SIDE=self.by + 1, TAPS=filters.taps, PAIRS=_PAIRS, RATIOS=self.tables.ratios,
            HESSIAN=v is not None, **_SPREAD,
        )  # fmt: skip

    def settle(self, x: Tensor, old: Tensor, *, alone: bool = False) -> None:
        """The step, in place of `old`; or the sum of the shares, if alone."""
        self.kernels.settle[self.parts, self.count](
            x, self.z, old, self.tables.rows, self.shares, self.height, self.width, SIZE=self.size,
            PRIOR=self.tables.rows.shape[1], ALONE=alone, **_SETTLE,
        )  # fmt: skip


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def prox(potential: RidgePotential, z: Tensor, iterations: int) -> Tensor:
    """Just so many iterations toward the prox from z, an even number, without waiting for the device: (N, 1, H, W)."""
    z = z.contiguous()
    work = _Work(Tables.of(potential), z)
    x, old = work.frame(z)
    for _ in range(iterations):
        work.spread(x)
        work.settle(x, old)
        x, old = old, x
    by = 2 * work.by
    framed: Tensor = x.view(len(z), 1, work.height + 2 * by, work.width + 2 * by)
    return framed[..., by : by + work.height, by : by + work.width].contiguous()
