"""The algorithms by name: how gradient or prox of the data and a denoiser take turns.

One is built from the fidelity, the denoiser and by keyword `sigma` or `lam`, `step_size` and `sampler`, as
`plugstream.algorithms.PlugAndPlay` has them. Facts that an entry may say:

    uses: sections that it is built from besides: "momentum" (then `momentum=` and `restart=` are handed to it) and
        "gradient" (`gradient=`).
    prox: it needs the prox of the fidelity, which only some losses have.
    refines: it can find parameters of the model along with the image (then `refine=` may be handed to it).
    grows: it can go on where the scan gets more views.
    proposition_5: the theory of stochastic steps speaks of it, without momentum and with plain gradients.
    seeded: it draws something of its own (then `seed=`, that of the sampler's section, is handed to it).
    weight: its own option that weighs the prior, in place of --lam.
    prefers: the momentum that it has where nobody says which; that of the sampler if not said.
    title: what reports call it, text or a function of the settings; its name if not said.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugstream.base.registry import Field, Options, register

if TYPE_CHECKING:
    from plugstream.algorithms import (
        ADMM,
        RED,
        BlockADMM,
        GradientSplitting,
        IncrementalADMM,
        InexactADMM,
        ProximalGradient,
        ProxSkip,
    )
    from plugstream.denoisers.base import Denoiser
    from plugstream.fidelity.least_squares import Fidelity

__all__ = ["IncrementalOptions", "InexactOptions", "InnerOptions", "NoiseOptions", "REDOptions", "SkipOptions"]


class SkipOptions(Options):
    """Of ProxSkip."""

    denoise_probability: float = Field(0.1, gt=0, le=1, description="probability that a step calls the denoiser")


class IncrementalOptions(Options):
    """Of incremental ADMM."""

    prox_parts: int = Field(
        1, ge=1, le=10**6, description="parts of a step's views whose proxes are averaged; 1 for one prox of all"
    )


class InexactOptions(Options):
    """Of ADMM whose prox is hardly begun."""

    prox_products: int = Field(
        2, ge=1, le=10**6, description="conjugate gradients of a step's prox, with a circulant preconditioner"
    )


class InnerOptions(Options):
    """Of splitting by gradient steps."""

    inner_steps: int = Field(20, ge=1, le=10**9, description="gradient steps to a denoiser call")


class REDOptions(Options):
    """Of regularisation by denoising."""

    tau: float | str = Field("0.5L", description="weight of the prior: a number, or a multiple of L such as 0.5L")


class NoiseOptions(REDOptions):
    """Of regularisation by denoising with noise before the denoiser."""

    injected_noise: float = Field(
        1.0, gt=0, le=1e3, description="standard deviation of the noise before the denoiser, over sigma"
    )


def _proximal_gradient_title(settings: Any) -> str:
    """The paper's name for proximal gradient with these views, momentum and gradient."""
    accelerated = not settings.momentum.entry.facts.get("plain", False)
    if settings.sampler.entry.facts.get("draws") in ("all", "same"):
        return "PnP-FISTA" if accelerated else "PnP-ISTA"
    gradient = settings.gradient
    name = "SGD" if gradient.entry.facts.get("plain", False) else Path(gradient.name).name.upper()
    return f"PnP-{name}{', accelerated' if accelerated else ''}"


@register(
    "algorithm",
    "pgm",
    "proximal gradient: ISTA, FISTA, PnP-SGD",
    uses=("momentum", "gradient"),
    refines=True,
    grows=True,
    proposition_5=True,
    title=_proximal_gradient_title,
)
def build_proximal_gradient(options: Options, fidelity: Fidelity, denoiser: Denoiser, **parts: Any) -> ProximalGradient:
    from plugstream.algorithms import ProximalGradient

    return ProximalGradient(fidelity, denoiser, **parts)


@register("algorithm", "admm", "ADMM, with the data's prox", prox=True, grows=True, title="PnP-ADMM")
def build_admm(options: Options, fidelity: Fidelity, denoiser: Denoiser, **parts: Any) -> ADMM:
    from plugstream.algorithms import ADMM

    return ADMM(fidelity, denoiser, **parts)


