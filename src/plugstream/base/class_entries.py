"""Entries that are a class: given by its place, so that lists of entries do not import it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from plugstream.base.registry import Entry, Options, register

# The positional arguments of a kind's entries, after their options (docs/extending.md).
_PARTS = {
    "algorithm": ("fidelity", "denoiser"),
    "sampler": ("fidelity",),
    "gradient": ("seed",),
    "monitor": ("truth", "views"),
}


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
    """Declare a class as the entry of a name: it is built from its options, and the parts that it has arguments for.

    Arguments: origin, the file's `__name__`; kind, name, help, options and facts, as for `register`; place,
    "module:class"; arguments of the class by option, where the names differ; fixed, arguments with their values.
    """
    arguments, fixed = arguments or {}, fixed or {}

    def build(chosen: Options, *parts: Any, **more: Any) -> Any:
        module, _, title = place.partition(":")
        cls = getattr(import_module(module), title)
        parameters = inspect.signature(cls).parameters
        values = {arguments.get(key, key): getattr(chosen, key) for key in entry.option_names}
        used = {key: part for key, part in zip(_PARTS.get(kind, ()), parts, strict=True) if key in parameters}
        return cls(**used, **values, **fixed, **more)

    build.__module__, build.__qualname__ = origin, name
    entry = Entry(kind, name, help, build, options)
    register(kind, name, help, options=options, **facts)(build)
