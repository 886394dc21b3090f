"""Fourier ptychography with a microscope that is refined on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from plugstream.models.fpm_calibration import begin_microscope, compare_leds, refine_microscope
from plugstream.models.fpm_waves import FPMWaves
from plugstream.models.views import Derivative, Views, all_views

__all__ = ["FPMModel"]


class FPMModel(FPMWaves):
    """The model of `FPMWaves` as a run uses it: pupil, gains and places of LEDs are refined on the way."""

    def refine(
        self, image: Tensor, data: Tensor, views: Views, names: Sequence[str], derivative: Derivative, pace: float = 1.0
    ) -> dict[str, Tensor]:
        """The parameters after a step on the pupil, gains and places of LEDs (`plugstream.models.fpm_calibration`)."""
        return refine_microscope(self, image, data, all_views(views, self.n_views), names, derivative, pace)

    def comparable(self, parameters: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        """The pupil, and LEDs by how far they move as a part of the aperture; gains follow from what is predicted."""
        found = super().comparable(parameters, [name for name in names if name == "pupil"])
        return found | ({"leds": compare_leds(self, parameters["leds"])} if "leds" in names else {})

    def start_from(
        self, read: Callable[[Tensor], Tensor], available: Tensor, names: Sequence[str]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The image and parameters to begin with, by the data (`plugstream.models.fpm_calibration`)."""
        return begin_microscope(self, read, available, names)
