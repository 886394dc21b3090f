"""Names of a package that are imported when first used, so that `--help` and lists do not wait for torch.

They are written once, as imports for type checkers in the package's `__init__`:

    if TYPE_CHECKING:
        from plugstream.denoisers.tv import TV as TV

    if TYPE_CHECKING:  # of this room alone
        from plugstream.denoisers.wrap import as_denoiser as as_denoiser

    __getattr__, __dir__ = lazy_names(__name__)

They are read from there when the first of them is asked for; `from plugstream.denoisers import *` in a block stands for
a whole room. The package itself lists the names of the first blocks only, and knows the others, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from plugstream.base.borders import check_arguments


class Place(NamedTuple):
    """Where a name comes from: a module, its name there, and whether it belongs to its room alone."""

    module: str
    name: str
    inner: bool


def lazy_names(
    package: str, *, inner: bool = True, also: tuple[str, ...] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package; the former also gives `__all__`.

    Arguments: package, its `__name__`; inner, whether to list names of a room alone; also, further names to list.
    """

    @cache
    def listed() -> list[str]:
        return sorted([*also, *(name for name, place in read_names(package).items() if inner or not place.inner)])

    def find(name: str) -> Any:
        if name == "__all__":
            return list(listed())
        place = None if name.startswith("_") else next((p for n, p in _iterate_names(package) if n == name), None)
        if place is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = import_module(place.module)
        value = check_arguments(getattr(home, place.name))
        setattr(home, place.name, value)
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: list(listed())


@cache
def read_names(package: str) -> dict[str, Place]:
    """The names of a package by the imports for type checkers in its `__init__`."""
    return dict(_iterate_names(package))


def _iterate_names(package: str) -> Iterator[tuple[str, Place]]:
    """The same one by one, so that the rooms after that of a name need not be read to find it."""
    for name, place in _read_imports(package):
        if name == "*":
            yield from _iterate_names(place.module)
        else:
            yield name, place


@cache
def _read_imports(package: str) -> list[tuple[str, Place]]:
    """The imports for type checkers as they stand, "*" for all of a room."""
    import ast

    with open(str(import_module(package).__file__), encoding="utf-8") as file:  # every start would wait for pathlib
        blocks = [node for node in ast.parse(file.read()).body if isinstance(node, ast.If)]
    imports = []
    for number, block in enumerate(blocks):
        for node in block.body:
            assert isinstance(node, ast.ImportFrom)
            assert node.module is not None
            imports += [(a.asname or a.name, Place(node.module, a.name, number > 0)) for a in node.names]
    return imports
