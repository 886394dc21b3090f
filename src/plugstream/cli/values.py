"""Numbers and paths as arguments of commands: within what can be meant, and told in one line where they are not."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["SEEDS", "number", "read_path", "whole_number"]

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


def read_path(text: str) -> Path:
    """For argparse: a path that a file system takes, refused before it is looked for where it is not.

    Nothing at all, as of a variable of the shell that is not set, would be the folder in which one is.
    """
    if not text:
        raise argparse.ArgumentTypeError("the path is empty; name a file or folder, or leave the argument out")
    most, longest = 4095, 255  # bytes, of Linux and nearly all of its file systems
    path = Path(text)
    if len(os.fsencode(path)) > most or any(len(os.fsencode(part)) > longest for part in path.parts):
        raise argparse.ArgumentTypeError(
            f"the path {path} is too long: a name may have {longest} bytes, and a path {most}"
        )
    return path


def _range(low: float | None, high: float) -> str:
    return f"at most {high:g}" if low is None else f"from {low:g} to {high:g}"
