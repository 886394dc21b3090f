"""TNRD by the native CPU kernel; `model.py` is its specification."""

from __future__ import annotations

import torch
from torch import Tensor

from plugstream.denoisers import forms
from plugstream.denoisers.tnrd.model import ReactionDiffusion
from plugstream.denoisers.tnrd.tables import polynomials

_TOGETHER = 12  # filters whose taps stand together in memory


def serves(images: Tensor, model: ReactionDiffusion) -> bool:
    """Whether the kernel takes these images and this model, which needs 7 x 7 filters."""
    return model.size == 7 and forms.native_serves(images) and not forms.differentiated(*model.parameters())


@torch.no_grad()
def prepare(model: ReactionDiffusion) -> dict[str, Tensor]:
    """The model in the order in which the kernel reads it, in float32; `_native/tnrd.hpp` describes it."""
    kernels = model.kernels().double().cpu()
    stages, filters, taps, _ = kernels.shape
    backward = kernels.new_zeros(stages, filters, taps, taps + 1)
    backward[..., :taps] = kernels.flip((-2, -1)).transpose(-2, -1)
    parts = {
        "forward": kernels.reshape(stages, -1, _TOGETHER, taps, taps).permute(0, 1, 3, 4, 2),
        "backward": backward,
        "reaction": model.log_reaction.double().cpu().exp(),
        "table": polynomials(model.weights, 5, 10.0),
    }
    return {name: value.to(torch.float32).contiguous() for name, value in parts.items()}


def tnrd(images: Tensor, gain: Tensor, prepared: dict[str, Tensor], *, level: str = "") -> Tensor:
    """gain^-1 TNRD(gain z) for every image z, and z if its gain is 0: (N, H, W) and (N,) to (N, H, W), in float32.

    Arguments: prepared, the model from `prepare`; level as of `call_native`.
    """
    images = images.contiguous()
    out = torch.empty_like(images)
    model = {name: value.numpy() for name, value in prepared.items()}
    forms.call_native("tnrd", images, gain.float().contiguous(), out, level=level, **model)
    return out
