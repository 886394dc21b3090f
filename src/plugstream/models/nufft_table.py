"""Products with the tables of `GridNufft` by the native CPU kernel, where torch has no fast ones.

Torch multiplies by sparse matrices through MKL, which exists for x86 only; its own loop takes seven times SciPy's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from plugstream import _native


def serves(values: Tensor, columns: Tensor) -> bool:
    """Whether the kernel takes such a matrix: on the CPU, where torch has no MKL, of fewer than 2^31 entries."""
    return (
        values.device.type == "cpu"
        and values.dtype in (torch.float32, torch.float64)
        and columns.dtype == torch.int32
        and not torch.backends.mkl.is_available()
        and hasattr(_native.load(), "nufft_multiply")  # an extension that was built before has none
    )


def product(
    starts: Tensor,
    columns: Tensor,
    values: Tensor,
    vectors: Tensor,
    *,
    row_sign: Tensor | None = None,
    column_sign: Tensor | None = None,
) -> Tensor:
    """As `nufft_triton.product`: (n, columns, 2) to (n, rows, 2). The number of threads changes no bit."""
    out = torch.empty((len(vectors), len(starts) - 1, 2), dtype=values.dtype)
    signs = (None if sign is None else sign.numpy() for sign in (row_sign, column_sign))
    table = (starts.numpy(), columns.numpy(), values.numpy(), *signs)
    vectors = vectors.detach().contiguous()
    _native.kernels().nufft_multiply(*table, vectors.numpy(), out.numpy(), threads=torch.get_num_threads())
    return out
