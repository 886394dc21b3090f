"""Numbers as arguments of commands: within what can be meant, and told in one line where they are not."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

__all__ = ["SEEDS", "number", "whole_number"]

SEEDS = 2**63 - 1
"""The largest seed."""


def whole_number(high: int, low: int | None = None) -> Callable[[str], int]:
    """For argparse: a whole number of at most `high`, and at least `low` where the command does not say so itself."""

    def read(text: str) -> int:
        value = int(text)
        if value > high or (low is not None and value < low):
            raise argparse.ArgumentTypeError(f"must be {_range(low, high)}, not {text}")
        return value

    read.__name__ = "int"  # what argparse calls it where the text is no number at all
    return read


def number(high: float = 1e15, low: float | None = None) -> Callable[[str], float]:
    """For argparse: a finite number of at most `high`, and at least `low` where the command does not say so itself."""

    def read(text: str) -> float:
        value = float(text)
        if math.isnan(value) or value > high or (low is not None and value < low):
            raise argparse.ArgumentTypeError(f"must be {_range(low, high)}, not {text}")
        return value

    read.__name__ = "float"
    return read


def _range(low: float | None, high: float) -> str:
    return f"at most {high:g}" if low is None else f"from {low:g} to {high:g}"
