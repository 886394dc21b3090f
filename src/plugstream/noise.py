"""Noise for simulated measurements, at an exact level."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from plugstream.arrays import Array, as_tensor
from plugstream.errors import InputError

__all__ = ["add_noise"]


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
