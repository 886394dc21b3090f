"""PyPI's bm4d beside ours, for the benchmarks of it: closed, not for commercial use, and without a build for ARM."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def find_peer() -> Any | None:
    """The module, or None where it is not installed; not the benchmark beside this file, which has its name."""
    here = Path(__file__).parent.resolve()
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    try:
        return importlib.import_module("bm4d")
    except (ImportError, OSError):
        return None


def call_peer(peer: Any, z: np.ndarray, sigma: float, threads: int) -> tuple[np.ndarray, float]:
    """What it makes of a volume, and in how many seconds."""
    profile = peer.BM4DProfile()
    profile.num_threads = threads
    start = time.perf_counter()
    out = np.asarray(peer.bm4d(z, sigma, profile))
    return out, time.perf_counter() - start
