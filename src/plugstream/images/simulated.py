"""Objects to measure in simulations, phantoms and discs, and noise at an exact level."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.arrays import Array, as_tensor
from plugstream.base.errors import InputError
from plugstream.images.grid import Grid


def add_noise(data: Array, snr: float, *, seed: int = 0, mask: Array | None = None) -> Tensor:
    """Add white Gaussian noise e to measurements so that 20 log10(||y|| / ||e||) is exactly `snr` dB.

    Arguments: data, real or complex, of any shape; mask, of that shape, False where nothing was measured.
    """
    data = as_tensor("data", data)
    if math.isnan(snr):
        raise InputError("the input SNR must be a number of dB, not NaN")
    if snr == math.inf:
        return data
    generator = np.random.Generator(np.random.Philox(key=seed))
    parts = 2 if data.is_complex() else 1
    draw = torch.from_numpy(generator.standard_normal((*data.shape, parts)))
    noise = torch.view_as_complex(draw) if data.is_complex() else draw[..., 0]
    if mask is not None:
        noise = torch.where(torch.as_tensor(mask, dtype=torch.bool), noise, torch.zeros((), dtype=noise.dtype))
    exact = data.to(noise.dtype)
    scale = torch.linalg.vector_norm(exact) / torch.linalg.vector_norm(noise) * 10 ** (-snr / 20)
    noisy: Tensor = exact + scale * noise
    return noisy.to(data.dtype)


# Of each ellipsoid: value, half axes along x, y and z, centre (x, y, z), degrees turned about z. The contrasts are
# those of Toft, which show on a screen.
ELLIPSOIDS = (
    (1.0, 0.69, 0.92, 0.81, 0.0, 0.0, 0.0, 0.0),
    (-0.8, 0.6624, 0.874, 0.78, 0.0, -0.0184, 0.0, 0.0),
    (-0.2, 0.11, 0.31, 0.22, 0.22, 0.0, 0.0, -18.0),
    (-0.2, 0.16, 0.41, 0.28, -0.22, 0.0, 0.0, 18.0),
    (0.1, 0.21, 0.25, 0.41, 0.0, 0.35, -0.15, 0.0),
    (0.1, 0.046, 0.046, 0.05, 0.0, 0.1, 0.25, 0.0),
    (0.1, 0.046, 0.046, 0.05, 0.0, -0.1, 0.25, 0.0),
    (0.1, 0.046, 0.023, 0.05, -0.08, -0.605, 0.0, 0.0),
    (0.1, 0.023, 0.023, 0.02, 0.0, -0.606, 0.0, 0.0),
    (0.1, 0.023, 0.046, 0.02, 0.06, -0.605, 0.0, 0.0),
)


def shepp_logan(shape: Sequence[int], slices: slice | None = None) -> NDArray[np.float64]:
    """A head of ellipsoids with values from 0 to 1, in the cube of side 2 that the array spans; a slice has z = 0.

    Arguments: shape, (H, W) or (D, H, W); axes are z, y and x, each increasing with the index; slices, those of a
    volume that are made, all if not given.
    References: Shepp and Logan, IEEE Trans. Nucl. Sci. 21(3), 1974; Toft, PhD thesis, 1996, for the values; Schabel, 3D
    Shepp-Logan phantom, 2006, for the third axis.
    """
    if len(shape) not in (2, 3):
        raise InputError(f"a phantom has two or three axes, not the shape {tuple(shape)}")
    axes = [(np.arange(size) - (size - 1) / 2) * 2 / size for size in shape]
    if slices is not None:
        axes[0] = axes[0][slices]
    grid = np.meshgrid(*axes, indexing="ij", sparse=True)
    x, y, z = grid[-1], grid[-2], grid[0] if len(shape) == 3 else np.zeros((1, 1))
    total = np.zeros(tuple(map(len, axes)))
    for value, a, b, c, x0, y0, z0, turn in ELLIPSOIDS:
        cosine, sine = np.cos(np.deg2rad(turn)), np.sin(np.deg2rad(turn))
        along = (x - x0) * cosine + (y - y0) * sine
        across = (y - y0) * cosine - (x - x0) * sine
        total += value * ((along / a) ** 2 + (across / b) ** 2 + ((z - z0) / c) ** 2 <= 1)
    return np.maximum(total, 0.0)


def disc(grid: Grid, center: Sequence[float], radius: float, *, lines: int = 64) -> NDArray[np.float64]:
    """How much of each pixel a disc covers, from 0 to 1: (H, W).

    A model that sums over pixels converges at second order in their size with such averages, and at first order with
    pixels that are in or out. Each pixel is cut into `lines` columns, whose covered length is exact: the error is
    about 1e-4 of a pixel.

    Arguments: grid; center, x and y in metres; radius in metres.
    """
    (height, width), (xc, yc), d = grid.shape, grid.center, grid.pixel
    offsets = (np.arange(lines) + 0.5) / lines - 0.5
    x = xc + (np.arange(width)[:, None] - width // 2 + offsets) * d - center[0]
    half = np.sqrt(np.maximum(radius**2 - x**2, 0.0))  # (W, lines): the disc spans -half to half there
    y = (yc + (np.arange(height) - height // 2) * d - center[1])[:, None, None]
    covered = np.minimum(y + d / 2, half) - np.maximum(y - d / 2, -half)
    return np.asarray(np.maximum(covered, 0.0).mean(2) / d)
