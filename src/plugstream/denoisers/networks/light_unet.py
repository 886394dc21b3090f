"""A light U-Net and its two forms: a free denoiser, and a gradient step of a potential."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Form = Literal["free", "safe"]
CHANNELS = (32, 64, 128, 192)
BLOCKS = (4, 4, 4, 2)
BEND = 1 / 16  # of `celu`, which is within this of ReLU


class ResidualBlock(nn.Module):
    """x + W_2 f(W_1 x), with 3 x 3 convolutions without bias."""

    def __init__(self, channels: int, smooth: bool) -> None:
        super().__init__()
        self.first, self.second = (_weight(channels, channels, 3, gain) for gain in (2.0, 0.1))
        self.smooth = smooth

    def forward(self, x: Tensor, tape: list[Tensor] | None = None) -> Tensor:
        h = F.conv2d(x, self.first, padding=1)
        f = F.celu(h, BEND, inplace=not h.requires_grad) if self.smooth else F.relu(h, inplace=not h.requires_grad)
        if tape is not None:
            tape.append(f)
        return _add(F.conv2d(f, self.second, padding=1), x)

    def transpose(self, g: Tensor, tape: list[Tensor]) -> Tensor:
        """J^T g, at the point of the last `forward` on the tape, which has f: its slope is f / bend + 1 below zero."""
        f, h = tape.pop(), _turned(g, self.second)
        h = torch.ops.aten.elu_backward(h, BEND, 1.0, 1 / BEND, True, f) if self.smooth else h * (f > 0)
        return _add(_turned(h, self.first), g)


class LightUNet(nn.Module):
    r"""A U-Net R_sigma(x) that estimates noise, on 2 x 2 pixels as channels, and the denoiser that is made of it:

        free:  D(x, sigma) = x - R_sigma(x),
        safe:  D(x, sigma) = x - grad g_sigma(x),  g_sigma(x) = 1/2 ||R_sigma(x)||^2,  grad g = J_R(x)^T R(x).

    Without biases and with ReLU, the free form satisfies D(c x, c sigma) = c D(x, sigma) for c > 0. The safe form is a
    gradient step (Hurault et al.): whatever was learned, its Jacobian is symmetric and g >= 0 is a potential with a
    locally Lipschitz gradient, since its activation is `celu`, a ReLU with a continuous slope. J_R^T R is the same
    network run backwards with transposed weights, here as ordinary operations: no call needs autograd, a call costs two
    of the free form, and so does a step of training.

    Arguments: channels, of each level, the resolution halves from one to the next; blocks, residual blocks of each,
    on the way down and again on the way up, the last once; form.
    References: Zhang et al., IEEE Trans. Pattern Anal. Mach. Intell. 44, 2022 (DRUNet, whose layout this is); Hurault,
    Leclaire and Papadakis, ICLR 2022.
    """

    def __init__(self, channels: Sequence[int] = CHANNELS, blocks: Sequence[int] = BLOCKS, form: Form = "free") -> None:
        super().__init__()
        self.channels, self.blocks, self.form = tuple(channels), tuple(blocks), form
        smooth = form == "safe"
        *levels, body = (
            [ResidualBlock(c, smooth) for _ in range(number)] for c, number in zip(channels, blocks, strict=True)
        )
        self.down = nn.ModuleList(nn.ModuleList(level) for level in levels)
        self.body = nn.ModuleList(body)
        self.up = nn.ModuleList(
            nn.ModuleList(ResidualBlock(c, smooth) for _ in range(number))
            for c, number in zip(channels[:-1], blocks[:-1], strict=True)
        )
        pairs = list(itertools.pairwise(channels))
        self.shrink = nn.ParameterList(_weight(after, before, 2) for before, after in pairs)
        self.grow = nn.ParameterList(_weight(after, before, 2, 1 / 4) for before, after in pairs)
        self.head = _weight(channels[0], 5, 3, 4.0)
        with torch.no_grad():  # filters that do not see the brightness, which is far more than the noise, learn sooner
            self.head[:, :4] -= self.head[:, :4].mean((1, 2, 3), keepdim=True)
        self.tail = _weight(4, channels[0], 3, 1e-4)  # which begins near the identity

    @property
    def multiple(self) -> int:
        """Images are extended by reflection to sides that are multiples of this; they are at least as long."""
        return int(2 ** len(self.channels))

    @property
    def reach(self) -> int:
        """How many pixels away a value still matters."""
        passes = [1 if level == len(self.blocks) - 1 else 2 for level in range(len(self.blocks))]
        convolutions = [2 * number * times for number, times in zip(self.blocks, passes, strict=True)]
        free = 4 + sum((count + 1) * 2 << level for level, count in enumerate(convolutions))
        return free if self.form == "free" else 2 * free

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """(N, 1, H, W) and (N,) to (N, 1, H, W)."""
        if self.form == "free":
            return x - self.noise(x, sigma)
        return x - self.gradient(x, sigma)

    def noise(self, x: Tensor, sigma: Tensor) -> Tensor:
        """R_sigma(x), (N, 1, H, W)."""
        return self._run(x, sigma, None)

    def potential(self, x: Tensor, sigma: Tensor) -> Tensor:
        """g_sigma(x), (N,)."""
        return 0.5 * self.noise(x, sigma).square().sum((1, 2, 3))

    def gradient(self, x: Tensor, sigma: Tensor) -> Tensor:
        """grad g_sigma(x) = J_R(x)^T R(x), (N, 1, H, W)."""
        tape: list[Tensor] = []
        return self._run_back(self._run(x, sigma, tape), tape)

    def _run(self, x: Tensor, sigma: Tensor, tape: list[Tensor] | None) -> Tensor:
        z = F.pixel_unshuffle(extend(x, self.multiple), 2)
        level = sigma.to(z.dtype).reshape(-1, 1, 1, 1).expand(-1, 1, *z.shape[2:])
        z = torch.cat([z, level], 1).contiguous(memory_format=torch.channels_last)
        z = F.conv2d(z, self.head, padding=1)
        skips = []
        for blocks, weight in zip(self.down, self.shrink, strict=True):
            skips.append(z)
            z = F.conv2d(_apply(blocks, z, tape), weight, stride=2)
        z = z + _apply(self.body, z, tape)
        for blocks, weight, skip in zip(*map(reversed, (list(self.up), list(self.grow), skips)), strict=True):
            z = skip + _apply(blocks, F.conv_transpose2d(z, weight, stride=2), tape)
        return F.pixel_shuffle(F.conv2d(z, self.tail, padding=1), 2)[..., : x.shape[-2], : x.shape[-1]].to(x.dtype)

    def _run_back(self, g: Tensor, tape: list[Tensor]) -> Tensor:
        """J_R^T g: the network from its end to its beginning, each map transposed."""
        shape, multiple = g.shape[-2:], self.multiple
        z = F.pad(g, (0, -shape[1] % multiple, 0, -shape[0] % multiple))
        z = F.pixel_unshuffle(z, 2).contiguous(memory_format=torch.channels_last)
        z = _turned(z, self.tail)
        skips = []
        for blocks, weight in zip(self.up, self.grow, strict=True):
            skips.append(z)
            z = F.conv2d(_apply_back(blocks, z, tape), weight, stride=2)
        z = z + _apply_back(self.body, z, tape)
        for blocks, weight, skip in zip(*map(reversed, (list(self.down), list(self.shrink), skips)), strict=True):
            z = skip + _apply_back(blocks, F.conv_transpose2d(z, weight, stride=2), tape)
        z = _turned(z, self.head[:, :4])
        return fold(F.pixel_shuffle(z, 2).to(g.dtype), shape)


def _apply(blocks: nn.Module, z: Tensor, tape: list[Tensor] | None) -> Tensor:
    for block in blocks.children():
        z = block(z, tape)
    return z


def _apply_back(blocks: nn.Module, g: Tensor, tape: list[Tensor]) -> Tensor:
    for block in reversed(list(blocks.children())):
        assert isinstance(block, ResidualBlock)
        g = block.transpose(g, tape)
    return g


def _turned(g: Tensor, weight: Tensor) -> Tensor:
    """The transpose of a 3 x 3 convolution, as one with turned weights, which CPUs have a faster form for.

    Turned weights that are not trained stay with the weights, for the next call.
    """
    known: tuple[object, Tensor] | None = None if weight.requires_grad else getattr(weight, "_turned", None)
    if known is not None and known[0] == _version(weight):
        return F.conv2d(g, known[1], padding=1)
    turned = weight.transpose(0, 1).flip(2, 3).contiguous(memory_format=torch.channels_last)
    if not weight.requires_grad:
        weight._turned = (_version(weight), turned)  # type: ignore[attr-defined]
    return F.conv2d(g, turned, padding=1)


def _version(weight: Tensor) -> object:
    """What changes with the weights' values."""
    return weight.data_ptr(), weight._version, weight.dtype, weight.device


