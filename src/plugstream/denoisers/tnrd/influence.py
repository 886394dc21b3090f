"""The influence functions of TNRD: sums of Gaussian bumps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from plugstream.denoisers.tnrd.tables import CENTRES, PRECISION

__all__ = ["influence"]


def influence(responses: Tensor, weights: Tensor) -> Tensor:
    r"""The trained nonlinearity of each filter, which says how a response to it drives the diffusion.

    phi_i(x) = sum_j w_ij exp(-(x - mu_j)^2 / 200), with 63 centres mu_j = -310, -300, ..., 310.

    It holds for every x; beyond the last centres it falls to 0 like a Gaussian. (The authors' program holds the value
    at +-320 beyond that; its table ends there.) Gradients flow to both arguments, once; only `responses` is kept for
    that, not the 63 bumps. It runs over the bumps one by one, and on CUDA in one fused kernel where Triton is there.

    Arguments:
        responses: (N, filters, H, W), on a scale where white is 255.
        weights: (filters, 63).
    Reference: Chen and Pock, IEEE Trans. Pattern Anal. Mach. Intell. 39(6), 2017, equation 10.
    """
    from plugstream.denoisers.tnrd import triton_influence

    if triton_influence.serves(responses):
        return triton_influence.influence(responses, weights)
    result: Tensor = _Bumps.apply(responses, weights)  # type: ignore[no-untyped-call]
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
            piece, given, w = x[image, filters], grad[image, filters], weights[filters, :, None, None]
            for j, centre in enumerate(CENTRES):
                share = _bump(piece, centre).mul_(given)
                grad_weights[filters, j] += share.sum((-2, -1))
                grad_x[image, filters].addcmul_(share.mul_(centre - piece), w[:, j], value=PRECISION)
        return grad_x, grad_weights


def _bump(x: Tensor, centre: float) -> Tensor:
    # Held above the smallest numbers, on which processors are ten times slower; 1.8e-35 adds nothing.
    return (x - centre).square_().mul_(-PRECISION / 2).clamp_min_(-80).exp_()


def _pieces(x: Tensor) -> Iterator[tuple[int, slice]]:
    """Responses that stay in the cache while the bumps pass over them, on the CPU; whole images elsewhere."""
    filters = x.shape[1]
    most = max(1, 65536 // max(1, x.shape[-2] * x.shape[-1])) if x.device.type == "cpu" else filters
    for image in range(len(x)):
        for first in range(0, filters, most):
            yield image, slice(first, first + most)
