"""The parameters of BM3D, and the two sets of them that have names."""

from __future__ import annotations

from dataclasses import dataclass

from plugstream.base.errors import InputError

BLOCK = 8
"""Blocks are 8 x 8: the transforms, the native kernel and the CUDA kernels are written for that."""


@dataclass(frozen=True)
class Profile:
    """How BM3D searches and filters.

    Arguments:
        step: pixels between reference blocks.
        radius: candidates lie at most this far from the reference, down and across (19: a window of 39 x 39).
        group1, group2: blocks in a group of stage 1 and 2, powers of two up to 32.
        threshold: coefficients of stage 1 below this many standard deviations of their noise are set to zero.
        wiener: the factor of the noise variance in the Wiener filter of stage 2.
        kaiser: beta of the window by which a block's estimates count.
    """

    step: int = 3
    radius: int = 19
    group1: int = 16
    group2: int = 32
    threshold: float = 2.7
    wiener: float = 0.65
    kaiser: float = 2.25

    def __post_init__(self) -> None:
        if not 1 <= self.step <= BLOCK:
            raise InputError(f"BM3D's step must be 1 to {BLOCK}, so that blocks cover the image, not {self.step}")
        if not 1 <= self.radius <= 22:  # so that a candidate's number fits into the 11 bits that a key has for it
            raise InputError(f"BM3D's radius must be 1 to 22, not {self.radius}")
        for size in (self.group1, self.group2):
            if size not in (1, 2, 4, 8, 16, 32):
                raise InputError(f"BM3D's groups must have 1, 2, 4, 8, 16 or 32 blocks, not {size}")
        if not (self.threshold >= 0 and self.wiener > 0 and self.kaiser >= 0):
            raise InputError("BM3D's threshold and kaiser beta must be >= 0, and its wiener factor > 0")


PROFILES = {"normal": Profile(), "fast": Profile(step=4, radius=12, group2=16)}

BM3DProfile = Profile  # its public name
