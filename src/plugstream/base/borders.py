"""The border of the library: arguments of public functions are checked before anything is done with them.

What is checked is what a function's annotations say; models and the like, by the attributes that they must have.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from plugstream.base.errors import InputError


def _has(*names: str) -> Callable[[Any], bool]:
    return lambda value: all(hasattr(value, name) for name in names)


def _is_number(value: Any, *names: str) -> bool:
    return type(value).__name__ not in ("bool", "bool_") and any(hasattr(value, name) for name in names)


def _is_array(value: Any) -> bool:
    return not isinstance(value, str | bytes) and any(hasattr(value, n) for n in ("__array__", "__len__", "__float__"))


def _is_device(value: Any) -> bool:
    import torch

    with suppress(RuntimeError, TypeError):
        return torch.device(value) is not None
    return False


_ARGUMENTS = re.compile(r"\[.*?\](?= \||$)")  # of a generic type
_TESTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (lambda value: _is_number(value, "__index__"), "a whole number"),
    "float": (lambda value: _is_number(value, "__float__", "__index__"), "a number"),
    "bool": (lambda value: hasattr(value, "dtype") or (isinstance(value, int) and value in (0, 1)), "True or False"),
    "str": (lambda value: isinstance(value, str), "text"),
    "Path": (lambda value: isinstance(value, os.PathLike), "a path"),
    "None": (lambda value: value is None, "None"),
    "torch.device": (_is_device, "cpu, cuda or cuda:N"),
    **dict.fromkeys(("Array", "ArrayLike", "Tensor"), (_is_array, "a tensor or an array")),
    "Sequence": (lambda value: hasattr(value, "__iter__") and not isinstance(value, str), "a list"),
    "Callable": (callable, "a function"),
    "Denoiser": (callable, "a denoiser"),
    "nn.Module": (_has("eval", "parameters"), "a module of torch"),
    "Model": (_has("forward", "adjoint", "n_views"), "a model"),
    "Fidelity": (_has("gradient", "image_shape"), "a fidelity (see LeastSquares)"),
    "Algorithm": (_has("init", "step"), "an algorithm (see ProximalGradient)"),
    "Scan": (_has("instrument", "read"), "a scan (see open_scan)"),
    "BornGeometry": (_has("receivers", "grid"), "a BornGeometry"),
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
    plain = {name: _ARGUMENTS.sub("", str(text)).replace("device | str", "device") for name, text in texts.items()}
    kinds = {name: text.split(" | ") for name, text in plain.items()}
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
                raise InputError(f"{name} must be {wanted}, not {' '.join(repr(value).split())[:80]}")
            if name == "seed" and isinstance(value, int) and value < 0:
                raise InputError(f"seed must be at least 0, not {value}")
        return function(*values, **named)

    checked.checks_arguments = True  # type: ignore[attr-defined]
    return checked
