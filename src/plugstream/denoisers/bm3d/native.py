"""BM3D by the native CPU kernel; `reference.py` is its specification."""

from __future__ import annotations

from dataclasses import asdict

import torch
from torch import Tensor

from plugstream import _native
from plugstream.denoisers import forms
from plugstream.denoisers.bm3d.profile import Profile
from plugstream.denoisers.bm3d.reference import group_size, reference_positions
from plugstream.denoisers.bm3d.transforms import native_matrices

serves = forms.native_serves


def bm3d(
    images: Tensor, sigma: Tensor, profile: Profile, *, stages: int = 2, channels: int = 1, level: str = ""
) -> Tensor:
    """As `reference.bm3d`: (N, H, W) and (N,) to (N, H, W), in float32; `level` as of `call_native`."""
    images = images.contiguous()
    out = torch.empty_like(images)
    options = asdict(profile) | native_matrices(profile.kaiser)
    if channels > 1:
        options["channels"] = channels
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
