"""The parameters of BM4D, the two sets of them that have names, and what its kernels are given; without torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from plugstream.base.errors import InputError
from plugstream.denoisers.bm3d.transforms import bior15, correlations, dct

BLOCK = 4
"""Cubes are 4 x 4 x 4: the native kernel and the CUDA kernels are written for that."""


@dataclass(frozen=True)
class Profile:
    """How BM4D searches and filters.

    Arguments:
        step1, step2: voxels between reference cubes of stage 1 and 2.
        radius: candidates lie at most this far from the reference along each axis (6: a window of 13 x 13 x 13).
        group1, group2: cubes in a group of stage 1 and 2, powers of two up to 32.
        alike1, alike2: candidates of stage 1 and 2 that differ from the reference by less, in units of sigma^2 a voxel,
            count as equally alike, and those that overlap least are taken. 0: the nearest, as in the paper.
        threshold: coefficients of stage 1 below this many standard deviations of their noise are set to zero.
        wiener: the factor of the noise variance in the Wiener filter of stage 2.
        kaiser: beta of the window by which a cube's estimates count.
    """

    step1: int = 2
    step2: int = 3
    radius: int = 6
    group1: int = 16
    group2: int = 32
    alike1: float = 1.5
    alike2: float = 0.03
    threshold: float = 2.8
    wiener: float = 0.58
    kaiser: float = 2.5

    def __post_init__(self) -> None:
        for step in (self.step1, self.step2):
            if not 1 <= step <= BLOCK:
                raise InputError(f"BM4D's steps must be 1 to {BLOCK}, so that cubes cover the volume, not {step}")
        if not 1 <= self.radius <= 6:  # so that a complex window fits into the memory that a block of threads shares
            raise InputError(f"BM4D's radius must be 1 to 6, not {self.radius}")
        for size in (self.group1, self.group2):
            if size not in (1, 2, 4, 8, 16, 32):
                raise InputError(f"BM4D's groups must have 1, 2, 4, 8, 16 or 32 cubes, not {size}")
        if not (self.alike1 >= 0 and self.alike2 >= 0):
            raise InputError(f"BM4D's alike1 and alike2 must be >= 0, not {self.alike1} and {self.alike2}")
        if not (self.threshold >= 0 and self.wiener > 0 and self.kaiser >= 0):
            raise InputError("BM4D's threshold and kaiser beta must be >= 0, and its wiener factor > 0")


PROFILES = {"normal": Profile(), "fast": Profile(step1=3, radius=5, group2=16)}

BM4DProfile = Profile  # its public name


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
