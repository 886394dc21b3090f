"""Small random models of TNRD, and what they do written out with NumPy and SciPy as the authors' program does it."""

from __future__ import annotations

import numpy as np
import scipy.fft
import scipy.ndimage
import torch
from torch import Tensor

from plugstream.denoisers.tnrd import ReactionDiffusion


def random_model(size: int = 7, stages: int = 2, sigma: float = 5.0, seed: int = 0) -> ReactionDiffusion:
    """Filters at random, and nonlinearities rough enough for mistakes to show; without gradients."""
    generator = torch.Generator().manual_seed(seed)
    filters = size * size - 1
    coefficients = torch.randn(stages, filters, filters, generator=generator, dtype=torch.float64)
    weights = 0.3 * torch.randn(stages, filters, 63, generator=generator, dtype=torch.float64)
    log_reaction = -torch.rand(stages, generator=generator, dtype=torch.float64)
    return ReactionDiffusion(coefficients, log_reaction, weights, sigma).requires_grad_(False)


def picture(*shape: int, seed: int = 0, white: float = 255.0) -> Tensor:
    """Edges, waves and noise, (..., H, W)."""
    *batch, height, width = shape
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    clean = 0.5 + 0.2 * torch.sin(x / 3 + y / 5) + 0.3 * torch.sign(torch.sin(x / 6) * torch.sin(y / 7 + 1))
    noise = torch.randn(*batch, height, width, generator=torch.Generator().manual_seed(seed))
    return white * (clean + 0.05 * noise)


def written_out(model: ReactionDiffusion, image: np.ndarray, stretch: float = 1.0) -> np.ndarray:
    """The authors' procedure on one image: pad by 8, correlate with symmetric ends, step, crop, pad again.

    Their bumps stand at `stretch` times -310, -300 .. 310, and are as much wider.
    """
    mu, precision = stretch * np.arange(-310, 311, 10), 0.01 / stretch**2
    pad, crop = (lambda v: np.pad(v, 8, mode="symmetric")), (lambda v: v[8:-8, 8:-8])
    noisy = u = pad(image)
    for c, log_p, w in zip(model.coefficients.numpy(), model.log_reaction.numpy(), model.weights.numpy(), strict=True):
        force = np.exp(log_p) * (u - noisy)
        for coefficients, weights in zip(c, w, strict=True):
            # MATLAB fills a matrix column by column: the transpose of NumPy's.
            spectrum = np.concatenate([[0.0], coefficients]).reshape(model.size, model.size).T
            kernel = scipy.fft.idctn(spectrum, norm="ortho")
            kernel /= np.linalg.norm(kernel)
            response = scipy.ndimage.correlate(u, kernel, mode="reflect")
            driven = (weights * np.exp(-0.5 * precision * (response[..., None] - mu) ** 2)).sum(-1)
            force += scipy.ndimage.correlate(driven, np.rot90(kernel, 2), mode="reflect")
        u = pad(crop(u - force))
    return crop(u)
