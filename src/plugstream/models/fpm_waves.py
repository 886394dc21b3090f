"""Fourier ptychography: the waves of an object under light from many directions, seen through a small aperture."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.rows import Rows
from plugstream.models.base import ModelBase
from plugstream.models.fpm_geometry import Microscope, aim_crops, light_curvature, make_pupil
from plugstream.models.recording import Recording, power
from plugstream.models.views import Views, all_views, check_shape, mask_data

# Bytes of spectra and fields that are worked on together.
_BYTES_AT_ONCE = 1 << 26


class FPMWaves(ModelBase):
    r"""The waves on the camera of a microscope, one view for each direction of light: A_i x = a F_n^-1 P_i C_i F_N x.

    The image x is the object's complex transmission, and F_N x its spectrum (an FFT divided by the number of pixels, so
    that the middle is the mean). Light from direction i shifts the spectrum, and a crop C_i of it around the step s_i
    passes the objective, times the pupil P: it is 1 in an ideal aperture, has the phase of defocus and aberrations, and
    is zero outside. The step s_i is rounded for the crop, and the pupil is interpolated at the rest d_i,
    P_i(k) = P(k - d_i), so that |A_i x| is right between steps. F_n^-1 is the sum over frequencies, on the camera's
    coarser pixels, so that an empty object of transmission 1 is seen as 1. The camera records |A_i x|^2, for an
    amplitude or Poisson loss.

    Holds for objects that are thin compared with their lateral detail, for a field that repeats beyond its border, and
    for light that is a plane wave over it. Two options relax this. Light of an LED at a distance z is a spherical wave:
    with `curvature` 1/z, the object is multiplied by exp(i pi r^2 / (wavelength z)), r being the distance from the
    field's middle, which all LEDs at this distance have in common (`light_curvature`). Then s_i is the step of the
    middle, and light near the aperture's edge may be cut in one part of the field only. With a `guard`, the field is so
    many pixels wider than the camera on each side, so that one border of the camera is not seen at the other.

    a is the root of the light's intensity. A view may be recorded g_i times as strongly, above a background b_i, as
    g_i |A_i x|^2 + b_i (`recording`): losses compare waves on the scale of the light, so that one step suits all views.

    sum_i A_i^H A_i is diagonal in the spectrum (`overlap`), and ||A_i||^2 = a^2 (n / N) max |P_i|^2, with n pixels of
    the camera and N of the image. A step changes only those parts of the spectrum that its views see.

    Arguments:
        directions: (views, 2), sines of the angles under which LEDs are seen, along x and y (`light_directions`).
        microscope: light, objective, field (the camera's, and the guard) and image. pupil: complex, on the
            microscope's `box`; ideal if not given.
        light: intensity that is recorded on the axis where there is no object. gains, backgrounds: (views,), 1 and 0 if
            not given. mask: (views, rows, columns), which pixels count. curvature: of the light's waves at the object,
            one over the distance of LEDs, in 1/m; 0 for plane waves. guard: pixels, of the camera's size.
        device, dtype: where, and in which real precision.
    References: Zheng, Horstmeyer and Yang, Nature Photonics 7, 2013; Yeh et al., Opt. Express 23(26), 2015.
    """

    intensities = True
    refinable: tuple[str, ...] = ("pupil", "gains", "leds")

    def __init__(
        self,
        directions: ArrayLike,
        microscope: Microscope,
        pupil: NDArray[np.complex128] | Tensor | None = None,
        *,
        light: float = 1.0,
        gains: ArrayLike | None = None,
        backgrounds: ArrayLike | None = None,
        mask: Rows | None = None,
        curvature: float = 0.0,
        guard: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise InputError(f"the precision must be float32 or float64, not {dtype}")
        self.directions, self.microscope = np.asarray(directions, dtype=np.float64), microscope
        steps, rest = aim_crops(self.directions, microscope)
        self.nominal = steps + rest
        self.n_views, self.image_shape = len(steps), microscope.image
        self.data_shape = tuple(n - 2 * guard for n in microscope.shape)
        if guard < 0 or min(self.data_shape) < 2:
            raise InputError(f"a guard of {guard} leaves no camera of a field of {microscope.shape} pixels")
        self.device = torch.device(device)
        self.dtype = self.data_dtype = dtype.to_complex()
        (top, bottom), (left, right) = microscope.box
        self.box = (bottom - top + 1, right - left + 1)
        given = torch.as_tensor(make_pupil(microscope) if pupil is None else pupil)
        if tuple(given.shape) != self.box:
            raise InputError(f"the pupil is {tuple(given.shape)}, but must be {self.box}, of the microscope's box")
        self.pupil = given.to(device=self.device, dtype=self.dtype)
        sy, sx = microscope.frequencies()
        within = torch.from_numpy(np.hypot(sy, sx) <= microscope.aperture * (1 + 1e-9)).to(self.device)
        self.inside = within | (self.pupil != 0)  # which of a soft edge is half a step more
        self.light = light
        recording = Recording.of(self.n_views, gains, backgrounds, device=self.device, dtype=dtype)
        self.recording = None if recording.plain else recording
        self.views_at_once = max(1, _BYTES_AT_ONCE // (3 * math.prod(microscope.shape) * self.dtype.itemsize))
        if mask is not None and tuple(mask.shape) != (self.n_views, *self.data_shape):
            raise InputError(f"the mask has shape {tuple(mask.shape)}, but must be {(self.n_views, *self.data_shape)}")
        self._mask = mask
        # Where the box lies in an FFT of the field, and the camera in the field.
        rows, columns = (torch.arange(a, b + 1) % n for (a, b), n in zip(microscope.box, microscope.shape, strict=True))
        self._rows, self._columns = rows[:, None].to(self.device), columns[None, :].to(self.device)
        self.guard, self.camera = guard, tuple(slice(guard, guard + n) for n in self.data_shape)
        wave = light_curvature(microscope, curvature)
        self._wave = None if wave is None else torch.from_numpy(wave).to(device=self.device, dtype=self.dtype)
        self._aim(torch.zeros(4, dtype=torch.float64))

    @property
    def parameters(self) -> dict[str, Tensor]:
        """What can be refined beside the image.

        pupil (*box), complex; gains (views, 3), of each view its gain, its background, and 1 where both are known, 0
        where they are fitted to every prediction; leds (4,), how all LEDs together are off: rows and columns of the
        spectrum's steps, radians about the axis, and how much farther they are from it.
        """
        recording = self.recording or Recording.of(self.n_views, device=self.device, dtype=self.dtype.to_real())
        known = torch.ones_like(recording.gains) if recording.known is None else recording.known.to(recording.gains)
        gains = torch.stack([recording.gains, recording.backgrounds, known], -1)
        return {"pupil": self.pupil, "gains": gains, "leds": self.aim}

    def with_parameters(self, parameters: Mapping[str, Tensor]) -> Self:
        """The same model with these parameters; as a scan grows, gains of new views are still to be fitted."""
        other = copy.copy(self)
        if "pupil" in parameters:
            other.pupil = parameters["pupil"].to(device=self.device, dtype=self.dtype)
            check_shape("the pupil", other.pupil, self.box)
        if "leds" in parameters and not torch.equal(parameters["leds"].double().cpu(), self.aim):
            other._aim(parameters["leds"].double().cpu())
        if "gains" in parameters:
            rows = parameters["gains"].to(device=self.device, dtype=self.dtype.to_real())
            if len(rows) != self.n_views:
                earlier = rows
                rows = torch.tensor([1.0, 0.0, 0.0], device=self.device, dtype=rows.dtype).repeat(self.n_views, 1)
                rows[~self.bright.to(self.device), 0] = earlier[:, 0].median()  # most views are in dark field
                if len(earlier) < self.n_views:
                    rows[: len(earlier)] = earlier
            recording = Recording(rows[:, 0], rows[:, 1], rows[:, 2] > 0)
            other.recording = None if recording.plain else recording
        return other

    def _aim(self, aim: Tensor) -> None:
        """Turn, stretch and move all LEDs together; crops stay within the image's spectrum."""
        self.aim = aim
        down, across, turn, more = aim.tolist()
        cosine, sine = (1 + more) * math.cos(turn), (1 + more) * math.sin(turn)
        exact = self.nominal @ np.array([[cosine, -sine], [sine, cosine]]) + np.array([down, across])
        (top, bottom), (left, right) = self.microscope.box
        low = np.array([-(n // 2) - first for n, first in zip(self.image_shape, (top, left), strict=True)])
        high = np.array([(n - 1) // 2 - last for n, last in zip(self.image_shape, (bottom, right), strict=True)])
        self.exact = np.clip(exact, low, high)
        self.steps = np.rint(self.exact).astype(np.int64)
        # Where crops begin in a spectrum whose middle is at N // 2.
        corner = np.array([n // 2 for n in self.image_shape]) + np.array([top, left])
        self._corners: list[list[int]] = (self.steps + corner).tolist()
        # Of a view that lies d beyond a whole step, how much of the pupil's neighbours before and after counts.
        d = torch.from_numpy(self.exact - self.steps)
        taps = torch.stack([d.clamp_min(0), 1 - d.abs(), (-d).clamp_min(0)], -1)  # (views, 2, 3)
        self._taps = taps.to(device=self.device, dtype=self.dtype)

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        """(..., H, W) to (..., B, rows, columns): the wave on the camera, complex."""
        return self.linearize(image, views)[0]

    def linearize(self, image: Tensor, views: Views = None) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Predictions, and the adjoint, which have the moved pupils in common."""
        check_shape("image", image, self.image_shape)
        index = all_views(views, self.n_views)
        lenses = self.lenses(index)
        waves = self.propagate(lenses * self.crop(self.transform(image), index))
        return self.restrict(waves, index), lambda data: self._pull(data, index, lenses)

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        """(..., B, rows, columns) to (..., H, W), summed over views."""
        index = all_views(views, self.n_views)
        check_shape("data", data, (len(index), *self.data_shape))
        return self._pull(data, index, self.lenses(index))

    def transform(self, image: Tensor) -> Tensor:
        """The spectrum of an image, under light of its curvature, the mean at N // 2: (..., H, W)."""
        x = image.to(device=self.device, dtype=self.dtype)
        x = x if self._wave is None else x * self._wave
        spectrum: Tensor = torch.fft.fftshift(torch.fft.fft2(x, norm="forward"), dim=(-2, -1))
        return spectrum

    def untransform(self, spectrum: Tensor) -> Tensor:
        """The image of a spectrum: the inverse of `transform`."""
        image: Tensor = torch.fft.ifft2(torch.fft.ifftshift(spectrum, dim=(-2, -1)), norm="forward")
        return image if self._wave is None else image * self._wave.conj()

    def crop(self, spectrum: Tensor, views: Tensor) -> Tensor:
        """What of a spectrum these views see, before the pupil: (..., H, W) to (..., B, *box)."""
        height, width = self.box
        places = [self._corners[view] for view in views.tolist()]
        return torch.stack([spectrum[..., r : r + height, c : c + width] for r, c in places], -3)

    def propagate(self, waves: Tensor) -> Tensor:
        """The wave on the camera with these frequencies: (..., *box) to (..., rows, columns)."""
        spectrum = torch.zeros((*waves.shape[:-2], *self.microscope.shape), dtype=waves.dtype, device=self.device)
        spectrum[..., self._rows, self._columns] = waves
        field: Tensor = torch.fft.ifft2(spectrum, norm="forward")
        return field[..., self.camera[0], self.camera[1]] if self.guard else field

    def collect(self, fields: Tensor) -> Tensor:
        """The transpose of `propagate`: (..., rows, columns) to (..., *box)."""
        g = self.guard
        field = torch.nn.functional.pad(fields, (g, g, g, g)) if g else fields
        waves: Tensor = torch.fft.fft2(field)[..., self._rows, self._columns]
        return waves

    def overlap(self, views: Views = None, weights: Tensor | None = None) -> Tensor:
        r"""The diagonal of sum_i w_i A_i^H A_i in the image's spectrum (`transform`), middle at N // 2: (H, W), real.

        It is a^2 (n / N) sum_i w_i |P_i(k - s_i)|^2. Masked pixels and a guard make the sum smaller, and not diagonal;
        this bounds it.

        Arguments: weights (B,), ones if not given.
        """
        index = all_views(views, self.n_views)
        total = torch.zeros(self.image_shape, dtype=self.dtype.to_real(), device=self.device)
        for rows in torch.arange(len(index)).split(max(1, self.views_at_once or 1)):
            light = self._share_of_pixels * power(self.lenses(index[rows]))
            if weights is not None:
                light = light * weights[rows].to(light).reshape(-1, 1, 1)
            self._add_crops(total, light, index[rows])
        return total

    def normal(self, views: Views = None, weights: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """x -> sum_i w_i A_i^H A_i x: the overlap in the spectrum, where no pixel is masked and there is no guard."""
        if self._mask is not None or self.guard:
            return super().normal(views, weights)
        diagonal = torch.fft.ifftshift(self.overlap(views, weights))
        if self._wave is not None:
            return lambda image: self.untransform(torch.fft.fftshift(diagonal) * self.transform(image))
        return lambda image: torch.fft.ifft2(diagonal * torch.fft.fft2(image))

    def restrict(self, data: Tensor, views: Views = None) -> Tensor:
        """The data with masked pixels set to zero."""
        return mask_data(data, self._mask, views, self.n_views)

    def squared_norms(self, views: Tensor, tol: float) -> Tensor:
        """Each view's ||A_i||^2, exactly, whatever `tol`; a bound of it where there is a guard."""
        return self.squared_norm_bounds(views)

    def squared_norm_bounds(self, views: Tensor) -> Tensor:
        """Each view's ||A_i||^2 = a^2 (n / N) max |P_i|^2."""
        parts = [power(self.lenses(part)).amax((-2, -1)) for part in views.split(256)]
        return self._share_of_pixels * torch.cat(parts).double().cpu()

    def start_image(self) -> Tensor:
        """An empty object, since all derivatives of the data are zero at zero."""
        return torch.ones(self.image_shape, device=self.device, dtype=self.dtype)

    @property
    def bright(self) -> Tensor:
        """Which views see the direct light at the nominal places of LEDs: (views,), on the CPU."""
        return torch.from_numpy(self.sines < self.microscope.aperture)

    @property
    def sines(self) -> NDArray[np.float64]:
        """Sines of the angles between the light of each view and the axis: (views,)."""
        return np.asarray(np.hypot(self.directions[:, 0], self.directions[:, 1]))

    def report_parameters(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parameters, with gains and backgrounds as pictures if LEDs are on a grid."""
        report = dict(parameters)
        if "gains" in parameters and (grid := self._grid()) is not None:
            row, column = (torch.from_numpy(one) for one in grid)
            rows = parameters["gains"].detach().cpu()[: self.n_views]
            for number, name in enumerate(("gains-by-led", "backgrounds-by-led")):
                report[name] = torch.zeros((int(row.max()) + 1, int(column.max()) + 1), dtype=rows.dtype)
                report[name][row[: len(rows)], column[: len(rows)]] = rows[:, number]
        return report

    def _grid(self) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Row and column of each view's LED, None if they are not on a grid."""
        slopes = self.directions / np.sqrt(np.maximum(1 - self.sines**2, 1e-12))[:, None]  # LEDs by their distance
        away = np.abs(slopes - slopes[0])
        steps = away[away > 1e-6]
        if steps.size == 0:
            return None
        places = (slopes - slopes.min(0)) / steps.min()
        nearest = np.rint(places).astype(np.int64)
        if np.abs(places - nearest).max() > 0.2 or nearest.max() > 4 * math.sqrt(self.n_views):
            return None
        return nearest[:, 1], nearest[:, 0]

    def lenses(self, views: Tensor) -> Tensor:
        """The pupil of each view, moved by the rest of its step, times the root of the light: (B, *box)."""
        down, across = self._taps[views.to(self.device)].unbind(1)  # (B, 3) each
        padded = torch.nn.functional.pad(self.pupil, (1, 1, 1, 1))
        height, width = self.box
        rows = torch.stack([padded[o : o + height] for o in range(3)])
        moved = torch.einsum("bo,ohw->bhw", down, rows)
        parts = [across[:, o, None, None] * moved[..., o : o + width] for o in range(3)]
        return math.sqrt(self.light) * (parts[0] + parts[1] + parts[2])

    def slopes_of_lenses(self, lenses: Tensor, axis: int) -> Tensor:
        """The derivative of `lenses` along rows (axis 0) or columns (1), by a step of views: (B, *box)."""
        padded = torch.nn.functional.pad(lenses, (1, 1, 1, 1))
        if axis == 0:
            return (padded[:, :-2, 1:-1] - padded[:, 2:, 1:-1]) / 2
        return (padded[:, 1:-1, :-2] - padded[:, 1:-1, 2:]) / 2

    def gather_pupil(self, parts: Tensor, views: Tensor) -> Tensor:
        """The transpose of `lenses`, but for the light: (B, *box) to (*box), real or complex."""
        taps = self._taps[views.to(self.device)]
        down, across = (taps if parts.is_complex() else taps.real).unbind(1)
        height, width = self.box
        wide = torch.zeros((len(parts), height, width + 2), dtype=parts.dtype, device=self.device)
        for o in range(3):
            wide[..., o : o + width] += across[:, o, None, None] * parts
        rows = torch.einsum("bo,bhw->ohw", down, wide)
        padded = torch.zeros((height + 2, width + 2), dtype=parts.dtype, device=self.device)
        for o in range(3):
            padded[o : o + height] += rows[o]
        return padded[1:-1, 1:-1]

    @property
    def _share_of_pixels(self) -> float:
        """Pixels of the field by pixels of the image."""
        return math.prod(self.microscope.shape) / math.prod(self.image_shape)

    def _pull(self, data: Tensor, index: Tensor, lenses: Tensor) -> Tensor:
        values = self.restrict(data.to(device=self.device, dtype=self.dtype), index)
        total = torch.zeros((*values.shape[:-3], *self.image_shape), dtype=self.dtype, device=self.device)
        self._add_crops(total, lenses.conj() * self.collect(values), index)
        # The transpose of an FFT that is divided by N is its inverse as usually defined.
        image: Tensor = torch.fft.ifft2(torch.fft.ifftshift(total, dim=(-2, -1)))
        return image if self._wave is None else image * self._wave.conj()

    def _add_crops(self, total: Tensor, parts: Tensor, views: Tensor) -> None:
        """Add (..., B, *box) to where views see a spectrum (..., H, W), one by one, so that sums are repeatable."""
        height, width = self.box
        for b, view in enumerate(views.tolist()):
            r, c = self._corners[view]
            total[..., r : r + height, c : c + width] += parts[..., b, :, :]
