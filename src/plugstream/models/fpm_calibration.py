"""A Fourier ptychographic microscope, found along with the image: its pupil, how views are recorded, its LEDs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from plugstream.models.recording import fit_recording, power
from plugstream.models.views import Derivative

if TYPE_CHECKING:
    from plugstream.models.fpm_waves import FPMWaves

__all__ = ["begin_microscope", "compare_leds", "refine_microscope"]

# Where the object lights the pupil less than this part of the most, the pupil learns as slowly as there.
_LEAST = 0.1
# How much of a Gauss-Newton step on the places of LEDs is taken: steps of a few views are noisy, and the image that
# they go by was made with the places before.
_PACE, _DAMPING = 0.5, 0.05
# How far LEDs may be off: steps of the spectrum by the aperture's radius, radians, and as a part of their distance.
_FAR, _TURNED, _STRETCHED = 0.3, 0.12, 0.1
# How often the bright views go round at the start; how far beyond the aperture a view is surely in dark field, though
# LEDs stand a little off; how much wider the first ring of such views is than its inner edge.
_ROUNDS, _SURELY, _RING = 16, 1.1, 1.15


def refine_microscope(
    model: FPMWaves,
    image: Tensor,
    data: Tensor,
    views: Tensor,
    names: Sequence[str],
    derivative: Derivative,
    pace: float = 1.0,
) -> dict[str, Tensor]:
    r"""All parameters of a microscope after a step on some of them, at an image that stays as it is.

    pupil: the gradient step whose length follows how strongly the object's spectrum O_i lights it,

        P <- P - sum_i w_i S_i^T(conj(O_i) d_i) / (sum_i w_i S_i^T |O_i|^2 + 0.1 max),    w_i = 1 / max |O_i|^2,

    d_i being the spectrum of the loss's derivative and S_i the shift by a part of a step; ||P|| stays as it is, and P
    is zero outside of the aperture.

    gains: gain and background of each view in closed form (`fit_recording`), about the gain that it had.

    leds: a damped Gauss-Newton step on four numbers, by which all LEDs are moved, turned and stretched together: the
    derivative of |p_i| along a shift is that of its pupil, since |p_i| does not change with where a crop is begun. It
    goes by views that were fitted before: at their first use the image has nothing of what they see yet, and they pull
    LEDs to where it has something. A step after which these views are explained worse is not taken.

    Arguments: image (H, W); data (B, rows, columns), as recorded; views (B,); names of what is refined; derivative of a
    loss whose curvature at a fit is 1; pace, the part of the steps on the pupil and the LEDs that is taken.
    References: Ou, Zheng and Yang, Opt. Express 22(5), 2014 (pupil); Sun et al., Biomed. Opt. Express 7(4), 2016
    (LEDs).
    """
    found = dict(model.parameters)
    crops = model.crop(model.transform(image), views)
    lenses = model.lenses(views)
    waves = model.restrict(model.propagate(lenses * crops), views)
    if "pupil" in names:
        slopes = model.restrict(derivative(waves, data, views), views)
        found["pupil"] = _refined_pupil(model, crops, model.collect(slopes), views, pace)
    if "gains" in names:
        found["gains"] = _refined_gains(model, waves, data, views)
    known = None if model.recording is None else model.recording.known
    fitted = torch.ones(len(views), dtype=torch.bool) if known is None else known.cpu()[views]
    if "leds" in names and bool(fitted.any()):
        rows = fitted.to(waves.device)
        parts = (lenses[rows], crops[rows], waves[rows], data[rows])
        found["leds"] = _refined_leds(model, image, parts, views[fitted], pace)
    return found


def _refined_pupil(model: FPMWaves, crops: Tensor, slopes: Tensor, views: Tensor, pace: float) -> Tensor:
    pixels, light = math.prod(model.microscope.shape), model.light
    lit = power(crops)
    weights = 1 / lit.amax((-2, -1), keepdim=True).clamp_min(torch.finfo(lit.dtype).tiny)
    up = model.gather_pupil(weights * crops.conj() * slopes, views) / (pixels * math.sqrt(light))
    below = model.gather_pupil(weights * lit, views)
    step = up / (below + _LEAST * below.max())
    pupil = model.pupil - (step if pace == 1 else pace * step)
    pupil = torch.where(model.inside, pupil, torch.zeros((), dtype=pupil.dtype, device=pupil.device))
    return pupil * (power(model.pupil).sum() / power(pupil).sum()).sqrt()


def _refined_gains(model: FPMWaves, waves: Tensor, data: Tensor, views: Tensor) -> Tensor:
    rows = model.parameters["gains"].clone()
    mine = views.to(rows.device)
    gain, beside = fit_recording(power(waves), data, rows[mine, 0])
    rows[mine] = torch.stack([gain, beside, torch.ones_like(gain)], -1)
    return rows


def _refined_leds(
    model: FPMWaves, image: Tensor, parts: tuple[Tensor, Tensor, Tensor, Tensor], views: Tensor, pace: float
) -> Tensor:
    """How LEDs are off after a step by views of which lenses, crops of the spectrum, waves and data are given."""
    lenses, crops, waves, data = parts
    y, size, off = _compare(model, waves, data, views)
    safe = size.clamp_min(1e-3 * float(size.mean()) + torch.finfo(size.dtype).tiny)
    slopes = []
    for axis in (0, 1):
        moved = model.propagate(model.slopes_of_lenses(lenses, axis) * crops)
        slopes.append(model.restrict((waves.conj() * moved).real / safe, views))
    weights = 1 / y.sum((-2, -1)).clamp_min(torch.finfo(y.dtype).tiny)
    rise, run = slopes
    products = [[(a * b).sum((-2, -1)) * weights for b in (rise, run, off)] for a in (rise, run)]
    block = torch.stack([torch.stack(row, -1) for row in products], -2).double().cpu().numpy()  # (B, 2, 3)
    row, column = model.nominal[views.numpy()].T
    one, none = np.ones_like(row), np.zeros_like(row)
    # How a view's step follows the four numbers: moved along rows, along columns, turned, stretched.
    follow = np.stack([np.stack([one, none, column, row], -1), np.stack([none, one, -row, column], -1)], 1)  # (B, 2, 4)
    normal = np.einsum("bip,bij,bjq->pq", follow, block[..., :2], follow)
    slope = np.einsum("bip,bi->p", follow, block[..., 2])
    scale = np.diag(normal).copy()
    if not (np.isfinite(normal).all() and (scale > 0).all()):
        return model.aim
    step = np.linalg.solve(normal + _DAMPING * np.diag(scale), slope)
    far = _FAR * min(model.microscope.radius)
    most = np.array([far, far, _TURNED, _STRETCHED])
    aim = torch.from_numpy(np.clip(model.aim.numpy() - pace * _PACE * step, -most, most))
    moved_model = model.with_parameters({"leds": aim})
    _, _, then = _compare(moved_model, moved_model.forward(image, views), data, views)
    misfits = [float((one.square().sum((-2, -1)) * weights).sum()) for one in (off, then)]
    return aim if misfits[1] <= misfits[0] else model.aim


def _compare(model: FPMWaves, waves: Tensor, data: Tensor, views: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The data on the scale of the light, the size of what is predicted of it, and the difference of their roots."""
    light = power(waves)
    y, beside = (data, 0.0) if model.recording is None else model.recording.scale(data, views, light)
    size = (light + beside).sqrt()
    return y, size, model.restrict(size - y.sqrt(), views)


