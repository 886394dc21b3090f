"""Images that are zero outside a support: inside TV's own problem, and around any other denoiser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.denoisers.base import Denoiser, Sigma, Wrapper, check_support, compose_averaged
from plugstream.denoisers.opening import Opening
from plugstream.denoisers.tv import TV
from plugstream.denoisers.wrap import Damping, as_denoiser


class Within(Wrapper):
    """Denoise within a support: P D(P z, sigma), where P sets what is outside to zero.

    P is a projection, the prox of the indicator of images that are zero there. If D is a-averaged, this is averaged as
    the composition of 1/2, a and 1/2. It is not the prox of D's function plus the indicator, unlike TV's own support.

    Arguments: denoiser, D; support, bool, (H, W) or (D, H, W), True inside; (H, W) serves all slices of a volume.
    """

    def __init__(self, denoiser: Denoiser | Callable[..., Tensor], support: Tensor) -> None:
        self.support = check_support(support)
        super().__init__(as_denoiser(denoiser), support=self.support)
        self.averaged = compose_averaged(compose_averaged(0.5, self.denoiser.averaged), 0.5)

    def window(self, where: tuple[slice, ...]) -> Denoiser:
        return Within(self.denoiser.window(where), self.support[where[-self.support.ndim :]])

    def describe(self) -> str:
        return f"{self.denoiser.describe()}, zero outside its support"

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        support = self.support
        if support.shape != image.shape[image.ndim - support.ndim :]:
            sizes = (" x ".join(map(str, shape)) for shape in (support.shape, image.shape))
            raise InputError("the support is {}, but the image {}".format(*sizes))
        support = support.to(image.device)
        out, warm = self.denoiser.denoise(torch.where(support, image, 0), sigma, warm)
        return torch.where(support, out, 0), warm


def with_support(denoiser: Denoiser, support: Tensor | None) -> Denoiser:
    """The denoiser within a support, inside TV's own problem if it is TV; None for everywhere."""
    if support is None:
        return denoiser
    if isinstance(denoiser, TV):
        return replace(denoiser, support=support)
    if isinstance(denoiser, Opening):
        first = with_support(denoiser.first, support)
        return Opening(with_support(denoiser.denoiser, support), first, denoiser.steps, denoiser.factor)
    if isinstance(denoiser, Damping):
        return denoiser.rewrap(with_support(denoiser.denoiser, support))
    return Within(denoiser, support)
