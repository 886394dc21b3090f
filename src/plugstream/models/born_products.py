"""Products of standing plane waves from an image's Fourier transform and back, and complex rows as real ones."""

from __future__ import annotations

import torch
from torch import Tensor

from plugstream.models import nufft_triton


def expand(values: Tensor, total: Tensor) -> Tensor:
    """Twice Phi, (n, P, P), from the image's transform: (n, P/2, P/2) with A below and on the diagonal, B above it.

    A[p, q] = sum x exp(i k (s_p + s_q) . r) is symmetric, B[p, q] = sum x exp(i k (s_p - s_q) . r) Hermitian with the
    image's sum on its diagonal, and 2 cos cos = Re(A + B), 2 sin sin = Re(B - A), 2 sin cos = Im(A + B), 2 cos sin =
    Im(A - B).
    """
    if nufft_triton.serves(values):
        return nufft_triton.expand(values, total)
    half = values.shape[-1]
    a = values.tril() + values.tril(-1).mT
    b = values.triu(1)
    b = b + b.mH
    b.diagonal(dim1=-2, dim2=-1).add_(total[:, None])
    out = torch.empty((len(values), 2 * half, 2 * half), dtype=total.dtype, device=total.device)
    torch.add(a.real, b.real, out=out[:, :half, :half])
    torch.sub(b.real, a.real, out=out[:, half:, half:])
    torch.add(a.imag, b.imag, out=out[:, half:, :half])
    torch.sub(a.imag, b.imag, out=out[:, :half, half:])
    return out


def fold(products: Tensor) -> tuple[Tensor, Tensor]:
    """The transpose of `expand`: (n, P, P) real to (n, P/2, P/2) complex and (n,)."""
    total = products.diagonal(dim1=-2, dim2=-1).sum(-1)  # of cos cos + sin sin, so of B's diagonal
    if nufft_triton.serves(products):
        return nufft_triton.fold(products), total
    half = products.shape[-1] // 2
    cc, cs = products[:, :half, :half], products[:, :half, half:]
    sc, ss = products[:, half:, :half], products[:, half:, half:]
    a = torch.complex(cc - ss, sc + cs)
    b = torch.complex(cc + ss, sc - cs)
    values = a.tril() + a.mT.tril(-1) + (b + b.mH).triu(1)
    return values, total


def stack(rows: Tensor, *, conj: bool = False) -> Tensor:
    """Complex (..., B, P) as real (..., 2 B, P): real parts, then imaginary ones."""
    return torch.cat([rows.real, -rows.imag if conj else rows.imag], -2)


def join(stacked: Tensor) -> Tensor:
    """The inverse of `stack`."""
    half = stacked.shape[-2] // 2
    return torch.complex(stacked[..., :half, :], stacked[..., half:, :])