def _add(x: Tensor, y: Tensor) -> Tensor:
    """x + y, in the place of x where no gradient needs it."""
    return x + y if x.requires_grad else x.add_(y)


def _weight(out: int, into: int, size: int, gain: float = 1.0) -> nn.Parameter:
    """A convolution's weights, such that white noise of variance 1 becomes noise of variance `gain`.

    With channels last in memory, as the images have them: half the time on a CPU.
    """
    weight = torch.randn(out, into, size, size) * math.sqrt(gain / (into * size * size))
    return nn.Parameter(weight.contiguous(memory_format=torch.channels_last))


def extend(x: Tensor, multiple: int) -> Tensor:
    """Reflect an image at its last row and column, up to sides that are multiples of a number."""
    height, width = x.shape[-2:]
    more = (0, -width % multiple, 0, -height % multiple)
    return F.pad(x, more, mode="reflect") if any(more) else x


def fold(g: Tensor, shape: torch.Size) -> Tensor:
    """The transpose of `extend`: what lies beyond the image is added where it was reflected from."""
    for axis, length in ((-2, shape[0]), (-1, shape[1])):
        beyond = g.shape[axis] - length
        if beyond:
            inside, outside = g.split([length, beyond], axis)
            before = length - 1 - beyond
            begin, middle, end = inside.split([before, beyond, 1], axis)
            g = torch.cat([begin, middle + outside.flip(axis), end], axis)
    return g
