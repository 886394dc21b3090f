"""The momenta by name: the sequence q_k of proximal gradient methods.

Facts that an entry may say: plain, that there is no momentum; follows, that it is meant where a scan is followed and
nobody says which; tuned, that `tune --over momentum` tries it.
"""

from __future__ import annotations

from typing import Any

from plugstream.registry import Options, register

__all__: list[str] = []


def _declare(name: str, text: str, **facts: Any) -> None:
    @register("momentum", name, text, **facts)
    def build(options: Options) -> str:
        return name  # by which `ProximalGradient` knows it


_declare("nesterov", "FISTA's sequence: the fastest with all views", tuned=True)
_declare("bounded", "Nesterov's up to q = 3, which does not gather the noise of small batches", follows=True)
_declare("chambolle-dossal", "(k + 2) / 3, for which the iterates converge too", tuned=True)
_declare("none", "no momentum, as the theory of stochastic gradients has it", tuned=True, plain=True)
