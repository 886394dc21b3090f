"""What there is of the native extension here."""

from __future__ import annotations

import pytest

from plugstream import _native

_MODULE = _native.load()
needs_native = pytest.mark.skipif(_MODULE is None, reason="the native extension was not built")
LEVELS: list[str] = [] if _MODULE is None else list(_MODULE.levels())  # instruction sets, the best first
across_levels = pytest.mark.skipif(
    len(LEVELS) < 2, reason="the native kernels are of one instruction set; PLUGSTREAM_LEVELS=all make test has all"
)
