"""Joseph's projector by the native CPU kernels, in single precision; `ct_joseph.py` is its specification.

Images have a kernel of their own. A second one takes volumes and detectors that stand upright, whose columns are along
the rotation axis and rows perpendicular to it: cone beams, helical ones and parallel ones that are tilted by less than
45 degrees. Volumes that a parallel beam perpendicular to the rotation axis crosses are stacks of images: each row of
the detector is a blend of at most two slices, and slices are projected one by one or, where they are many, by the
second kernel together. A third one, several times slower, takes flat detectors in any position.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache, reduce

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream import _native
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_stack import blend_slices, is_stack, small_part

SLICES = 8  # from so many on, slices are projected together: a vector of them at a time
_COLUMNS_AT_ONCE = 1 << 20  # of all views, some 200 bytes each


def serves(values: Tensor, rays: Rays, voxels: Voxels) -> bool:
    """Whether the kernels take these: on the CPU, in single precision, not differentiated.

    They do not take curved detectors that do not stand upright, or whose rays are steep.
    """
    return (
        values.device.type == "cpu"
        and values.dtype == torch.float32
        and not (values.requires_grad and torch.is_grad_enabled())
        and hasattr(_native.load(), "joseph_project")  # an extension that was built before has none
        and (rays.ndim == 2 or stand_upright(rays, voxels) is not None or _is_oblique(rays, voxels))
    )


@lru_cache(maxsize=4)  # callers first ask whether such rays exist, then for the rays
def stand_upright(rays: Rays, voxels: Voxels) -> Rays | None:
    """The same rays with detectors whose v is along z and whose u is not; None if there are none.

    The detector of a parallel beam may be moved along the rays, pixel by pixel, which tilts it. The kernel does not
    take rays that cross more planes along z than along x or y.
    """
    first, centre, u, v = np.moveaxis(rays.vectors, 1, 0)
    if not small_part(u[:, 2:], u):
        return None
    if rays.parallel:
        flat = first[:, :2]
        square = (flat**2).sum(1, keepdims=True)
        if (square == 0).any():
            return None
        tilted = v
        v = v - (v[:, :2] * flat).sum(1, keepdims=True) / square * first
        if not small_part(v[:, :2], tilted):
            return None
        rays = replace(rays, vectors=np.stack([first, centre, u, v * [0, 0, 1]], 1))
    elif not small_part(v[:, :2], v):
        return None
    # The steepest rays are those to the first and the last row.
    _, way = replace(rays, detector=(2, rays.detector[1])).lines()
    rise = v[:, None, None, 2] * (rays.detector[0] - 2) / 2 * np.array([-1.0, 1.0])[:, None]
    up = np.abs(way[..., 2] + (0.0 if rays.parallel else rise)) / voxels.spacing[0]
    across = np.maximum(np.abs(way[..., 0]) / voxels.spacing[2], np.abs(way[..., 1]) / voxels.spacing[1])
    return rays if bool((up < across).all()) else None


def project(image: Tensor, rays: Rays, voxels: Voxels, *, level: str = "") -> Tensor:
    """What `ct_joseph.project` does. The number of threads is torch's, and changes no bit of the result."""
    shares = _shares(rays)
    if len(shares) > 1:
        parts = [project(image, share, voxels, level=level) for share in shares]
        return torch.cat(parts, dim=image.ndim - len(voxels.shape))
    ndim = len(voxels.shape)
    lead = image.shape[: image.ndim - ndim]
    images = np.ascontiguousarray(image.detach().numpy()).reshape(math.prod(lead), *voxels.shape)
    shape = (len(images), len(rays), *rays.detector)
    if ndim == 2:
        out = np.empty(shape, np.float32)
        _call("joseph_project", images, out, rays, voxels, level, by_view=False)
    elif is_stack(rays):
        out = np.empty((len(images), len(rays), voxels.shape[0], rays.detector[1]), np.float32)
        for volume, data in zip(images, out, strict=True):
            if len(volume) < SLICES:
                _call("joseph_project", volume, data, rays, voxels, level, by_view=True)
            else:
                _call("joseph_project_volume", volume, data, _aligned(rays, voxels), voxels, level, oblique=False)
        blend = blend_slices(rays, voxels)
        out = out if blend is None else np.matmul(blend, out)
    else:
        out, upright = np.empty(shape, np.float32), stand_upright(rays, voxels)
        for volume, data in zip(images, out, strict=True):
            _call("joseph_project_volume", volume, data, upright or rays, voxels, level, oblique=upright is None)
    return torch.from_numpy(out).reshape(*lead, len(rays), *rays.detector)


