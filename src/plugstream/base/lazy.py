"""Names of a package that are imported on first use, so that `--help` and lists do not wait for torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    package: str, home: Mapping[str, Sequence[str]]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` of a package; type checkers read its imports under TYPE_CHECKING.

    Arguments: package, its `__name__`; home, the names that each of its modules exports, renamed as in "Profile as
    BM3DProfile".
    """
    places = {}
    for module, names in home.items():
        for name in names:
            real, _, shown = name.partition(" as ")
            places[shown or real] = (module, real)
    listed = sorted(places)

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, real = places[name]
        value = getattr(import_module(f"{package}.{module}"), real)
        setattr(sys.modules[package], name, value)
        return value

    return listed, find, lambda: listed
