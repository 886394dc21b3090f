"""The light U-Net as a list of convolutions, each with what follows it: for the native kernel, and for Triton.

J_R^T g is the same list with other weights, the way up first.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plugstream.denoisers import forms
from plugstream.denoisers.networks.light_unet import LightUNet, ResidualBlock, extend, fold

Kind = Literal["same", "shrink", "grow"]  # 3 x 3; 2 x 2 pixels to one; its transpose
Then = Literal["nothing", "relu", "celu", "slope"]  # slope: times that of celu, where it was `values`
KINDS: tuple[Kind, ...] = ("same", "shrink", "grow")
THENS: tuple[Then, ...] = ("nothing", "relu", "celu", "slope")
_TOGETHER = 32  # channels that kernels compute together
_MOST_HELD = 1 << 26  # numbers of a call's images that are held for the next one: 256 MB
# Filters of 3 x 3 become 6 x 6 numbers, by which tiles are multiplied (Winograd).
_TO_TILES = ((6, 0, 0), (-4, -4, -4), (-4, 4, -4), (1, 2, 4), (1, -2, 4), (0, 0, 24))  # / 24


class Slot(NamedTuple):
    """The place of an image, `level` halvings below the first one, in which it has these channels."""

    name: str
    level: int
    channels: int


class Layer(NamedTuple):
    """out = then(W in) + adds."""

    kind: Kind
    weight: Tensor
    source: Slot
    out: Slot
    then: Then = "nothing"
    values: Slot | None = None
    adds: tuple[Slot, ...] = ()

    def padded(self) -> Tensor:
        """The weights, (outputs, inputs, k, k), with zeros for channels that do not count."""
        weight = self.weight.transpose(0, 1) if self.kind == "grow" else self.weight
        return F.pad(
            weight, (0, 0, 0, 0, 0, self.source.channels - weight.shape[1], 0, self.out.channels - len(weight))
        )


def serves(network: LightUNet) -> bool:
    """Whether the fused forms take a network: channels that are multiples of 32, and blocks on all levels."""
    return all(c % _TOGETHER == 0 for c in network.channels) and min(network.blocks) > 0


class Fused:
    """What a network removes from its images, R or grad g: (N, 1, H, W) and (N,) to (N, 1, H, W).

    Arguments: network, one that `serves`; ends, channels of the last image, of which four count.
    """

    def __init__(self, network: LightUNet, ends: int) -> None:
        self.network = network
        self.first, self.last = Slot("image", 0, 16), Slot("noise", 0, ends)
        places = (f"between {n}" for n in itertools.count())
        blocks = {m: _Block(m.first, m.second, next(places)) for m in network.modules() if isinstance(m, ResidualBlock)}

        def forward(level: nn.Module) -> list[_Block]:
            return [blocks[block] for block in level.children()]  # type: ignore[index]

        def backward(level: nn.Module) -> list[_Block]:
            return [_Block(_turn(b.second), _turn(b.first), b.place) for b in reversed(forward(level))]

        levels = [forward(b) for b in network.down], forward(network.body), [forward(b) for b in network.up]
        steps = list(network.shrink), list(network.grow)
        then: Then = "celu" if network.form == "safe" else "relu"
        self.passes = [_layers(self.first, network.head, levels, steps, network.tail, self.last, then)]
        if network.form == "safe":
            levels = [backward(b) for b in network.up], backward(network.body), [backward(b) for b in network.down]
            tips, out = (_turn(network.tail), _turn(network.head[:, :4])), Slot("gradient", 0, ends)
            self.passes.append(_layers(self.last, tips[0], levels, steps[::-1], tips[1], out, "slope"))
            self.last = out

    def __call__(self, images: Tensor, sigma: Tensor) -> Tensor:
        shape = images.shape[-2:]
        z = extend(images, self.network.multiple)
        whole = z.shape[-2:]
        stored = self.place(len(z), whole[0] // 2, whole[1] // 2)
        scale = self.put(z, sigma, stored[self.first])
        self.apply(0, stored)
        if len(self.passes) > 1:
            if whole != shape:  # R is of the image alone
                inside = F.pad(z.new_ones(1, 1, *shape), (0, whole[1] - shape[1], 0, whole[0] - shape[0]))
                stored[self.passes[1][0].source][..., :4] *= F.pixel_unshuffle(inside, 2).permute(0, 2, 3, 1)
            self.apply(1, stored)
        removed = self.take(stored[self.last], scale)
        return fold(removed, shape) if len(self.passes) > 1 else removed[..., : shape[0], : shape[1]]

    def denoise(self, images: Tensor, sigma: Tensor) -> Tensor:
        return images - self(images, sigma)

    def slots(self) -> list[Slot]:
        """All places of images."""
        found = {slot for layer in itertools.chain(*self.passes) for slot in (layer.source, layer.out)}
        return sorted(found)

    def place(self, count: int, height: int, width: int) -> dict[Slot, Tensor]:
        """Memory for all images, (N, H, W, C), in which those of `first` have zeros where nothing is put."""
        raise NotImplementedError

    def put(self, images: Tensor, sigma: Tensor, first: Tensor) -> Tensor | None:
        """2 x 2 pixels of images (N, 1, 2 H, 2 W) as channels, and sigma; what they were divided by, if anything."""
        first[..., :4] = F.pixel_unshuffle(images, 2).permute(0, 2, 3, 1)
        first[..., 4] = sigma[:, None, None]
        return None

    def take(self, last: Tensor, scale: Tensor | None) -> Tensor:
        """Channels as 2 x 2 pixels again, (N, 1, 2 H, 2 W), times what the images were divided by."""
        return F.pixel_shuffle(last[..., :4].permute(0, 3, 1, 2), 2)

    def apply(self, number: int, stored: dict[Slot, Tensor]) -> None:
        """Apply the layers of a pass."""
        raise NotImplementedError


class _Block(NamedTuple):
    first: Tensor
    second: Tensor
    place: str  # of what is between them


def _turn(weight: Tensor) -> Tensor:
    """The weights of the transpose of a 3 x 3 convolution."""
    return weight.transpose(0, 1).flip(2, 3)


def _layers(
    source: Slot,
    head: Tensor,
    levels: tuple[list[list[_Block]], list[_Block], list[list[_Block]]],
    steps: Sequence[Sequence[Tensor]],
    tail: Tensor,
    end: Slot,
    then: Then,
) -> list[Layer]:
    """A pass, with the blocks on the way down, below, and on the way up, and the weights of the steps."""
    (down, body, up), (shrink, grow) = levels, steps
    channels = [len(blocks[0].first) for blocks in (*down, body)]
    begin, work = ([Slot(name, n, c) for n, c in enumerate(channels)] for name in ("begin", "work"))
    found = [Layer("same", head, source, begin[0])]

    def run(blocks: list[_Block], x: Slot, out: Slot, *skip: Slot) -> None:
        for n, block in enumerate(blocks):
            tape = Slot(block.place, out.level, out.channels)
            f = tape if then == "celu" else Slot("between", out.level, out.channels)
            found.append(Layer("same", block.first, x, f, then, tape if then == "slope" else None))
            found.append(Layer("same", block.second, f, out, adds=(x, *(skip if n + 1 == len(blocks) else ()))))
            x = out

    for n, blocks in enumerate(down):
        run(blocks, begin[n], work[n])
        found.append(Layer("shrink", shrink[n], work[n], begin[n + 1]))
    run(body, begin[-1], work[-1], begin[-1])
    for n, blocks in reversed(list(enumerate(up))):
        found.append(Layer("grow", grow[n], work[n + 1], work[n]))
        run(blocks, work[n], work[n], begin[n])
    return [*found, Layer("same", tail, work[0], end)]


class Native(Fused):
    """By the native kernel, in float32.

    Its weights are four times as many numbers, and for the safe form there are those of J_R^T too.

    Arguments: network; level, the instruction set, for tests: the best that the machine has if empty.
    """

    def __init__(self, network: LightUNet, level: str = "") -> None:
        super().__init__(network, ends=_TOGETHER)
        self.level = level
        packed = [[_pack(layer).flatten() for layer in layers] for layers in self.passes]
        self.weights = torch.cat([*itertools.chain(*packed)])
        ends = itertools.accumulate(len(weight) for weight in itertools.chain(*packed))
        self.starts = [[next(ends) - len(weight) for weight in weights] for weights in packed]
        self._held: _Held | None = None
        self._lock = threading.Lock()

    def __call__(self, images: Tensor, sigma: Tensor) -> Tensor:
        if len(images) != 1:
            return torch.cat([images[:0], *(self(images[n : n + 1], sigma[n : n + 1]) for n in range(len(images)))])
        with self._lock:
            removed = super().__call__(images, sigma)
            if self._held is not None and len(self._held.memory) > _MOST_HELD:
                self._held = None
        return removed

    def place(self, count: int, height: int, width: int) -> dict[Slot, Tensor]:
        if self._held is None or self._held.sides != (height, width):
            self._held = self._hold(height, width)
        return self._held.images

    def apply(self, number: int, images: dict[Slot, Tensor]) -> None:
        assert self._held is not None
        forms.call_native("unet", self._held.memory, self.weights, self._held.tables[number], level=self.level)

    def _hold(self, height: int, width: int) -> _Held:
        sides = {slot: (height >> slot.level, width >> slot.level) for slot in self.slots()}
        sizes = [a * b * slot.channels for slot, (a, b) in sides.items()]
        starts = dict(zip(sides, itertools.accumulate(sizes, initial=0), strict=False))
        memory = torch.zeros(sum(sizes))
        tables = []
        for layers, weights in zip(self.passes, self.starts, strict=True):
            rows = []
            for layer, start in zip(layers, weights, strict=True):
                larger = max(sides[layer.source], sides[layer.out])
                others = [-1 if slot is None else starts[slot] for slot in (layer.values, *layer.adds, None, None)][:3]
                rows.append((
                    KINDS.index(layer.kind), THENS.index(layer.then), *larger, layer.source.channels,
                    layer.out.channels, starts[layer.source], start, *others, starts[layer.out],
                ))  # fmt: skip
            tables.append(torch.tensor(rows))
        parts = zip(sides.items(), memory.split(sizes), strict=True)
        images = {slot: part.view(1, *side, slot.channels) for (slot, side), part in parts}
        return _Held((height, width), memory, images, tables)


class _Held(NamedTuple):
    """What one size of image needs: memory, the images in it, and the layers of each pass as numbers."""

    sides: tuple[int, int]
    memory: Tensor
    images: dict[Slot, Tensor]
    tables: list[Tensor]


def _pack(layer: Layer) -> Tensor:
    """A layer's weights as the native kernel reads them; `_native/unet.hpp` describes it."""
    weight = layer.padded()
    inputs = weight.shape[1]
    if layer.kind == "same":
        tiles = torch.tensor(_TO_TILES, dtype=torch.float64) / 24
        places = torch.kron(tiles, tiles) @ weight.double().reshape(-1, 9).T
        return places.float().reshape(36, -1, _TOGETHER, inputs).permute(1, 0, 3, 2)
    if layer.kind == "shrink":
        return weight.permute(2, 3, 1, 0).reshape(4 * inputs, -1, _TOGETHER).transpose(0, 1)
    return weight.permute(2, 1, 3, 0).reshape(2, inputs, -1, _TOGETHER).transpose(1, 2)
