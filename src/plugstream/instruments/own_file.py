"""FILE.py:NAME as an instrument: a class of a Python file, with `@declare` above it."""

from __future__ import annotations

from typing import Any, NoReturn

from plugstream.base.errors import InputError
from plugstream.base.registry import Options, register


@register("instrument", "FILE.py:NAME", "your own: a subclass of Instrument with @declare above it", declared=True)
def build(options: Options, *parts: Any, name: str) -> NoReturn:
    """What stands for instruments of files that may not be run."""
    raise InputError(f"the instrument {name} is not known, since its file may not be run")
