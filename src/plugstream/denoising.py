"""Denoise a picture, grey or colour, with any denoiser of grey images."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from plugstream.denoisers.base import Denoiser
from plugstream.errors import InputError

__all__ = ["OPPONENT", "denoise_picture"]

# Brightness, red against blue, green against both. Orthonormal, so white noise keeps its strength in every channel,
# and uncorrelated for natural pictures, so that denoising one channel at a time loses little.
OPPONENT = np.array([[1, 1, 1], [1, 0, -1], [1, -2, 1]]) / np.sqrt([[3], [2], [6]])


def denoise_picture(
    pixels: NDArray[np.float64],
    denoiser: Denoiser,
    sigma: float,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> NDArray[np.float64]:
    """Remove white noise of standard deviation sigma from a picture, each channel of colour in an opponent space.

    Arguments: pixels, (H, W), (H, W, 3), or with a last channel of transparency, (H, W, 2) or (H, W, 4), which is kept.
    """
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (1, 2, 3, 4)):
        raise InputError(f"the picture is of shape {pixels.shape}; grey (H, W) or colour (H, W, 3) is needed")
    if not np.isfinite(pixels).all():
        raise InputError("the picture holds NaN or infinity")
    if min(pixels.shape[:2]) < denoiser.min_size:
        raise InputError(
            f"the picture is {pixels.shape[0]} x {pixels.shape[1]}, but the denoiser needs at least "
            f"{denoiser.min_size} pixels a side"
        )
    planes = pixels[..., None] if pixels.ndim == 2 else pixels
    alpha = planes[..., planes.shape[2] - 1 :] if planes.shape[2] in (2, 4) else planes[..., :0]
    colour = planes[..., : planes.shape[2] - alpha.shape[2]]
    turn = OPPONENT if colour.shape[2] == 3 else np.eye(1)
    stack = torch.from_numpy(np.ascontiguousarray(np.moveaxis(colour @ turn.T, -1, 0))).to(device=device, dtype=dtype)
    clean = np.moveaxis(denoiser(stack, sigma).double().cpu().numpy(), 0, -1) @ turn
    return np.concatenate([clean, alpha], axis=-1).reshape(pixels.shape)
