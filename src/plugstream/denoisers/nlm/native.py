"""Non-local means by the native CPU kernel; `reference.py` is its specification."""

from __future__ import annotations

import torch
from torch import Tensor

from plugstream import _native
from plugstream.denoisers import forms
from plugstream.denoisers.nlm.reference import Matrix, rates

serves = forms.native_serves


def nlm(images: Tensor, width: Tensor, search: int, patch: int, balance: int, *, level: str = "") -> Tensor:
    """As `reference.nlm`, in float32, with the matrix of one image at a time: 0.9 kB a pixel."""
    images = images.contiguous()
    out, rate = torch.empty_like(images), rates(width, patch, torch.float32).contiguous()
    forms.call_native("nlm", images, rate, out, level=level, search=search, patch=patch, balance=balance)
    return out


def form(guide: Tensor, width: float, search: int, patch: int, balance: int, *, level: str = "") -> Matrix:
    """The matrix of a guide, (H, W), for `apply`."""
    guide = guide.detach().contiguous()
    size = _native.kernels().nlm_size(*guide.shape, search)
    matrix = Matrix(torch.empty(size), torch.empty_like(guide), torch.empty_like(guide), search)
    _native.kernels().nlm_form(
        guide.numpy(),
        float(rates(torch.tensor(width, dtype=torch.float64), patch, torch.float32)),
        *(part.numpy() for part in matrix[:3]),
        search=search,
        patch=patch,
        balance=balance,
        threads=torch.get_num_threads(),
        level=level,
    )
    return matrix


def apply(matrix: Matrix, images: Tensor, *, level: str = "") -> Tensor:
    """The product of a matrix and images, (N, H, W)."""
    images = images.contiguous()
    out = torch.empty_like(images)
    forms.call_native("nlm_apply", *matrix[:3], images, out, level=level, search=matrix.search)
    return out
