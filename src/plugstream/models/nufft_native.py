"""Reading and writing the cells of a non-uniform FFT by the native CPU kernels; `nufft_points.py` is the specification.

Points are sorted by the cells that they touch. For reading, threads share out the points. For writing, each thread owns
slabs of cells and adds to them the contributions of all points, in the order of the sort, so nothing is added
atomically and the number of threads changes no bit.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream import _native
from plugstream.models.nufft_grid import Kernel
from plugstream.models.nufft_points import Points, fit_taps


def serves(grid: Tensor) -> bool:
    """Whether the kernels take cells like these: on the CPU, in single precision, not differentiated."""
    return (
        grid.device.type == "cpu"
        and grid.dtype == torch.complex64
        and not (grid.requires_grad and torch.is_grad_enabled())
        and hasattr(_native.load(), "nufft_read")  # an extension that was built before has none
    )


def read(grid: Tensor, points: Points, *, level: str = "") -> Tensor:
    """The values at points, conjugated where they are flipped: (n, A, B, C) to (n, points)."""
    out = torch.empty((len(grid), len(points)), dtype=torch.complex64)
    _call("nufft_read", grid.detach().contiguous(), points, out, level)
    return out


def write(values: Tensor, points: Points, grid: Tensor, *, level: str = "") -> None:
    """The transpose: add (n, points) to the cells."""
    _call("nufft_write", grid, points, values.detach().resolve_conj().contiguous(), level)


def _call(name: str, grid: Tensor, points: Points, values: Tensor, level: str) -> None:
    flipped = np.zeros(0, np.uint8) if points.flipped is None else points.flipped.numpy().view(np.uint8)
    getattr(_native.kernels(), name)(
        torch.view_as_real(grid).numpy(),
        points.first.numpy(),
        points.offset.numpy(),
        flipped,
        _taps(points.kernel),
        torch.view_as_real(values).numpy(),
        widths=points.widths,
        threads=torch.get_num_threads(),
        level=level,
    )


@lru_cache(maxsize=16)
def _taps(kernel: Kernel) -> NDArray[np.float32]:
    return np.ascontiguousarray(fit_taps(kernel), dtype=np.float32)
