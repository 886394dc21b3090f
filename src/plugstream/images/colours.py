"""The colours of a phase in pictures that are made without matplotlib: those of "twilight", which figures use.

-pi and pi are pale, 0 is dark, and the halves between are blue and red, so that no edge shows where a phase wraps
(Bechtold's colour map, given to the public domain).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["CYCLIC", "NOTHING", "color_phase", "cyclic_table"]

# From -pi to pi, evenly spaced, between which it is interpolated; the page's picture.js has the same.
CYCLIC = bytes.fromhex(
    "e2d9e2 d7d7dd c4ced4 acc2cc 95b5c7 81a6c3 7297c1 6887be 6276ba 5f64b5 5e51ad "
    "5d3da1 592a8f 511b77 45135c 381145 2f1436 3a113a 4a1342 5f174a 741e4f 872750 "
    "983550 a64550 b25652 bb6958 c27c63 c89073 cca389 d1b6a3 d8c7be dfd4d6 e2d9e2"
)
# What is not finite, or has no phase to speak of.
NOTHING = (0x80, 0x80, 0x80)


@cache
def cyclic_table(levels: int = 255) -> NDArray[np.uint8]:
    """The colours of so many phases from -pi to pi, evenly spaced, both ends included: (levels, 3) in 8 bits."""
    stops = np.frombuffer(CYCLIC, np.uint8).reshape(-1, 3).astype(np.float64)
    place, positions = np.linspace(0, 1, levels), np.linspace(0, 1, len(stops))
    table = np.stack([np.interp(place, positions, stops[:, part]) for part in range(3)], axis=-1)
    return np.rint(table).astype(np.uint8)


def color_phase(phase: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A phase in radians, (H, W), as indices of colours, (H, W), and the colours, (256, 3); the last is for NaN."""
    colours = np.concatenate([cyclic_table(), np.array([NOTHING], dtype=np.uint8)])
    finite = np.isfinite(phase)
    shares = np.clip((np.where(finite, phase, 0.0) + math.pi) / (2 * math.pi), 0, 1)
    return np.where(finite, np.rint(254 * shares), 255).astype(np.uint8), colours
