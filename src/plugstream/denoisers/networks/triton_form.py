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
_PIXELS = 64  # of a program that puts or takes
LARGEST = 8.0
"""The value that a network gets in 16 bits at most, far from the end of their range."""


class Triton(Fused):
    """By a Triton kernel, in the precision of the network; sums are in float32, and their order is fixed.

    Images of float32 with larger values than usual are divided first; for the free form that changes nothing.
    """

    def __init__(self, network: LightUNet) -> None:
        super().__init__(network, ends=16)
        self.weights = [[_pack(layer) for layer in layers] for layers in self.passes]

    def place(self, count: int, height: int, width: int) -> dict[Slot, Tensor]:
        head = self.network.head
        return {
            slot: torch.empty(
                (count, height >> slot.level, width >> slot.level, slot.channels), dtype=head.dtype, device=head.device
            )
            for slot in self.slots()
        }

    def put(self, images: Tensor, sigma: Tensor, first: Tensor) -> Tensor:
        from plugstream.denoisers.networks.triton_kernels import put

        # In two steps: in one it takes far longer.
        largest: Tensor = torch.linalg.vector_norm(torch.linalg.vector_norm(images[:, 0], math.inf, 2), math.inf, 1)
        pixels = first.numel() // 16
        put[(forms.cover(pixels, _PIXELS),)](
            images.contiguous(),
            sigma.contiguous(),
            largest,
            first,
            pixels,
            *first.shape[1:3],
            LARGEST=LARGEST,
            PIXELS=_PIXELS,
        )
        return largest

    def take(self, last: Tensor, scale: Tensor | None) -> Tensor:
        from plugstream.denoisers.networks.triton_kernels import take

        count, height, width, _ = last.shape
        out = torch.empty((count, 1, 2 * height, 2 * width), device=last.device)
        pixels = count * height * width
        take[(forms.cover(pixels, _PIXELS),)](last, scale, out, pixels, height, width, LARGEST=LARGEST, PIXELS=_PIXELS)
        return out

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
