"""The influence functions of TNRD: sums of Gaussian bumps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from plugstream.denoisers.forms import cover, triton_serves
from plugstream.denoisers.tnrd.tables import BUMPS, CENTRES, PRECISION, SPACING


def influence(responses: Tensor, weights: Tensor) -> Tensor:
    r"""The trained nonlinearity of each filter: how a response to it drives the diffusion.

    phi_i(x) = sum_j w_ij exp(-(x - mu_j)^2 / 200), with 63 centres mu_j = -310, -300, ..., 310.

    Beyond the last centres it falls to 0 like a Gaussian. (The authors' program holds the value at +-320 beyond that.)
    Differentiable once, in both arguments; only `responses` is saved for that. It runs over the bumps one by one, and
    on CUDA in one fused Triton kernel each way.

    Arguments:
        responses: (N, filters, H, W), on a scale where white is 255.
        weights: (filters, 63).
    Reference: Chen and Pock, IEEE Trans. Pattern Anal. Mach. Intell. 39(6), 2017, equation 10.
    """
    bumps = _FusedBumps if triton_serves(responses) else _Bumps
    result: Tensor = bumps.apply(responses, weights)  # type: ignore[no-untyped-call]
    return result


class _Bumps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, weights)
        out = torch.zeros_like(x)
        for image, filters in _pieces(x):
            piece, total, w = x[image, filters], out[image, filters], weights[filters, :, None, None]
            for j, centre in enumerate(CENTRES):
                total.addcmul_(_bump(piece, centre), w[:, j])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weights = ctx.saved_tensors
        grad_x, grad_weights = torch.zeros_like(x), torch.zeros_like(weights)
        for image, filters in _pieces(x):
            piece, slope, w = x[image, filters], grad[image, filters], weights[filters, :, None, None]
            for j, centre in enumerate(CENTRES):
                share = _bump(piece, centre).mul_(slope)
                grad_weights[filters, j] += share.sum((-2, -1))
                grad_x[image, filters].addcmul_(share.mul_(centre - piece), w[:, j], value=PRECISION)
        return grad_x, grad_weights


class _FusedBumps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor) -> Tensor:
        from plugstream.denoisers.tnrd.triton_kernels import bumps

        x, weights = x.contiguous(), weights.contiguous()
        ctx.save_for_backward(x, weights)
        out = torch.empty_like(x)
        count = x.shape[-2] * x.shape[-1]
        bumps[x.shape[0] * x.shape[1], cover(count, 1024)](
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
        parts = cover(count, block * loops)
        partial = torch.empty((images, filters, parts, 64), device=x.device)
        bumps_gradients[images * filters, parts](
            x, weights, grad, grad_x, partial, count, filters,
            BUMPS=BUMPS, SPACING=SPACING, HALF=PRECISION / 2, BLOCK=block, LOOPS=loops,
        )  # fmt: skip
        return grad_x, partial.sum((0, 2))[:, :BUMPS]


def _bump(x: Tensor, centre: float) -> Tensor:
    # Kept above denormal numbers, which are ten times slower; 1.8e-35 adds nothing.
    return (x - centre).square_().mul_(-PRECISION / 2).clamp_min_(-80).exp_()


def _pieces(x: Tensor) -> Iterator[tuple[int, slice]]:
    """Pieces of responses that fit into the cache of a CPU; whole images elsewhere."""
    filters = x.shape[1]
    most = max(1, 65536 // max(1, x.shape[-2] * x.shape[-1])) if x.device.type == "cpu" else filters
    for image in range(len(x)):
        for first in range(0, filters, most):
            yield image, slice(first, first + most)
