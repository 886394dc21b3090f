"""Fourier ptychography with a microscope that is refined along with the image: its pupil, its recording, its LEDs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from plugstream.models.fpm_waves import FPMWaves
from plugstream.models.recording import fit_recording, power
from plugstream.models.views import Derivative, Views, all_views

# Where the object lights the pupil less than this part of the most, the pupil learns as slowly as there.
_LEAST = 0.1
# How much of a Gauss-Newton step on the places of LEDs is taken: steps of a few views are noisy, and their image was
# made with the earlier places.
_PACE, _DAMPING = 0.5, 0.05
# How far LEDs may be off: steps of the spectrum by the aperture's radius, radians, and as a part of their distance.
_FAR, _TURNED, _STRETCHED = 0.3, 0.12, 0.1
# Passes over the bright views at the start; how far beyond the aperture a view is certainly in dark field, although
# LEDs are a little off; the outer edge of the first ring of such views, by its inner edge.
_ROUNDS, _SURELY, _RING = 16, 1.1, 1.15


class FPMModel(FPMWaves):
    """The model of `FPMWaves`, with a refinement of pupil, gains and places of LEDs."""

    def refine(
        self, image: Tensor, data: Tensor, views: Views, names: Sequence[str], derivative: Derivative, pace: float = 1.0
    ) -> dict[str, Tensor]:
        r"""All parameters after a step on some of them, with the image fixed.

        pupil: the gradient step whose length follows how strongly the object's spectrum O_i lights it,

            P <- P - sum_i w_i S_i^T(conj(O_i) d_i) / (sum_i w_i S_i^T |O_i|^2 + 0.1 max),    w_i = 1 / max |O_i|^2,

        d_i being the spectrum of the loss's derivative and S_i the shift by a part of a step; ||P|| does not change,
        and P is zero outside the aperture.

        gains: gain and background of each view in closed form (`fit_recording`), about the gain that it had.

        leds: a damped Gauss-Newton step on four numbers that move, turn and stretch all LEDs together: the derivative
        of |p_i| along a shift is that of its pupil, since |p_i| does not depend on where a crop begins. Only views
        that were fitted before take part: at their first use, the image has nothing of what they see, and they would
        pull LEDs to where it has something. A step after which these views are explained worse is not taken.

        Arguments: image (H, W); data (B, rows, columns), as recorded; views, B of them; names of what is refined;
        derivative of a loss whose curvature at a fit is 1; pace, the part of the steps on pupil and LEDs to take.
        References: Ou, Zheng and Yang, Opt. Express 22(5), 2014 (pupil); Sun et al., Biomed. Opt. Express 7(4), 2016
        (LEDs).
        """
        index, parameters = all_views(views, self.n_views), dict(self.parameters)
        crops = self.crop(self.transform(image), index)
        lenses = self.lenses(index)
        waves = self.restrict(self.propagate(lenses * crops), index)
        if "pupil" in names:
            slopes = self.restrict(derivative(waves, data, index), index)
            parameters["pupil"] = self._refine_pupil(crops, self.collect(slopes), index, pace)
        if "gains" in names:
            rows, mine = parameters["gains"].clone(), index.to(self.device)
            gain, background = fit_recording(power(waves), data, rows[mine, 0])
            rows[mine] = torch.stack([gain, background, torch.ones_like(gain)], -1)
            parameters["gains"] = rows
        known = None if self.recording is None else self.recording.known
        fitted = torch.ones(len(index), dtype=torch.bool) if known is None else known.cpu()[index]
        if "leds" in names and bool(fitted.any()):
            rows = fitted.to(waves.device)
            parts = (lenses[rows], crops[rows], waves[rows], data[rows])
            parameters["leds"] = self._refine_leds(image, parts, index[fitted], pace)
        return parameters

    def comparable(self, parameters: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        """The pupil, and LEDs by how far they move as a part of a quarter of the aperture; gains follow from the rest.

        A turn and a stretch move each LED by its distance from the axis, taken as the root mean square. LEDs off by a
        quarter of the aperture's radius predict views as badly as a completely different pupil.
        """
        vectors = super().comparable(parameters, [name for name in names if name == "pupil"])
        if "leds" in names:
            away = float(np.sqrt((self.nominal**2).sum(1).mean()))
            scale = torch.tensor([1.0, 1.0, away, away], dtype=torch.float64) / (min(self.microscope.radius) / 4)
            leds = parameters["leds"].double().cpu() * scale
            vectors["leds"] = leds.to(device=self.device, dtype=self.dtype.to_real())
        return vectors

    @torch.no_grad()
    def start_from(
        self, read: Callable[[Tensor], Tensor], available: Tensor, names: Sequence[str]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The image and the parameters to begin with, from the views in bright field.

        The image begins as their mean amplitude on its finer pixels and then fits them in sixteen passes, by steps that
        follow the overlap: after four passes, what only views near the aperture's edge see has half its amplitude. If
        gains are to be refined, the first ring of views in dark field, which this image predicts in part, gives the
        gain expected of all of them: the median of theirs.

        Arguments: read, which gives the data of views; available views (n,); names of what is refined.
        """
        bright = available[self.bright[available]]
        parameters = self.parameters
        if len(bright) == 0:
            return self.start_image(), parameters
        data = torch.cat([read(part) for part in bright.split(64)])
        amplitude = data.sqrt().mean(0) / math.sqrt(self.light)
        image = self._upsample(amplitude)
        overlap = float(self.overlap(bright).max())
        ahead, q = image, 1.0
        for _ in range(_ROUNDS):
            waves, pull = self.linearize(ahead, bright)
            size = waves.abs().clamp_min(torch.finfo(amplitude.dtype).tiny)
            following = ahead - pull(waves * (1 - data.sqrt() / size)) / overlap
            longer = (1 + math.sqrt(1 + 4 * q * q)) / 2
            ahead, image, q = following + (q - 1) / longer * (following - image), following, longer
        if "gains" in names:
            parameters["gains"] = self._expected_gains(image, read, available)
        return image, parameters

    def _refine_pupil(self, crops: Tensor, slopes: Tensor, views: Tensor, pace: float) -> Tensor:
        pixels = math.prod(self.microscope.shape)
        lit = power(crops)
        weights = 1 / lit.amax((-2, -1), keepdim=True).clamp_min(torch.finfo(lit.dtype).tiny)
        above = self.gather_pupil(weights * crops.conj() * slopes, views) / (pixels * math.sqrt(self.light))
        below = self.gather_pupil(weights * lit, views)
        step = above / (below + _LEAST * below.max())
        pupil = self.pupil - (step if pace == 1 else pace * step)
        pupil = torch.where(self.inside, pupil, torch.zeros((), dtype=pupil.dtype, device=pupil.device))
        return pupil * (power(self.pupil).sum() / power(pupil).sum()).sqrt()

    def _refine_leds(
        self, image: Tensor, parts: tuple[Tensor, Tensor, Tensor, Tensor], views: Tensor, pace: float
    ) -> Tensor:
        """How far LEDs are off after a step by views with these lenses, crops of the spectrum, waves and data."""
        lenses, crops, waves, data = parts
        y, size, residual = self._compare(waves, data, views)
        safe = size.clamp_min(1e-3 * float(size.mean()) + torch.finfo(size.dtype).tiny)
        slopes = []
        for axis in (0, 1):
            moved = self.propagate(self.slopes_of_lenses(lenses, axis) * crops)
            slopes.append(self.restrict((waves.conj() * moved).real / safe, views))
        weights = 1 / y.sum((-2, -1)).clamp_min(torch.finfo(y.dtype).tiny)
        rise, run = slopes
        products = [[(a * b).sum((-2, -1)) * weights for b in (rise, run, residual)] for a in (rise, run)]
        block = torch.stack([torch.stack(row, -1) for row in products], -2).double().cpu().numpy()  # (B, 2, 3)
        row, column = self.nominal[views.numpy()].T
        one, zero = np.ones_like(row), np.zeros_like(row)
        # How a view's step follows the four numbers: moved along rows, along columns, turned, stretched.
        follow = np.stack([np.stack([one, zero, column, row], -1), np.stack([zero, one, -row, column], -1)], 1)
        normal = np.einsum("bip,bij,bjq->pq", follow, block[..., :2], follow)
        slope = np.einsum("bip,bi->p", follow, block[..., 2])
        scale = np.diag(normal).copy()
        if not (np.isfinite(normal).all() and (scale > 0).all()):
            return self.aim
        step = np.linalg.solve(normal + _DAMPING * np.diag(scale), slope)
        far = _FAR * min(self.microscope.radius)
        most = np.array([far, far, _TURNED, _STRETCHED])
        aim = torch.from_numpy(np.clip(self.aim.numpy() - pace * _PACE * step, -most, most))
        aimed = self.with_parameters({"leds": aim})
        _, _, after = aimed._compare(aimed.forward(image, views), data, views)
        misfits = [float((values.square().sum((-2, -1)) * weights).sum()) for values in (residual, after)]
        return aim if misfits[1] <= misfits[0] else self.aim

    def _compare(self, waves: Tensor, data: Tensor, views: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The data on the scale of the light, the size of its prediction, and the difference of their roots."""
        light = power(waves)
        y, background = (data, 0.0) if self.recording is None else self.recording.scale(data, views, light)
        size = (light + background).sqrt()
        return y, size, self.restrict(size - y.sqrt(), views)

    def _expected_gains(self, image: Tensor, read: Callable[[Tensor], Tensor], available: Tensor) -> Tensor:
        """Gains to begin with, still to be fitted: 1 in bright field, and that of the first ring in dark field.

        An LED at the edge of the aperture does not count as dark: its gain is that of the cut light, ten times too
        small for dark views. So the ring begins a little farther out.
        """
        rows = self.parameters["gains"].clone()
        rows[:, 2] = 0
        dark = available[~self.bright[available]]
        if len(dark) > 0:
            sines = torch.from_numpy(self.sines)
            sure = dark[sines[dark] >= _SURELY * self.microscope.aperture]
            sure = sure if len(sure) > 0 else dark
            ring = sure[sines[sure] <= _RING * sines[sure].min()]
            gains, _ = fit_recording(power(self.forward(image, ring)), read(ring))
            rows[~self.bright.to(rows.device), 0] = gains.median().to(rows.dtype)
        return rows

    def _upsample(self, amplitude: Tensor) -> Tensor:
        """A picture on the image's pixels, by its spectrum; beyond the camera, its border continues."""
        if g := self.guard:
            amplitude = torch.nn.functional.pad(amplitude[None], (g, g, g, g), mode="replicate")[0]
        small = torch.fft.fftshift(torch.fft.fft2(amplitude.to(self.dtype), norm="forward"))
        spectrum = torch.zeros(self.image_shape, dtype=self.dtype, device=self.device)
        rows, columns = self.microscope.shape
        top, start = (n // 2 - m // 2 for n, m in zip(self.image_shape, (rows, columns), strict=True))
        spectrum[top : top + rows, start : start + columns] = small
        image: Tensor = torch.fft.ifft2(torch.fft.ifftshift(spectrum), norm="forward")
        return image
