"""A simulated Fourier ptychographic microscope: its LEDs, its object, and photon counts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from plugstream.base.capacity import check_memory
from plugstream.base.image_size import SquareSize
from plugstream.base.registry import Field, Options
from plugstream.models.fpm_geometry import spiral

if TYPE_CHECKING:
    import torch


_SHORT, _LONG = 1e-12, 1e3


class FPMSimulation(Options):
    """The scan that `simulate` makes, of two pictures or a smear of cells; lengths are in metres."""

    picture: str = Field("camera", description="magnitude of the object: cells, a file, or a name such as camera")
    phase_picture: str = Field("moon", description="phase of the object, as picture")
    contrast: float = Field(0.5, ge=0, lt=1, description="largest part of the light that a picture absorbs")
    shift: float = Field(1.5, ge=0, le=math.pi, description="largest phase shift of a picture, in radians")
    size: SquareSize = Field(192, ge=16, le=8192, description="pixels of the image a side")
    camera: int = Field(64, ge=8, le=8192, description="pixels of the camera a side")
    pixel: float = Field(1.845e-6, ge=_SHORT, le=_LONG, description="size of a camera's pixel at the object")
    wavelength: float = Field(6.32e-7, ge=_SHORT, le=_LONG, description="wavelength of the light")
    aperture: float = Field(0.1, gt=0, le=2, description="numerical aperture of the objective")
    leds: int = Field(15, ge=1, le=1001, description="LEDs a side of their square")
    pitch: float = Field(4e-3, ge=_SHORT, le=_LONG, description="distance from one LED to the next")
    distance: float = Field(90e-3, ge=_SHORT, le=_LONG, description="distance from the LEDs to the object")
    defocus: float = Field(0.0, ge=-_LONG, le=_LONG, description="distance from the object to the plane in focus")
    photons: float = Field(2e4, ge=1, le=1e15, description="photons of a frame on the axis, without the object")
    seed: int = Field(0, ge=0, le=2**63 - 1, description="seed of the noise", json_schema_extra={"flag": "noise-seed"})


def plan_leds(s: FPMSimulation) -> NDArray[np.float64]:
    """x and y of the LEDs in a square spiral from the middle, in metres: (views, 2); refuse too large a scan."""
    views = s.leds**2
    check_memory(
        24 * views * s.camera**2 + 96 * s.size**2,
        f"a scan of {views:,} views of {s.camera} x {s.camera} pixels",
        "use fewer --leds or a smaller --camera",
    )
    return np.asarray(spiral(views).astype(np.float64) * s.pitch)


def count_photons(waves: torch.Tensor, seed: int) -> torch.Tensor:
    """Poisson counts of the intensities of waves, as float32, in the waves' shape."""
    import torch

    counts = np.random.default_rng(seed).poisson(waves.abs().double().square().numpy())
    return torch.from_numpy(counts.astype(np.float32))


def thin_object(s: FPMSimulation) -> NDArray[np.complex64]:
    """The simulated object: magnitude and phase of cells, or of pictures, (size, size)."""
    from plugstream.images.pictures import load_picture

    cells = smear(s.size)
    magnitude, phase = np.abs(cells).astype(np.float64), np.angle(cells).astype(np.float64)
    if s.picture != "cells":
        magnitude = 1 - s.contrast * (1 - load_picture(s.picture, s.size).numpy())
    if s.phase_picture != "cells":
        phase = s.shift * (load_picture(s.phase_picture, s.size).numpy() - 0.5)
    return np.asarray(magnitude * np.exp(1j * phase), dtype=np.complex64)


def smear(size: int, seed: int = 7) -> NDArray[np.complex64]:
    """A smear of cells: discs that are thin in the middle, as phase and some absorption, and a few small grains.

    Arguments: size, pixels a side; seed of where cells lie.
    """
    draw = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size] / size
    phase, absorbed = np.zeros((size, size)), np.zeros((size, size))
    for _ in range(26):
        (cy, cx), radius = draw.uniform(0, 1, 2), draw.uniform(0.06, 0.09)
        dy, dx = (np.abs(a - c) for a, c in ((y, cy), (x, cx)))
        r = np.hypot(np.minimum(dy, 1 - dy), np.minimum(dx, 1 - dx)) / radius  # the field repeats
        body = np.where(r < 1, 0.45 + 1.1 * r**2 - 1.2 * r**6, 0)
        phase += 1.1 * body
        absorbed += 0.35 * body
    for _ in range(60):
        (cy, cx), radius = draw.uniform(0, 1, 2), draw.uniform(0.006, 0.016)
        dy, dx = (np.abs(a - c) for a, c in ((y, cy), (x, cx)))
        inside = np.hypot(np.minimum(dy, 1 - dy), np.minimum(dx, 1 - dx)) < radius
        phase[inside] += 0.5
        absorbed[inside] += 0.4
    return np.asarray(np.exp(-absorbed) * np.exp(1j * phase), dtype=np.complex64)
