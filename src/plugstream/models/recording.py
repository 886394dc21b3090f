"""How strongly each view is recorded, and above which background: gains and pedestals of a camera."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from plugstream.base.errors import InputError

__all__ = ["Recording", "fit_recording", "magnitudes", "power"]

# How much an expected gain counts beside a view's own, as a part of what a view says that is predicted well.
_TRUST = 0.05
# The background, as a part of the mean, of a view of which nothing is predicted yet.
_PEDESTAL = 0.3


@dataclass(frozen=True, eq=False)
class Recording:
    r"""Views i are recorded as I_i = g_i |p_i|^2 + b_i, p_i being the wave of a model.

    Losses compare on the scale of the wave: the data I_i / g_i with |p_i|^2 + b_i / g_i. So every view counts by its
    wave, however long it was exposed, and one step suits all of them.

    Arguments: gains g > 0 and backgrounds b >= 0, (views,) each; known, (views,), False where they are still to be
    fitted to each prediction (`fit_recording`), about the gain that is expected; None where all are known.
    """

    gains: Tensor
    backgrounds: Tensor
    known: Tensor | None = None

    @classmethod
    def of(
        cls,
        n_views: int,
        gains: ArrayLike | None = None,
        backgrounds: ArrayLike | None = None,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> Self:
        """Gains and backgrounds of so many views, 1 and 0 where they are not given; what cannot be is refused."""
        found = []
        for name, values, usual in (("gains", gains, 1.0), ("backgrounds", backgrounds, 0.0)):
            one = np.full(n_views, usual) if values is None else np.asarray(values, dtype=np.float64)
            good = one.shape == (n_views,) and np.isfinite(one).all() and bool((one > 0 if usual else one >= 0).all())
            if not good:
                raise InputError(
                    f"{name} must be finite and {'> 0' if usual else '0 or more'}, one for each of {n_views} views"
                )
            found.append(torch.as_tensor(one, device=device, dtype=dtype))
        return cls(found[0], found[1])

    @property
    def plain(self) -> bool:
        """Whether all views are recorded as they are."""
        same = bool((self.gains == 1).all()) and bool((self.backgrounds == 0).all())
        return same and (self.known is None or bool(self.known.all()))

    def scale(self, data: Tensor, views: Tensor | None, intensity: Tensor) -> tuple[Tensor, Tensor]:
        """The data of these views over their gain, and their background over it: (..., B, ...) and (..., B, 1, ...).

        Arguments: views (B,), None for all; intensity |p|^2, (..., B, ...), to which both are fitted if not known.
        """
        gains, beside = self.of_views(views, intensity, data)
        return data / gains, beside / gains

    def record(self, intensity: Tensor, views: Tensor | None, data: Tensor) -> Tensor:
        """g_i |p_i|^2 + b_i of intensities (..., B, ...); data, to which both are fitted if not known."""
        gains, beside = self.of_views(views, intensity, data)
        return gains * intensity + beside

    def of_views(self, views: Tensor | None, intensity: Tensor, data: Tensor) -> tuple[Tensor, Tensor]:
        """Gain and background of these views, shaped so that they go with data: (..., B, 1, ...) each."""
        chosen = slice(None) if views is None else views.to(self.gains.device)
        shape = (-1, 1, 1)
        gains, beside = self.gains[chosen].reshape(shape), self.backgrounds[chosen].reshape(shape)
        if self.known is None or bool(self.known[chosen].all()):
            return gains, beside
        known = self.known[chosen].reshape(shape)
        fitted = fit_recording(intensity, data, gains.reshape(-1))
        parts = (one.reshape(*one.shape, 1, 1) for one in fitted)
        return torch.where(known, gains, next(parts)), torch.where(known, beside, next(parts))


def fit_recording(intensity: Tensor, data: Tensor, expected: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""The gain g > 0 and background b >= 0 of each view that fit g |p|^2 + b to what was recorded, in closed form.

    Least squares: g is the covariance of both over the variance of the intensity, and b what is left of the mean. Where
    b would be negative it is 0 and g fits alone; where nothing correlates, g explains the mean.

    With an `expected` gain e the variance that the intensity would have at it counts, too, times 0.05: a view of which
    hardly anything is predicted yet keeps the gain e and a background of 0.3 of its mean, and one that is predicted
    well has its own.

    Arguments: intensity |p|^2 and data, (..., B, rows, columns); expected (B,). Returns (..., B) twice.
    """
    tiny = torch.finfo(intensity.dtype).tiny
    axes = (-2, -1)
    mean, level = intensity.mean(axes, keepdim=True), data.mean(axes, keepdim=True)
    both = ((intensity - mean) * (data - level)).mean(axes)
    spread = (intensity - mean).square().mean(axes)
    varied = (data - level).square().mean(axes)
    mean, level = mean[..., 0, 0], level[..., 0, 0]
    if expected is not None:
        prior = _TRUST * varied / expected.square()
        gain = (both.clamp_min(0) + prior * expected) / (spread + prior).clamp_min(tiny)
        share = prior / (spread + prior).clamp_min(tiny)
        beside = (1 - share) * (level - gain * mean).clamp_min(0) + share * _PEDESTAL * level
        good = gain > 0
        return torch.where(good, gain, expected.expand_as(gain)), beside
    gain = both / spread.clamp_min(tiny)
    beside = level - gain * mean
    alone = (intensity * data).mean(axes) / intensity.square().mean(axes).clamp_min(tiny)
    gain = torch.where(beside < 0, alone, gain)
    beside = beside.clamp_min(0)
    flat = ~(gain > 0)
    gain = torch.where(flat, level / mean.clamp_min(tiny), gain)
    return torch.where(gain > 0, gain, torch.ones_like(gain)), torch.where(flat, 0.0, beside)


def magnitudes(waves: Tensor, model: Any, data: Tensor, views: Tensor) -> Tensor:
    """The root of the intensity of waves that a model predicts, those that do not interfere taken together.

    As it is recorded, where the model knows gains and backgrounds of views; those of views that it does not know of are
    fitted to their data.

    Arguments: waves (..., B, *data_shape); model; data of these views; views (B,).
    """
    axis, recording = model.incoherent, model.recording
    if axis is None and recording is None:
        return waves.abs()
    intensity = waves.abs().square() if axis is None else waves.abs().square().sum(axis, keepdim=True)
    if recording is not None:
        intensity = recording.record(intensity, views, data)
    return intensity.sqrt()


def power(waves: Tensor) -> Tensor:
    """|p|^2 of complex values, without the root that abs takes."""
    return waves.real.square() + waves.imag.square()
