"""What our networks and published ones share: a range of values, a least size, and a potential if there is one."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from plugstream.base.errors import InputError
from plugstream.denoisers.base import Sigma, levels, per_image
from plugstream.denoisers.wrap import FromModule

_LIFT = 3.0  # mean over standard deviation, of a photograph about 2: less leaves dark parts below zero


class TrainedNetwork(FromModule):
    """A network that was trained on values from 0 to 1: D(z, sigma) = white D_1(z / white, sigma / white).

    Arguments: network, of images (N, 1, H, W) and sigma (N,), or without sigma if condition is "none"; white, the
    image's value for white; min_size; gradient_step, whether it has `potential(images, sigma)`, and is I - grad of it.
    Parts of complex images are moved to where the mean is three standard deviations, as of a photograph (`lift`).
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        white: float = 1.0,
        condition: Literal["none", "scalar"] = "scalar",
        min_size: int = 1,
        gradient_step: bool = False,
    ) -> None:
        if not 0 < white < float("inf"):
            raise InputError(f"the value of white must be a number > 0, not {white}")
        super().__init__(network, condition=condition, min_size=min_size)
        self.white, self.lift = float(white), _LIFT
        if gradient_step:
            self.potential = self._potential

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, None]:
        if min(image.shape[-2:]) < self.min_size:
            raise InputError(
                f"the image is {image.shape[-2]} x {image.shape[-1]}, but {self.describe()} needs at least "
                f"{self.min_size} pixels a side"
            )
        if self.white == 1:
            return super().denoise(image, sigma)
        out, _ = super().denoise(image / self.white, sigma / self.white)
        return out * self.white, None

    def _potential(self, image: Tensor, sigma: Sigma) -> Tensor:
        """g_sigma, (..., H, W) to (...)."""
        per_image(sigma, image)  # refuses what is no noise level
        z = (image / self.white).reshape(-1, 1, *image.shape[-2:])
        network: Any = self._module_like(image)
        with torch.set_grad_enabled(torch.is_grad_enabled() and image.requires_grad):
            values: Tensor = network.potential(z, levels(sigma, image) / self.white)
        return (values * self.white**2).reshape(image.shape[:-2])
