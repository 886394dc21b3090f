"""BM3D by the native CPU kernel; `reference.py` is its specification."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugstream import _native
from plugstream.denoisers import forms
from plugstream.denoisers.bm3d.profile import BLOCK, Profile
from plugstream.denoisers.bm3d.reference import group_size, reference_positions
from plugstream.denoisers.bm3d.transforms import bior15, correlations, dct

serves = forms.native_serves


def bm3d(images: Tensor, sigma: Tensor, profile: Profile, *, stages: int = 2, level: str = "") -> Tensor:
    """As `reference.bm3d`: (N, H, W) and (N,) to (N, H, W), in float32; `level` as of `call_native`."""
    images = images.contiguous()
    out = torch.empty_like(images)
    options = asdict(profile) | _matrices(profile.kaiser)
    forms.call_native("bm3d", images, sigma.float().contiguous(), out, level=level, stages=stages, **options)
    return out


def match(guide: Tensor, profile: Profile, most: int, *, level: str = "") -> Tensor:
    """As `reference.match`, to the bit."""
    height, width = guide.shape
    references = len(reference_positions(height, profile.step)) * len(reference_positions(width, profile.step))
    groups = torch.empty((references, group_size((height, width), profile.radius, most)), dtype=torch.int64)
    options = {"step": profile.step, "radius": profile.radius, "wanted": most, "level": level}
    _native.kernels().bm3d_match(guide.detach().contiguous().numpy(), groups.numpy(), **options)
    return groups


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
