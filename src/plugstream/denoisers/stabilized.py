"""Any denoiser for counts: Anscombe's transform before it, and the exact unbiased inverse after it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from plugstream.denoisers.base import Denoiser, Sigma, Wrapper, per_image, require_real
from plugstream.denoisers.counts import anscombe, inverse_anscombe
from plugstream.denoisers.wrap import as_denoiser


class Anscombe(Wrapper):
    r"""D for images of counts, whose noise grows with their mean: I(D(f(z), sigma)), with f and I of
    `plugstream.anscombe` and `plugstream.inverse_anscombe`.

    f makes the noise white with a standard deviation of 1, so sigma = 1 is for counts as they come; sigma = 0 returns
    them as they are. Means below about 0.5 counts are beyond it: f's noise is then smaller than 1. Nothing is known of
    averagedness. D must take values of 2 sqrt(counts); for one that is trained for values from 0 to 1 set its `white`.

    Arguments: denoiser, D; gain and read_noise, as of `anscombe`.
    """

    ordered = True

    def __init__(self, denoiser: Denoiser | Callable[..., Tensor], gain: float = 1.0, read_noise: float = 0.0) -> None:
        super().__init__(as_denoiser(denoiser), gain=gain, read_noise=read_noise)
        self.gain, self.read_noise = float(gain), float(read_noise)
        anscombe(torch.zeros(1), self.gain, self.read_noise)  # which refuses impossible ones

    def describe(self) -> str:
        return f"{self.denoiser.describe()} between Anscombe's transform and its inverse"

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        require_real(image, "Anscombe")
        stable = anscombe(image, self.gain, self.read_noise)
        clean, after = self.denoiser.denoise(stable, sigma, warm)
        back = inverse_anscombe(clean, self.gain, self.read_noise)
        level = per_image(sigma, image, self.axes)
        unchanged = level == 0
        if isinstance(unchanged, Tensor):
            return torch.where(unchanged, image, back), after
        return image.clone() if unchanged else back, after
