"""Balls with known projections: an image to be found by methods of tomography."""

from __future__ import annotations

import numpy as np
import torch

from plugstream.models.ct_geometry import Rays, Voxels

# x, y, z, radius in metres, attenuation in 1/m
BALLS = ((0.0, 0.0, 0.0, 0.030, 30.0), (0.009, -0.006, 0.002, 0.010, 40.0), (-0.013, 0.009, -0.001, 0.007, -20.0))
VOXEL = 1.5e-3


def chords(rays: Rays) -> torch.Tensor:
    """Exact line integrals of the balls; in two dimensions of discs, which are their middle slices at z = 0."""
    points, along = rays.lines()
    along = along / np.linalg.norm(along, axis=-1, keepdims=True)
    total = np.zeros(points.shape[:-1])
    for x, y, z, radius, value in BALLS:
        off = points - np.array([x, y, z if rays.ndim == 3 else 0.0])
        total += 2 * value * np.sqrt(np.maximum(radius**2 - (np.cross(off, along) ** 2).sum(-1), 0))
    return torch.from_numpy(total)


def truth(voxels: Voxels) -> tuple[np.ndarray, np.ndarray]:
    """The image, and where it is far from any edge."""
    axes = [o + s * np.arange(n) for o, n, s in zip(voxels.origin, voxels.shape, voxels.spacing, strict=True)]
    grid = np.meshgrid(*axes, indexing="ij")
    image, inside = np.zeros(voxels.shape), np.ones(voxels.shape, bool)
    for x, y, z, radius, value in BALLS:
        places = zip(grid[::-1], (x, y, z), strict=False)
        distance = np.sqrt(sum((place - at) ** 2 for place, at in places))
        image += value * (distance < radius)
        inside &= np.abs(distance - radius) > 3.5 * VOXEL
    return image, inside
