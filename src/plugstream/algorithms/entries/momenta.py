"""The momenta by name: the sequence q_k of proximal gradient methods.

Facts of an entry: plain, there is no momentum; online, the default for steps of a few views; follows, the default if a
scan is followed; tuned, `tune --over momentum` tries it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from plugstream.base.registry import Field, Options, register


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


def _declare_limited(name: str, text: str, options: type[Options], place: str, **facts: Any) -> None:
    @register("momentum", name, text, options=options, **facts)
    def build(chosen: Any) -> Any:
        if chosen.momentum_limit == options().momentum_limit:  # type: ignore[attr-defined]
            return name
        return getattr(import_module("plugstream.algorithms"), place)(chosen.momentum_limit)


_declare("nesterov", "FISTA's sequence: the fastest with all views", tuned=True)
_declare_limited(
    "bounded",
    "Nesterov's up to a limit, so that the noise of small batches does not build up",
    LimitOptions,
    "BoundedMomentum",
    follows=True,
)
_declare_limited(
    "tapered",
    "Nesterov's up to a limit and then falling, so that the noise of small batches averages out",
    PeakOptions,
    "TaperedMomentum",
    online=True,
    tuned=True,
)
_declare("chambolle-dossal", "(k + 2) / 3, with which the iterates converge too", tuned=True)
_declare("none", "no momentum, as in the theory of stochastic gradients", tuned=True, plain=True)
