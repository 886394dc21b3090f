"""The light U-Net on CUDA: one kernel a convolution, with what follows it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from plugstream.denoisers import forms
from plugstream.denoisers.networks.fused import Fused, Layer, Slot
from plugstream.denoisers.networks.light_unet import BEND, LightUNet

# By channels: pixels and channels of a program, channels that are summed at once, warps.
_SHAPES = {16: (64, 16, 32, 4), 32: (128, 32, 32, 4), 64: (64, 32, 64, 4), 128: (32, 32, 128, 4)}
_OTHERS = (16, 32, 64, 4)
_STAGES = 4


class Triton(Fused):
    """By a Triton kernel, in the precision of the network; sums are in float32, and their order is fixed."""

    def __init__(self, network: LightUNet) -> None:
        super().__init__(network, ends=16)
        self.weights = [[_pack(layer) for layer in layers] for layers in self.passes]

    def place(self, count: int, height: int, width: int) -> dict[Slot, Tensor]:
        head = self.network.head
        return {
            slot: (torch.zeros if slot == self.first else torch.empty)(
                (count, height >> slot.level, width >> slot.level, slot.channels), dtype=head.dtype, device=head.device
            )
            for slot in self.slots()
        }

    def apply(self, number: int, images: dict[Slot, Tensor]) -> None:
        for layer, weights in zip(self.passes[number], self.weights[number], strict=True):
            _apply(layer, weights, images)


def _pack(layer: Layer) -> Tensor:
    """(taps x inputs, outputs), or (inputs, pixels x outputs) if it grows."""
    weight = layer.padded()
    if layer.kind == "grow":
        return weight.permute(1, 2, 3, 0).reshape(weight.shape[1], -1).contiguous()
    return weight.permute(2, 3, 1, 0).reshape(-1, len(weight)).contiguous()


def _apply(layer: Layer, weights: Tensor, images: dict[Slot, Tensor]) -> None:
    from plugstream.denoisers.networks.triton_kernels import convolve

    image, out = images[layer.source], images[layer.out]
    count, height, width, _ = image.shape if layer.kind == "grow" else out.shape
    pixels, channels, total, warps = _SHAPES.get(layer.out.channels, _OTHERS)
    others = [out if slot is None else images[slot] for slot in (layer.values, *layer.adds, None, None)][:3]
    convolve[forms.cover(count * height * width, pixels), weights.shape[1] // channels](
        image, weights, out, *others, count * height * width, height, width, KIND=layer.kind, THEN=layer.then,
        ADDS=len(layer.adds), INPUTS=layer.source.channels, OUTPUTS=layer.out.channels, BEND=BEND, PIXELS=pixels,
        CHANNELS=channels, SUM=math.gcd(total, layer.source.channels), STAGES=_STAGES, num_warps=warps,
    )  # fmt: skip
