"""Denoisers of other packages and of users' files as ours, and ours as theirs."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from plugstream.base.errors import InputError
from plugstream.base.tensors import read_state
from plugstream.base.user_code import load_from_file
from plugstream.denoisers.base import Denoiser, Sigma, levels, require_real
from plugstream.denoisers.wrap import FromFunction, FromModule, as_denoiser


class FromNumpy(Denoiser):
    """A function of one NumPy image and its noise level as a denoiser, image by image; nothing is known of it.

    Arguments: function, from (H, W) of float64 and a number to (H, W), or (D, H, W) with ndim = 3, with C before them
    with channels; min_size.
    """

    def __init__(
        self, function: Callable[[Any, float], Any], *, min_size: int = 1, ndim: int = 2, channels: bool = False
    ) -> None:
        self.function, self.min_size, self.ndim, self.channels = function, min_size, ndim, channels

    @torch.no_grad()
    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, None]:
        require_real(image, "a function of NumPy images")
        stack = image.reshape(-1, *image.shape[-self.axes :]).double().cpu().numpy()
        noise = levels(sigma, image, self.axes, torch.float64).tolist()
        if not noise:
            return image.clone(), None
        out = np.stack([z if s == 0 else self.function(z, s) for z, s in zip(stack, noise, strict=True)])
        if out.shape != stack.shape:
            raise InputError(f"the denoiser's function returned {out.shape[1:]} for an image of {stack.shape[1:]}")
        return torch.from_numpy(out).to(image).reshape(image.shape), None


def from_deepinv(denoiser: nn.Module, *, channels: int = 1, averaged: float | None = None) -> Denoiser:
    """A deepinv denoiser, which takes (N, C, H, W) and a sigma for each image, as one of ours.

    A model for colour gets grey images three times, and the mean of its channels is taken. A model without parameters
    (deepinv's TV, for instance) may remember its last call, so each call is made on a copy.

    Arguments: denoiser, a `deepinv.models.Denoiser`; channels, 1 or 3, that it was made for.
    Reference: deepinv, https://deepinv.github.io.
    """
    if channels not in (1, 3):
        raise InputError(f"a deepinv denoiser has 1 or 3 channels, not {channels}")
    trained = _has_parameters(denoiser)
    if not trained or channels > 1:
        denoiser = _Grey(denoiser, channels, fresh=not trained)
    return FromModule(denoiser, condition="scalar", averaged=averaged)


class _Grey(nn.Module):
    """A module for images of one channel; with `fresh` each call is made on a copy."""

    def __init__(self, module: nn.Module, channels: int, fresh: bool) -> None:
        super().__init__()
        self.module, self.channels, self.fresh = module, channels, fresh

    def forward(self, images: Tensor, sigma: Tensor) -> Tensor:
        module = copy.deepcopy(self.module) if self.fresh else self.module
        out: Tensor = module(images.expand(-1, self.channels, -1, -1), sigma)
        return out if self.channels == 1 else out.mean(1, keepdim=True)


def deepinv_by_name(
    name: str, weights: str | Path | None = None, *, channels: int = 1, unpickle: bool = False
) -> Denoiser:
    """A denoiser of `deepinv.models` by the name of its class, with weights from a file; nothing is downloaded.

    Arguments:
        name: such as "DRUNet" or "TVDenoiser". weights: its state, .safetensors, or .pt and .pth with `unpickle`;
        needed if it has parameters. channels: 1, or 3 for a model of colour images.
    Reference: deepinv, https://deepinv.github.io.
    """
    models = _import("deepinv.models", "pip install deepinv")
    kinds = {
        key: kind
        for key, kind in vars(models).items()
        if isinstance(kind, type) and issubclass(kind, models.Denoiser) and kind is not models.Denoiser
    }
    if name not in kinds:
        raise InputError(f"deepinv has no denoiser {name!r}; it has {', '.join(sorted(kinds))}")
    options: dict[str, int | None] = {"pretrained": None}
    options |= dict.fromkeys(("in_channels", "out_channels", "img_channels", "in_chans", "in_nc", "channels"), channels)
    parameters = inspect.signature(kinds[name]).parameters
    try:
        model = kinds[name](**{key: value for key, value in options.items() if key in parameters})
    except Exception as error:
        raise InputError(_first_line(f"deepinv's {name} cannot be made by its name", error)) from error
    if weights is not None:
        _load_weights(model, Path(weights), unpickle)
    elif _has_parameters(model):
        raise InputError(f"deepinv's {name} is not trained as it is; give its weights as .safetensors with --weights")
    return from_deepinv(model, channels=channels)


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _first_line(text: str, error: Exception) -> str:
    return f"{text}: {type(error).__name__}: {error}".splitlines()[0]


def as_module(denoiser: Denoiser) -> nn.Module:
    """One of ours as an nn.Module of (N, C, H, W) and sigma, channel by channel: a `deepinv.models.Denoiser`, or a
    plain module if deepinv is not installed."""
    try:
        base: Any = importlib.import_module("deepinv.models").Denoiser
    except ImportError:
        base = nn.Module

    class Adapter(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.denoiser = as_denoiser(denoiser)

        def forward(self, x: Tensor, sigma: float | Tensor, **ignored: Any) -> Tensor:
            if isinstance(sigma, Tensor) and sigma.numel() > 1:
                sigma = sigma.reshape(-1, 1).expand(x.shape[:2])
            elif isinstance(sigma, Tensor):
                sigma = float(sigma)
            return self.denoiser(x, sigma)

    module: nn.Module = Adapter()
    return module


def from_bm3d() -> Denoiser:
    """PyPI's `bm3d` as a denoiser, for comparison: closed, not for commercial use, and not needed by plugstream.

    Reference: Makinen, Azzari and Foi, IEEE Trans. Image Process. 29, 2020.
    """
    peer = _import("bm3d", "pip install bm3d; read its licence")
    return FromNumpy(lambda z, sigma: peer.bm3d(z, sigma), min_size=8)


def from_skimage(name: Literal["tv", "nlm", "wavelet", "bilateral"], **options: Any) -> Denoiser:
    """A denoiser of scikit-image: Chambolle's TV, non-local means, BayesShrink wavelets or the bilateral filter.

    sigma is the noise's for "nlm" (with h = 0.8 sigma) and "wavelet", the spread in value for "bilateral", and for "tv"
    the root of the weight, as in `TV`: weight = sigma^2. `options` go to the function and take precedence.

    Reference: scikit-image, https://scikit-image.org.
    """
    restoration = _import("skimage.restoration", "pip install scikit-image")
    if name == "wavelet":
        _import("pywt", "pip install PyWavelets")
    functions: dict[str, Callable[[Any, float], Any]] = {
        "tv": lambda z, s: restoration.denoise_tv_chambolle(z, **{"weight": s * s, **options}),
        "nlm": lambda z, s: restoration.denoise_nl_means(z, **{"sigma": s, "h": 0.8 * s, **options}),
        "wavelet": lambda z, s: restoration.denoise_wavelet(z, **{"sigma": s, "rescale_sigma": True, **options}),
        "bilateral": lambda z, s: _shift_to_positive(restoration.denoise_bilateral, z, {"sigma_color": s, **options}),
    }
    if name not in functions:
        raise InputError(f"scikit-image's denoisers here are {', '.join(functions)}, not {name!r}")
    return FromNumpy(functions[name])


def _shift_to_positive(function: Callable[..., Any], z: Any, options: dict[str, Any]) -> Any:
    """The bilateral filter takes no negative values; it commutes with adding a constant."""
    low = float(z.min())
    return function(z - low, **options) + low


def from_file(
    where: str,
    weights: str | Path | None = None,
    *,
    condition: Literal["none", "scalar", "map"] = "none",
    residual: bool = False,
    averaged: float | None = None,
    unpickle: bool = False,
) -> Denoiser:
    """Your own function or network, from a Python file and a file of weights, as a denoiser.

    The file is run as Python. The name in it is a function of an image and a noise level, f(z, sigma) or f(z), an
    nn.Module, a `Denoiser`, or a class or function that makes one of these without arguments. Weights are safetensors;
    a pickle can run any code when it is opened, and is refused unless `unpickle` says that its author is trusted.

    Arguments:
        where: "path/to/module.py:Name". weights: its state, .safetensors, or .pt and .pth with `unpickle`.
        condition, residual, averaged: as for `FromModule`.
    """
    path, _, name = where.rpartition(":")
    title = f"{name} of {Path(path)}"
    content = _load_function(where)
    if isinstance(content, Denoiser):
        if weights is not None:
            raise InputError(f"{title} is a denoiser already and takes no weights")
        return content
    if isinstance(content, nn.Module):
        if weights is not None:
            _load_weights(content, Path(weights), unpickle)
        return FromModule(content, condition=condition, residual=residual, averaged=averaged)
    if callable(content):
        if weights is not None or residual or condition != "none":
            raise InputError(f"{title} is a function; weights, condition and residual are for networks")
        return FromFunction(content, averaged=averaged)
    raise InputError(f"{title} is {type(content).__name__}, not a function, an nn.Module or a Denoiser")


def _load_function(where: str) -> Any:
    """What a name in a file stands for: itself, or its result if it needs no arguments."""
    content = load_from_file(where)
    if isinstance(content, nn.Module | Denoiser) or not callable(content):
        return content
    if not isinstance(content, type) and _needs_arguments(content):
        return content
    try:
        return content()
    except Exception as error:
        raise InputError(_first_line(f"{where} cannot be made without arguments", error)) from error


def _needs_arguments(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of some that are not Python's
        return False
    return any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def _load_weights(module: nn.Module, file: Path, unpickle: bool) -> None:
    if not file.is_file():
        raise InputError(f"there are no weights at {file}")
    state: Any
    if unpickle and file.suffix != ".safetensors":
        try:
            state = torch.load(file, map_location="cpu", weights_only=False)
        except Exception as error:
            raise InputError(f"{file} cannot be unpickled: {error}".splitlines()[0]) from error
        if isinstance(state, dict) and "state_dict" in state:
            state = state["state_dict"]
    else:
        state = read_state(file, remedy=", or say --unpickle (unpickle=True) if you trust its author")
    try:
        module.load_state_dict(state)
    except (RuntimeError, AttributeError, TypeError) as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise InputError(f"the weights of {file} do not fit: {lines[min(1, len(lines) - 1)]}") from error


def _import(name: str, how: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"{name.split('.')[0]} is not installed; {how}") from error
