"""What is known of a denoiser besides its options: the facts of its entry, with defaults."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from plugstream.base.registry import Entry

_ROOM = Path(__file__).parent
_PACKAGES = {"bm3d": "PyPI's bm3d", "skimage": "scikit-image", "pywt": "PyWavelets"}


@dataclass(frozen=True)
class Facts:
    """What an entry of the kind "denoiser" may say by keyword, `register("denoiser", ..., averaged=0.5)`.

    Arguments:
        averaged: theta if it is theta-averaged with its default options; None if that is not known.
        why: the argument for that, or what would make it so.
        licence: of the code and of the weights that come with it.
        cpu, cuda: the form that runs there; "native" and "Triton" fall back to torch if they are not installed.
        sigma: what sigma is: "noise", the standard deviation of the noise; "weight", the root of the prior's weight,
            D = prox_{sigma^2 r}; "range", the spread of values that are averaged; or "unused".
        noise: sigma for noise of standard deviation s and values from 0 to 1, as a function of s.
        files: the weights that come with it, as a pattern in the folder of `denoisers`.
        object: how it is made in Python.
        bounded: it keeps the bounds of the image itself, and takes `low=` and `high=`.
        damping: theta of `Damping` that many steps of one sigma need, as a function of its settings; None if none.
        falls: whether sigma should fall during a run, as a function of its settings.
    """

    averaged: float | None = None
    why: str = "not known"
    licence: str = "not said"
    cpu: str = "torch"
    cuda: str = "torch"
    sigma: Literal["noise", "weight", "range", "unused"] = "noise"
    noise: Callable[[float], float] = float
    files: str | None = None
    object: str = ""
    bounded: bool = False
    damping: Callable[[Any], float | None] = lambda settings: None
    falls: Callable[[Any], bool] = lambda settings: False

    @property
    def trained_for(self) -> tuple[float, float] | None:
        """The least and the largest noise level that its weights were trained for, with values from 0 to 1."""
        levels = [level for file in sorted(_ROOM.glob(self.files)) for level in _levels(file)] if self.files else []
        return (min(levels), max(levels)) if levels else None

    def forms(self) -> dict[str, str | None]:
        """The form that would run here on the CPU and on CUDA; None without the device."""
        import torch

        from plugstream import _native
        from plugstream.denoisers.forms import has_triton

        cpu = "torch" if self.cpu == "native" and _native.load() is None else self.cpu
        cuda = "torch" if self.cuda == "Triton" and not has_triton() else self.cuda
        return {"cpu": cpu, "cuda": cuda if torch.cuda.is_available() else None}


def facts_of(entry: Entry) -> Facts:
    """The facts of an entry; those of other names are ignored."""
    names = {field.name for field in fields(Facts)}
    return Facts(**{name: value for name, value in entry.facts.items() if name in names})


def unavailable(entry: Entry) -> str | None:
    """Why a denoiser cannot be used here as it is, or None if it can."""
    facts = facts_of(entry)
    if entry.missing is not None:
        return f"{_PACKAGES.get(entry.missing, entry.missing)} is not installed"
    if facts.files is not None and not any(_ROOM.glob(facts.files)):
        return "no weights are installed; give some with --weights"
    return None


def describe(entry: Entry) -> dict[str, Any]:
    """What a denoiser says besides what every entry has, as JSON."""
    facts = facts_of(entry)
    return {
        "prior": entry.help,
        "missing": unavailable(entry),
        "sigma": facts.sigma,
        "trained_for": facts.trained_for,
        "averaged": facts.averaged,
        "why": facts.why,
        "forms": {"cpu": facts.cpu, "cuda": facts.cuda},
        "forms_here": facts.forms(),
        "licence": facts.licence,
        "object": facts.object,
    }


def _levels(file: Path) -> list[float]:
    """The noise levels of installed weights, on the scale 0 .. 1, without torch."""
    from safetensors import safe_open

    with safe_open(str(file), "np") as opened:
        about = opened.metadata() or {}
        if "sigma" in about:
            return [float(json.loads(about["sigma"])) / 255]
        return [float(level) for level in opened.get_tensor("levels")] if "levels" in opened.keys() else []  # noqa: SIM118
