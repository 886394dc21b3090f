"""One step of TNRD on CUDA with its gradients, for training: `diffuse` of `denoisers/tnrd/model.py` specifies it.

The backward pass recomputes responses and influences from the image, in registers. All sums are taken in a fixed order,
so that training repeats itself to the bit, and nothing is read back, so that a step of training can be captured in a
CUDA graph.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from plugstream.denoisers import forms
from plugstream.denoisers.tnrd.tables import BUMPS, PRECISION, REACH, SPACING, cubics

serves = forms.triton_serves

_STEP = 5.0  # of the table of cubics
_CELLS = round(2 * REACH / _STEP)
_EXACT, _FAST = "tf32x3", "tf32"  # responses to single precision; what only gradients are made of to 11 bits
# The fastest of those tried on an H200, for 32 patches of 96 x 96.
_DRIVE = {"BLOCK": 32, "num_warps": 4}
_BACK = {"BLOCK": 16, "LOOPS": 32, "num_warps": 4, "num_stages": 1}  # Triton 3.6 cannot pipeline these products
_SUMS = {"BLOCK": 512, "LOOPS": 16, "num_warps": 1}
_PIXELS = {"BLOCK": 256, "num_warps": 4}


def diffuse(u: Tensor, noisy: Tensor, kernels: Tensor, reaction: Tensor, weights: Tensor) -> Tensor:
    """As `model.diffuse`, for float32 on CUDA, filters of 7 x 7, at most 64 of them, and H, W >= 7.

    Values within 2e-4 of the weights' size of it, and gradients within a thousandth: for training.
    """
    result: Tensor = _Stage.apply(u, noisy, kernels, reaction, weights)  # type: ignore[no-untyped-call]
    return result


class _Stage(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, noisy: Tensor, kernels: Tensor, reaction: Tensor, weights: Tensor) -> Tensor:
        from plugstream.denoisers.tnrd.triton_kernels import drive, settle

        u, noisy = u.contiguous(), noisy.contiguous()
        ctx.save_for_backward(u, noisy, kernels, reaction, weights)
        count, height, width = u.shape
        around = (height + 6) * (width + 6)
        shares = torch.empty((count, 49, around), device=u.device)
        ones = torch.ones(count, device=u.device)
        down, up = _pad_kernels(kernels)
        table = _table(weights, slopes=False)
        drive[forms.cover(around, _DRIVE["BLOCK"]), count](
            u, ones, down, up, table, shares, height, width,
            FIRST=False, CELLS=_CELLS, STEP=_STEP, REACH=REACH, PRECISION=_EXACT, **_DRIVE,
        )  # fmt: skip
        out = torch.empty_like(u)
        settle[forms.cover(height * width, _PIXELS["BLOCK"]), count](
            u, noisy, ones, reaction, shares, out, height, width, FIRST=False, LAST=False, **_PIXELS
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from training.tnrd_kernels import bump_sums, drive_gradients, reflect, unfold

        u, noisy, kernels, reaction, weights = ctx.saved_tensors
        grad = grad.contiguous()
        images, height, width = u.shape
        filters, device = len(weights), u.device
        around = (height + 6) * (width + 6)
        shares = torch.empty((images, 49, around), device=device)
        responses, pulled = (torch.empty((filters, images * around), device=device) for _ in range(2))
        parts = forms.cover(around, _BACK["BLOCK"] * _BACK["LOOPS"])
        of_kernels = torch.empty((images * parts, 64, 64), device=device)
        down, up = _pad_kernels(kernels)
        drive_gradients[parts, images](
            u, grad, down, up, _table(weights, slopes=True), shares, responses, pulled, of_kernels,
            height, width, images, CELLS=_CELLS, STEP=_STEP, REACH=REACH, FILTERS=filters,
            EXACT=_EXACT, FAST=_FAST, **_BACK,
        )  # fmt: skip
        parts = forms.cover(images * around, _SUMS["BLOCK"] * _SUMS["LOOPS"])
        of_weights = torch.empty((filters, parts, 64), device=device)
        bump_sums[filters, parts](
            responses, pulled, of_weights, images * around, BUMPS=BUMPS, SPACING=SPACING, HALF=PRECISION / 2, **_SUMS
        )
        of_u = None
        if ctx.needs_input_grad[0]:
            continued = torch.empty((images, height + 12, width + 12), device=device)
            unfold[forms.cover(continued[0].numel(), _PIXELS["BLOCK"]), images](
                shares, continued, height, width, **_PIXELS
            )
            of_u = torch.empty_like(u)
            reflect[forms.cover(height * width, _PIXELS["BLOCK"]), images](
                continued, grad, reaction, of_u, height, width, **_PIXELS
            )
        return (
            of_u,
            reaction * grad if ctx.needs_input_grad[1] else None,
            of_kernels.sum(0)[:filters, :49].reshape(kernels.shape),
            -(grad * (u - noisy)).sum(),
            of_weights.sum(1)[:, :BUMPS],
        )


def _pad_kernels(kernels: Tensor) -> tuple[Tensor, Tensor]:
    """(filters, 7, 7) as tap by filter and filter by tap, both 64 x 64 with zeros."""
    up = kernels.new_zeros(64, 64)
    up[: len(kernels), :49] = kernels.flatten(1)
    return up.t().contiguous(), up


def _table(weights: Tensor, *, slopes: bool) -> Tensor:
    """The cubics of each cell, two coefficients in an int64: (64, cells, 2), or 4 with those of the derivative."""
    padded = weights.new_zeros(64, BUMPS)
    padded[: len(weights)] = weights
    return (padded @ _cubics(slopes, weights.device)).view(torch.int64)


@cache
def _cubics(slopes: bool, device: torch.device) -> Tensor:
    """From the weights of the bumps to the coefficients of all cells: (63, cells * 4 or 8)."""
    both = [cubics(_STEP, order) for order in ((0, 1) if slopes else (0,))]
    matrix = np.concatenate(both, -1).reshape(BUMPS, -1)
    return torch.from_numpy(matrix).to(device, torch.float32)
