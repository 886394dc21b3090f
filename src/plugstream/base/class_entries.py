"""Entries that are a class as it is: named by its place, so that lists of entries do not import it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from plugstream.base.registry import Entry, Options, register

__all__ = ["register_class"]

# What the entries of a kind are built from by position, after their options (docs/extending.md).
_PARTS = {"algorithm": ("fidelity", "denoiser"), "sampler": ("fidelity",), "gradient": ("seed",)}
_PARTS["monitor"] = ("truth", "views")


def register_class(
    origin: str,
    kind: str,
    name: str,
    help: str,
    place: str,
    *,
    options: type[Options] = Options,
    arguments: Mapping[str, str] | None = None,
    fixed: Mapping[str, Any] | None = None,
    **facts: Any,
) -> None:
    """Declare a class as the entry of a name: it is made of its options, and of the parts that it has arguments for.

    Arguments: origin, the file's `__name__`; kind, name, help, options and facts, as of `register`; place,
    "module:class"; arguments of the class by the options that are called otherwise; fixed, arguments with their values.
    """
    arguments, fixed = arguments or {}, fixed or {}

    def build(chosen: Options, *parts: Any, **more: Any) -> Any:
        module, _, title = place.partition(":")
        made_of = getattr(import_module(module), title)
        known = inspect.signature(made_of).parameters
        own = {arguments.get(key, key): getattr(chosen, key) for key in entry.option_names}
        given = {key: part for key, part in zip(_PARTS.get(kind, ()), parts, strict=True) if key in known}
        return made_of(**given, **own, **fixed, **more)

    build.__module__, build.__qualname__ = origin, name
    entry = Entry(kind, name, help, build, options)
    register(kind, name, help, options=options, **facts)(build)
