"""Values as people type them."""

from __future__ import annotations

import tomllib
from typing import Any

__all__ = ["parse_value"]


def parse_value(text: str) -> Any:
    """A value from the command line: TOML if possible, a fraction such as 15/255, otherwise text."""
    above, slash, below = text.partition("/")
    try:
        if slash:
            return float(above) / float(below)
    except (ValueError, ZeroDivisionError):
        pass  # a step such as 1/L, or nonsense that is reported where it is used
    if not text.isprintable():  # more than one line of TOML, of which only the first would count
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML, a number of thousands of digits, lists thousands deep
        return text
