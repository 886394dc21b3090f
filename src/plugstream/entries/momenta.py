"""The momenta by name: the sequence q_k of proximal gradient methods."""

from __future__ import annotations

from plugstream.registry import Options, register

__all__: list[str] = []

_HELP = {
    "nesterov": "FISTA's sequence: the fastest with all views",
    "bounded": "Nesterov's up to q = 3, which does not gather the noise of small batches",
    "chambolle-dossal": "(k + 2) / 3, for which the iterates converge too",
    "none": "no momentum, as the theory of stochastic gradients has it",
}


def _declare(name: str) -> None:
    @register("momentum", name, _HELP[name])
    def build(options: Options) -> str:
        return name  # by which `ProximalGradient` knows it


for _name in _HELP:
    _declare(_name)