def compare_leds(model: FPMWaves, aim: Tensor) -> Tensor:
    """How all LEDs are off, (4,), so that a difference is how far they move as a part of a quarter of the aperture.

    The root of the mean square over LEDs: a turn and a stretch move each by its way from the axis. By a quarter of the
    aperture's radius views are predicted as badly as by a pupil that is altogether another.
    """
    radius = min(model.microscope.radius) / 4
    away = float(np.sqrt((model.nominal**2).sum(1).mean()))
    scale = torch.tensor([1.0, 1.0, away, away], dtype=torch.float64) / radius
    return (aim.double().cpu() * scale).to(device=model.device, dtype=model.dtype.to_real())


@torch.no_grad()
def begin_microscope(
    model: FPMWaves, read: Callable[[Tensor], Tensor], available: Tensor, names: Sequence[str]
) -> tuple[Tensor, dict[str, Tensor]]:
    r"""The image and the parameters to begin with, from the views in bright field.

    The image begins with their mean amplitude on its finer pixels, and then fits them sixteen times round, by steps
    that follow the overlap: after four, what only views near the aperture's edge see has half of its amplitude yet.
    Where gains are to be refined, the first ring of views in dark field, of which it predicts something already, tells
    the gain that is expected of all of them: the median of theirs.

    Arguments: read, which gives the data of views; available views (n,); names of what is refined.
    """
    bright = available[model.bright[available]]
    parameters = model.parameters
    if len(bright) == 0:
        return model.start_image(), parameters
    data = torch.cat([read(some) for some in bright.split(64)])
    amplitude = data.sqrt().mean(0) / math.sqrt(model.light)
    image = _upsample(amplitude, model)
    overlap = float(model.overlap(bright).max())
    ahead, q = image, 1.0
    for _ in range(_ROUNDS):
        waves, pull = model.linearize(ahead, bright)
        size = waves.abs().clamp_min(torch.finfo(amplitude.dtype).tiny)
        following = ahead - pull(waves * (1 - data.sqrt() / size)) / overlap
        longer = (1 + math.sqrt(1 + 4 * q * q)) / 2
        ahead, image, q = following + (q - 1) / longer * (following - image), following, longer
    if "gains" in names:
        parameters["gains"] = _expected_gains(model, image, read, available)
    return image, parameters


