"""The native CPU kernels, where they were built; everything works without them, more slowly.

`PLUGSTREAM_NATIVE=0` in the environment, read once, leaves them unused.
"""

from __future__ import annotations

import importlib
import os
import warnings
from functools import cache
from types import ModuleType

from plugstream.base.errors import PlugstreamWarning

__all__ = ["kernels", "load"]


@cache
def load() -> ModuleType | None:
    """The extension module, or None where it was not built, is switched off or, which warns, is for newer processors."""
    if os.environ.get("PLUGSTREAM_NATIVE", "1") == "0":
        return None
    try:
        found = importlib.import_module("plugstream._native._kernels")
    except ModuleNotFoundError:  # not built; one that is there but broken must say so
        return None
    if found.levels():
        return found
    warnings.warn(
        f"the native kernels were built for {found.built}, which this processor lacks: all goes by torch, more slowly. "
        "To build them for this machine: pip install --force-reinstall --no-deps . (PLUGSTREAM_LEVELS=all before it: "
        "for every machine)",
        PlugstreamWarning,
        stacklevel=2,
    )
    return None


def kernels() -> ModuleType:
    """The compiled kernels, for those who asked `load` whether they are there."""
    found = load()
    if found is None:
        raise RuntimeError("the native kernels are not here; ask serves() first")
    return found
