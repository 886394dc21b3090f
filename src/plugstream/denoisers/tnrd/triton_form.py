"""TNRD on CUDA: which kernels of `triton_kernels.py` run, in which order, on which grid; `model.py` specifies it.

Grids come from shapes alone and nothing is read back, so that a call can be captured in a CUDA graph, after one call
outside it that compiles the kernels and puts the model on the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from plugstream.denoisers import forms
from plugstream.denoisers.tnrd.model import ReactionDiffusion
from plugstream.denoisers.tnrd.tables import REACH, polynomials

_STEP = 5.0  # of the table of cubics
_DRIVE = {"BLOCK": 32, "num_warps": 4}
_SETTLE = {"BLOCK": 256, "num_warps": 4}
_DOT = "tf32x3"  # three products of tensor cores that together are as good as single precision
_MOST_SHARES = 1 << 30  # bytes; larger batches are done in parts


@torch.no_grad()
def prepare(model: ReactionDiffusion, device: torch.device | None = None) -> dict[str, Tensor]:
    """The model as the kernels read it, float32 on the device.

    forward (T, 64, 64): tap by filter; backward (T, 64, 64): filter by tap; reaction (T,); table (T, 64, cells, 2), the
    four coefficients of each cell's cubic as int64, two in each, lower first. Padded with zeros.
    """
    kernels = model.kernels().double().cpu().flatten(-2)
    stages, filters, taps = kernels.shape
    cubics = polynomials(model.weights, 3, _STEP).transpose(-2, -1)
    table = cubics.new_zeros(stages, 64, *cubics.shape[2:])
    table[:, :filters] = cubics
    parts = {
        "forward": kernels.new_zeros(stages, 64, 64),
        "backward": kernels.new_zeros(stages, 64, 64),
        "reaction": model.log_reaction.double().cpu().exp(),
    }
    parts["forward"][:, :taps, :filters] = kernels.transpose(-2, -1)
    parts["backward"][:, :filters, :taps] = kernels
    prepared = {name: value.to(device, torch.float32).contiguous() for name, value in parts.items()}
    return prepared | {"table": table.view(torch.int64).to(device)}


@torch.no_grad()
def tnrd(images: Tensor, gain: Tensor, prepared: dict[str, Tensor]) -> Tensor:
    """gain^-1 TNRD(gain z) for every image z, and z where its gain is 0: (N, H, W) and (N,) to (N, H, W), in float32.

    Two launches a stage: the first writes what each pixel gives to each of the 49 around it, the second adds that up in
    a fixed order, for the same bits every time.

    Arguments: images, gain, float32 on CUDA, H, W >= 7, gain never read by the host; prepared, the model from
    `prepare`.
    """
    images, gain = images.contiguous(), gain.contiguous()
    count, height, width = images.shape
    around = (height + 6) * (width + 6)
    at_once = max(1, min(count, _MOST_SHARES // (49 * 4 * around)))
    out = torch.empty_like(images)
    shares = torch.empty((at_once, 49, around), device=images.device)
    for first in range(0, count, at_once):
        part = slice(first, first + at_once)
        _diffuse(images[part], gain[part], prepared, shares, out[part])
    return out


def _diffuse(images: Tensor, gain: Tensor, prepared: dict[str, Tensor], shares: Tensor, out: Tensor) -> None:
    from plugstream.denoisers.tnrd.triton_kernels import drive, settle

    count, height, width = images.shape
    forward, backward, reaction, table = (prepared[name] for name in ("forward", "backward", "reaction", "table"))
    stages = len(reaction)
    for stage in range(stages):
        first, last = stage == 0, stage + 1 == stages
        before = images if first else out
        drive[forms.cover(shares.shape[-1], _DRIVE["BLOCK"]), count](
            before, gain, forward[stage], backward[stage], table[stage], shares, height, width,
            FIRST=first, CELLS=table.shape[-2], STEP=_STEP, REACH=REACH, PRECISION=_DOT, **_DRIVE,
        )  # fmt: skip
        # In place: a pixel of the step needs only that pixel of u.
        settle[forms.cover(height * width, _SETTLE["BLOCK"]), count](
            before, images, gain, reaction[stage:], shares, out, height, width, FIRST=first, LAST=last, **_SETTLE
        )
