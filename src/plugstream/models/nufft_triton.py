"""The steps of `nufft_grid.py`, and `expand` and `fold` of `born_fast.py`, on CUDA in Triton.

Their torch forms are the specification; these save launches and passes through memory. All sums are taken in a fixed
order, so results are the same every time.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import torch
from torch import Tensor

_ROWS, _ENTRIES = 16, 16  # of the matrix, that one program looks at together
_BLOCK = 128
_PIXELS = 512
_TILE = 32


@cache
def triton_is_here() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def _kernels() -> Any:
    from plugstream.models import nufft_triton_kernel  # which needs Triton

    return nufft_triton_kernel


def serves(values: Tensor) -> bool:
    """Whether the kernels take tensors like this one: on CUDA, where Triton is installed."""
    return values.is_cuda and triton_is_here()


def product(
    starts: Tensor,
    columns: Tensor,
    values: Tensor,
    vectors: Tensor,
    *,
    row_sign: Tensor | None = None,
    column_sign: Tensor | None = None,
) -> Tensor:
    """A real CSR matrix (rows, m) times complex vectors as pairs: (n, m, 2) to (n, rows, 2), in one launch.

    Results are conjugated where `row_sign` is -1, and entries of the vectors where `column_sign` is.
    """
    vectors = vectors.contiguous()
    rows = len(starts) - 1
    out = torch.empty((len(vectors), rows, 2), dtype=vectors.dtype, device=vectors.device)
    _kernels().csr_product[(-(-rows // _ROWS), len(vectors))](
        starts, columns, values, vectors, out,
        values if row_sign is None else row_sign, values if column_sign is None else column_sign,
        rows, vectors.shape[1], FLIP_ROWS=row_sign is not None, FLIP_COLUMNS=column_sign is not None,
        ROWS=_ROWS, ENTRIES=_ENTRIES,
    )  # fmt: skip
    return out


def expand(values: Tensor, total: Tensor) -> Tensor:
    """What `born_fast.expand` does, in one launch: (n, P/2, P/2) complex and (n,) to (n, P, P)."""
    half = values.shape[-1]
    pairs = torch.view_as_real(values.contiguous())
    out = torch.empty((len(values), 2 * half, 2 * half), dtype=pairs.dtype, device=values.device)
    _kernels().expand_products[(-(-half // _BLOCK), half, len(values))](pairs, total, out, half, BLOCK=_BLOCK)
    return out


def fold(products: Tensor) -> Tensor:
    """What `born_fast.fold` does, but for the sum: (n, P, P) to (n, P/2, P/2) complex."""
    products = products.contiguous()
    half = products.shape[-1] // 2
    out = torch.empty((len(products), half, half, 2), dtype=products.dtype, device=products.device)
    _kernels().fold_products[(-(-half // _BLOCK), half, len(products))](products, out, half, BLOCK=_BLOCK)
    return torch.view_as_complex(out)


def pad_rows(images: Tensor, scale: Tensor, columns: int) -> Tensor:
    """Scaled images, (n, H, W) to (n, H, columns), the pixel at the centre of each row first."""
    count, height, width = images.shape
    out = torch.empty((count, height, columns), dtype=images.dtype, device=images.device)
    _kernels().pad_rows[(-(-out.numel() // _PIXELS),)](
        images.contiguous(), scale, out, out.numel(), height, width, columns, BLOCK=_PIXELS
    )
    return out


def crop_rows(padded: Tensor, scale: Tensor, width: int) -> Tensor:
    """The transpose of `pad_rows`: (n, H, columns) to (n, H, W)."""
    count, height, columns = padded.shape
    out = torch.empty((count, height, width), dtype=padded.dtype, device=padded.device)
    _kernels().crop_rows[(-(-out.numel() // _PIXELS),)](
        padded, scale, out, out.numel(), height, width, columns, BLOCK=_PIXELS
    )
    return out


def take_columns(half: Tensor, rows: int, columns: int, left: int, count: int) -> Tensor:
    """The frequencies -left .. count - left - 1 of real rows' spectra: (n, H, columns / 2 + 1) to (n, count, rows).

    Rows are padded with zeros between, the one at the centre first, for the FFT along them.
    """
    images, height, stored = half.shape
    out = torch.empty((images, count, rows), dtype=half.dtype, device=half.device)
    _kernels().take_columns[(-(-rows // _TILE), -(-count // _TILE), images)](
        torch.view_as_real(half), torch.view_as_real(out), height, rows, columns, stored, left, count,
        COLUMNS=_TILE, ROWS=_TILE,
    )  # fmt: skip
    return out


def put_columns(grid: Tensor, height: int, columns: int, left: int) -> Tensor:
    """The transpose of `take_columns` and of the real FFT's half: (n, count, rows) to (n, H, columns / 2 + 1)."""
    images, count, rows = grid.shape
    stored = columns // 2 + 1
    out = torch.empty((images, height, stored), dtype=grid.dtype, device=grid.device)
    _kernels().put_columns[(-(-stored // _TILE), -(-height // _TILE), images)](
        torch.view_as_real(grid), torch.view_as_real(out), height, rows, columns, stored, left, count,
        COLUMNS=_TILE, ROWS=_TILE,
    )  # fmt: skip
    return out
