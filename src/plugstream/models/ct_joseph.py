r"""Line integrals of an image by Joseph's method, and their adjoint: the torch form, which is the specification.

A ray advances along the axis on which it crosses the most planes of voxels. On each plane k it meets the image at a
place p(k) between voxels, and

    (A x)(ray) = step * sum_k sum_n w_n(p(k)) x_n,    w_n(p) = prod_b max(0, 1 - |p_b - n_b|),

`step` being the metres from plane to plane and n the two (of an image) or four (of a volume) voxels around: linear
interpolation within planes, which is zero outside. All weights are non-negative. Line integrals of smooth images are
right to second order in the spacing.

The adjoint adds to the same voxels with the same weights, so that <A x, y> = <x, A' y> up to rounding.

Reference: Joseph, IEEE Trans. Med. Imaging 1, 1982.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_lines import Lines, cross_planes

_AT_ONCE = 1 << 20  # places of rays on planes that are worked on together


def project(image: Tensor, rays: Rays, voxels: Voxels) -> Tensor:
    """The integrals of an image along rays: (..., *image_shape) to (..., views, *detector), in the image's dtype."""
    ndim = len(voxels.shape)
    flat = image.reshape(-1, *image.shape[image.ndim - ndim :]).flatten(1)
    out = image.new_zeros((len(flat), len(rays), math.prod(rays.detector)))
    for view, ray, index, weight in _crossings(rays, voxels, image):
        out[:, view, ray] = (flat[:, index] * weight).sum((1, 2))
    return out.reshape(*image.shape[: image.ndim - ndim], len(rays), *rays.detector)


def back_project(data: Tensor, rays: Rays, voxels: Voxels) -> Tensor:
    """The adjoint, summed over views: (..., views, *detector) to (..., *image_shape)."""
    lead = data.shape[: data.ndim - rays.ndim]
    flat = data.reshape(-1, len(rays), math.prod(rays.detector))
    out = data.new_zeros((len(flat), math.prod(voxels.shape)))
    for view, ray, index, weight in _crossings(rays, voxels, data):
        out.index_add_(1, index.flatten(), (weight * flat[:, view, ray][:, None, None]).flatten(1))
    return out.reshape(*lead, *voxels.shape)


def _crossings(rays: Rays, voxels: Voxels, like: Tensor) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """For each view and some of its rays: voxels (corners, planes, rays), and their weights times the step."""
    for view in range(len(rays)):
        lines = cross_planes(rays.select([view]), voxels)
        for axis in range(len(voxels.shape)):
            chosen = np.flatnonzero(lines.axis.ravel() == axis)
            for part in np.array_split(chosen, -(-len(chosen) * voxels.shape[axis] // _AT_ONCE) or 1):
                if len(part):
                    index, weight = _interpolate(lines, voxels.shape, axis, part)
                    ray = torch.as_tensor(part, device=like.device)
                    yield view, ray, index.to(like.device), weight.to(like.device, like.dtype)


def _interpolate(lines: Lines, shape: tuple[int, ...], axis: int, rays: np.ndarray) -> tuple[Tensor, Tensor]:
    """The voxels around the places where rays cross the planes of an axis, and their weights, in double precision."""
    ndim = len(shape)
    start, slope = (torch.from_numpy(part.reshape(-1, ndim)[rays]) for part in (lines.start, lines.slope))
    plane = torch.arange(shape[axis], dtype=torch.float64)[:, None]
    strides = [math.prod(shape[b + 1 :]) for b in range(ndim)]
    step = torch.from_numpy(lines.step.ravel()[rays])
    across = [b for b in range(ndim) if b != axis]
    places = {b: start[:, b] + plane * slope[:, b] for b in across}
    indices, weights = [], []
    for corner in itertools.product((0, 1), repeat=len(across)):
        index = (plane.long() * strides[axis]).expand(-1, len(rays))
        weight = step.expand(shape[axis], -1)
        for side, b in zip(corner, across, strict=True):
            below = places[b].floor()
            voxel = (below + side).clamp(-1, shape[b]).long()  # a place far outside may not fit an index
            inside = (voxel >= 0) & (voxel < shape[b])
            part = (places[b] - below) if side else (below + 1 - places[b])
            weight = weight * part * inside
            index = index + voxel.clamp(0, shape[b] - 1) * strides[b]
        indices.append(index)
        weights.append(weight)
    return torch.stack(indices), torch.stack(weights)