@register("algorithm", "hqs", "half-quadratic splitting: ADMM without the dual", prox=True, grows=True, title="PnP-HQS")
def build_half_quadratic(options: Options, fidelity: Fidelity, denoiser: Denoiser, **parts: Any) -> ADMM:
    from plugstream.algorithms import ADMM

    return ADMM(fidelity, denoiser, dual=False, **parts)


@register(
    "algorithm",
    "proxskip",
    "gradient steps, of which a random few call the denoiser",
    options=SkipOptions,
    uses=("momentum", "gradient"),
    refines=True,
    grows=True,
    seeded=True,
    prefers="bounded",
    title="PnP-ProxSkip",
)
def build_proxskip(options: SkipOptions, fidelity: Fidelity, denoiser: Denoiser, **parts: Any) -> ProxSkip:
    from plugstream.algorithms import ProxSkip

    return ProxSkip(fidelity, denoiser, probability=options.denoise_probability, **parts)


@register(
    "algorithm",
    "red",
    "regularisation by denoising: RED, On-RED, SIMBA",
    options=REDOptions,
    uses=("momentum", "gradient"),
    refines=True,
    grows=True,
    weight="tau",
    title="online RED",
)
def build_red(options: REDOptions, fidelity: Fidelity, denoiser: Denoiser, **parts: Any) -> RED:
    from plugstream.algorithms import RED

    return RED(fidelity, denoiser, tau=options.tau, **parts)


@register(
    "algorithm",
    "snore",
    "regularisation by denoising, with noise before the denoiser",
    options=NoiseOptions,
    uses=("momentum", "gradient"),
    refines=True,
    grows=True,
    weight="tau",
    seeded=True,
    prefers="none",
    title="SNORE",
)
def build_snore(options: NoiseOptions, fidelity: Fidelity, denoiser: Denoiser, **parts: Any) -> RED:
    from plugstream.algorithms import RED

    return RED(fidelity, denoiser, tau=options.tau, noise=options.injected_noise, **parts)


@register(
    "algorithm",
    "ipa",
    "incremental ADMM, with the prox of a few views a step",
    options=IncrementalOptions,
    prox=True,
    grows=True,
    title="PnP-IPA",
)
def build_incremental(
    options: IncrementalOptions, fidelity: Fidelity, denoiser: Denoiser, **parts: Any
) -> IncrementalADMM:
    from plugstream.algorithms import IncrementalADMM

    return IncrementalADMM(fidelity, denoiser, parts=options.prox_parts, **parts)


@register(
    "algorithm",
    "inexact-admm",
    "incremental ADMM, with two conjugate gradients of a few views in place of a prox",
    options=InexactOptions,
    prox=True,
    title="PnP-ADMM, inexact",
)
def build_inexact(options: InexactOptions, fidelity: Fidelity, denoiser: Denoiser, **parts: Any) -> InexactADMM:
    from plugstream.algorithms import InexactADMM

    return InexactADMM(fidelity, denoiser, products=options.prox_products, **parts)


@register(
    "algorithm",
    "block-admm",
    "incremental ADMM that remembers what each block of views said",
    prox=True,
    title="PnP-ADMM by blocks",
)
def build_block_admm(options: Options, fidelity: Fidelity, denoiser: Denoiser, **parts: Any) -> BlockADMM:
    from plugstream.algorithms import BlockADMM

    return BlockADMM(fidelity, denoiser, **parts)


@register(
    "algorithm",
    "sgd-splitting",
    "half-quadratic splitting, with gradient steps on a few views in place of the prox",
    options=InnerOptions,
    uses=("momentum", "gradient"),
    refines=True,
    grows=True,
    title="PnP-HQS by gradients",
)
def build_gradient_splitting(
    options: InnerOptions, fidelity: Fidelity, denoiser: Denoiser, **parts: Any
) -> GradientSplitting:
    from plugstream.algorithms import GradientSplitting

    return GradientSplitting(fidelity, denoiser, inner=options.inner_steps, **parts)
