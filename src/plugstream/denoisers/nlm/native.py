"""Non-local means by the native CPU kernel; `reference.py` is its specification."""

from __future__ import annotations

import torch
from torch import Tensor

from plugstream import _native
from plugstream.denoisers.nlm.reference import Matrix, rates

__all__ = ["apply", "form", "nlm", "serves"]


def serves(images: Tensor) -> bool:
    """Whether the kernel is there and these images are for it: on the CPU, in single precision, not differentiated."""
    return (
        _native.load() is not None
        and images.device.type == "cpu"
        and images.dtype == torch.float32
        and not (images.requires_grad and torch.is_grad_enabled())
    )


def nlm(images: Tensor, width: Tensor, search: int, patch: int, balance: int, *, level: str = "") -> Tensor:
    """What `reference.nlm` does, in float32. The matrix is never kept: 0.9 kB a pixel, for one image at a time.

    The number of threads is torch's. Neither it nor the other images of the batch change a bit of the result.

    Arguments:
        level: the instruction set, for tests; the best that the machine has if empty.
    """
    images = images.detach().contiguous()
    out = torch.empty_like(images)
    _native.kernels().nlm(
        images.numpy(),
        rates(width, patch, torch.float32).contiguous().numpy(),
        out.numpy(),
        search=search,
        patch=patch,
        balance=balance,
        threads=torch.get_num_threads(),
        level=level,
    )
    return out


def form(guide: Tensor, width: float, search: int, patch: int, balance: int, *, level: str = "") -> Matrix:
    """The matrix of a guide, (H, W), for `apply`."""
    guide = guide.detach().contiguous()
    size = _native.kernels().nlm_size(*guide.shape, search)
    made = Matrix(torch.empty(size), torch.empty_like(guide), torch.empty_like(guide), search)
    _native.kernels().nlm_form(
        guide.numpy(),
        float(rates(torch.tensor(width, dtype=torch.float64), patch, torch.float32)),
        made.affinity.numpy(),
        made.scale.numpy(),
        made.rest.numpy(),
        search=search,
        patch=patch,
        balance=balance,
        threads=torch.get_num_threads(),
        level=level,
    )
    return made


def apply(matrix: Matrix, images: Tensor, *, level: str = "") -> Tensor:
    """The product of a matrix and images, (N, H, W)."""
    images = images.detach().contiguous()
    out = torch.empty_like(images)
    _native.kernels().nlm_apply(
        matrix.affinity.numpy(),
        matrix.scale.numpy(),
        matrix.rest.numpy(),
        images.numpy(),
        out.numpy(),
        search=matrix.search,
        threads=torch.get_num_threads(),
        level=level,
    )
    return out
