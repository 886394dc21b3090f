"""TNRD by the native CPU kernel; `model.py` is its specification."""

from __future__ import annotations

import torch
from torch import Tensor

from plugstream import _native
from plugstream.denoisers.tnrd.model import ReactionDiffusion
from plugstream.denoisers.tnrd.tables import polynomials

__all__ = ["prepare", "serves", "tnrd"]

_TOGETHER = 12  # filters whose taps stand together in memory


def serves(images: Tensor, model: ReactionDiffusion) -> bool:
    """Whether the kernel is there and this is for it: on the CPU, float32, 7 x 7 filters, not differentiated."""
    return (
        _native.load() is not None
        and images.device.type == "cpu"
        and images.dtype == torch.float32
        and model.size == 7
        and not (torch.is_grad_enabled() and (images.requires_grad or any(p.requires_grad for p in model.parameters())))
    )


@torch.no_grad()
def prepare(model: ReactionDiffusion) -> dict[str, Tensor]:
    """The model in the order in which the kernel reads it, in float32; `_native/tnrd.hpp` describes it."""
    kernels = model.kernels().double().cpu()
    stages, filters, taps, _ = kernels.shape
    backward = kernels.new_zeros(stages, filters, taps, taps + 1)
    backward[..., :taps] = kernels.flip((-2, -1)).transpose(-2, -1)
    made = {
        "forward": kernels.reshape(stages, -1, _TOGETHER, taps, taps).permute(0, 1, 3, 4, 2),
        "backward": backward,
        "reaction": model.log_reaction.double().cpu().exp(),
        "table": polynomials(model.weights, 5, 10.0),
    }
    return {name: value.to(torch.float32).contiguous() for name, value in made.items()}


def tnrd(images: Tensor, gain: Tensor, prepared: dict[str, Tensor], *, level: str = "") -> Tensor:
    """gain^-1 TNRD(gain z) for every image z, and z where its gain is 0: (N, H, W) and (N,) to (N, H, W), in float32.

    The number of threads is torch's. Neither it nor the other images of the batch change a bit of the result.

    Arguments:
        prepared: the model, from `prepare`.
        level: the instruction set, for tests; the best that the machine has if empty.
    """
    images = images.detach().contiguous()
    out = torch.empty_like(images)
    _native.kernels().tnrd(
        images.numpy(),
        gain.detach().to(torch.float32).contiguous().numpy(),
        out.numpy(),
        threads=torch.get_num_threads(),
        level=level,
        **{name: value.numpy() for name, value in prepared.items()},
    )
    return out
