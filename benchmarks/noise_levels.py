"""What a denoiser makes of pictures with noise of several levels, in the same draw for every denoiser and script."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor


def mean_psnr(
    call: Callable[[Tensor, float], Tensor], truths: list[Tensor], device: str | torch.device, levels: Sequence[int]
) -> dict[int, float]:
    """The mean PSNR in dB over pictures from 0 to 1, at each noise level, given in 255ths."""
    means = {}
    for level in levels:
        found = []
        for number, truth in enumerate(truths):
            noise = np.random.default_rng([level, number]).standard_normal(truth.shape).astype(np.float32)
            z = (truth + level / 255 * torch.from_numpy(noise)).to(device)
            error = (call(z, level / 255).cpu() - truth).double().square().mean()
            found.append(-10 * float(torch.log10(error)))
        means[level] = round(statistics.fmean(found), 3)
    return means
