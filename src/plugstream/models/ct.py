"""X-ray tomography: line integrals of an image along the rays of each view."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugstream.base.eigenvalue_bounds import nonnegative_bound
from plugstream.base.errors import InputError
from plugstream.base.rows import Rows
from plugstream.models import ct_cuda, ct_joseph, ct_native
from plugstream.models.base import ModelBase
from plugstream.models.ct_counts import RawCounts
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_lines import check_rays
from plugstream.models.ct_row_sums import row_sum_bounds
from plugstream.models.ct_stack import blend_slices, is_stack
from plugstream.models.ct_windows import ray_windows
from plugstream.models.views import Views, all_views, as_views, check_shape


class CTModel(ModelBase):
    r"""The integrals of an attenuation, in 1/m, along the rays of each view: numbers without a unit.

    By Beer's law a view that recorded I photons a pixel, and I_0 without an object, has measured y_i = -log(I / I_0) =
    A_i x, and A_i is what this model is, by Joseph's method (`plugstream.models.ct_joseph`): linear, without negative
    entries, and with an adjoint that is its transpose up to rounding. Every ||A_i||^2 is bounded from above by two
    products (`plugstream.base.eigenvalue_bounds.nonnegative_bound`), within 1 %.

    Holds for a narrow spectrum or weak attenuation, and pixels and voxels fine enough that the attenuation varies
    little across them.

    Arguments:
        rays: of each view, `plugstream.models.ct_beams` makes them; no source may lie among the voxels.
        voxels: how many, how large and where.
        mask: (views, *detector), which pixels count; all of them if not given. Masked ones are 0.
        counts: where scans hold what the detector counted, how that becomes line integrals.
        device, dtype: where and in which precision to compute.
        previous: the model of the first of these views, whose tables on GPUs are used again.
    """

    nonnegative = True
    rays: Rays
    voxels: Voxels

    def __init__(
        self,
        rays: Rays,
        voxels: Voxels,
        *,
        mask: Rows | None = None,
        counts: RawCounts | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        previous: CTModel | None = None,
    ) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise InputError(f"the image's dtype must be float32 or float64, not {dtype}")
        check_rays(rays, voxels, 0 if previous is None else previous.n_views)
        if mask is not None and tuple(mask.shape) != (len(rays), *rays.detector):
            raise InputError(f"the mask has shape {tuple(mask.shape)}, but must be {(len(rays), *rays.detector)}")
        self.rays, self.voxels = rays, voxels
        self.n_views, self.image_shape, self.data_shape = len(rays), voxels.shape, rays.detector
        self.device, self.dtype, self.data_dtype = torch.device(device), dtype, dtype
        self._mask, self.counts = mask, counts
        self._projectors: dict[torch.device, ct_cuda.CudaProjector]
        self._projectors = {} if previous is None else previous._projectors  # those of the most views so far

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_projectors": {}}

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        """(..., *image_shape) to (..., B, *detector)."""
        check_shape("image", image, self.image_shape)
        index = as_views(views, self.n_views)
        x, rays = image.to(self.dtype), self._rays(index)
        if ct_native.serves(x, rays, self.voxels):
            out = ct_native.project(x, rays, self.voxels)
        elif ct_cuda.serves(x):
            out = self._projector(x.device).project(x, all_views(index, self.n_views).numpy())
        else:
            out = ct_joseph.project(x, rays, self.voxels)
        return self._restrict(out, index)

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        """(..., B, *detector) to (..., *image_shape), summed over views."""
        index = as_views(views, self.n_views)
        rays = self._rays(index)
        check_shape("data", data, (len(rays), *self.data_shape))
        z = self._restrict(data.to(self.dtype), index)
        if ct_native.serves(z, rays, self.voxels):
            return ct_native.back_project(z, rays, self.voxels)
        if ct_cuda.serves(z):
            projector = self._projector(z.device)
            if projector.gathers:
                return projector.back_project(z, all_views(index, self.n_views).numpy())
        return ct_joseph.back_project(z, rays, self.voxels)

    def restrict(self, data: Tensor, views: Views = None) -> Tensor:
        """The data with masked pixels set to zero, whatever they hold (NaN too)."""
        return self._restrict(data, as_views(views, self.n_views))

    def convert(self, data: Tensor, views: Views = None) -> Tensor:
        """Line integrals of what a scan stores, which may be counts."""
        return data if self.counts is None else self.counts.integrals(data, as_views(views, self.n_views))

    def windows(self, views: Tensor) -> Tensor:
        """Weights of rays by how they cross the voxels (`plugstream.models.ct_windows`)."""
        index = all_views(views, self.n_views)
        mask = None if self._mask is None else np.asarray(self._mask[index.numpy()])
        found = ray_windows(self._rays(index), self.voxels, mask=mask, threads=torch.get_num_threads())
        return torch.from_numpy(found).to(device=self.device, dtype=self.data_dtype)

    def rough_norm_bounds(self, views: Tensor) -> Tensor | None:
        """Sums of rows of A_i A_i' from the geometry, where they are known (`plugstream.models.ct_row_sums`)."""
        bounds = row_sum_bounds(self._rays(all_views(views, self.n_views)), self.voxels)
        return None if bounds is None else torch.from_numpy(bounds)

    def _nonnegative_bound(self, view: Tensor, start: Tensor) -> float:
        """As of `ModelBase`. Where row k sees slice k alone, all slices are alike, and a few give the same number."""
        rays, few = self._rays(view), ct_native.SLICES
        if self._mask is not None or self.rays.ndim == 2 or self.data_shape[0] <= few:
            return super()._nonnegative_bound(view, start)
        alike = ct_native.serves(start, rays, self.voxels) and bool((start == start[:, :1]).all())
        if not (alike and is_stack(rays) and blend_slices(rays, self.voxels) is None):
            return super()._nonnegative_bound(view, start)
        rows = replace(rays.shift_detector(rows=(few - self.data_shape[0]) / 2), detector=(few, self.data_shape[1]))
        model = CTModel(rows, self.voxels.slices(0, few), dtype=self.dtype)
        return float(nonnegative_bound(model.forward, model.adjoint, start[:, :few]))

    def _projector(self, device: torch.device) -> ct_cuda.CudaProjector:
        found = self._projectors.get(device)
        if found is None:
            found = ct_cuda.make_projector(self.rays, self.voxels, device)
        elif len(found.rays) < self.n_views:
            found = found.grow(self.rays)
        self._projectors[device] = found
        return found

    def _rays(self, index: Tensor | None) -> Rays:
        return self.rays if index is None else self.rays.select(index.numpy())

    def _restrict(self, data: Tensor, index: Tensor | None) -> Tensor:
        if self._mask is None:
            return data
        rows = np.ascontiguousarray(self._mask[all_views(index, self.n_views).numpy()])
        mask = torch.from_numpy(rows).to(data.device)
        return torch.where(mask, data, torch.zeros((), dtype=data.dtype, device=data.device))
