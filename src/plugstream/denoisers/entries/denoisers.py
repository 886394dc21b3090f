"""The denoisers by name, with what is known of each (`plugstream.denoisers.facts`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plugstream.base.class_entries import register_class
from plugstream.base.errors import InputError
from plugstream.base.registry import Field, Options, register

if TYPE_CHECKING:
    from plugstream.denoisers.base import Denoiser


_FILE: dict[str, Any] = {"file": True}
_OURS: dict[str, Any] = {"licence": "Apache-2.0"}
_FAST: dict[str, Any] = {**_OURS, "cpu": "native", "cuda": "Triton"}
_COMPILED: dict[str, Any] = {**_FAST, "cuda": "CUDA C++"}
_FALLING: dict[str, Any] = {"falls": lambda settings: True}
_NETWORK: dict[str, Any] = {**_FALLING, "damping": lambda settings: 0.3}


class SolverOptions(Options):
    """Of iterative denoisers."""

    tol: float | None = Field(
        None, ge=0, le=1, description="guaranteed relative error; the denoiser's default if not given"
    )
    max_iterations: int | None = Field(
        None, ge=1, le=10**12, description="limit on iterations; the denoiser's default if not given"
    )

    @property
    def accuracy(self) -> dict[str, Any]:
        """Those of both that are given."""
        both = {"tol": self.tol, "max_iterations": self.max_iterations}
        return {name: value for name, value in both.items() if value is not None}


class BM3DOptions(Options):
    """Of BM3D."""

    profile: Literal["normal", "fast"] = Field("normal", description="parameters of BM3D")


class BM4DOptions(Options):
    """Of BM4D."""

    profile: Literal["normal", "fast"] = Field("normal", description="parameters of BM4D")


class NLMOptions(Options):
    """Of non-local means."""

    guide: str | None = Field(
        None,
        description="a fixed guide, which makes it averaged: a picture or .npy of the image's size",
        json_schema_extra={"flag": "nlm-guide", "note": "with {} as its guide", **_FILE},
    )


class TrainedOptions(Options):
    """Of trained denoisers that come with weights."""

    weights: str | None = Field(
        None, description="file of trained weights, for tnrd a folder too; ours if not given", json_schema_extra=_FILE
    )
    white: float = Field(1.0, ge=1e-100, le=1e100, description="the image's value for white")


class RidgeOptions(TrainedOptions, SolverOptions):
    """Of the convex ridge prior."""

    profile: Literal["normal", "fast"] = Field(
        "normal", description="which of our weights; fast takes half the time and loses up to 0.4 dB at strong noise"
    )


class UNetOptions(TrainedOptions):
    """Of our U-Net."""

    profile: Literal["safe", "free"] = Field(
        "safe", description="which of our weights: safe, a gradient step of a potential, or free, nearer to the truth"
    )


class WeightsOptions(Options):
    """Of a file of weights."""

    architecture: Literal["drunet", "gs-drunet", "dncnn", "unet"] | None = Field(
        None, description="the network that a file of weights is for; ours say it themselves"
    )
    white: float = Field(1.0, ge=1e-100, le=1e100, description="the image's value for white")


class NetworkOptions(Options):
    """Of networks."""

    weights: str | None = Field(
        None, description="file of trained weights; the network's own if not given", json_schema_extra=_FILE
    )
    unpickle: bool = Field(
        False,
        description="open weights that are a pickle, which can run any code: only from authors you trust",
        json_schema_extra={"switch": True, "consent": True},
    )


class DeepinvOptions(NetworkOptions):
    """Of deepinv's networks."""

    channels: int = Field(1, ge=1, le=4, description="1, or 3 for a network made for colour")


class FileOptions(NetworkOptions):
    """Of your own network."""

    condition: Literal["none", "scalar", "map"] = Field("none", description="how the network takes sigma")
    residual: bool = Field(False, description="the network predicts the noise", json_schema_extra={"switch": True})


def _total_variation(factor: float) -> Callable[[float], float]:
    """sigma of TV for noise s: within 0.03 dB of the best on twelve pictures of Train400, at noise 5 to 50 of 255."""
    return lambda noise: math.sqrt(factor * noise * (10.2 * noise) ** 0.3)


_TV: dict[str, Any] = {
    **_FAST,
    "options": SolverOptions,
    "sigma": "weight",
    "averaged": 0.5,
    "why": "the exact prox of a convex function, up to tol",
    "bounded": True,
}


def _declare_tv(name: str, text: str, factor: float, arguments: str, *, isotropic: bool) -> None:
    @register("denoiser", name, text, noise=_total_variation(factor), object=f"TV({arguments})", **_TV)
    def build(options: SolverOptions, *, low: float, high: float) -> Denoiser:
        from plugstream.denoisers.tv import TV

        return TV(isotropic=isotropic, low=low, high=high, **options.accuracy)


_declare_tv("tv", "piecewise constant images", 0.8, "", isotropic=True)
_declare_tv("tv-anisotropic", "piecewise constant, upright edges", 0.64, "isotropic=False", isotropic=False)


def _declare(name: str, text: str, place: str, **how: Any) -> None:
    register_class(__name__, "denoiser", name, text, f"plugstream.denoisers.{place}", **how)


_declare("bm3d", "self-similar images", "bm3d:BM3D", options=BM3DOptions, object="BM3D()", **_COMPILED, **_FALLING)
_declare("bm4d", "self-similar volumes", "bm4d:BM4D", options=BM4DOptions, object="BM4D()", **_COMPILED)


