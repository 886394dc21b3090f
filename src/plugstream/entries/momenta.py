"""The momenta by name: the sequence q_k of proximal gradient methods.

Facts that an entry may say: plain, that there is no momentum; follows, that it is meant where a scan is followed and
nobody says which; tuned, that `tune --over momentum` tries it.
"""

from __future__ import annotations

from typing import Any

from plugstream.registry import Field, Options, register

__all__ = ["LimitOptions"]


class LimitOptions(Options):
    """Of a momentum that does not rise for ever."""

    momentum_limit: float = Field(3.0, ge=1, le=1e6, description="where q ends; the momentum is then (q - 1) / q")


def _declare(name: str, text: str, **facts: Any) -> None:
    @register("momentum", name, text, **facts)
    def build(options: Options) -> str:
        return name  # by which `ProximalGradient` knows it


_declare("nesterov", "FISTA's sequence: the fastest with all views", tuned=True)


@register(
    "momentum",
    "bounded",
    "Nesterov's up to a limit, which does not gather the noise of small batches",
    options=LimitOptions,
    follows=True,
)
def build_bounded(options: LimitOptions) -> Any:
    if options.momentum_limit == LimitOptions().momentum_limit:
        return "bounded"
    from plugstream.algorithms import BoundedMomentum

    return BoundedMomentum(options.momentum_limit)


_declare("chambolle-dossal", "(k + 2) / 3, for which the iterates converge too", tuned=True)
_declare("none", "no momentum, as the theory of stochastic gradients has it", tuned=True, plain=True)
