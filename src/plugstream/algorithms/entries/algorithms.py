"""The algorithms by name: how gradient or prox of the data and a denoiser take turns.

An algorithm is built from the fidelity, the denoiser and by keyword `sigma` or `lam`, `step_size` and `sampler`, as
`plugstream.algorithms.PlugAndPlay` has them. Facts of an entry:

    uses: further sections: "momentum" (passed as `momentum=` and `restart=`) and "gradient" (`gradient=`).
    prox: it needs the prox of the fidelity, which only some losses have.
    bends: the expected second derivative of a loss of waves will do in place of its prox.
    refines: it can refine parameters of the model along with the image (`refine=` may be passed).
    grows: it can continue when the scan gets more views.
    proposition_5: the theory of stochastic steps covers it, without momentum and with plain gradients.
    seeded: it draws something itself (`seed=` of the sampler's section is passed).
    weight: its own option for the weight of the prior, in place of --lam.
    falls: `FallingSearch` can find its step, since it is a kind of ADMM with its dual.
    prefers: its default momentum; the sampler's if not given.
    title: its name in reports, text or a function of the settings; the entry's name if not given.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plugstream.base.class_entries import register_class
from plugstream.base.registry import Field, Options


class IncrementalOptions(Options):
    """Of incremental ADMM."""

    prox_parts: int = Field(
        1, ge=1, le=10**6, description="parts of a step's views whose proxes are averaged; 1 for one prox of all"
    )


class InexactOptions(Options):
    """Of ADMM whose prox is hardly begun."""

    prox_products: int = Field(
        2, ge=1, le=10**6, description="conjugate gradient steps for each prox, with a circulant preconditioner"
    )
    prox_tolerance: float = Field(
        0.0, ge=0, lt=1, description="part of its first residual at which a prox takes no more of them; 0 for all"
    )


class REDOptions(Options):
    """Of regularisation by denoising."""

    tau: float | str = Field("0.5L", description="weight of the prior: a number, or a multiple of L such as 0.5L")


class NoiseOptions(REDOptions):
    """Of regularisation by denoising with noise before the denoiser."""

    injected_noise: float = Field(
        1.0, gt=0, le=1e3, description="standard deviation of the noise added before the denoiser, over sigma"
    )


def _proximal_gradient_title(settings: Any) -> str:
    """The paper's name for proximal gradient with these views, momentum and gradient."""
    accelerated = not settings.momentum.entry.facts.get("plain", False)
    if settings.sampler.entry.facts.get("draws") in ("all", "same"):
        return "PnP-FISTA" if accelerated else "PnP-ISTA"
    gradient = settings.gradient
    name = "SGD" if gradient.entry.facts.get("plain", False) else Path(gradient.name).name.upper()
    return f"PnP-{name}{', accelerated' if accelerated else ''}"


def _declare(name: str, text: str, algorithm: str, **how: Any) -> None:
    register_class(__name__, "algorithm", name, text, f"plugstream.algorithms:{algorithm}", **how)


_BY_GRADIENT: dict[str, Any] = {"uses": ("momentum", "gradient"), "refines": True, "grows": True}
_BY_PROX: dict[str, Any] = {"prox": True, "grows": True}

_declare(
    "pgm",
    "proximal gradient: ISTA, FISTA, PnP-SGD",
    "ProximalGradient",
    proposition_5=True,
    title=_proximal_gradient_title,
    **_BY_GRADIENT,
)
_declare("admm", "ADMM, with the data's prox", "ADMM", title="PnP-ADMM", falls=True, **_BY_PROX)
_declare(
    "hqs", "half-quadratic splitting: ADMM without the dual", "ADMM", fixed={"dual": False}, title="PnP-HQS", **_BY_PROX
)
_declare(
    "red",
    "regularisation by denoising: RED, On-RED, SIMBA",
    "RED",
    options=REDOptions,
    weight="tau",
    title="online RED",
    **_BY_GRADIENT,
)
_declare(
    "snore",
    "regularisation by denoising, with noise added before the denoiser",
    "RED",
    options=NoiseOptions,
    arguments={"injected_noise": "noise"},
    weight="tau",
    seeded=True,
    prefers="none",
    title="SNORE",
    **_BY_GRADIENT,
)
_declare(
    "ipa",
    "incremental ADMM, with the prox of a few views a step",
    "IncrementalADMM",
    options=IncrementalOptions,
    arguments={"prox_parts": "parts"},
    title="PnP-IPA",
    falls=True,
    **_BY_PROX,
)
_declare(
    "inexact-admm",
    "incremental ADMM, with two conjugate gradients of a few views in place of a prox",
    "InexactADMM",
    options=InexactOptions,
    arguments={"prox_products": "products", "prox_tolerance": "tol"},
    bends=True,
    title="PnP-ADMM, inexact",
    falls=True,
    **_BY_PROX,
)
_declare(
    "block-admm",
    "incremental ADMM that stores the result of each block of views",
    "BlockADMM",
    prox=True,
    title="PnP-ADMM by blocks",
)
