"""The influence functions of TNRD: sums of Gaussian bumps, and their tables of polynomials for the fast forms."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["BUMPS", "CENTRES", "PRECISION", "REACH", "cubics", "influence", "polynomials"]

BUMPS = 63
SPACING = 10.0
PRECISION = 0.01
REACH = 380.0
"""Beyond this the bumps are below 1e-10 of their height, and the tables end."""


CENTRES = [SPACING * (j - BUMPS // 2) for j in range(BUMPS)]


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
    from plugstream.denoisers.tnrd import triton_form

    if triton_form.serves(responses):
        return triton_form.influence(responses, weights)
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


def polynomials(weights: Tensor, degree: int, step: float) -> Tensor:
    r"""The influence functions as tables, for forms that cannot afford 63 exponentials for each response.

    On the cell [-380 + c step, -380 + (c + 1) step], phi_i is replaced by the polynomial sum_m C[i, m, c] t^m in
    t = (x + 380) / step - c - 1/2 that equals it at the degree + 1 Chebyshev-Lobatto points. These include both ends,
    so that the tables are continuous. For bumps of height 1 the error is at most 2.1e-5 for degree 5 and step 10, and
    1.2e-4 for degree 3 and step 5 (tested). Outside of +-380 the value at +-380 stands, below 1e-10 times the weights.

    Arguments:
        weights: (..., 63).
    Returns float32, (..., degree + 1, cells).
    Reference: Trefethen, Approximation Theory and Approximation Practice, chapter 2.
    """
    nodes, solve, bumps, _ = _nodes(degree, step)
    values = weights.detach().double().cpu().numpy() @ bumps  # (..., cells * nodes)
    values = values.reshape(*weights.shape[:-1], -1, len(nodes))
    coefficients = np.swapaxes(values @ solve.T, -1, -2)
    return torch.from_numpy(np.ascontiguousarray(coefficients)).float()


def cubics(step: float, order: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The map from the weights to the table of cubics of phi (order 0) or of its derivative (1): (63, cells, 4).

    For tables that must be formed anew at every step of training, on the device, as one product of matrices. Cells,
    nodes and order of the coefficients are those of `polynomials`, which gives the same table for order 0.
    """
    nodes, solve, *bumps = _nodes(3, step)
    made: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = bumps[order].reshape(BUMPS, -1, len(nodes)) @ solve.T
    return made


@cache
def _nodes(degree: int, step: float) -> tuple[Any, Any, Any, Any]:
    """Nodes on [-1/2, 1/2], from values there to coefficients, every bump at every node, and every bump's slope there.

    The last two are (63, cells * nodes).
    """
    nodes = -np.cos(np.pi * np.arange(degree + 1) / degree) / 2
    solve = np.linalg.inv(np.vander(nodes, increasing=True))
    cells = round(2 * REACH / step)
    at = (-REACH + step * (np.arange(cells)[:, None] + 0.5 + nodes)).reshape(-1)
    away = at - np.array(CENTRES)[:, None]
    bumps = np.exp(-PRECISION / 2 * away**2)
    return nodes, solve, bumps, -PRECISION * away * bumps
