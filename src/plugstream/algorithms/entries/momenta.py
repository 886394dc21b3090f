"""The momenta by name: the sequence q_k of proximal gradient methods.

Facts that an entry may say: plain, that there is no momentum; online, that it is meant where steps have a few of the
views and nobody says which; follows, the same where a scan is followed; tuned, that `tune --over momentum` tries it.
"""

from __future__ import annotations

from typing import Any

from plugstream.base.registry import Field, Options, register

__all__ = ["LimitOptions", "PeakOptions"]


class LimitOptions(Options):
    """Of a momentum that does not rise for ever."""

    momentum_limit: float = Field(3.0, ge=1, le=1e6, description="the limit of q; the momentum is then (q - 1) / q")


class PeakOptions(Options):
    """Of a momentum that rises, and falls again."""

    momentum_limit: float = Field(20.0, ge=1, le=1e6, description="the largest q; the momentum is then (q - 1) / q")


def _declare(name: str, text: str, **facts: Any) -> None:
    @register("momentum", name, text, **facts)
    def build(options: Options) -> str:
        return name  # by which `ProximalGradient` knows it


_declare("nesterov", "FISTA's sequence: the fastest with all views", tuned=True)


@register(
    "momentum",
    "bounded",
    "Nesterov's up to a limit, so that the noise of small batches does not build up",
    options=LimitOptions,
    follows=True,
)
def build_bounded(options: LimitOptions) -> Any:
    if options.momentum_limit == LimitOptions().momentum_limit:
        return "bounded"
    from plugstream.algorithms import BoundedMomentum

    return BoundedMomentum(options.momentum_limit)


@register(
    "momentum",
    "tapered",
    "Nesterov's up to a limit and then falling, so that the noise of small batches averages out",
    options=PeakOptions,
    online=True,
    tuned=True,
)
def build_tapered(options: PeakOptions) -> Any:
    if options.momentum_limit == PeakOptions().momentum_limit:
        return "tapered"
    from plugstream.algorithms import TaperedMomentum

    return TaperedMomentum(options.momentum_limit)


_declare("chambolle-dossal", "(k + 2) / 3, with which the iterates converge too", tuned=True)
_declare("none", "no momentum, as in the theory of stochastic gradients", tuned=True, plain=True)
