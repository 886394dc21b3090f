"""Joseph's projector by the native CPU kernels, in single precision; `ct_joseph.py` is its specification.

Volumes that a parallel beam perpendicular to the rotation axis crosses are stacks of images: each row of the detector
is a blend of at most two slices, and slices are projected one by one.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream import _native
from plugstream.models.ct_geometry import Rays, Voxels

__all__ = ["back_project", "is_stack", "project", "serves"]

_LEVEL = 1e-12  # a z component below this part of a vector is rounding


def serves(values: Tensor, rays: Rays) -> bool:
    """Whether the kernels take these: on the CPU, in single precision, not differentiated."""
    return (
        values.device.type == "cpu"
        and values.dtype == torch.float32
        and not (values.requires_grad and torch.is_grad_enabled())
        and (rays.ndim == 2 or is_stack(rays))
        and hasattr(_native.load(), "joseph_project")  # an extension that was built before has none
    )


def is_stack(rays: Rays) -> bool:
    """Whether volumes are seen slice by slice: rays are parallel and horizontal, and the detector's rows are too."""
    if not (rays.parallel and rays.ndim == 3):
        return False
    way, _, u, v = np.moveaxis(rays.vectors, 1, 0)
    level = all((np.abs(part[:, 2]) <= _LEVEL * np.linalg.norm(part, axis=1)).all() for part in (way, u))
    return level and bool((np.linalg.norm(v[:, :2], axis=1) <= _LEVEL * np.linalg.norm(v, axis=1)).all())


def project(image: Tensor, rays: Rays, voxels: Voxels, *, level: str = "") -> Tensor:
    """What `ct_joseph.project` does. The number of threads is torch's, and changes no bit of the result."""
    ndim = len(voxels.shape)
    lead = image.shape[: image.ndim - ndim]
    images = np.ascontiguousarray(image.detach().numpy()).reshape(math.prod(lead), *voxels.shape)
    if ndim == 2:
        out = np.empty((len(images), len(rays), *rays.detector), np.float32)
        _call("joseph_project", images, out, rays, voxels, by_view=False, level=level)
    else:
        out = np.empty((len(images), len(rays), voxels.shape[0], rays.detector[1]), np.float32)
        for volume, data in zip(images, out, strict=True):
            _call("joseph_project", volume, data, rays, voxels, by_view=True, level=level)
        blend = _blend(rays, voxels)
        out = out if blend is None else np.matmul(blend, out)
    return torch.from_numpy(out).reshape(*lead, len(rays), *rays.detector)


def back_project(data: Tensor, rays: Rays, voxels: Voxels, *, level: str = "") -> Tensor:
    """What `ct_joseph.back_project` does."""
    lead = data.shape[: data.ndim - 1 - len(rays.detector)]
    values = np.ascontiguousarray(data.detach().numpy()).reshape(math.prod(lead), len(rays), *rays.detector)
    out = np.empty((len(values), *voxels.shape), np.float32)
    if len(voxels.shape) == 2:
        _call("joseph_back_project", values, out, rays, voxels, by_view=False, level=level)
    else:
        blend = _blend(rays, voxels)
        for volume, rows in zip(out, values, strict=True):
            slices = rows if blend is None else np.matmul(blend.transpose(0, 2, 1), rows)
            _call("joseph_back_project", slices, volume, rays, voxels, by_view=True, level=level)
    return torch.from_numpy(out).reshape(*lead, *voxels.shape)


def _call(
    name: str, source: NDArray[np.float32], out: NDArray[np.float32], rays: Rays, voxels: Voxels, *, by_view: bool,
    level: str,
) -> None:  # fmt: skip
    places = np.array([voxels.spacing[-2:], voxels.origin[-2:]])
    getattr(_native.kernels(), name)(
        source if name == "joseph_project" else np.ascontiguousarray(source), rays.vectors, places, out,
        parallel=rays.parallel, curvature=rays.curvature, by_view=by_view, threads=torch.get_num_threads(), level=level,
    )  # fmt: skip


def _blend(rays: Rays, voxels: Voxels) -> NDArray[np.float32] | None:
    """How much of each slice a row of the detector sees, (views, rows, D); None where row k sees slice k alone."""
    rows = np.arange(rays.detector[0]) - (rays.detector[0] - 1) / 2
    height = rays.vectors[:, 1, 2:] + rows * rays.vectors[:, 3, 2:]
    place = (height - voxels.origin[0]) / voxels.spacing[0]
    slices = np.arange(voxels.shape[0])
    if place.shape[1] == len(slices) and np.abs(place - slices).max() < 1e-9 * max(1, len(slices)):
        return None
    return np.asarray(np.maximum(0, 1 - np.abs(place[..., None] - slices)), dtype=np.float32)
