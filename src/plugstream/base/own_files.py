"""FILE.py:NAME for the kinds without their own options for it: a name in a Python file, called to build it.

NAME is called without options, with the other arguments of its kind: a sampler with the fidelity, a gradient with the
seed, a loss and a momentum with nothing. `plugstream.settings.consent` decides whether the file may be run.
"""

from __future__ import annotations

from typing import Any

from plugstream.base.registry import Options, register


def _declare(kind: str, text: str) -> None:
    @register(kind, "FILE.py:NAME", text)
    def build(options: Options, *parts: Any, name: str, **more: Any) -> Any:
        from plugstream.base.user_code import call_from_file

        return call_from_file(name, *parts, **more)


_declare("algorithm", "your own: built by NAME(fidelity, denoiser, sigma=, lam=, step_size=, sampler=)")
_declare("sampler", "your own: built by NAME(fidelity)")
_declare("momentum", "your own: NAME() returns a function from (k, q_{k-1}) to q_k")
_declare("monitor", "your own: built by NAME(truth, views)")
_declare("gradient", "your own: built by NAME(seed)")
_declare("loss", "your own: built by NAME()")
