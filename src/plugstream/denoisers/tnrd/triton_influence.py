"""The influence functions of TNRD on CUDA, one launch each way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from plugstream.denoisers import _triton
from plugstream.denoisers.tnrd.tables import BUMPS, PRECISION, SPACING

__all__ = ["influence", "serves"]


def serves(values: Tensor) -> bool:
    """Whether these are for our kernels: float32 on CUDA, where Triton is installed."""
    return values.is_cuda and values.dtype == torch.float32 and _triton.available()


def influence(responses: Tensor, weights: Tensor) -> Tensor:
    """As `influence.influence`, with gradients, in one launch each way: (N, filters, H, W) and (filters, 63)."""
    result: Tensor = _Bumps.apply(responses, weights)  # type: ignore[no-untyped-call]
    return result


class _Bumps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor) -> Tensor:
        from plugstream.denoisers.tnrd.triton_kernels import bumps

        x, weights = x.contiguous(), weights.contiguous()
        ctx.save_for_backward(x, weights)
        out = torch.empty_like(x)
        count = x.shape[-2] * x.shape[-1]
        bumps[x.shape[0] * x.shape[1], _triton.cover(count, 1024)](
            x, weights, out, count, x.shape[1], BUMPS=BUMPS, SPACING=SPACING, HALF=PRECISION / 2, BLOCK=1024
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        from plugstream.denoisers.tnrd.triton_kernels import bumps_gradients

        x, weights = ctx.saved_tensors
        grad, grad_x = grad.contiguous(), torch.empty_like(x)
        images, filters = x.shape[:2]
        count = x.shape[-2] * x.shape[-1]
        block, loops = 64, 64
        parts = _triton.cover(count, block * loops)
        partial = torch.empty((images, filters, parts, 64), device=x.device)
        bumps_gradients[images * filters, parts](
            x, weights, grad, grad_x, partial, count, filters,
            BUMPS=BUMPS, SPACING=SPACING, HALF=PRECISION / 2, BLOCK=block, LOOPS=loops,
        )  # fmt: skip
        return grad_x, partial.sum((0, 2))[:, :BUMPS]
