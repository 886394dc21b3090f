"""The border of the library: scalars and texts of public functions are checked before anything is done with them.

What is checked is what a function's annotations say; anything else than plain scalars, texts and paths is left to it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from plugstream.base.errors import InputError


def _has(*names: str) -> Callable[[Any], bool]:
    return lambda value: any(hasattr(value, name) for name in names)


def _is_device(value: Any) -> bool:
    import torch

    with suppress(RuntimeError, TypeError):
        return torch.device(value) is not None
    return False


_TESTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (_has("__index__"), "a whole number"),
    "float": (_has("__float__", "__index__"), "a number"),
    "bool": (lambda value: hasattr(value, "dtype") or (isinstance(value, int) and value in (0, 1)), "True or False"),
    "str": (lambda value: isinstance(value, str), "text"),
    "Path": (lambda value: isinstance(value, os.PathLike), "a path"),
    "None": (lambda value: value is None, "None"),
    "torch.device": (_is_device, "cpu, cuda or cuda:N"),
}


def check_arguments(function: Any) -> Any:
    """The function, which refuses arguments that its annotations exclude; of a class its constructors do."""
    if isinstance(function, type):
        if not getattr(function, "_is_protocol", False):
            for name, value in list(vars(function).items()):
                if isinstance(value, classmethod) and not name.startswith("_"):
                    setattr(function, name, classmethod(check_arguments(value.__func__)))
                elif name == "__init__":
                    function.__init__ = check_arguments(value)  # type: ignore[misc]
        return function
    texts = getattr(function, "__annotations__", {})
    kinds = {name: str(text).replace("device | str", "device").split(" | ") for name, text in texts.items()}
    kinds |= {name: [*kinds[name], "None"] for name in ("low", "high") if name in kinds}  # which is no bound
    kinds = {name: parts for name, parts in kinds.items() if set(parts) <= _TESTS.keys() and name != "return"}
    if not inspect.isfunction(function) or not kinds or hasattr(function, "checks_arguments"):
        return function
    signature = inspect.signature(function)
    for one in signature.parameters.values():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            kinds.pop(one.name, None)

    @wraps(function)
    def checked(*values: Any, **named: Any) -> Any:
        arguments: dict[str, Any] = {}
        with suppress(TypeError):  # of arguments that are missing or too many, of which Python speaks itself
            arguments = signature.bind(*values, **named).arguments
        for name, value in arguments.items():
            if name in kinds and not any(_TESTS[part][0](value) for part in kinds[name]):
                wanted = " or ".join(_TESTS[part][1] for part in kinds[name]).replace(" or None", ", or None")
                raise InputError(f"{name} must be {wanted}, not {value!r}")
            if name == "seed" and isinstance(value, int) and value < 0:
                raise InputError(f"seed must be at least 0, not {value}")
        return function(*values, **named)

    checked.checks_arguments = True  # type: ignore[attr-defined]
    return checked
