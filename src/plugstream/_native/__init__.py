"""The native CPU kernels, where they were built; everything works without them, more slowly.

`PLUGSTREAM_NATIVE=0` in the environment, read once, leaves them unused.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from types import ModuleType

__all__ = ["kernels", "load"]


@cache
def load() -> ModuleType | None:
    """The extension module, or None where it was not built or is switched off."""
    if os.environ.get("PLUGSTREAM_NATIVE", "1") == "0":
        return None
    try:
        return importlib.import_module("plugstream._native._kernels")
    except ModuleNotFoundError:  # not built; one that is there but broken must say so
        return None


def kernels() -> ModuleType:
    """The compiled kernels, for those who asked `load` whether they are there."""
    found = load()
    if found is None:
        raise RuntimeError("the native kernels are not here; ask serves() first")
    return found