def back_project(data: Tensor, rays: Rays, voxels: Voxels, *, level: str = "") -> Tensor:
    """What `ct_joseph.back_project` does."""
    shares = _shares(rays)
    if len(shares) > 1:
        views = data.split([len(share) for share in shares], dim=data.ndim - rays.ndim)
        parts = (back_project(part, share, voxels, level=level) for part, share in zip(views, shares, strict=True))
        return reduce(Tensor.add_, parts)
    lead = data.shape[: data.ndim - 1 - len(rays.detector)]
    values = np.ascontiguousarray(data.detach().numpy()).reshape(math.prod(lead), len(rays), *rays.detector)
    out = np.empty((len(values), *voxels.shape), np.float32)
    if len(voxels.shape) == 2:
        _call("joseph_back_project", values, out, rays, voxels, level, by_view=False)
    elif is_stack(rays):
        blend = blend_slices(rays, voxels)
        for rows, volume in zip(values, out, strict=True):
            slices = rows if blend is None else np.matmul(blend.transpose(0, 2, 1), rows)
            if len(volume) < SLICES:
                _call("joseph_back_project", slices, volume, rays, voxels, level, by_view=True)
            else:
                _call(
                    "joseph_back_project_volume", slices, volume, _aligned(rays, voxels), voxels, level, oblique=False
                )
    else:
        upright = stand_upright(rays, voxels)
        for rows, volume in zip(values, out, strict=True):
            _call("joseph_back_project_volume", rows, volume, upright or rays, voxels, level, oblique=upright is None)
    return torch.from_numpy(out).reshape(*lead, *voxels.shape)


def _call(
    name: str, source: NDArray[np.float32], out: NDArray[np.float32], rays: Rays, voxels: Voxels, level: str,
    **how: bool,
) -> None:  # fmt: skip
    axes = 3 if name.endswith("volume") else 2
    places = np.array([voxels.spacing[-axes:], voxels.origin[-axes:]])
    getattr(_native.kernels(), name)(
        source, rays.vectors, places, out, parallel=rays.parallel, curvature=rays.curvature,
        threads=torch.get_num_threads(), level=level, **how,
    )  # fmt: skip


def _shares(rays: Rays) -> list[Rays]:
    """Views that are worked on together: the memory of the kernels grows with their number."""
    views = max(1, _COLUMNS_AT_ONCE // rays.detector[-1])
    if views >= len(rays):
        return [rays]
    return [rays.select(slice(first, first + views)) for first in range(0, len(rays), views)]


def _is_oblique(rays: Rays, voxels: Voxels) -> bool:
    """Whether the kernel for rays in any direction takes these."""
    return not np.isfinite(rays.curvature) and math.prod(voxels.shape) < 1 << 31


def _aligned(rays: Rays, voxels: Voxels) -> Rays:
    """The same rays with a detector that has a row for each slice, where the slice is."""
    vectors = rays.vectors.copy()
    vectors[:, [0, 2], 2] = 0
    vectors[:, 1, 2] = (voxels.origin[0] + voxels.ends[0]) / 2
    vectors[:, 3] = [0, 0, voxels.spacing[0]]
    return Rays(vectors, (voxels.shape[0], rays.detector[1]), parallel=True)
