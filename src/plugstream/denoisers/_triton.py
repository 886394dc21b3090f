"""Whether the Triton kernels can run; the modules that hold them are imported only then."""

from __future__ import annotations

import importlib.util
from functools import cache

__all__ = ["available", "cover"]


@cache
def available() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def cover(size: int, part: int) -> int:
    """How many programs of so large a part it takes: a size divided and rounded up."""
    return -(-size // part)