def _expected_gains(model: FPMWaves, image: Tensor, read: Callable[[Tensor], Tensor], available: Tensor) -> Tensor:
    """Gains to begin with, still to be fitted: 1 in bright field, and in dark field that of the first ring.

    An LED at the very edge of the aperture is no dark view yet: its gain is that of the light, which its edge cuts, and
    taken for that of all dark views it is ten times too small. So the ring begins a little farther out.
    """
    rows = model.parameters["gains"].clone()
    rows[:, 2] = 0
    dark = available[~model.bright[available]]
    if len(dark) > 0:
        sines = torch.from_numpy(model.sines)
        sure = dark[sines[dark] >= _SURELY * model.microscope.aperture]
        sure = sure if len(sure) > 0 else dark
        ring = sure[sines[sure] <= _RING * sines[sure].min()]
        gains, _ = fit_recording(power(model.forward(image, ring)), read(ring))
        rows[~model.bright.to(rows.device), 0] = gains.median().to(rows.dtype)
    return rows


def _upsample(amplitude: Tensor, model: FPMWaves) -> Tensor:
    """A picture on the image's pixels, by its spectrum; beyond the camera it goes on as at its border."""
    if g := model.guard:
        amplitude = torch.nn.functional.pad(amplitude[None], (g, g, g, g), mode="replicate")[0]
    small = torch.fft.fftshift(torch.fft.fft2(amplitude.to(model.dtype), norm="forward"))
    whole = torch.zeros(model.image_shape, dtype=model.dtype, device=model.device)
    first = [n // 2 - m // 2 for n, m in zip(model.image_shape, model.microscope.shape, strict=True)]
    rows, columns = model.microscope.shape
    whole[first[0] : first[0] + rows, first[1] : first[1] + columns] = small
    image: Tensor = torch.fft.ifft2(torch.fft.ifftshift(whole), norm="forward")
    return image
