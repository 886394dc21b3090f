"""An object of one's own with the defaults of a base class that it was not written on."""

from __future__ import annotations

from typing import Any

__all__ = ["with_defaults"]


def with_defaults(own: Any, base: type) -> Any:
    """An object as it is, where it is of this base class; otherwise with what the base class declares and it lacks.

    Whatever the object has counts, be it an attribute, a property or a method; the rest is that of `base`. So every
    place within can ask for what is declared, and somebody's plain class need not know of it.

    Arguments: own; base, a class whose methods need nothing but what it declares.
    """
    if base in type(own).__mro__:
        return own

    def find(self: Any, name: str) -> Any:
        try:
            return object.__getattribute__(self, name) if name == "__reduce_ex__" else getattr(own, name)
        except AttributeError:
            return object.__getattribute__(self, name)

    def again(self: Any, protocol: Any) -> Any:  # how it is copied
        return with_defaults, (own, base)

    parts = {"__getattribute__": find, "__reduce_ex__": again, "__init__": lambda self: None}
    # `dataclasses.replace` asks the class for these; what it makes is of the object's own class again.
    if "__dataclass_fields__" in dir(type(own)):
        parts["__dataclass_fields__"] = type(own).__dataclass_fields__
    kind: Any = type(base)(type(own).__name__, (base,), parts)
    kind.__abstractmethods__ = frozenset()
    return kind()
