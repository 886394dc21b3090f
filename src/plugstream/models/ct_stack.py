"""Volumes that a beam sees slice by slice: rays that stay within a slice, and the slices of detector rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.models.ct_geometry import Rays, Voxels

_LEVEL = 1e-12  # a component below this part of a vector is rounding
_EXACT = 1e-9  # slices, times their number: as near as rounding lets a row be to the slice it sees


def is_stack(rays: Rays) -> bool:
    """Whether volumes are seen slice by slice: rays are parallel and horizontal, and the detector's rows are too."""
    if not (rays.parallel and rays.ndim == 3):
        return False
    way, _, u, v = np.moveaxis(rays.vectors, 1, 0)
    level = small_part(way[:, 2:], way) and small_part(u[:, 2:], u)
    return level and small_part(v[:, :2], v)


def blend_slices(rays: Rays, voxels: Voxels) -> NDArray[np.float32] | None:
    """How much of each slice a row of the detector sees, (views, rows, D); None if row k sees only slice k.

    Arguments: rays of a stack (`is_stack`).
    """
    place, slices = _places(rays, voxels), np.arange(voxels.shape[0])
    if place.shape[1] == len(slices) and _near(place, slices, voxels):
        return None
    return np.asarray(np.maximum(0, 1 - np.abs(place[..., None] - slices)), dtype=np.float32)


def row_slices(rays: Rays, voxels: Voxels) -> NDArray[np.int64] | None:
    """The slice that each row of the detector sees, (rows,), if it is a single one and the same in every view.

    Rows that see no slice have a number beyond the slices. None if rows see two slices each, if views differ, or if
    rays cross several slices: the volume cannot be split by slices then.
    """
    if not is_stack(rays):
        return None
    place = _places(rays, voxels)
    nearest = np.rint(place[0])
    return nearest.astype(np.int64) if _near(place, nearest, voxels) else None


def small_part(part: NDArray[np.float64], vectors: NDArray[np.float64]) -> bool:
    """Whether parts of vectors, one each, are only rounding."""
    return bool((np.linalg.norm(part, axis=1) <= _LEVEL * np.linalg.norm(vectors, axis=1)).all())


def _places(rays: Rays, voxels: Voxels) -> NDArray[np.float64]:
    """Where the rows of each view are, in slices: (views, rows)."""
    rows = np.arange(rays.detector[0]) - (rays.detector[0] - 1) / 2
    height = rays.vectors[:, 1, 2:] + rows * rays.vectors[:, 3, 2:]
    return np.asarray((height - voxels.origin[0]) / voxels.spacing[0])


def _near(place: NDArray[np.float64], slices: NDArray[Any], voxels: Voxels) -> bool:
    return bool(np.abs(place - slices).max() < _EXACT * max(1, voxels.shape[0]))
