"""The denoisers by name: what each is for, what is known of it, what it needs, and how it is made.

Reading the catalog imports neither torch nor any denoiser; making one does.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plugstream.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from plugstream.denoisers.base import Denoiser

__all__ = ["CATALOG", "Entry", "Options", "check_name", "find", "make"]

_HERE = Path(__file__).parent
_OURS = "Apache-2.0"
_SKIMAGE = {"licence": "BSD-3-Clause", "needs": "skimage", "cpu": "NumPy", "cuda": "NumPy, by the CPU"}


@dataclass(frozen=True)
class Options:
    """What a person can say of a denoiser besides its name. Options that a denoiser has no use for are refused, but
    for the bounds, which hold for all.

    Arguments:
        low, high: bounds of the image; denoisers that cannot keep them are given an image clipped to them.
        profile: of BM3D. weights: a file or folder of trained weights. white: the image's value for white, for trained
        models. tol, max_iterations: of TV and ridge; their own if None. guide: a fixed guide for NLM, (H, W).
        condition, residual, unpickle: of a network, as for `from_file`. channels: of a deepinv model, 1 or 3.
    """

    low: float = -math.inf
    high: float = math.inf
    profile: str = "normal"
    weights: str | None = None
    white: float = 1.0
    tol: float | None = None
    max_iterations: int | None = None
    guide: Tensor | None = None
    condition: Literal["none", "scalar", "map"] = "none"
    residual: bool = False
    channels: int = 1
    unpickle: bool = False

    @property
    def solver(self) -> dict[str, Any]:
        """The accuracy that was asked for, if any."""
        given = {"tol": self.tol, "max_iterations": self.max_iterations}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Entry:
    """A denoiser of the catalog.

    Arguments:
        name: for people, and in settings. prior: the images it is for.
        make: makes it, by the name as it was given and the options.
        averaged: theta where it is theta-averaged as made by its name alone; None if that is not known.
        why: the argument for that, or what would make it so.
        licence: of the code and, where there are some, of the weights that come with it.
        cpu, cuda: the form that runs there; "native" and "Triton" are torch where those are not installed.
        sigma: what sigma is: "noise", the standard deviation of the noise; "weight", the root of the prior's weight,
            D = prox_{sigma^2 r}; "range", the spread of values that are averaged; or "unused".
        noise: sigma for noise of standard deviation s and values from 0 to 1, as a function of s.
        needs: the module that it needs installed. files: the weights that come with it, as a pattern.
        takes: the options besides bounds that it has a use for.
        bounded: it keeps the bounds itself.
    """

    name: str
    prior: str
    make: Callable[[str, Options], Denoiser]
    averaged: float | None = None
    why: str = "not known"
    licence: str = _OURS
    cpu: str = "torch"
    cuda: str = "torch"
    sigma: Literal["noise", "weight", "range", "unused"] = "noise"
    noise: Callable[[float], float] = float
    needs: str | None = None
    files: str | None = None
    takes: frozenset[str] = frozenset()
    bounded: bool = False

    @property
    def missing(self) -> str | None:
        """Why it cannot be used here as it is, or None where it can."""
        if self.needs is not None and importlib.util.find_spec(self.needs) is None:
            return f"{_PACKAGES[self.needs]} is not installed"
        if self.files is not None and not any(_HERE.glob(self.files)):
            return "no weights are installed; give some with --weights"
        return None

    @property
    def trained_for(self) -> tuple[float, float] | None:
        """The least and the largest noise level that its weights were trained for, with values from 0 to 1."""
        levels = [level for file in sorted(_HERE.glob(self.files)) for level in _levels(file)] if self.files else []
        return (min(levels), max(levels)) if levels else None

    def forms(self) -> dict[str, str | None]:
        """The form that would run here on the CPU and on CUDA; None where there is no such device."""
        import torch

        from plugstream import _native
        from plugstream.denoisers import _triton

        cpu = "torch" if self.cpu == "native" and _native.load() is None else self.cpu
        cuda = "torch" if self.cuda == "Triton" and not _triton.available() else self.cuda
        return {"cpu": cpu, "cuda": cuda if torch.cuda.is_available() else None}

    def described(self) -> dict[str, Any]:
        """All that can be told of it, as JSON has it."""
        return {
            "name": self.name,
            "prior": self.prior,
            "missing": self.missing,
            "sigma": self.sigma,
            "trained_for": self.trained_for,
            "averaged": self.averaged,
            "why": self.why,
            "forms": {"cpu": self.cpu, "cuda": self.cuda},
            "forms_here": self.forms(),
            "licence": self.licence,
            "needs": None if self.needs is None else _PACKAGES[self.needs],
        }


def find(name: str) -> Entry:
    """The entry of a name: one of the catalog's, deepinv:NAME or FILE.py:NAME."""
    check_name(name)
    if name in CATALOG:
        return CATALOG[name]
    return CATALOG["deepinv:NAME" if name.startswith("deepinv:") else "FILE.py:NAME"]


