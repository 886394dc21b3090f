"""The norm of a network's Jacobian, by power iteration, as a term of the loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def jacobian_norm(
    denoise: Callable[[Tensor], Tensor],
    image: Tensor,
    start: Tensor,
    *,
    identity: float,
    jacobian: float,
    symmetric: bool,
    iterations: int = 6,
) -> Tensor:
    r"""||a I + b J|| at each image, with J the Jacobian of the denoiser there: a lower bound, with a gradient.

    With (a, b) = (1, -1) it is the Lipschitz constant of I - D there, and D is a prox if it is below 1 everywhere and J
    symmetric; with (k, 1 - k) it is at most 1 everywhere exactly if D is k-strictly pseudo-contractive. The direction
    comes from power iteration and is then fixed: the derivative of the norm at its maximiser needs no more.

    Arguments: denoise, of (N, C, H, W); image; start, a direction for each, (N, C, H, W); identity, a; jacobian, b;
    symmetric, if J is, so that one product with it is enough; iterations. Returns (N,).
    References: Pesquet et al., SIAM J. Imaging Sci. 14, 2021; Hurault et al., ICML 2022; Wei et al., ICML 2024.
    """
    x = image.detach().requires_grad_()
    out = denoise(x)
    direction = _unit(start)
    for _ in range(iterations):
        after = _product(out, x, direction, identity, jacobian, symmetric, keep=False)
        if not symmetric:
            (back,) = torch.autograd.grad(out, x, after, retain_graph=True)
            after = identity * after + jacobian * back
        direction = _unit(after.detach())
    length: Tensor = _product(out, x, direction, identity, jacobian, symmetric, keep=True).flatten(1).norm(dim=1)
    return length


def _product(
    out: Tensor, x: Tensor, v: Tensor, identity: float, jacobian: float, symmetric: bool, *, keep: bool
) -> Tensor:
    """(a I + b J) v; for any J, J v is the derivative of <J^T w, v> with respect to w."""
    if symmetric:
        (product,) = torch.autograd.grad(out, x, v, create_graph=keep, retain_graph=True)
    else:
        w = torch.zeros_like(out, requires_grad=True)
        (back,) = torch.autograd.grad(out, x, w, create_graph=True)
        (product,) = torch.autograd.grad(back, w, v, create_graph=keep, retain_graph=True)
    return identity * v + jacobian * product


def _unit(v: Tensor) -> Tensor:
    unit: Tensor = v / v.flatten(1).norm(dim=1).clamp(min=1e-30).reshape(-1, 1, 1, 1)
    return unit
