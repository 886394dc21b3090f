"""Numbers and paths as arguments of commands: refused in one line where they cannot be meant."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

SEEDS = 2**63 - 1
"""The largest seed."""
N = TypeVar("N", int, float)


def whole_number(high: int, low: int | None = None) -> Callable[[str], int]:
    """For argparse: a whole number of at most `high`, and at least `low` where the command does not check that."""
    return _bounded(int, high, low)


def number(high: float = 1e15, low: float | None = None) -> Callable[[str], float]:
    """For argparse: a finite number of at most `high`, and at least `low` where the command does not check that."""
    return _bounded(float, high, low)


def _bounded(kind: Callable[[str], N], high: float, low: float | None) -> Callable[[str], N]:
    def read(text: str) -> N:
        value = kind(text)
        if math.isnan(value) or value > high or (low is not None and value < low):
            limits = f"at most {high:g}" if low is None else f"from {low:g} to {high:g}"
            raise argparse.ArgumentTypeError(f"must be {limits}, not {text}")
        return value

    read.__name__ = kind.__name__  # what argparse calls it where the text is no number at all
    return read


def size(text: str) -> int:
    """For argparse: a number of bytes, such as 1500, 200MB or 1.5 GB."""
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?) ?([kMGT]?)B?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a size; write 500MB or 20GB, say")
    return int(float(match[1]) * 1000 ** " kMGT".index(match[2] or " "))


def read_path(text: str) -> Path:
    """For argparse: a path that a file system takes. An empty one, as of an unset variable, would be this folder."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty; name a file or folder, or leave the argument out")
    most, longest = 4095, 255  # bytes, of Linux and nearly all of its file systems
    path = Path(text)
    if len(os.fsencode(path)) > most or any(len(os.fsencode(part)) > longest for part in path.parts):
        raise argparse.ArgumentTypeError(
            f"the path {path} is too long: a name may have {longest} bytes, and a path {most}"
        )
    return path
