"""Gains and backgrounds with which a camera records each view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from plugstream.base.errors import InputError

_TRUST = 0.05  # weight of the expected gain, relative to that of a view that is predicted well
_PEDESTAL = 0.3  # background, as a part of the mean, of a view that is not predicted yet


@dataclass(frozen=True, eq=False)
class Recording:
    r"""Views i are recorded as I_i = g_i |p_i|^2 + b_i, p_i being the wave of a model.

    Losses compare on the scale of the wave: the data I_i / g_i with |p_i|^2 + b_i / g_i. So every view counts by its
    wave, however long it was exposed, and one step suits all of them.

    Arguments: gains g > 0 and backgrounds b >= 0, (views,) each; known, (views,), False for views to which they are
    fitted at each prediction (`fit_recording`), about the expected gain; None if all are known.
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
        """Gains and backgrounds of so many views, 1 and 0 by default; refuse impossible ones."""
        parts = []
        for name, values, usual in (("gains", gains, 1.0), ("backgrounds", backgrounds, 0.0)):
            row = np.full(n_views, usual) if values is None else np.asarray(values, dtype=np.float64)
            if row.shape != (n_views,) or not (np.isfinite(row) & (row > 0 if usual else row >= 0)).all():
                raise InputError(
                    f"{name} must be finite and {'> 0' if usual else '0 or more'}, one for each of {n_views} views"
                )
            parts.append(torch.as_tensor(row, device=device, dtype=dtype))
        return cls(parts[0], parts[1])

    @property
    def plain(self) -> bool:
        """Whether all gains are 1 and all backgrounds 0."""
        same = bool((self.gains == 1).all()) and bool((self.backgrounds == 0).all())
        return same and (self.known is None or bool(self.known.all()))

    def scale(self, data: Tensor, views: Tensor | None, intensity: Tensor) -> tuple[Tensor, Tensor]:
        """The data of these views over their gain, and their background over it: (..., B, ...) and (..., B, 1, ...).

        Arguments: views (B,), None for all; intensity |p|^2, (..., B, ...), to which both are fitted if not known.
        """
        gains, backgrounds = self.of_views(views, intensity, data)
        return data / gains, backgrounds / gains

    def record(self, intensity: Tensor, views: Tensor | None, data: Tensor) -> Tensor:
        """g_i |p_i|^2 + b_i of intensities (..., B, ...); g and b are fitted to the data if not known."""
        gains, backgrounds = self.of_views(views, intensity, data)
        return gains * intensity + backgrounds

    def of_views(self, views: Tensor | None, intensity: Tensor, data: Tensor) -> tuple[Tensor, Tensor]:
        """Gain and background of these views, shaped to broadcast with data: (..., B, 1, ...) each."""
        chosen = slice(None) if views is None else views.to(self.gains.device)
        gains, backgrounds = self.gains[chosen, None, None], self.backgrounds[chosen, None, None]
        if self.known is None or bool(self.known[chosen].all()):
            return gains, backgrounds
        known = self.known[chosen, None, None]
        gain, background = fit_recording(intensity, data, gains.reshape(-1))
        return torch.where(known, gains, gain[..., None, None]), torch.where(
            known, backgrounds, background[..., None, None]
        )


def fit_recording(intensity: Tensor, data: Tensor, expected: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""The gain g > 0 and background b >= 0 of each view that fit g |p|^2 + b to what was recorded, in closed form.

    Least squares: g is the covariance of both over the variance of the intensity, and b the rest of the mean. If b
    would be negative, it is 0 and g fits alone; if nothing correlates, g explains the mean.

    With an `expected` gain e, the variance that the intensity would have at e counts as well, times 0.05: a view that
    is hardly predicted yet keeps the gain e and a background of 0.3 of its mean, and a view that is predicted well has
    its own.

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
        background = (1 - share) * (level - gain * mean).clamp_min(0) + share * _PEDESTAL * level
        return torch.where(gain > 0, gain, expected.expand_as(gain)), background
    gain = both / spread.clamp_min(tiny)
    background = level - gain * mean
    alone = (intensity * data).mean(axes) / intensity.square().mean(axes).clamp_min(tiny)
    gain = torch.where(background < 0, alone, gain)
    flat = ~(gain > 0)
    gain = torch.where(flat, level / mean.clamp_min(tiny), gain)
    return torch.where(gain > 0, gain, torch.ones_like(gain)), torch.where(flat, 0.0, background.clamp_min(0))


def magnitudes(waves: Tensor, model: Any, data: Tensor, views: Tensor) -> Tensor:
    """The root of the intensity of predicted waves, summed over those that do not interfere.

    It includes the gains and backgrounds of views if the model has a recording, fitted to the data if not known.

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
