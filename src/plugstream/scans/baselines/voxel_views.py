"""Back-projection by interpolation: sums of the data at the places on the detector that see each voxel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from plugstream import _native
from plugstream.base.cuda_source import Kernels
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.scans.baselines.gather_cuda import CudaGather

# Places of voxels on the detector that are computed at once.
_PLACES = 1 << 22


class VoxelViews:
    """The map from voxels to places on the detector, view by view.

    A voxel r of a parallel beam along d lies on the line r + t d = c + a u + b v, and of a source s on
    r - s = l ((c - s) + a u + b v): three linear equations, solved once a view for all voxels. a and b are the
    distances from the detector's centre in columns and rows, and l is 0 at the source and 1 on the detector.

    This is not the adjoint of `plugstream.models.ct.CTModel`, which sums over rays, and in which rays that are as far
    apart as voxels make a pattern of their own; here every voxel reads one place.

    Arguments: rays, flat or curved; voxels; device and dtype of what is gathered.
    """

    def __init__(self, rays: Rays, voxels: Voxels, device: torch.device, dtype: torch.dtype) -> None:
        self.rays, self.voxels, self.device, self.dtype = rays, voxels, device, dtype
        self._indices = [torch.arange(size, device=device, dtype=torch.float64) for size in voxels.shape]
        # Of a parallel beam across the z axis a detector row sees a plane of one z, whichever the view.
        steps = rays.vectors[:, 3]
        self._planes = (
            rays.parallel
            and rays.ndim == 3
            and bool((np.abs(steps[:, :2]).max(1) <= 1e-9 * np.abs(steps[:, 2])).all())
            and bool((np.abs(rays.vectors[:, [0, 2], 2]) <= 1e-9).all())
        )

    def gather(self, data: Tensor, views: Tensor, distance: NDArray[np.float64]) -> Tensor:
        """sum over views of data at the place that sees each voxel, over U^2: (..., B, *detector) to (..., *shape).

        U is 1 for a parallel beam, the distance from the source along the ray through the axis, in distances of the
        axis, for a flat detector, and the distance itself for a curved one.

        Arguments: data; views (B,); distance (B,), of the source from the axis.
        """
        lead = data.shape[: data.ndim - 1 - len(self.rays.detector)]
        flat = data.reshape(-1, *data.shape[len(lead) :])
        shape = self.voxels.shape
        out = torch.zeros((len(flat), *shape), device=self.device, dtype=self.dtype)
        if self.is_native(flat):
            self._add_native(out, flat, views, distance)
            return out.reshape(*lead, *shape)
        for number, view in enumerate(views.tolist()):
            if self._planes:  # rows become slices, and all slices read the same columns
                slices = self._slices(flat[:, number], view)
                slices = slices.reshape(-1, 1, slices.shape[-1])
                out += self._read(slices, view, distance[number], None).reshape(out.shape)
            elif len(shape) == 2:
                out += self._read(flat[:, number, None], view, distance[number], None)
            else:
                step = max(1, _PLACES // math.prod(shape[1:]))
                for start in range(0, shape[0], step):
                    part = slice(start, min(start + step, shape[0]))
                    out[:, part] += self._read(flat[:, number], view, distance[number], part)
        return out.reshape(*lead, *shape)

    def is_native(self, data: Tensor) -> bool:
        """Whether the native kernel does it: on the CPU, in single precision, for flat detectors."""
        return (
            self.device.type == "cpu"
            and self.dtype == torch.float32
            and not math.isfinite(self.rays.curvature)
            and not (data.requires_grad and torch.is_grad_enabled())
            and hasattr(_native.load(), "gather_views")  # an older build has none
        )

    def _add_native(self, out: Tensor, data: Tensor, views: Tensor, distance: NDArray[np.float64]) -> None:
        """All views at once; slices of a stack are images of their own."""
        forms = self._forms(views.numpy(), distance)
        has_rows = len(self.voxels.shape) == 3 and not self._planes
        flags: dict[str, Any] = {"has_rows": has_rows, "parallel": self.rays.parallel}
        flags["threads"] = torch.get_num_threads()
        for image, volume in zip(data, out, strict=True):
            if has_rows:
                rows, target = pad(image, (1, 2, 1, 2))[None], volume[None]
            else:
                slices = image[None]
                if self._planes:
                    slices = torch.cat([self._slices(image[n : n + 1], view) for n, view in enumerate(views.tolist())])
                    slices = slices.transpose(0, 1)
                rows, target = pad(slices, (1, 2))[:, :, None], volume.reshape(-1, 1, *volume.shape[-2:])
            _native.kernels().gather_views(rows.contiguous().numpy(), forms, target.numpy(), **flags)

    def prepare_cuda(self, distance: NDArray[np.float64], kernels: Kernels, images: int = 1) -> CudaGather:
        """The same of all views by the kernels of `gather.cu`, for flat detectors.

        Arguments: distance (views,), of the source from the axis; kernels; images, how many, in two dimensions.
        """
        forms = self._forms(np.arange(len(self.rays)), distance)
        places = np.tile([0.0, 1.0], (len(forms), 1)) if self.rays.ndim == 2 else None
        shape, detector = (images, *self.voxels.shape)[-3:], (images, *self.rays.detector)[-2:]
        if self._planes:
            high, center = self.rays.vectors[:, 3, 2], self.rays.vectors[:, 1, 2]
            start = (self.voxels.origin[0] - center) / high + (detector[0] - 1) / 2
            places = np.stack([start, self.voxels.spacing[0] / high], axis=1)
        return CudaGather(forms, places, shape, detector, self.device, kernels, parallel=self.rays.parallel)

    def _forms(self, views: NDArray[np.int64], distance: NDArray[np.float64]) -> NDArray[np.float64]:
        """Column and row times scale, scale, and U, as a + b x + c y + d z of a voxel's indices: (views, 4, 4)."""
        first, center, u, v = np.moveaxis(self.rays.vectors[views], 1, 0)
        count = 2 if self._planes else len(self.voxels.shape)
        start = center if self.rays.parallel else first
        ahead = first if self.rays.parallel else center - first
        inverse = np.linalg.inv(np.stack([u, v, ahead] if count == 3 else [u, ahead], axis=2)[:, :count])
        out = np.zeros((len(views), 4, 4))
        out[:, 0, 1 : count + 1] = inverse[:, 0]
        if count == 3:
            out[:, 1, 1:] = inverse[:, 1]
        if not self.rays.parallel:
            out[:, 2, 1 : count + 1] = inverse[:, -1]
            out[:, 3, 1:3] = -first[:, :2] / np.hypot(first[:, 0], first[:, 1])[:, None] / distance[:, None]
        out[..., 0] = -(out[..., 1:] @ start[..., None])[..., 0]  # forms of places, from here on of indices
        if self.rays.parallel:
            out[:, 2:, 0] = 1.0
        out[:, 0] += (self.rays.detector[-1] - 1) / 2 * out[:, 2]
        out[:, 1] += (self.rays.detector[0] - 1) / 2 * out[:, 2]
        origin = np.zeros(3)
        origin[:count] = self.voxels.origin[::-1][:count]
        spacing = np.ones(3)
        spacing[:count] = self.voxels.spacing[::-1][:count]
        out[..., 0] += out[..., 1:] @ origin
        out[..., 1:] *= spacing
        return out

    def _evaluate(self, form: NDArray[np.float64], part: slice | None = None) -> Tensor:
        """A linear form of x, y and, unless slices are separate, z of all voxels, or of a part of the slices."""
        axes = self._indices[1:] if self._planes else self._indices
        if part is not None:
            axes = [axes[0][part], *axes[1:]]
        value = torch.full((1,) * len(axes), float(form[0]), device=self.device, dtype=torch.float64)
        for n, axis in enumerate(reversed(axes)):
            value = value + float(form[n + 1]) * axis.reshape(-1, *(1,) * n)
        return value

    def _slices(self, rows: Tensor, view: int) -> Tensor:
        """The slices in a parallel beam's detector rows, (K, rows, columns): (K, D, columns)."""
        center, high = self.rays.vectors[view, 1, 2], self.rays.vectors[view, 3, 2]
        z = self.voxels.origin[0] + self.voxels.spacing[0] * self._indices[0]
        place = (z - center) / high + (rows.shape[-2] - 1) / 2
        low = place.floor().clamp(0, rows.shape[-2] - 1).long()
        part = (place - low).clamp(0, 1).to(self.dtype)[:, None]
        visible = ((place > -0.5 - 1e-9) & (place < rows.shape[-2] - 0.5 + 1e-9)).to(self.dtype)[:, None]
        after = (low + 1).clamp_max(rows.shape[-2] - 1)
        slices: Tensor = visible * ((1 - part) * rows[:, low] + part * rows[:, after])
        return slices

    def _read(self, rows: Tensor, view: int, distance: float, part: slice | None) -> Tensor:
        """One view at all voxels, or at a part of the slices, over U^2; rows (K, rows, columns)."""
        size = self.voxels.shape[1:] if self._planes else self.voxels.shape
        size = size if part is None else (part.stop - part.start, *size[1:])
        forms = self._forms(np.array([view]), np.array([distance]))[0]
        scale = 1.0 if self.rays.parallel else self._evaluate(forms[2], part)
        column = self._evaluate(forms[0], part) / scale
        row = self._evaluate(forms[1], part) / scale if len(size) == 3 else torch.zeros_like(column)
        depth = torch.ones(()) if self.rays.parallel else self._evaluate(forms[3], part)
        if math.isfinite(self.rays.curvature):  # along the arc around the source instead of along its tangent
            source, center, u, _ = self.rays.vectors[view]
            pixel = float(np.linalg.norm(u) / np.linalg.norm(center - source))
            middle = [(n - 1) / 2 for n in self.rays.detector]
            across = torch.atan((column - middle[-1]) * pixel) * self.rays.curvature / float(np.linalg.norm(u))
            column = across + middle[-1]
            row = (row - middle[0]) * torch.cos(across * pixel) + middle[0] if len(size) == 3 else row
            starts, steps = self.voxels.origin[::-1], self.voxels.spacing[::-1]
            x = self._evaluate(np.array([starts[0] - source[0], steps[0], 0.0, 0.0]), part)
            y = self._evaluate(np.array([starts[1] - source[1], 0.0, steps[1], 0.0]), part)
            depth = (x.square() + y.square()).sqrt()
        values = _sample(rows[None], column, row, (math.prod(size[:-1]), size[-1])).reshape(len(rows), *size)
        return values if self.rays.parallel else values / depth.to(self.dtype).square()


def _sample(stack: Tensor, place_u: Tensor, place_v: Tensor, size: tuple[int, ...]) -> Tensor:
    """(1, K, rows, columns) at places in columns and rows, linearly, 0 outside: (1, K, *size)."""
    rows, columns = stack.shape[-2:]
    u = place_u * (2 / max(1, columns - 1)) - 1
    v = place_v * (2 / max(1, rows - 1)) - 1 if rows > 1 else torch.zeros_like(place_v)
    grid = torch.stack(torch.broadcast_tensors(u, v), dim=-1).reshape(1, *size, 2).to(stack.dtype)
    return grid_sample(stack, grid, mode="bilinear", padding_mode="zeros", align_corners=True)
