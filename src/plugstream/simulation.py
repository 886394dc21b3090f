"""Make the scan that a model would measure of a known image, with noise at an exact level."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from plugstream.arrays import Array, as_tensor
from plugstream.errors import InputError
from plugstream.models.base import check_shape
from plugstream.models.born import BornModel
from plugstream.progress import report
from plugstream.scans.scan import MemoryScan

__all__ = ["add_noise", "simulate"]


def simulate(
    model: BornModel, image: Array, *, snr: float = 40.0, seed: int = 0, y_axis: Literal["up", "down"] = "up"
) -> MemoryScan:
    """Measure a known image: y_i = H_i x + e_i, with complex white Gaussian noise at an exact input SNR.

    Arguments: model gives the geometry; image is the truth, (H, W); snr in dB, infinity for none; seed of the noise;
    y_axis, which way y points in pictures of it: "down" where the image is a photograph, whose first row is its top.
    The scan keeps the truth, so that a reconstruction can be judged against it.
    """
    if y_axis not in ("up", "down"):
        raise InputError(f"the y axis points up or down, not {y_axis!r}")
    image = as_tensor("image", image, dtype=model.dtype)
    check_shape("image", image, model.image_shape)
    if image.ndim != 2:
        raise InputError(f"simulate takes one image (H, W), not a stack of shape {tuple(image.shape)}")
    if not bool(torch.isfinite(image).all()):
        raise InputError("the image holds NaN or infinity")
    report(f"simulating {model.n_views} views")
    clean = model.forward(image.to(device=model.device, dtype=model.dtype)).cpu()
    mask = None if model.geometry.mask is None else torch.from_numpy(model.geometry.mask[:])
    data = add_noise(clean, snr, seed=seed, mask=mask)
    return MemoryScan(
        data=data.to(torch.complex64),
        instrument=model.geometry,
        truth=image.detach().cpu().numpy().astype(np.float32),
        provenance={
            "made_by": "plugstream simulate",
            "snr_db": snr if math.isfinite(snr) else None,
            "seed": seed,
            "y_axis": y_axis,
        },
    )


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
