"""Beams for tests of the projectors: all kinds, odd sizes, and rays along, across and far off the voxels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from plugstream.models.ct_beams import cone_beam, fan_beam, helical_beam, laminography, parallel_beam
from plugstream.models.ct_geometry import Rays, Voxels

# Views along the axes and the diagonals, and some in between.
ANGLES = np.concatenate([np.arange(8) * np.pi / 4, [0.3, 1.2, 2.9, -0.7]])
FAR: dict[str, Any] = {"source": 60.0, "detector": 25.0}

FLAT: dict[str, Callable[[float, int], Rays]] = {
    "parallel": lambda pixel, count: parallel_beam(ANGLES, count, pixel, center=0.45 * count),
    "fan": lambda pixel, count: fan_beam(ANGLES, count, 1.4 * pixel, **FAR, center=0.45 * count),
    "curved fan": lambda pixel, count: fan_beam(ANGLES, count, 1.4 * pixel, **FAR, curved=True),
    "near fan": lambda pixel, count: fan_beam(ANGLES, count, 1.8 * pixel, source=30, detector=24, axis=1.3),
}
SOLID: dict[str, Callable[[float, tuple[int, int]], Rays]] = {
    "stack": lambda pixel, shape: parallel_beam(ANGLES, shape, pixel),
    "rolled": lambda pixel, shape: parallel_beam(ANGLES, shape, pixel, center=2.2).roll_detector(0.1),
    "cone": lambda pixel, shape: cone_beam(ANGLES, shape, 1.4 * pixel, **FAR, center=0.45 * shape[1]),
    "curved cone": lambda pixel, shape: cone_beam(ANGLES, shape, 1.4 * pixel, **FAR, curved=True),
    "helical": lambda pixel, shape: helical_beam(ANGLES, shape, 1.4 * pixel, **FAR, pitch=4),
    "tilted": lambda pixel, shape: laminography(ANGLES, shape, pixel, tilt=0.6),
    "steep": lambda pixel, shape: laminography(ANGLES, shape, pixel, tilt=1.4),
    "tilted cone": lambda pixel, shape: laminography(ANGLES, shape, 1.4 * pixel, tilt=0.6, **FAR),
}

spacings = st.sampled_from([0.5, 1.0, 1.3])
pixels = st.sampled_from([0.05, 0.3, 0.7, 1.0, 1.5, 4.0, 30.0])


@st.composite
def flat_scans(draw: Any) -> tuple[Rays, Voxels]:
    """A 2D scan of up to 12 views."""
    shape = draw(st.tuples(st.integers(1, 23), st.integers(1, 23)))
    spacing = (draw(spacings), draw(spacings))
    origin = draw(st.sampled_from([None, (-3.0, -7.5)]))
    rays = FLAT[draw(st.sampled_from(sorted(FLAT)))](draw(pixels), draw(st.integers(1, 40)))
    return rays.select(draw(st.lists(st.integers(0, 11), min_size=1, max_size=4))), Voxels(shape, spacing, origin)


@st.composite
def solid_scans(draw: Any, names: Sequence[str] = tuple(sorted(SOLID))) -> tuple[Rays, Voxels]:
    """A 3D scan of up to 3 views, of one of these beams."""
    shape = draw(st.tuples(st.integers(1, 9), st.integers(1, 11), st.integers(1, 11)))
    spacing = (draw(spacings), draw(spacings), draw(spacings))
    detector = draw(st.tuples(st.integers(1, 9), st.integers(1, 20)))
    rays = SOLID[draw(st.sampled_from(names))](draw(pixels), detector)
    return rays.select(draw(st.lists(st.integers(0, 11), min_size=1, max_size=3))), Voxels(shape, spacing)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Numbers of either sign."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def mismatch(forward: Tensor, data: Tensor, image: Tensor, adjoint: Tensor) -> float:
    """|<A x, y> - <x, A' y>| over the sum of absolute terms' bound ||A x|| ||y||, in double precision."""
    left = (forward.double() * data.double()).sum()
    right = (image.double() * adjoint.double()).sum()
    size = max(float(forward.double().norm() * data.double().norm()), 1e-300)
    return abs(float(left - right)) / size
