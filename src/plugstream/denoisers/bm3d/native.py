"""BM3D by the native CPU kernel; `reference.py` is its specification."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugstream import _native
from plugstream.denoisers.bm3d.profile import BLOCK, Profile
from plugstream.denoisers.bm3d.reference import group_size, reference_positions
from plugstream.denoisers.bm3d.transforms import bior15, correlations, dct

__all__ = ["bm3d", "match", "serves"]


def serves(images: Tensor) -> bool:
    """Whether the kernel is there and these images are for it: on the CPU, in single precision, not differentiated."""
    return (
        _native.load() is not None
        and images.device.type == "cpu"
        and images.dtype == torch.float32
        and not (images.requires_grad and torch.is_grad_enabled())
    )


def bm3d(images: Tensor, sigma: Tensor, profile: Profile, *, stages: int = 2, level: str = "") -> Tensor:
    """What `reference.bm3d` does: (N, H, W) and (N,) to (N, H, W), in float32.

    The number of threads is torch's. Neither it nor the other images of the batch change a bit of the result.

    Arguments:
        level: the instruction set, for tests; the best that the machine has if empty.
    """
    images = images.detach().contiguous()
    out = torch.empty_like(images)
    _native.kernels().bm3d(
        images.numpy(),
        sigma.detach().to(torch.float32).contiguous().numpy(),
        out.numpy(),
        step=profile.step,
        radius=profile.radius,
        group1=profile.group1,
        group2=profile.group2,
        threshold=profile.threshold,
        wiener=profile.wiener,
        stages=stages,
        threads=torch.get_num_threads(),
        level=level,
        **_matrices(profile.kaiser),
    )
    return out


def match(guide: Tensor, profile: Profile, wanted: int, *, level: str = "") -> Tensor:
    """What `reference.match` does, to the bit."""
    height, width = guide.shape
    references = len(reference_positions(height, profile.step)) * len(reference_positions(width, profile.step))
    found = torch.empty((references, group_size((height, width), profile.radius, wanted)), dtype=torch.int64)
    _native.kernels().bm3d_match(
        guide.detach().contiguous().numpy(),
        found.numpy(),
        step=profile.step,
        radius=profile.radius,
        wanted=wanted,
        level=level,
    )
    return found


@cache
def _matrices(kaiser: float) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """The transforms of both stages and the window, rounded as `reference.py` rounds them."""
    analysis = np.stack([bior15(BLOCK), dct(BLOCK)]).astype(np.float32)
    return {
        "analysis": analysis,
        "synthesis": np.linalg.inv(analysis.astype(np.float64)).astype(np.float32),
        "correlations": np.stack([correlations(name)[:8, :8] for name in ("bior15", "dct")]).astype(np.float32),
        "kaiser": np.kaiser(BLOCK, kaiser).astype(np.float32),
    }
