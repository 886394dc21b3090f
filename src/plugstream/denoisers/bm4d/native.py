"""BM4D by the native CPU kernel; `reference.py` is its specification."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from plugstream import _native
from plugstream.denoisers import forms
from plugstream.denoisers.bm4d.profile import Profile, candidate_order, native_settings
from plugstream.denoisers.bm4d.reference import group_size, reference_positions

serves = forms.native_serves


def bm4d(
    volumes: Tensor,
    sigma: Tensor,
    profile: Profile,
    *,
    stages: int = 2,
    level: str = "",
    progress: Callable[[float], object] | None = None,
) -> Tensor:
    """As `reference.bm4d`, in float32; `level` as of `call_native`; `progress` is called with the part done."""
    volumes = volumes.contiguous()
    out = torch.empty_like(volumes)
    options = {**native_settings(profile), "stages": stages, "progress": progress}
    forms.call_native("bm4d", volumes, sigma.float().contiguous(), out, level=level, **options)
    return out


def match(guide: Tensor, sigma: Tensor, profile: Profile, stage: int, *, level: str = "") -> Tensor:
    """As `reference.match`, to the bit."""
    step, most = (profile.step1, profile.group1) if stage == 1 else (profile.step2, profile.group2)
    shape = tuple(guide.shape[1:])
    references = 1
    for size in shape:
        references *= len(reference_positions(size, step))
    groups = torch.empty((references, group_size(shape, profile.radius, most)), dtype=torch.int64)
    _native.kernels().bm4d_match(
        guide.detach()[None].contiguous().numpy(),
        sigma.detach()[None].float().contiguous().numpy(),
        groups.numpy(),
        order=candidate_order(profile.radius),
        step=step,
        radius=profile.radius,
        group=most,
        alike=profile.alike1 if stage == 1 else profile.alike2,
        level=level,
    )
    return groups
