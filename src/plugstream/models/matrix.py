"""A model given as matrices, one a view: for small problems, for tests, and for operators that come as files."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugstream.base.arrays import as_tensor
from plugstream.base.errors import InputError
from plugstream.models.base import ModelBase
from plugstream.models.views import Views, as_views, check_shape


class MatrixModel(ModelBase):
    """Measurements that are matrix-vector products with the image, y_i = A_i x, read row by row.

    The matrices are torch tensors (dense, or sparse of any layout), NumPy arrays or SciPy sparse matrices, all
    (m, n) and all dense or all sparse, real or complex. The adjoint is the sum over views of Re(A_i^H z_i).

    Arguments:
        matrices: one (m, n) matrix for each view.
        image_shape: (H, W) or any other with n values; (1, n) if not given, for unknowns that are just vectors.
        device, dtype: where to compute and the image's dtype; by default those of the first matrix, and real. With a
            complex dtype the image is complex, and the adjoint the sum of A_i^H z_i.
        channels: whether the first axis of an image is of channels.
    """

    estimated_views = 1000

    def __init__(
        self,
        matrices: Sequence[Any],
        image_shape: tuple[int, ...] | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        channels: bool = False,
    ) -> None:
        self.channels = channels
        if len(matrices) == 0:
            raise InputError("a MatrixModel needs at least one matrix, one for each view")
        tensors = [_as_matrix(matrix) for matrix in matrices]
        shapes = {tuple(t.shape) for t in tensors}
        if len(shapes) != 1 or tensors[0].ndim != 2:
            raise InputError(f"the matrices must all have one shape (m, n), but have {sorted(shapes)}")
        m, n = tensors[0].shape
        self.image_shape = (1, n) if image_shape is None else image_shape
        if math.prod(self.image_shape) != n:
            raise InputError(f"the matrices have {n} columns, but an image of {self.image_shape} has another number")
        self.n_views = len(tensors)
        self.data_shape = (m,)
        self.device = torch.device(device) if device is not None else tensors[0].device
        is_complex = any(t.is_complex() for t in tensors) or (dtype is not None and dtype.is_complex)
        single = (
            dtype.to_real() == torch.float32
            if dtype is not None
            else all(t.element_size() <= 4 + 4 * t.is_complex() for t in tensors)
        )
        real = torch.float32 if single else torch.float64
        self.dtype = real if dtype is None or not dtype.is_complex else real.to_complex()
        self.data_dtype = real.to_complex() if is_complex else real
        tensors = [t.to(device=self.device, dtype=self.data_dtype) for t in tensors]
        self._sparse = tensors[0].layout is not torch.strided
        if any((t.layout is not torch.strided) != self._sparse for t in tensors):
            raise InputError("the matrices must be all dense or all sparse")
        if self._sparse:
            # The transposes are stored because CSR has no product from the other side.
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Sparse (CSR tensor support is in beta|invariant checks)")
                self._matrices = [t.to_sparse_csr() for t in tensors]
                self._adjoints = [_conjugate_transpose(t) for t in tensors]
        else:
            self._stack = torch.stack(tensors)

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        """(..., *image_shape) to (..., B, m)."""
        check_shape("image", image, self.image_shape)
        index = as_views(views, self.n_views)
        pixels = image.flatten(-len(self.image_shape)).to(self.data_dtype)
        if not self._sparse:
            stack = self._stack if index is None else self._stack[index.to(self.device)]
            return torch.einsum("bmn,...n->...bm", stack, pixels)
        columns = pixels.reshape(-1, pixels.shape[-1]).T
        out = torch.stack([self._matrices[v] @ columns for v in self._numbers(index)])  # (B, m, images)
        return out.permute(2, 0, 1).reshape(*pixels.shape[:-1], *out.shape[:2])

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        """(..., B, m) to (..., *image_shape)."""
        index = as_views(views, self.n_views)
        numbers = self._numbers(index)
        check_shape("data", data, (len(numbers), *self.data_shape))
        z = data.to(self.data_dtype)
        if not self._sparse:
            stack = self._stack if index is None else self._stack[index.to(self.device)]
            out = torch.einsum("bmn,...bm->...n", stack.conj(), z)
        else:
            columns = z.reshape(-1, *z.shape[-2:])  # (images, B, m)
            out = torch.stack([self._adjoints[v] @ columns[:, b].T for b, v in enumerate(numbers)]).sum(0).T
        return (out if self.dtype.is_complex else out.real).reshape(*data.shape[:-2], *self.image_shape)

    def squared_norm_bounds(self, views: Tensor) -> Tensor:
        """The estimates: products with matrices cost little."""
        return self.squared_norms(views, 1e-2)

    def _numbers(self, index: Tensor | None) -> list[int]:
        return list(range(self.n_views)) if index is None else index.tolist()


def _as_matrix(matrix: Any) -> Tensor:
    if isinstance(matrix, Tensor):
        return matrix
    if hasattr(matrix, "tocoo"):  # a SciPy sparse matrix or array, recognised without importing SciPy
        coo = matrix.tocoo()
        index = torch.from_numpy(np.stack([coo.row, coo.col]).astype(np.int64))
        return torch.sparse_coo_tensor(index, torch.from_numpy(coo.data), coo.shape, check_invariants=True)
    return as_tensor("a matrix", matrix)


def _conjugate_transpose(matrix: Tensor) -> Tensor:
    coo = matrix.to_sparse_coo().coalesce()
    values = coo.values().conj().resolve_conj()
    m, n = coo.shape
    transpose = torch.sparse_coo_tensor(coo.indices().flip(0), values, (n, m), check_invariants=True)
    return transpose.coalesce().to_sparse_csr()
