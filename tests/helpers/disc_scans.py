"""Discs with holes, seen by exact line integrals: what limited-angle tests are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from plugstream.models.ct_beams import fan_beam, parallel_beam
from plugstream.models.ct_geometry import Rays

Disc = tuple[float, float, float, float]  # x, y, radius, value

HOLED: list[Disc] = [
    (1.0, -2.0, 30.0, 0.04),
    (6.0, 4.0, 6.0, -0.04),
    (-10.0, 3.0, 4.0, -0.04),
    (2.0, -16.0, 5.0, -0.04),
]
COLUMNS = 100


def beam(kind: str, degrees: float = 60.0, views: int = 31, fine: int = 1) -> Rays:
    """Views of an image 80 wide; `fine` columns in place of one."""
    angles = np.deg2rad(np.linspace(0, degrees, views)) + 0.4
    columns, middle = fine * COLUMNS, fine * 47.3
    if kind == "parallel":
        return parallel_beam(angles, columns, 1.0 / fine, center=middle)
    far = {"source": 250.0, "detector": 75.0, "center": middle}
    return fan_beam(angles, columns, 1.3 / fine, curved=kind == "curved fan", **far)


def integrals(rays: Rays, discs: Sequence[Disc]) -> NDArray[np.float64]:
    """(views, columns), by the distance of each disc's centre from each ray."""
    out = np.zeros((len(rays), rays.detector[-1]))
    step = (np.arange(rays.detector[-1]) - (rays.detector[-1] - 1) / 2)[:, None]
    for view, (first, centre, u, _) in enumerate(rays.vectors[:, :, :2]):
        pixel = centre + step * u
        if np.isfinite(rays.curvature):
            turn = step * np.hypot(*u) / rays.curvature
            back, along = (first - centre) / np.hypot(*(first - centre)), u / np.hypot(*u)
            pixel = centre + rays.curvature * (np.sin(turn) * along + (1 - np.cos(turn)) * back)
        direction = np.broadcast_to(first, pixel.shape) if rays.parallel else pixel - first
        direction = direction / np.linalg.norm(direction, axis=1, keepdims=True)
        for x, y, radius, value in discs:
            off = (x - pixel[:, 0]) * direction[:, 1] - (y - pixel[:, 1]) * direction[:, 0]
            out[view] += value * 2 * np.sqrt(np.maximum(radius**2 - off**2, 0))
    return out
