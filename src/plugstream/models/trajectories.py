"""Paths through k-space: spokes, interleaves of spirals, phase-encode lines. Without torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.models.ct_geometry import Voxels

Real = NDArray[np.float64]

_GOLDEN = np.pi * (np.sqrt(5) - 1) / 2  # radians, 111.25 degrees: any number of spokes in a row is spread evenly


def radial_spokes(voxels: Voxels, spokes: int, samples: int | None = None) -> Real:
    """Spokes through the middle of k-space, each turned by the golden angle from the one before: (spokes, samples, 2).

    They reach 1 / (2 d) along each axis, d being the pixel's size along it. A square image of N pixels a side needs
    pi N / 2 spokes for every sample at the edge to be within half a step of another.

    Arguments: voxels of the image, two axes; spokes; samples of each, twice as many as the image has pixels along its
    longer axis if not given.
    Reference: Winkelmann et al., IEEE Trans. Med. Imaging 26(1), 2007.
    """
    count = 2 * max(voxels.shape[-2:]) if samples is None else samples
    angles = np.arange(spokes) * _GOLDEN
    along = (np.arange(count) - count // 2) / count
    directions = np.stack([np.sin(angles), np.cos(angles)], 1) / np.array(voxels.spacing[-2:])
    return np.asarray(along[None, :, None] * directions[:, None])


def spiral_interleaves(voxels: Voxels, interleaves: int, turns: float, samples: int | None = None) -> Real:
    """Spirals of Archimedes from the middle of k-space outwards, each turned by the golden angle from the one before.

    (interleaves, samples, 2). They reach 1 / (2 d); samples are equally spaced along the path, except for its first
    half turn. M interleaves of t turns cover a field of view of N pixels if M t is at least N / 2.

    Arguments: voxels of the image, two axes; interleaves; turns of each; samples of each, as many as are needed for a
    distance of at most one step of k-space if not given.
    Reference: Meyer et al., Magn. Reson. Med. 28(2), 1992.
    """
    size = max(voxels.shape[-2:])
    length = _spiral_length(np.array([1.0]), turns)[0] * size / 2
    count = int(np.ceil(length)) + 1 if samples is None else samples
    fine = np.linspace(0, 1, 20 * count)
    radius = np.interp(np.linspace(0, 1, count), _spiral_length(fine, turns) / _spiral_length(fine[-1:], turns), fine)
    angles = 2 * np.pi * turns * radius[None] + np.arange(interleaves)[:, None] * 2 * _GOLDEN
    path = 0.5 * radius[None, :, None] * np.stack([np.sin(angles), np.cos(angles)], 2)
    return np.asarray(path / np.array(voxels.spacing[-2:]))


def cartesian_lines(voxels: Voxels, rows: NDArray[np.integer], columns: int | None = None) -> Real:
    """Phase-encode lines at these rows of k-space, 0 being the middle: (lines, columns, 2).

    Arguments: voxels of the image, two axes; rows, whole multiples of 1 / field of view; columns, samples of a line,
    over the same extent however many: as many as pixels if not given.
    """
    (height, width), (dy, dx) = voxels.shape[-2:], voxels.spacing[-2:]
    count = width if columns is None else columns
    along = (np.arange(count) - count // 2) / (count * dx)
    across = np.asarray(rows) / (height * dy)
    return np.stack(np.broadcast_arrays(across[:, None], along), 2).astype(np.float64)


def variable_lines(height: int, count: int, *, middle: int | None = None, seed: int = 0) -> NDArray[np.int64]:
    """Which rows of k-space are measured: all in the middle, and random ones, fewer farther out.

    Arguments: height, rows in all; count of measured rows; middle, rows around row 0 that are all measured, a third of
    them and at most 24 if not given; seed.
    """
    full = min(24, max(1, count // 3)) if middle is None else middle
    if not 1 <= full <= count <= height:
        raise InputError(f"{count} of {height} rows cannot have {full} in the middle")
    rows = np.arange(height) - height // 2
    inside = (rows >= -(full // 2)) & (rows < full - full // 2)
    outer = rows[~inside]
    weights = (1 - np.abs(outer) / (height / 2 + 1)) ** 2
    draw = np.random.default_rng(seed)
    chosen = draw.choice(outer, count - full, replace=False, p=weights / weights.sum())
    return np.sort(np.concatenate([rows[inside], chosen]))


def _spiral_length(radius: Real, turns: float) -> Real:
    """Lengths of a spiral r = angle / (2 pi turns) from the middle to these radii."""
    angle = 2 * np.pi * turns * radius
    return np.asarray((angle * np.sqrt(1 + angle**2) + np.arcsinh(angle)) / (4 * np.pi * turns))
