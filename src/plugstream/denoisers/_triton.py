"""Whether the Triton kernels can run; the modules that hold them are imported only then."""

from __future__ import annotations

import importlib.util
import os
from functools import cache

__all__ = ["available", "cover", "interpreted"]


@cache
def available() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def cover(size: int, part: int) -> int:
    """How many programs of so large a part it takes: a size divided and rounded up."""
    return -(-size // part)
