"""The light U-Net as a denoiser, and its weights on disk: safetensors of 16 bits, with a card."""

from __future__ import annotations

import copy
import json
import operator
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from plugstream.base.cuda_graphs import GraphCall
from plugstream.base.errors import InputError, StorageError
from plugstream.base.tensors import load_tensors, save_tensors
from plugstream.denoisers import forms
from plugstream.denoisers.base import Sigma, levels
from plugstream.denoisers.networks import fused
from plugstream.denoisers.networks.light_unet import Form, LightUNet
from plugstream.denoisers.networks.trained import TrainedNetwork
from plugstream.denoisers.networks.triton_form import LARGEST, Triton

FOLDER = Path(__file__).parent / "weights"
PROFILES = ("safe", "free")
_FORMAT = "plugstream-unet"
_address, _version = Tensor.data_ptr, operator.attrgetter("_version")
_MOST_CAPTURED = 1024 * 1024  # pixels of a graph, with 0.3 GB; kernels of more take longer than their launches


class UNet(TrainedNetwork):
    r"""A trained network for photographs and noise of 0 to 55 of 255, free or safe (`LightUNet`).

    *free*, D(z, sigma) = z - R_sigma(z), is the better denoiser. Nothing bounds it: in a loop of many steps it can
    diverge, so use it in a few steps with a falling sigma, or damped.

    *safe*, D(z, sigma) = z - grad g_sigma(z), is a gradient step of the potential g = 1/2 ||R_sigma||^2. Let L be the
    Lipschitz constant of grad g = I - D, which `certify` bounds from below. Damped by t (`Damping`) it is a gradient
    step of t g, and if l = t L < 1 it is the prox of a function phi >= t g that is l / (l + 1)-weakly convex. Then
    x^k = D_t(x^{k-1} - gamma grad d(x^{k-1})), with all views and no momentum, lowers gamma d + phi in every step if
    gamma L_d < (l + 2) / (l + 1), which gamma = 1 / L_d always is. The distances ||x^k - x^{k-1}||^2 then have a finite
    sum, and limit points are stationary points. With few views and a constant step it comes as near to one as the
    variance of their gradient allows; `SVRG` and `SAGA` take that away, as measured. Bounds that are kept by clipping,
    longer steps and momentum are not covered. What was measured in the loop stands in docs/networks.md.

    On CUDA, images of float32 go through the network in float16, as a CUDA graph; what is removed then differs from
    that of float32 by 0.1 to 0.3 %. On the CPU they go by a native kernel in float32 (`fused`).

    Arguments:
        weights: "safe" (also if not given) or "free", which are for those that ship with plugstream, a file made by
            `plugstream train unet`, or a `LightUNet`.
        white: the image's value for white, D(z, sigma) = white D_1(z / white, sigma / white).
    References: Hurault, Leclaire and Papadakis, ICML 2022, Proposition 3.1; Hurault et al., SSVM 2023 (the step); Davis
    and Drusvyatskiy, SIAM J. Optim. 29, 2019 (few views).
    """

    def __init__(self, weights: str | Path | LightUNet | None = None, *, white: float = 1.0) -> None:
        network = weights if isinstance(weights, LightUNet) else load_unet(_find(weights))[0]
        super().__init__(network, white=white, min_size=network.multiple, gradient_step=network.form == "safe")
        self.network, self.reach, self.align = network, network.reach, network.multiple
        self._weights, self._fits = list(network.parameters()), fused.serves(network)
        self._forms: dict[torch.device, tuple[object, Callable[..., Tensor]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_forms": {}}  # a copy makes its own

    def describe(self) -> str:
        return f"the {self.network.form} U-Net"

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, None]:
        # Images of a loop come to a GPU again and again, which waits for all these lines.
        graph = key = None
        if image.is_cuda and type(sigma) is float and self.white == 1 and image.is_contiguous():
            graph, key = self._form(image), (image.data_ptr(), image.shape, sigma)
        if not isinstance(graph, GraphCall):
            return super().denoise(image, sigma)
        known = graph.again(key, image)
        if known is not None:
            return known.view(image.shape), None
        out, _ = super().denoise(image, sigma)
        graph.remember(key, image.view(-1, 1, *image.shape[-2:]), levels(sigma, image))
        return out, None

    def _call(self, *inputs: Tensor) -> Tensor:
        form = self._form(inputs[0])
        return super()._call(*inputs) if form is None else form(*inputs)

    def _form(self, image: Tensor) -> Callable[..., Tensor] | None:
        """The fast form for such images with the weights as they are now, without the modules of the network."""
        half = image.is_cuda and image.dtype == torch.float32
        if not (half or (self._fits and forms.native_serves(image))) or forms.differentiated(image, *self._weights):
            return None
        stamp = list(map(_address, self._weights)), list(map(_version, self._weights))
        if self._forms.get(image.device, (None,))[0] != stamp:
            form = _in_half(self.network, image.device) if half else fused.Native(self.network).denoise
            self._forms[image.device] = stamp, form
        return self._forms[image.device][1]


def _in_half(network: LightUNet, device: torch.device) -> GraphCall:
    """A network in float16, by the kernels of ours if they serve."""
    half = copy.deepcopy(network).to(device).half()
    if forms.has_triton() and fused.serves(half):
        return GraphCall(Triton(half).denoise, largest=_MOST_CAPTURED, in_place=True)
    return GraphCall(partial(_call_in_half, half.noise if half.form == "free" else half.gradient))


def _call_in_half(remove: Callable[[Tensor, Tensor], Tensor], image: Tensor, sigma: Tensor) -> Tensor:
    """Images less what a network of float16 removes.

    Images with larger values than usual are divided first; for the free form that changes nothing.
    """
    scale = (image.abs().amax(3).amax((1, 2)) / LARGEST).clamp(min=1.0)  # in two steps: in one it takes far longer
    per_image = scale.reshape(-1, 1, 1, 1)
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        removed = remove((image / per_image).half(), (sigma / scale).half())
    return image - removed.float() * per_image


def _find(weights: str | Path | None) -> Path:
    """The file of a profile of ours, or the file itself."""
    if weights is None or weights in PROFILES:
        profile = weights or PROFILES[0]
        file = FOLDER / f"unet-{profile}.safetensors"
        if not file.is_file():
            raise InputError(
                f"no {profile} weights of unet are installed; train some with 'plugstream train unet', and name their "
                "file as weights"
            )
        return file
    return Path(weights)


def save_unet(path: str | Path, network: LightUNet, card: Mapping[str, Any], high: float) -> None:
    """Write the weights, rounded to 16 bits, with a card (data, seed, command, figures) and a checksum of all.

    Arguments: high, the largest noise level of the training, with values from 0 to 1.
    """
    tensors = {name: value.half() for name, value in network.state_dict().items()}
    tensors["levels"] = torch.tensor([0.0, high])
    about = {
        "format": _FORMAT,
        "form": network.form,
        "channels": json.dumps(network.channels),
        "blocks": json.dumps(network.blocks),
        "card": json.dumps(dict(card)),
    }
    try:
        save_tensors(Path(path), tensors, about)
    except OSError as error:
        raise StorageError(f"cannot write the weights {path}: {error.strerror}") from error


def load_unet(path: str | Path, form: Form | None = None) -> tuple[LightUNet, dict[str, Any]]:
    """Read what `save_unet` wrote: the network, in float32 and without gradients, and its card.

    Arguments: form, to make the other form of the same weights, as a start of its training.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"there are no weights of unet at {file}; train some with 'plugstream train unet'")
    try:
        about, tensors = load_tensors(file, _FORMAT)
    except InputError as error:
        raise InputError(f"the weights {file} cannot be used: {error}") from error
    tensors.pop("levels", None)
    try:
        kind = form or cast("Form", about["form"])
        network = LightUNet(json.loads(about["channels"]), json.loads(about["blocks"]), kind)
        network.load_state_dict({name: value.float() for name, value in tensors.items()})
        card: dict[str, Any] = json.loads(about["card"])
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        line = str(error).splitlines()[-1].strip()
        raise InputError(f"{file} holds other weights than those of our U-Net ({line})") from error
    return network.requires_grad_(False).eval(), card
