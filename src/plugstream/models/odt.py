"""Optical diffraction tomography: the field of plane waves behind a weakly scattering object, on a camera."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.rows import Rows
from plugstream.models.base import ModelBase
from plugstream.models.ct_geometry import Voxels
from plugstream.models.nufft_points import Points, join_points
from plugstream.models.nufft_spread import Axis, SpreadNufft
from plugstream.models.odt_caps import Cap, cut_cap, farthest_waves
from plugstream.models.odt_geometry import Optics, check_poses, exact_axes, is_fast, padded_sizes
from plugstream.models.views import Views, all_views, check_shape, mask_data

_POINTS_AT_ONCE = 1 << 20  # frequencies of views that are worked on together, about 100 bytes each
_CACHE_BYTES, _BYTES_A_POINT = 1 << 28, 48  # of what views read
_MARGIN = 1.05  # discs of voxels reach beyond the box that they fill


class ODTModel(ModelBase):
    r"""The field behind an object, minus the light and divided by it, for each viewing direction.

    The image is the permittivity contrast x = (n / n_0)^2 - 1 of an object with the refractive index n in a medium with
    n_0, real unless it absorbs light. A view's data is u / u_0 - 1 (Born) or log(u / u_0) (Rytov), u_0 being the light
    without an object: to first order in x both are the integral of Green's function over k^2 x, whose spectrum on the
    camera is that of x on a cap of Ewald's sphere (`plugstream.models.odt_caps.cut_cap`). It is read from a non-uniform
    FFT (`plugstream.models.nufft_spread.SpreadNufft`), one for all views; along those axes of the object that are the
    camera's in every view, the axis of rotation say, a plain one is enough. The adjoint is the exact transpose.

    Born's form holds where the light is turned by much less than pi on its way through the object, Rytov's where the
    index varies by little within a wavelength; both want voxels of at most half of the finest wave that is seen.

    Arguments:
        poses: (views, 4, 3), of `plugstream.models.odt_geometry`. optics: light, medium and camera.
        voxels: shape, spacing and origin of the volume; the object turns about (0, 0, 0).
        absorbing: whether the image is complex. mask: (views, rows, columns), which pixels count.
        padding: how much wider than the camera the computed field is, which repeats beyond. eps: of the FFT.
        device, dtype: where, and in which real precision.
    """

    def __init__(
        self,
        poses: NDArray[np.float64],
        optics: Optics,
        voxels: Voxels,
        *,
        absorbing: bool = False,
        mask: Rows | None = None,
        padding: float = 1.25,
        eps: float = 1e-4,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise InputError(f"the precision must be float32 or float64, not {dtype}")
        if len(voxels.shape) != 3:
            raise InputError(f"diffraction tomography sees a volume, not an image of {voxels.shape}")
        if not padding >= 1:
            raise InputError(f"padding must be >= 1, not {padding}")
        self.poses, self.optics, self.voxels = check_poses(poses, optics), optics, voxels
        if mask is not None and tuple(mask.shape) != (len(self.poses), *optics.shape):
            raise InputError(f"the mask has shape {tuple(mask.shape)}, but must be {(len(self.poses), *optics.shape)}")
        self._mask = mask
        self.n_views, self.image_shape, self.data_shape = len(self.poses), voxels.shape, optics.shape
        self.device = torch.device(device)
        self.data_dtype = dtype.to_complex()
        self.dtype = self.data_dtype if absorbing else dtype
        self.eps, self.padding = eps, padding
        self._looks: dict[int, tuple[Points, Tensor, Tensor]] = {}
        self._cached_bytes = 0
        self.sizes, axes = self._plan_axes(padding)
        points = sum(len(self._cap(view).cells) for view in range(min(self.n_views, 10)))
        self.nufft = SpreadNufft(
            voxels.shape, eps, axes=axes, is_complex=absorbing, points=points, device=self.device, dtype=dtype
        )

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        """(..., *image_shape) to (..., B, rows, columns)."""
        check_shape("image", image, self.image_shape)
        index = all_views(views, self.n_views)
        lead = image.shape[: image.ndim - 3]
        images = image.to(device=self.device, dtype=self.dtype).reshape(math.prod(lead), *self.image_shape)
        out = torch.empty((len(images), len(index), *self.data_shape), dtype=self.data_dtype, device=self.device)
        rows, columns = self.sizes
        for n, volume in enumerate(images.split(1)):
            cells, step = self.nufft.transform(volume), self._views_at_once
            for start in range(0, len(index), step):
                part = index[start : start + step]
                points, places, factors = self._look(part)
                field = torch.zeros(len(part) * rows * columns, dtype=self.data_dtype, device=self.device)
                field[places] = self.nufft.read(cells, points)[0] * factors
                padded = torch.fft.ifft2(field.view(len(part), rows, columns))
                out[n, start : start + step] = padded[:, : self.data_shape[0], : self.data_shape[1]]
        return self.restrict(out.reshape(*lead, len(index), *self.data_shape), index)

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        """(..., B, rows, columns) to (..., *image_shape), summed over views."""
        index = all_views(views, self.n_views)
        check_shape("data", data, (len(index), *self.data_shape))
        lead = data.shape[: data.ndim - 3]
        values = self.restrict(data.to(device=self.device, dtype=self.data_dtype), index)
        values = values.reshape(math.prod(lead), len(index), *self.data_shape)
        images = []
        for fields in values:
            cells, step = self.nufft.zeros(1), self._views_at_once
            for part, field in zip(index.split(step), fields.split(step), strict=True):
                points, places, factors = self._look(part)
                # The transpose of ifft2 is fft2 divided by the number of cells.
                spectrum = torch.fft.fft2(field, s=self.sizes, norm="forward")
                self.nufft.write((spectrum.reshape(-1)[places] * factors.conj())[None], points, cells)
            images.append(self.nufft.back(cells)[0])
        return torch.stack(images).to(self.dtype).reshape(*lead, *self.image_shape)

    def restrict(self, data: Tensor, views: Views = None) -> Tensor:
        """The data with masked pixels set to zero."""
        return mask_data(data, self._mask, views, self.n_views)

    def squared_norms(self, views: Tensor, tol: float) -> Tensor:
        """The same as `squared_norm_bounds`, whatever `tol`."""
        return self.squared_norm_bounds(views)

    def squared_norm_bounds(self, views: Tensor) -> Tensor:
        """Each view's ||H_i||^2, from above by its largest factor and the longest way of light through the volume.

        Across the light a view is a Fourier transform, along it a sum over the way l: by Parseval and Cauchy-Schwarz
        ||H x||^2 <= max_q |k^2 / 2 k_z|^2 (l dV / pixel^2) ||x||^2, where the volume is narrower than the field. Where
        it is wider, and is seen as repeated, l grows by as much.
        """
        size = np.array(self.voxels.shape[::-1]) * np.array(self.voxels.spacing[::-1])
        frames = self.poses[all_views(views, self.n_views).numpy()]
        with np.errstate(divide="ignore"):
            longest = (size / np.abs(frames[:, 2])).min(1)
        across = (np.abs(frames[:, :2]) * size).sum(2)  # along the camera's x and y
        fields = np.array(self.sizes[::-1]) * self.optics.pixel
        layers = np.maximum(1, across / fields).prod(1)
        most = np.array([self._cap(int(view)).most for view in all_views(views, self.n_views)]) * self.optics.pixel**2
        volume = math.prod(self.voxels.spacing)
        return torch.from_numpy(_MARGIN * most**2 * longest * layers * volume / self.optics.pixel**2)

    def _plan_axes(self, padding: float) -> tuple[tuple[int, int], list[Axis]]:
        """Rows and columns of the computed field, and the frequencies along z, y and x of the volume."""
        optics, spacing, shape = self.optics, self.voxels.spacing[::-1], self.voxels.shape[::-1]
        sizes = list(padded_sizes(optics.shape, padding))
        periods: list[int | None] = [None, None, None]
        for axis, camera in enumerate(exact_axes(self.poses)):
            if camera is None:
                continue
            along = 1 - camera  # the camera's y is the axis of its rows
            for size in range(sizes[along], 2 * sizes[along] + 1):
                voxels = size * optics.pixel / spacing[axis]
                if voxels >= shape[axis] - 1e-6 and abs(voxels - round(voxels)) < 1e-9 * voxels and is_fast(size):
                    sizes[along], periods[axis] = size, round(voxels)
                    break
        self.sizes = (sizes[0], sizes[1])
        far = farthest_waves(optics, self.poses)
        bands = [min(float(np.pi), 1.0001 * wave * step) for wave, step in zip(far, spacing, strict=True)]
        return self.sizes, [Axis(band, period) for band, period in zip(bands, periods, strict=True)][::-1]

    def _cap(self, view: int) -> Cap:
        frame, light = self.poses[view, :3], self.poses[view, 3]
        slant = np.round(frame[:2] @ light, 14)
        return cut_cap(self.optics, self.sizes, (float(slant[0]), float(slant[1])))

    def _look(self, views: Tensor) -> tuple[Points, Tensor, Tensor]:
        """Where views read the spectrum, which cells of their fields that gives, and the factors."""
        parts = [self._look_once(view) for view in views.tolist()]
        size = self.sizes[0] * self.sizes[1]
        places = torch.cat([places + n * size for n, (_, places, _) in enumerate(parts)])
        return join_points([points for points, _, _ in parts]), places, torch.cat([factors for _, _, factors in parts])

    def _look_once(self, view: int) -> tuple[Points, Tensor, Tensor]:
        """The same for one view; cached as far as there is room."""
        if view in self._looks:
            return self._looks[view]
        voxels, cap = self.voxels, self._cap(view)
        spacing = np.array(voxels.spacing)
        middle = np.array(voxels.origin) + np.array(voxels.shape) // 2 * spacing
        wave = (cap.vectors @ self.poses[view, :3])[:, ::-1]  # along z, y and x of the object
        factors = math.prod(voxels.spacing) * cap.factors * np.exp(-1j * (wave @ middle))
        look = (
            self.nufft.place(-wave * spacing),
            torch.from_numpy(cap.cells).to(self.device),
            torch.from_numpy(factors).to(device=self.device, dtype=self.data_dtype),
        )
        self._cached_bytes += _BYTES_A_POINT * len(cap.cells)
        if self._cached_bytes <= _CACHE_BYTES:
            self._looks[view] = look
        return look

    @property
    def _views_at_once(self) -> int:
        return max(1, _POINTS_AT_ONCE // max(1, self.sizes[0] * self.sizes[1]))