@register(
    "denoiser",
    "nlm",
    "self-similar images",
    options=NLMOptions,
    object="NLM(guide)",
    guided=True,
    why="with a fixed guide 1/2: a symmetric, doubly stochastic, positive semidefinite matrix; without, not known",
    **_FAST,
)
def build_nlm(options: NLMOptions) -> Denoiser:
    from plugstream.denoisers.nlm import NLM
    from plugstream.images.pictures import load_picture

    return NLM(None if options.guide is None else load_picture(options.guide))


@register(
    "denoiser",
    "tnrd",
    "photographs, trained",
    options=TrainedOptions,
    files="tnrd/weights/*.safetensors",
    object="TNRD()",
    **_FAST,
    **_FALLING,
)
def build_tnrd(options: TrainedOptions) -> Denoiser:
    from plugstream.denoisers.tnrd import TNRD

    white = options.white
    return TNRD(white=white) if options.weights is None else TNRD.load(options.weights, white=white)


@register(
    "denoiser",
    "ridge",
    "photographs, trained, convex",
    options=RidgeOptions,
    averaged=0.5,
    object="ConvexRidge()",
    why="the prox of a convex sum of ridge functions, by construction, up to tol",
    files="weights/ridge*.safetensors",
    **_COMPILED,
    **_FALLING,
)
def build_ridge(options: RidgeOptions) -> Denoiser:
    from plugstream.denoisers.ridge import ConvexRidge

    if options.weights is not None and options.profile != "normal":
        raise InputError("a profile of ridge is a choice of our weights; leave out profile, or weights")
    weights = options.profile if options.weights is None else Path(options.weights)
    return ConvexRidge(weights, scale=options.white, **options.accuracy)


@register(
    "denoiser",
    "unet",
    "photographs, a trained network",
    options=UNetOptions,
    object="UNet()",
    why="not averaged; safe, it is a gradient step of a potential, by construction",
    files="networks/weights/unet-*.safetensors",
    **_NETWORK,
    **_FAST,
)
def build_unet(options: UNetOptions) -> Denoiser:
    from plugstream.denoisers.networks.unet import UNet

    if options.weights is not None and options.profile != "safe":
        raise InputError("a profile of unet is a choice of our weights; leave out profile, or weights")
    return UNet(options.profile if options.weights is None else Path(options.weights), white=options.white)


_PROX: dict[str, Any] = {**_OURS, "averaged": 0.5, "why": "a prox in closed form"}

_declare(
    "soft", "sparse images", "simple:SoftThreshold", sigma="weight", noise=math.sqrt, object="SoftThreshold()", **_PROX
)
_declare("box", "known bounds", "simple:Box", sigma="unused", bounded=True, object="Box()", **_PROX)
_declare(
    "identity",
    "none",
    "simple:Identity",
    averaged=0.0,
    why="it is the identity",
    sigma="unused",
    object="Identity()",
    **_OURS,
)
_declare(
    "pypi-bm3d",
    "self-similar images",
    "adapters:from_bm3d",
    needs=("bm3d",),
    object="from_bm3d()",
    licence="closed, not for commercial use",
    cpu="closed binary",
    cuda="closed binary, by the CPU",
)


def _declare_skimage(
    name: Literal["tv", "nlm", "wavelet", "bilateral"], text: str, needs: str = "skimage", **facts: Any
) -> None:
    @register(
        "denoiser",
        f"skimage-{name}",
        text,
        needs=(needs,),
        object=f'from_skimage("{name}")',
        licence="BSD-3-Clause",
        cpu="NumPy",
        cuda="NumPy, by the CPU",
        **facts,
    )
    def build(options: Options) -> Denoiser:
        from plugstream.denoisers.adapters import from_skimage

        return from_skimage(name)


_declare_skimage("tv", "piecewise constant images", sigma="weight", noise=_total_variation(0.8))
_declare_skimage("nlm", "self-similar images")
_declare_skimage("wavelet", "sparse in wavelets", "pywt")
_declare_skimage("bilateral", "smooth with edges", sigma="range", noise=lambda noise: 1.25 * noise)


@register(
    "denoiser",
    "deepinv:NAME",
    "deepinv's",
    options=DeepinvOptions,
    needs=("deepinv",),
    object="from_deepinv(...)",
    licence="BSD-3-Clause; its weights as they say",
    **(_NETWORK | {"falls": lambda settings: settings.name.lower() != "deepinv:dncnn"}),  # which knows one noise
)
def build_deepinv(options: DeepinvOptions, *, name: str) -> Denoiser:
    from plugstream.denoisers.adapters import deepinv_by_name

    network = name.removeprefix("deepinv:")
    return deepinv_by_name(network, options.weights, channels=options.channels, unpickle=options.unpickle)


@register(
    "denoiser",
    "FILE.pt",
    "a trained network of a known architecture",
    options=WeightsOptions,
    licence="as its weights say",
    object="from_weights(...)",
    **(_NETWORK | {"falls": lambda settings: settings.architecture != "dncnn"}),
)
def build_from_weights(options: WeightsOptions, *, name: str) -> Denoiser:
    from plugstream.denoisers.networks.published import from_weights

    return from_weights(name, options.architecture, white=options.white)


@register(
    "denoiser",
    "FILE.py:NAME",
    "yours",
    options=FileOptions,
    licence="yours",
    cpu="yours",
    cuda="yours",
    object="from_file(...)",
    damping=lambda settings: None if settings.condition == "none" else 0.3,  # else it may be no network
    falls=lambda settings: settings.condition != "none",
)
def build_from_file(options: FileOptions, *, name: str) -> Denoiser:
    from plugstream.denoisers.adapters import from_file

    return from_file(
        name, options.weights, condition=options.condition, residual=options.residual, unpickle=options.unpickle
    )
