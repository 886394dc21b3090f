"""Published networks by their weights: the layouts of DRUNet, DnCNN and GS-DRUNet, written anew with the same names.

A file holds a state dictionary, as safetensors or as .pt, .pth and .ckpt, of which torch reads tensors and plain values
alone (`weights_only`), so that no file runs code. Numbers of channels, blocks and layers are read off the weights.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plugstream.base.errors import InputError
from plugstream.base.tensors import read_state
from plugstream.denoisers.base import Denoiser
from plugstream.denoisers.networks.trained import TrainedNetwork
from plugstream.denoisers.networks.unet import UNet

State = Mapping[str, Tensor]
_WRAPPERS = ("module.", "student_grad.model.", "model.model.", "denoiser.", "net.")  # of keys, by others' training code
_DNCNN_EPS = 1e-4  # of batch normalisation there


class DRUNet(nn.Module):
    """The U-Net of KAIR, DPIR and deepinv: four scales, residual blocks without bias, sigma as the last channel.

    Arguments: state, whose weights fix its sizes; smooth, with ELU instead of ReLU.
    Reference: Zhang et al., IEEE Trans. Pattern Anal. Mach. Intell. 44, 2022.
    """

    multiple = 8

    def __init__(self, state: State, smooth: bool = False) -> None:
        super().__init__()
        first = _shape(state, "m_head.weight")
        blocks = len([key for key in state if re.fullmatch(r"m_body\.\d+\.res\.0\.weight", key)])
        widths = [first[0], *(_shape(state, f"m_down{level}.{blocks}.weight")[0] for level in (1, 2, 3))]
        self.images = first[1] - 1

        def residual(level: int) -> list[nn.Module]:
            return [_Residual(widths[level], smooth) for _ in range(blocks)]

        self.m_head = _convolution(first[1], widths[0])
        self.m_tail = _convolution(widths[0], self.images)
        self.m_body = nn.Sequential(*residual(3))
        for level in (1, 2, 3):
            thin, wide = widths[level - 1], widths[level]
            down = nn.Conv2d(thin, wide, 2, 2, bias=False)
            up = nn.ConvTranspose2d(wide, thin, 2, 2, bias=False)
            self.add_module(f"m_down{level}", nn.Sequential(*residual(level - 1), down))
            self.add_module(f"m_up{level}", nn.Sequential(up, *residual(level - 1)))

    def forward(self, images: Tensor, sigma: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        level = sigma.reshape(-1, 1, 1, 1).expand(-1, 1, height, width)
        x = torch.cat([images, level], 1)
        x = F.pad(x, (0, -width % self.multiple, 0, -height % self.multiple), mode="replicate")
        inputs = [self.m_head(x)]
        for number in (1, 2, 3):
            inputs.append(self.get_submodule(f"m_down{number}")(inputs[-1]))
        out = self.m_body(inputs[3])
        for number in (3, 2, 1):
            out = self.get_submodule(f"m_up{number}")(out + inputs[number])
        clean: Tensor = self.m_tail(out + inputs[0])
        return clean[..., :height, :width]


class _Residual(nn.Module):
    def __init__(self, channels: int, smooth: bool) -> None:
        super().__init__()
        activation = nn.ELU() if smooth else nn.ReLU()
        self.res = nn.Sequential(_convolution(channels, channels), activation, _convolution(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.res(x)
        return out


class GradientStep(nn.Module):
    """x - grad g(x) with g = 1/2 ||x - N(x, sigma)||^2, by automatic differentiation of any network N.

    Reference: Hurault, Leclaire and Papadakis, ICLR 2022.
    """

    def __init__(self, network: DRUNet) -> None:
        super().__init__()
        self.network, self.images = network, network.images

    def potential(self, images: Tensor, sigma: Tensor) -> Tensor:
        residual: Tensor = images - self.network(images, sigma)
        return 0.5 * residual.square().sum((1, 2, 3))

    def forward(self, images: Tensor, sigma: Tensor) -> Tensor:
        follow = torch.is_grad_enabled() and images.requires_grad
        with torch.enable_grad():
            x = images if follow else images.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.potential(x, sigma).sum(), x, create_graph=follow)
        return images - gradient


class DnCNN(nn.Module):
    """A chain of convolutions for one noise level: the noise with KAIR's names, the image less it with deepinv's.

    Batch normalisation, of KAIR's with names of it, is that of evaluation.
    Reference: Zhang et al., IEEE Trans. Image Process. 26, 2017.
    """

    def __init__(self, state: State) -> None:
        super().__init__()
        self.sign = 1.0 if "in_conv.weight" in state else -1.0
        if self.sign > 0:
            inner = sorted({int(match[1]) for key in state if (match := re.match(r"conv_list\.(\d+)\.weight", key))})
            self.in_conv = _like(state, "in_conv")
            self.conv_list = nn.ModuleList(_like(state, f"conv_list.{number}") for number in inner)
            self.out_conv = _like(state, "out_conv")
        else:
            last = max((int(match[1]) for key in state if (match := re.match(r"model\.(\d+)\.", key))), default=-1)
            _shape(state, "model.0.weight")
            self.model = nn.Sequential(*(_layer(state, f"model.{number}") for number in range(last + 1)))
        convolutions = [module for module in self.modules() if isinstance(module, nn.Conv2d)]
        self.images = convolutions[0].in_channels
        if convolutions[-1].out_channels != self.images:
            raise InputError(f"its images have {self.images} channels, but its results {convolutions[-1].out_channels}")

    def forward(self, images: Tensor) -> Tensor:
        if self.sign < 0:
            noise: Tensor = self.model(images)
            return images - noise
        x = F.relu(self.in_conv(images))
        for layer in self.conv_list:
            x = F.relu(layer(x))
        change: Tensor = self.out_conv(x)
        return images + change


def _convolution(into: int, out: int) -> nn.Conv2d:
    return nn.Conv2d(into, out, 3, padding=1, bias=False)


def _like(state: State, name: str) -> nn.Conv2d:
    """A convolution of the size of the weights of this name."""
    out, into, size, _ = _shape(state, f"{name}.weight")
    return nn.Conv2d(into, out, size, padding=size // 2, bias=f"{name}.bias" in state)


def _layer(state: State, name: str) -> nn.Module:
    if f"{name}.running_mean" in state:
        return nn.BatchNorm2d(len(state[f"{name}.running_mean"]), eps=_DNCNN_EPS)
    return _like(state, name) if f"{name}.weight" in state else nn.ReLU()


def _shape(state: State, name: str) -> tuple[int, ...]:
    weight = state.get(name)
    if weight is None or weight.ndim != 4:
        raise InputError(f"it has no convolution {name!r}, so these are weights of another network")
    return tuple(weight.shape)


ARCHITECTURES: dict[str, Callable[[State], nn.Module]] = {
    "drunet": DRUNet,
    "gs-drunet": lambda state: GradientStep(DRUNet(state, smooth=True)),
    "dncnn": DnCNN,
}


class Published(TrainedNetwork):
    """A published network as a denoiser of grey images, by a file of its weights; nothing is known to be averaged.

    A network of colour images gets grey ones three times, and the mean of its channels is taken. DnCNN was trained for
    one noise level and takes no notice of sigma.

    Arguments: file; architecture, "drunet", "gs-drunet" or "dncnn"; white, the image's value for white.
    """

    def __init__(self, file: str | Path, architecture: str, *, white: float = 1.0) -> None:
        if architecture not in ARCHITECTURES:
            raise InputError(f"architectures are {', '.join(ARCHITECTURES)} and unet, not {architecture!r}")
        self.name, path = architecture, Path(file)
        if not path.is_file():
            raise InputError(f"there are no weights at {path}")
        state = _bare(read_state(path))
        try:
            network: Any = ARCHITECTURES[architecture](state)
            if network.images not in (1, 3):
                raise InputError(f"its images have {network.images} channels, where grey has 1 and colour 3")
            inner = network.network if isinstance(network, GradientStep) else network
            inner.load_state_dict(state)
        except InputError as error:
            raise InputError(f"{path} cannot be used as {architecture}: {error}") from None
        except RuntimeError as error:
            lines = [line.strip() for line in str(error).splitlines()]
            raise InputError(f"{path} cannot be used as {architecture}: {lines[min(1, len(lines) - 1)]}") from error
        network.requires_grad_(False)
        module = _Grey(network) if network.images == 3 else network
        super().__init__(
            module,
            white=white,
            condition="none" if architecture == "dncnn" else "scalar",
            gradient_step=isinstance(module, GradientStep),
        )

    def describe(self) -> str:
        return self.name


class _Grey(nn.Module):
    """A network of colour images for grey ones."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor, *sigma: Tensor) -> Tensor:
        out: Tensor = self.network(images.expand(-1, 3, -1, -1), *sigma)
        return out.mean(1, keepdim=True)


def from_weights(file: str | Path, architecture: str | None = None, *, white: float = 1.0) -> Denoiser:
    """The denoiser whose weights a file holds; our own U-Nets say what they are.

    Arguments: file, .safetensors, or a state dictionary as .pt, .pth or .ckpt; architecture, of others' networks;
    white, the image's value for white.
    """
    if architecture == "unet":
        return UNet(Path(file), white=white)
    if architecture is not None:
        return Published(file, architecture, white=white)
    try:
        return UNet(Path(file), white=white)
    except InputError as error:
        if not Path(file).is_file():
            raise
        raise InputError(
            f"{file} does not say which network it is for; give --architecture {', '.join(ARCHITECTURES)}"
        ) from error


def _bare(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state without the name of a module that all of it is in."""
    for prefix in _WRAPPERS:
        if all(key.startswith(prefix) for key in state):
            return _bare({key.removeprefix(prefix): value for key, value in state.items()})
    return state
