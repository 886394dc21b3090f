"""What the native kernel of BM4D is given besides the volumes; NumPy only, no torch."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np

from plugstream.denoisers.bm3d.transforms import bior15, correlations, dct
from plugstream.denoisers.bm4d.profile import BLOCK, Profile


def native_settings(profile: Profile) -> dict[str, Any]:
    """The keyword arguments of `_native.kernels().bm4d`: the profile's numbers and the fixed arrays."""
    return asdict(profile) | fixed_matrices(profile.kaiser) | {"order": candidate_order(profile.radius)}


@cache
def candidate_order(radius: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The candidates of a window, as numbers plane by plane and row by row, in the order in which equals are taken.

    First the reference itself and those that share no voxel with each other, whose offsets are multiples of 4 along all
    axes; then those that lie in the middle between these; then the other even offsets; then the rest. Of each kind the
    nearest come first. A group of equals so averages as many voxels as it can.
    """
    axis = np.arange(-radius, radius + 1)
    offsets = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(-1, 3)
    kind = np.full(len(offsets), 3)
    kind[(offsets % 2 == 0).all(1)] = 2
    kind[(offsets % BLOCK == BLOCK // 2).all(1)] = 1
    kind[(offsets % BLOCK == 0).all(1)] = 0
    return np.lexsort((np.arange(len(offsets)), (offsets**2).sum(1), kind)).astype(np.int32)


@cache
def fixed_matrices(kaiser: float) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """The transforms of both stages along one axis, what cubes share that overlap, and the window along one axis."""
    analysis = np.stack([bior15(BLOCK), dct(BLOCK)]).astype(np.float32)
    shared = [correlations(name, BLOCK, 3)[:BLOCK, :BLOCK, :BLOCK] for name in ("bior15", "dct")]
    return {
        "analysis": analysis,
        "synthesis": np.linalg.inv(analysis.astype(np.float64)).astype(np.float32),
        "correlations": np.stack(shared).astype(np.float32),
        "kaiser": np.kaiser(BLOCK, kaiser).astype(np.float32),
    }
