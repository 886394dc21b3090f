"""A simulated MRI scan: coils on a ring, a path through k-space, and a picture with a phase."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plugstream.base.image_size import ImageSides, size_field
from plugstream.base.registry import Field, Options
from plugstream.models.ct_geometry import Voxels

_SMALL, _LARGE = 1e-12, 1e6


class MRISimulation(Options):
    """The scan that `simulate` makes; lengths are in metres."""

    picture: str = Field("shepp-logan", description="shepp-logan, a picture file, or a name such as camera")
    size: ImageSides = size_field(8, 4096, "256 if not given", (256,))
    slices: int = Field(0, ge=0, le=4096, description="slices of a stack; 0 for a single image")
    width: float = Field(0.256, ge=_SMALL, le=_LARGE, description="field of view")
    trajectory: Literal["radial", "spiral", "cartesian"] = Field(
        "radial", description="spokes, interleaves of a spiral, or phase-encode lines: each is a view"
    )
    acceleration: float = Field(4.0, ge=0.1, le=1000, description="how many times fewer views than a full scan has")
    coils: int = Field(8, ge=1, le=256, description="number of coils, on a ring around the object")
    phase: float = Field(1.0, ge=0, le=20, description="radians by which the phase varies over the image")
    snr: float = Field(30.0, ge=-200, le=400, description="input SNR in dB", json_schema_extra={"flag": "input-snr"})
    seed: int = Field(0, ge=0, le=2**63 - 1, description="seed of the noise", json_schema_extra={"flag": "noise-seed"})


def ring_coils(shape: tuple[int, ...], coils: int) -> NDArray[np.complex64]:
    """Smooth sensitivities of coils on a ring around the image, with sum |S_c|^2 = 1: (coils, planes, H, W).

    Each falls off as 1 / (1 + (r / a)^2) with the distance r from its coil, a being half of the image's width, and its
    phase varies with the direction to the coil. A single coil has uniform sensitivity.

    Arguments: shape, (H, W), or (D, H, W) for a stack, along which coils are slightly displaced; coils.
    """
    planes, (height, width) = shape[0] if len(shape) == 3 else 1, shape[-2:]
    if coils == 1:
        return np.ones((1, planes, height, width), np.complex64)
    z, y, x = ((np.arange(n) - n // 2) * 2 / n for n in (planes, height, width))
    angles = 2 * np.pi * np.arange(coils) / coils
    across = x[None, None, None] - 1.2 * np.cos(angles)[:, None, None, None]
    up = y[None, None, :, None] - 1.2 * np.sin(angles)[:, None, None, None]
    along = z[None, :, None, None] - 0.5 * (np.arange(coils) % 2 * 2 - 1)[:, None, None, None] * (planes > 1)
    maps = np.exp(1j * np.arctan2(up, across)) / (1 + across**2 + up**2 + along**2)
    return np.asarray(maps / np.sqrt((np.abs(maps) ** 2).sum(0)), np.complex64)


def draw_path(s: MRISimulation, voxels: Voxels) -> NDArray[np.float64]:
    """The path of an accelerated scan: (views, samples, 2), 1/m."""
    from plugstream.models.trajectories import cartesian_lines, radial_spokes, spiral_interleaves, variable_lines

    rows, side = voxels.shape[-2], max(voxels.shape[-2:])
    full = {"radial": np.pi * side / 2, "spiral": side / 2, "cartesian": rows}[s.trajectory]
    views = max(1, round(full / s.acceleration))
    if s.trajectory == "radial":
        return radial_spokes(voxels, views)
    if s.trajectory == "spiral":
        return spiral_interleaves(voxels, views, 1.0)
    views = min(views, rows)
    return cartesian_lines(voxels, variable_lines(rows, views, seed=s.seed))


def paint_image(s: MRISimulation, shape: tuple[int, ...]) -> tuple[NDArray[np.complex64], str]:
    """The image, with a phase that varies smoothly, and which way its y axis points."""
    if s.picture == "shepp-logan":
        from plugstream.images.simulated import shepp_logan

        image, y_axis = shepp_logan(shape), "up"
    else:
        from plugstream.images.pictures import load_picture, picture_y_axis

        flat = load_picture(s.picture, (shape[-2], shape[-1])).double().numpy()
        ends = np.cos(np.linspace(-1.2, 1.2, s.slices))[:, None, None] if s.slices else 1.0
        image, y_axis = ends * flat, picture_y_axis(s.picture)
    y, x = np.mgrid[-1 : 1 : shape[-2] * 1j, -1 : 1 : shape[-1] * 1j]
    phase = s.phase / 2 * np.sin(2 * x + 0.5) * np.cos(1.5 * y - 0.3)
    return (image * np.exp(1j * phase)).astype(np.complex64), y_axis
