"""Exact line integrals of bodies of ellipses, with photon noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Ellipses = Sequence[tuple[float, float, float, float, float, float]]
# x, y, half axes, turn, attenuation; in columns.
BODY: Ellipses = (
    (0, 0, 29, 24, 0.3, 0.04),
    (10, 6, 6, 4, 0.5, 0.03),
    (-11, -3, 5, 8, 1.0, -0.02),
    (2, -13, 3, 3, 0, 0.03),
)
BODIES: dict[str, Ellipses] = {
    "body": BODY,
    "disc": ((0, 0, 30, 30, 0, 0.04), (9, 4, 5, 3, 0, 0.03)),
    "long": ((0, 0, 30, 13, 0.7, 0.06), (8, 6, 4, 3, 0, -0.03)),
    "aside": ((9, 3, 21, 19, 0.3, 0.04), (20, 5, 4, 5, 0, 0.03)),
    "shell": ((0, 0, 30, 30, 0, 0.06), (0, 0, 28, 28, 0, -0.05), (10, 5, 6, 4, 0, 0.04)),
    "loose": ((10, 6, 6, 4, 0.5, 0.1), (-25, 9, 4, 4, 0, 0.1), (20, -15, 3, 5, 0, 0.1), (0, 0, 4, 4, 0, 0.1)),
}


def chords(angles: np.ndarray, places: np.ndarray, body: Ellipses = BODY) -> np.ndarray:
    """Chords of ellipses along parallel rays at these places: (views, places)."""
    total = np.zeros((len(angles), len(places)))
    for x, y, a, b, turn, value in body:
        wide = ((a * np.cos(angles - turn)) ** 2 + (b * np.sin(angles - turn)) ** 2)[:, None]
        off = places - (x * np.cos(angles) + y * np.sin(angles))[:, None]
        total += 2 * value * a * b / wide * np.sqrt(np.maximum(wide - off**2, 0))
    return total


def counted(integrals: np.ndarray, photons: float = 3e4, seed: int = 0) -> np.ndarray:
    counts = np.random.default_rng(seed).poisson(photons * np.exp(-integrals))
    return np.asarray(np.log(photons / np.maximum(counts, 0.5)))
