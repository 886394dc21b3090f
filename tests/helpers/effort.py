"""How much a test does: enough to notice a mistake every time, and all of it under `make test-slow`."""

from __future__ import annotations

import os
from itertools import product
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

THOROUGH = os.environ.get("PLUGSTREAM_THOROUGH") == "1"

thorough = pytest.mark.thorough
"""Marks a test that does more under `make test-slow`."""


def effort(usual: T, all_of_it: T) -> T:
    """The first, or under `make test-slow` the second: counts, cases or sizes."""
    return all_of_it if THOROUGH else usual


def cases(*axes: Any) -> list[tuple[Any, ...]]:
    """Every value of every axis once or more, or under `make test-slow` all that can be combined."""
    rows = range(max(map(len, axes)))
    return effort([tuple(list(axis)[n % len(axis)] for axis in axes) for n in rows], list(product(*axes)))
