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

_LACKS = (
    "the native kernels were built for {}, which this processor lacks: all goes by torch, more slowly. To build them "
    "here: pip install --force-reinstall --no-deps . (PLUGSTREAM_LEVELS=all before it: for every kind of machine)"
)


@cache
def load() -> ModuleType | None:
    """The extension; None where it was not built, is switched off or, with a warning, is for newer processors."""
    if os.environ.get("PLUGSTREAM_NATIVE", "1") == "0":
        return None
    try:
        found = importlib.import_module("plugstream._native._kernels")
    except ModuleNotFoundError:  # not built; one that is there but broken must say so
        return None
    if not found.levels():
        warnings.warn(_LACKS.format(found.built), PlugstreamWarning, stacklevel=2)
        return None
    return found


def kernels() -> ModuleType:
    """The compiled kernels, for those who asked `load` whether they are there."""
    found = load()
    if found is None:
        raise RuntimeError("the native kernels are not here; ask serves() first")
    return found
