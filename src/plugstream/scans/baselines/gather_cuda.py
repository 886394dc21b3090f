r"""Back-projection by interpolation on CUDA in single precision (`gather.cu`); `voxel_views.py` is its specification.

Every voxel reads the data of each view at one place, between two columns and, of rays that cross slices, two rows. Sums
are made slab by slab, of the rows of the detector that see the slab, and go on from view to view, so that neither the
volume nor the data must be on the GPU at once, and how they are cut changes no bit.

Roofline, a voxel and view: slices (parallel beams across the axis, images of fans) read 8 bytes from the L1 cache for
two multiply-adds; four slices of a thread share place and weights. Rays that cross slices read four single numbers,
which limits them.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.cuda_source import Kernels, compile_kernels

_ACROSS, _ALONG, _BESIDE, _PACKED, _AROUND = 4, 4, 2, 4, 3  # as in gather.cu
_WARP = 32


class Problem(ctypes.Structure):
    """What every kernel is given; `gather.cu` has the meaning of each field."""

    _fields_ = (
        *((name, ctypes.c_int) for name in (
            "views", "rows", "columns", "depth", "height", "width", "size", "first_slice", "lines", "length",
            "first_row", "all_rows", "parallel", "sum", "planes",
        )),
        ("middle", ctypes.c_float * 3),
        *((name, ctypes.c_void_p) for name in ("forms", "scales", "places")),
    )  # fmt: skip


@cache
def read_source() -> str:
    """The text of the kernels."""
    return Path(__file__).with_name("gather.cu").read_text(encoding="utf-8")


def find_kernels(device: torch.device, dtype: torch.dtype) -> Kernels | None:
    """The kernels, where they serve: on CUDA, in single precision, with the compiler that torch brings."""
    if device.type != "cuda" or dtype != torch.float32:
        return None
    return compile_kernels(read_source(), device)


class CudaGather:
    """Sums of the data of views at the places that see the voxels of some slices.

    Arguments:
        forms: (views, 4, 4), 1, x, y and z of column times scale, row times scale, scale, and U, of a voxel's indices.
        places: (views, 2), of parallel rays across the z axis the row that sees slice 0, and how many rows it is to the
            next; None for rays that cross slices.
        shape: (D, H, W), of all of the volume; of images D is how many there are, and rows of the data are theirs.
        detector: (rows, columns).
        parallel: whether scale and U are 1.
        kernels: launched on the device's current stream.
    """

    def __init__(
        self,
        forms: NDArray[np.float64],
        places: NDArray[np.float64] | None,
        shape: tuple[int, ...],
        detector: tuple[int, ...],
        device: torch.device,
        kernels: Kernels,
        *,
        parallel: bool,
    ) -> None:
        self.shape, self.detector, self.device, self.kernels, self.parallel = shape, detector, device, kernels, parallel
        self.middle = np.array([(size - 1) / 2 for size in shape[::-1]])
        if places is not None:
            self.middle[2] = 0
        centred = forms.copy()
        centred[..., 0] += forms[..., 1:] @ self.middle
        self.upright = not (forms[:, [0, 2], 3] != 0).any()
        self._all, self._places = forms, places
        self._forms = torch.from_numpy(centred.astype(np.float32)).to(device)
        self._on_device = None if places is None else torch.from_numpy(np.ascontiguousarray(places)).to(device)

    @property
    def in_slices(self) -> bool:
        """Whether every slice is seen by rows of its own."""
        return self._places is not None

    def find_rows(self, first: int, last: int) -> tuple[int, int]:
        """The rows of the detector, from and up to, that any view needs for slices `first` to `last` (exclusive)."""
        if self._places is not None:
            rows = self._places[:, :1] + self._places[:, 1:] * np.array([first, last - 1])
            rows = rows.clip(0, self.detector[0] - 1)  # a slice just beyond the first row also reads the second
        else:
            _, height, width = self.shape
            ends = (first, last - 1), (0, height - 1), (0, width - 1)
            corners = np.array([[1, x, y, z] for z in ends[0] for y in ends[1] for x in ends[2]], dtype=np.float64)
            rows = (self._all[:, 1] @ corners.T) / (self._all[:, 2] @ corners.T)
        # A thousandth of a row is more than single precision makes of a place.
        low, high = math.floor(rows.min() - 1e-2), math.floor(rows.max() + 1e-2) + 2
        low = min(max(low, 0), self.detector[0] - 1)
        return low, max(low + 1, min(high, self.detector[0]))

    def begin(self, slices: int) -> Tensor:
        """Where sums of so many slices are to be: (H, W, Z), Z a multiple of four unless it is less."""
        _, height, width = self.shape
        return torch.empty((height, width, self.size(slices)), dtype=torch.float32, device=self.device)

    @staticmethod
    def size(slices: int) -> int:
        """Numbers along z of the sums of so many slices."""
        return slices if slices < 4 else 4 * math.ceil(slices / 4)

    def add(
        self,
        sums: Tensor,
        data: Tensor,
        views: slice,
        scales: Tensor,
        slices: tuple[int, int],
        first_row: int = 0,
        *,
        go_on: bool = True,
    ) -> None:
        """Add the data of some views to the sums of slices.

        Arguments: sums, from `begin`; data (B, R, C or more), neighbours along the last axis, of which the first C
        count: rows from `first_row` on; views, which of all; scales (B,), factors of the data; slices, the first and
        the one after the last; go_on, whether there is something in sums already.
        """
        count, rows, length = data.shape
        _, height, width = self.shape
        planes = self.in_slices
        lines = sums.shape[2] if planes else 4 * math.ceil((rows + _AROUND) / 4)
        columns = self.detector[1]
        p = Problem(
            views=count, rows=rows, columns=columns, depth=slices[1] - slices[0], height=height, width=width,
            size=sums.shape[2], first_slice=slices[0], lines=lines, length=length, first_row=first_row,
            all_rows=self.detector[0], parallel=int(self.parallel), sum=int(go_on), planes=int(planes),
            forms=self._forms[views].data_ptr(), scales=scales.data_ptr(),
            places=None if self._on_device is None else self._on_device[views].data_ptr(),
        )  # fmt: skip
        p.middle = (ctypes.c_float * 3)(*self.middle)
        packed = torch.empty((count, columns + _AROUND, lines), dtype=torch.float32, device=self.device)
        grid = (-(-(columns + _AROUND) // 16), -(-lines // (16 * _PACKED)), count)
        self.kernels.launch("pack", grid, (16, 16, 1), p, data, packed)
        if planes:
            four = p.size % 4 == 0
            lanes = p.size // 4 if four else p.size
            wide = min(_WARP, 1 << (lanes - 1).bit_length())
            beside, high = _WARP // wide, 8
            grid = (-(-lanes // wide), -(-width // (_ACROSS * beside)), -(-height // high))
            name = f"gather_{'four' if four else 'one'}_{'parallel' if self.parallel else 'fan'}"
            self.kernels.launch(name, grid, (wide, beside, high), p, packed, sums)
        else:
            grid = (-(-p.depth // (_WARP * _ALONG)), -(-width // (8 * _BESIDE)), height)
            name = "gather_upright" if self.upright else "gather_any"
            self.kernels.launch(name, grid, (_WARP, 8, 1), p, packed, sums)

    def finish(self, sums: Tensor, out: Tensor) -> None:
        """Put sums where they belong: (H, W, Z) to out (slices, H, W)."""
        slices, height, width = out.shape
        p = Problem(depth=slices, height=height, width=width, size=sums.shape[2])
        grid = (-(-height * width // 32), -(-slices // (8 * _PACKED)), 1)
        self.kernels.launch("unpack", grid, (32, 8, 1), p, sums, out)
