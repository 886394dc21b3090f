"""Whether the Triton kernels can run; the modules that hold them are imported only then."""

from __future__ import annotations

import importlib.util
from functools import cache

__all__ = ["available"]


@cache
def available() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None
