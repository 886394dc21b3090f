"""What a denoiser makes of pictures with noise of several levels, in the same draw for every denoiser and script."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from plugstream.base.progress import report

LEVELS = (5, 15, 25, 50)


def mean_psnr(
    call: Callable[[Tensor, float], Tensor],
    truths: Sequence[Tensor],
    device: str | torch.device = "cpu",
    levels: Sequence[int] = LEVELS,
) -> dict[int, float]:
    """The mean PSNR in dB over pictures from 0 to 1, at each noise level, given in 255ths."""
    means = {}
    for place, level in enumerate(levels):
        values = []
        for number, truth in enumerate(truths):
            report("judging", place * len(truths) + number, len(levels) * len(truths))
            noise = np.random.default_rng([level, number]).standard_normal(truth.shape).astype(np.float32)
            z = (truth + level / 255 * torch.from_numpy(noise)).to(device)
            error = (call(z, level / 255).cpu() - truth).double().square().mean()
            values.append(-10 * float(torch.log10(error)))
        means[level] = round(statistics.fmean(values), 3)
    return means
