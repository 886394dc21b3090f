"""Where rays cross the planes of voxels, in units of voxels. Without torch; every projector starts from here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.models.ct_geometry import Rays, Voxels

Points = NDArray[np.float64]


@dataclass(frozen=True)
class Lines:
    """The rays of some views among the voxels, in the detector's order.

    A ray advances along the image axis on which it crosses the most planes of voxels, and is at start + k slope on
    plane k of that axis, in voxels along each axis.

    Arguments: axis (views, *detector); start and slope (views, *detector, image axes), 0 and 1 along that axis; step
    (views, *detector), the metres from one plane to the next.
    """

    axis: NDArray[np.int64]
    start: Points
    slope: Points
    step: Points


def cross_planes(rays: Rays, voxels: Voxels) -> Lines:
    """Where each ray crosses the planes of voxels."""
    point, direction = rays.lines()
    order = list(range(rays.ndim))[::-1]  # x, y, z to the axes of an image
    spacing, origin = np.asarray(voxels.spacing), np.asarray(voxels.origin)
    length = np.linalg.norm(direction, axis=-1)
    place = (point[..., order] - origin) / spacing
    slope = direction[..., order] / spacing
    axis = np.argmax(np.abs(slope), axis=-1)
    fastest = np.take_along_axis(slope, axis[..., None], -1)
    slope = slope / fastest
    start = place - np.take_along_axis(place, axis[..., None], -1) * slope
    return Lines(axis, start, slope, length / np.abs(fastest[..., 0]))


def check_rays(rays: Rays, voxels: Voxels, first: int = 0) -> None:
    """Refuse rays that do not fit the voxels: with another number of axes, or from a source among the voxels.

    Views before `first` were checked before.
    """
    if rays.ndim != len(voxels.shape):
        axes = "two axes" if rays.ndim == 2 else "three axes"
        raise InputError(
            f"a detector of {rays.detector} pixels sees an image of {axes}, but the image is {voxels.shape}"
        )
    if rays.parallel:
        return
    half = np.asarray(voxels.spacing)
    low, high = np.asarray(voxels.origin) - half, np.asarray(voxels.ends) + half
    source = rays.vectors[first:, 0, : rays.ndim][:, ::-1]
    inside = ((source > low) & (source < high)).all(1)
    if inside.any():
        raise InputError(
            f"view {first + int(np.argmax(inside))}: the source lies inside the image; give a smaller image or "
            "spacing, or a larger distance of the source"
        )
