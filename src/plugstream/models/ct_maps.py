"""Which pixel of a view the ray through a place hits: what the adjoints on GPUs start from. Without torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plugstream.models.ct_geometry import Rays, Voxels


def map_detector(rays: Rays, voxels: Voxels) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    r"""Which pixel the ray through a voxel hits.

    With X the voxel, s the source, c the detector's centre and n = u x v, the ray through X hits the detector at
    c + a u + b v with

        a = u* . (X - s) / w - u* . (c - s),   w = n . (X - s) / n . (c - s),   u* = v x n / |n|^2,

    and likewise for b with v* = n x u / |n|^2; of a parallel beam along d, a = u* . (X - c) with
    u* = v x d / (u . v x d).

    Returns the shares of z, y, x (in voxels) and 1 in column times w, row times w and w, (views, 3, 4), and w at the 27
    places of `sample_places`, (views, 27); None for curved detectors and a source among the voxels' planes.
    """
    if np.isfinite(rays.curvature):
        return None
    first, centre, u, v = np.moveaxis(rays.vectors, 1, 0)
    if rays.ndim == 2:
        v = np.broadcast_to([0.0, 0.0, 1.0], u.shape)
    if rays.parallel:
        volume = (u * np.cross(v, first)).sum(1, keepdims=True)
        dual = np.cross(v, first) / volume, np.cross(first, u) / volume
        normal, base = np.zeros_like(u), centre
    else:
        normal = np.cross(u, v)
        square = (normal**2).sum(1, keepdims=True)
        dual = np.cross(v, normal) / square, np.cross(normal, u) / square
        normal, base = normal / (normal * (centre - first)).sum(1, keepdims=True), first
    rows, columns = (1, rays.detector[0]) if rays.ndim == 2 else rays.detector
    shares = np.zeros((len(rays), 3, 4))
    spacing, origin = solid_places(voxels)

    def in_voxels(gradient: NDArray[np.float64], at_base: NDArray[np.float64]) -> NDArray[np.float64]:
        """A linear function of x, y, z with this value at `base`, as one of k, i, j: its shares and constant."""
        backwards = gradient[:, ::-1]
        constant = at_base + (backwards * (origin - base[:, ::-1])).sum(1)
        return np.concatenate([backwards * spacing, constant[:, None]], 1)

    one = np.ones(len(rays)) if rays.parallel else np.zeros(len(rays))
    shares[:, 2] = in_voxels(normal, one)
    for row, (gradient, size) in enumerate(zip(dual, (columns, rows), strict=True)):
        middle = (size - 1) / 2
        off = np.zeros(len(rays)) if rays.parallel else (gradient * (centre - first)).sum(1)
        shares[:, row] = in_voxels(gradient, np.zeros(len(rays))) + (middle - off)[:, None] * shares[:, 2]
    distance = shares[:, 2] @ sample_places(voxels).T
    return None if (distance <= 1e-3).any() else (shares, distance)


def sample_places(voxels: Voxels) -> NDArray[np.float64]:
    """Corners, edges and middles of the volume, in voxels, with a 1: (27, 4)."""
    axes = [np.linspace(0, size - 1, 3) for size in solid_shape(voxels)]
    places = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    return np.concatenate([places, np.ones((27, 1))], 1)


def solid_shape(voxels: Voxels) -> tuple[int, int, int]:
    """(D, H, W), one slice for an image."""
    shape = voxels.shape
    return (1, shape[0], shape[1]) if len(shape) == 2 else (shape[0], shape[1], shape[2])


def solid_places(voxels: Voxels) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Spacing and origin along z, y and x; those of a slice do not count."""
    if len(voxels.shape) == 3:
        return np.array(voxels.spacing), np.array(voxels.origin)
    return np.array([1.0, *voxels.spacing]), np.array([0.0, *voxels.origin])


def column_axes(rays: Rays, voxels: Voxels) -> NDArray[np.int64] | None:
    """Along which axis the rays of each column advance, (views, columns); None where that differs within a column."""
    columns = rays.detector[-1]
    middle = Rays(rays.vectors, (1, columns) if rays.ndim == 3 else (columns,), rays.parallel, rays.curvature)
    _, way = middle.lines()
    way = way.reshape(len(rays), columns, 3)[..., ::-1]
    spacing, _ = solid_places(voxels)
    slope = np.abs(way / spacing)
    if rays.ndim == 3 and not rays.parallel:
        half = (rays.detector[0] - 1) / 2 * np.abs(rays.vectors[:, 3, 2]) / spacing[0]
        if (slope[..., 0] + half[:, None] >= np.maximum(slope[..., 1], slope[..., 2]) * (1 - 1e-9)).any():
            return None
    return np.where(slope[..., 1] >= slope[..., 2], 1, 2)


def find_spans(axes: NDArray[np.int64]) -> NDArray[np.int32]:
    """The first and the last column whose rays advance along y, and along x: (views, 2, 2)."""
    spans = np.empty((len(axes), 2, 2), dtype=np.int32)
    for number in (0, 1):
        own = axes == number + 1
        spans[:, number, 0] = np.where(own.any(1), own.argmax(1), 1)
        spans[:, number, 1] = np.where(own.any(1), axes.shape[1] - 1 - own[:, ::-1].argmax(1), 0)
    return spans


def centre_maps(shares: NDArray[np.float64], voxels: Voxels) -> NDArray[np.float32]:
    """The column of a place on a plane, from the volume's middle: (views, axis, 6)."""
    _, height, width = solid_shape(voxels)
    column, distance = shares[:, 0], shares[:, 2]
    middle = np.array([0.0, (height - 1) / 2, (width - 1) / 2, 1.0])
    maps = np.empty((len(shares), 2, 6))
    for number, (across, plane) in enumerate(((2, 1), (1, 2))):
        for offset, share in ((0, column), (3, distance)):
            maps[:, number, offset] = share[:, across]
            maps[:, number, offset + 1] = share[:, plane]
            maps[:, number, offset + 2] = share @ middle
    return maps.astype(np.float32)
