"""A person's own object with the defaults of a base class that it does not inherit from."""

from __future__ import annotations

from typing import Any


def with_defaults(own: Any, base: type) -> Any:
    """The object itself if it is of this base class, and otherwise with the attributes of the base class that it lacks.

    So the library can use everything that the base class declares, and a plain class need not know of it.

    Arguments: own, the object; base, a class whose methods need only what it declares.
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