def check_name(name: str) -> str:
    """The name, if there can be such a denoiser, and an error that lists all of them if not."""
    if name in CATALOG and ":" not in name:
        return name
    if re.fullmatch(r"deepinv:[A-Za-z_]\w*", name) or re.fullmatch(r"(?s).+\.py:[^\W\d]\w*", name):
        return name
    near = difflib.get_close_matches(name, CATALOG, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise InputError(f"there is no denoiser {name!r}; {hint}there are {', '.join(CATALOG)}")


def make(name: str, options: Options | None = None, *, damping: float | None = None) -> Denoiser:
    """A denoiser by its name, within its bounds, damped if asked for.

    Arguments: name, as for `find`; damping, theta of (1 - theta) I + theta D.
    """
    options = Options() if options is None else options
    entry = find(name)
    _check_options(name, entry, options)
    if not options.low < options.high:
        raise InputError(f"denoiser.low = {options.low} must be below denoiser.high = {options.high}")
    from plugstream.denoisers.wrap import Clipped, Damped

    denoiser = entry.make(name, options)
    if not entry.bounded and (math.isfinite(options.low) or math.isfinite(options.high)):
        denoiser = Clipped(denoiser, options.low, options.high)
    return denoiser if damping is None else Damped(denoiser, damping)


def _check_options(name: str, entry: Entry, options: Options) -> None:
    for option in fields(Options):
        value = getattr(options, option.name)
        if option.name in {"low", "high"} | entry.takes or value is option.default or value == option.default:
            continue
        users = [other.name for other in CATALOG.values() if option.name in other.takes]
        raise InputError(f"{name} has no use for {option.name}; leave it out, or choose {' or '.join(users)}")


def _tv(name: str, options: Options) -> Denoiser:
    from plugstream.denoisers.tv import TV

    return TV(isotropic=name == "tv", low=options.low, high=options.high, **options.solver)


def _bm3d(name: str, options: Options) -> Denoiser:
    from plugstream.denoisers.bm3d import BM3D

    return BM3D(options.profile)


def _nlm(name: str, options: Options) -> Denoiser:
    from plugstream.denoisers.nlm import NLM

    return NLM(options.guide)


def _tnrd(name: str, options: Options) -> Denoiser:
    from plugstream.denoisers.tnrd import TNRD

    white = options.white
    return TNRD(white=white) if options.weights is None else TNRD.load(options.weights, white=white)


def _ridge(name: str, options: Options) -> Denoiser:
    from plugstream.denoisers.ridge import ConvexRidge

    return ConvexRidge(options.weights, scale=options.white, **options.solver)


def _simple(name: str, options: Options) -> Denoiser:
    from plugstream.denoisers.simple import Box, Identity, SoftThreshold

    if name == "box":
        return Box(options.low, options.high)
    return SoftThreshold() if name == "soft" else Identity()


def _pypi_bm3d(name: str, options: Options) -> Denoiser:
    from plugstream.denoisers.adapters import from_bm3d

    return from_bm3d()


def _skimage(name: str, options: Options) -> Denoiser:
    from plugstream.denoisers.adapters import from_skimage

    return from_skimage(name.removeprefix("skimage-"))  # type: ignore[arg-type]


def _deepinv(name: str, options: Options) -> Denoiser:
    from plugstream.denoisers.adapters import deepinv_by_name

    return deepinv_by_name(
        name.removeprefix("deepinv:"), options.weights, channels=options.channels, unpickle=options.unpickle
    )


def _file(name: str, options: Options) -> Denoiser:
    from plugstream.denoisers.adapters import from_file

    return from_file(
        name, options.weights, condition=options.condition, residual=options.residual, unpickle=options.unpickle
    )


def _levels(file: Path) -> list[float]:
    """The noise levels of installed weights, on the scale 0 .. 1, without torch."""
    from safetensors import safe_open

    with safe_open(str(file), "np") as opened:
        about = opened.metadata() or {}
        if "sigma" in about:
            return [float(json.loads(about["sigma"])) / 255]
        return [float(level) for level in opened.get_tensor("levels")] if "levels" in opened.keys() else []  # noqa: SIM118


def _total_variation(factor: float) -> Callable[[float], float]:
    """sigma of TV for noise s: within 0.03 dB of the best on twelve pictures of Train400, at noise 5 to 50 of 255."""
    return lambda noise: math.sqrt(factor * noise * (10.2 * noise) ** 0.3)


_PACKAGES = {"bm3d": "PyPI's bm3d", "skimage": "scikit-image", "pywt": "PyWavelets", "deepinv": "deepinv"}
_PROX = "the exact prox of a convex function, up to tol"


def _entries() -> Iterator[Entry]:
    fast: dict[str, Any] = {"cpu": "native", "cuda": "Triton"}
    tv: dict[str, Any] = {"sigma": "weight", "averaged": 0.5, "why": _PROX, "bounded": True, **fast}
    tv["takes"] = frozenset({"tol", "max_iterations"})
    yield Entry("tv", "piecewise constant images", _tv, noise=_total_variation(0.8), **tv)
    yield Entry("tv-anisotropic", "piecewise constant, upright edges", _tv, noise=_total_variation(0.64), **tv)
    yield Entry("bm3d", "self-similar images", _bm3d, takes=frozenset({"profile"}), **fast)
    yield Entry(
        "nlm",
        "self-similar images",
        _nlm,
        why="with a fixed guide 1/2: a symmetric, doubly stochastic, positive semidefinite matrix; without, not known",
        takes=frozenset({"guide"}),
        **fast,
    )
    weights = frozenset({"weights", "white"})
    yield Entry("tnrd", "photographs, trained", _tnrd, files="tnrd/weights/*.safetensors", takes=weights, **fast)
    yield Entry(
        "ridge",
        "photographs, trained, convex",
        _ridge,
        averaged=0.5,
        why="the prox of a convex sum of ridge functions, by construction, up to tol",
        files="weights/ridge.safetensors",
        takes=weights | {"tol", "max_iterations"},
    )
    prox: dict[str, Any] = {"averaged": 0.5, "why": "a prox in closed form"}
    yield Entry("soft", "sparse images", _simple, sigma="weight", noise=math.sqrt, **prox)
    yield Entry("box", "known bounds", _simple, sigma="unused", bounded=True, **prox)
    yield Entry("identity", "none", _simple, averaged=0.0, why="it is the identity", sigma="unused")
    yield Entry(
        "pypi-bm3d",
        "self-similar images",
        _pypi_bm3d,
        licence="closed, not for commercial use",
        needs="bm3d",
        cpu="closed binary",
        cuda="closed binary, by the CPU",
    )
    skimage: dict[str, Any] = _SKIMAGE
    yield Entry(
        "skimage-tv", "piecewise constant images", _skimage, sigma="weight", noise=_total_variation(0.8), **skimage
    )
    yield Entry("skimage-nlm", "self-similar images", _skimage, **skimage)
    yield Entry("skimage-wavelet", "sparse in wavelets", _skimage, **{**skimage, "needs": "pywt"})
    yield Entry(
        "skimage-bilateral", "smooth with edges", _skimage, sigma="range", noise=lambda noise: 1.25 * noise, **skimage
    )
    network = {"weights", "unpickle"}
    yield Entry(
        "deepinv:NAME",
        "deepinv's",
        _deepinv,
        licence="BSD-3-Clause; its weights as they say",
        needs="deepinv",
        takes=frozenset(network | {"channels"}),
    )
    yield Entry(
        "FILE.py:NAME",
        "yours",
        _file,
        licence="yours",
        cpu="yours",
        cuda="yours",
        takes=frozenset(network | {"condition", "residual"}),
    )


CATALOG: dict[str, Entry] = {entry.name: entry for entry in _entries()}
"""Every denoiser by its name, in the order in which they are listed."""
