"""Tomography of a volume that stays in the memory of the CPU, with its projections on a GPU slab by slab."""

from __future__ import annotations

import itertools
import math
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.eigenvalue_bounds import nonnegative_bound
from plugstream.base.progress import report
from plugstream.base.transfers import MemoryTarget, bring, bring_back
from plugstream.models.ct import CTModel
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_maps import map_detector
from plugstream.models.views import Views, all_views, as_views, check_shape

COPIES = 5  # of a slab on the GPU: it, a copy with zeros around it, sums, the result, and the one on its way back
_SHARE = 4  # part of the memory that data of views may have


class SlabbedCT(CTModel):
    """A `CTModel` whose images and data are in the memory of the CPU and whose products are a GPU's.

    A product is a sum over slabs of slices, A x = sum_s A_s x_s, and the adjoint has the slices of each, A_s^T y: what
    rays interpolate between two slabs is the sum of what each gives with zeros around it. So no slab needs a halo, and
    products are those of the whole volume up to rounding. Each slab meets the rows of the detector that see it.

    Arguments: model, on the CPU; device that computes; memory of it, in bytes, that may be used.
    """

    def __init__(self, model: CTModel, device: torch.device, memory: float) -> None:
        super().__init__(model.rays, model.voxels, mask=model._mask, counts=model.counts, dtype=model.dtype)
        self.worker = device
        size = self.dtype.itemsize
        self._views_at_once = max(1, int(memory / _SHARE / (3 * size * math.prod(self.data_shape))))
        slices = slices_at_once(self.image_shape, size, memory)
        edges = [*range(0, self.image_shape[0], slices), self.image_shape[0]]
        self._slabs = [_Slab(model, first, last, device) for first, last in itertools.pairwise(edges)]

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        """(..., *image_shape) to (..., B, *detector)."""
        check_shape("image", image, self.image_shape)
        index = as_views(views, self.n_views)
        chosen = all_views(index, self.n_views)
        volumes = image.to(self.dtype).reshape(-1, *self.image_shape)
        parts = [self._project(x, some) for x in volumes for some in chosen.split(self._views_at_once)]
        out = torch.cat(parts) if len(parts) != 1 else parts[0]
        return self._restrict(out.reshape(*image.shape[:-3], len(chosen), *self.data_shape), index)

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        """(..., B, *detector) to (..., *image_shape), summed over views."""
        index = as_views(views, self.n_views)
        chosen = all_views(index, self.n_views)
        check_shape("data", data, (len(chosen), *self.data_shape))
        z = self._restrict(data.to(self.dtype), index)
        out = torch.empty((*z.shape[:-3], *self.image_shape), dtype=self.dtype)
        for some, volume in zip(z.reshape(-1, *z.shape[-3:]), out.view(-1, *self.image_shape), strict=True):
            self._back_project(some, chosen, volume)
        return out

    def _project(self, volume: Tensor, views: Tensor) -> Tensor:
        out = torch.zeros((len(views), *self.data_shape), dtype=self.dtype, device=self.worker)
        for slab in self._slabs:
            report("projecting slices", slab.first, len(volume))
            slab.project(bring(volume[slab.first : slab.last], self.worker), views, out)
        return out.cpu()

    def _back_project(self, data: Tensor, views: Tensor, out: Tensor) -> None:
        parts = list(zip(views.split(self._views_at_once), data.split(self._views_at_once), strict=True))
        if len(parts) == 1:
            parts = [(views, bring(data, self.worker))]  # once for all slabs
        writing: Future[None] | None = None
        with ThreadPoolExecutor(1) as pool:
            for slab in self._slabs:
                report("back-projecting slices", slab.first, len(out))
                sums = reduce(Tensor.add_, (slab.back_project(bring(z, self.worker), some) for some, z in parts))
                if writing is not None:
                    writing.result()
                ready = torch.cuda.current_stream(self.worker).record_event() if self.worker.type == "cuda" else None
                writing = pool.submit(bring_back, sums, ready, slab.first, MemoryTarget(out))
            if writing is not None:
                writing.result()

    def _nonnegative_bound(self, view: Tensor, start: Tensor) -> float:
        """As of `ModelBase`, with no volume: A A^T is the sum of those of slabs."""

        def product(data: Tensor) -> Tensor:
            here = bring(self._restrict(data, view), self.worker)
            out = torch.zeros_like(here)
            for slab in self._slabs:
                slab.project(slab.back_project(here, view), view, out)
            return self._restrict(out.cpu(), view)

        return float(nonnegative_bound(product, lambda data: data, start))


class _Slab:
    """The slices of a volume from `first` up to `last`, on a device, with the rows of each view that see them."""

    def __init__(self, whole: CTModel, first: int, last: int, device: torch.device) -> None:
        self.first, self.last = first, last
        voxels = whole.voxels.slices(first, last)
        self.low, self.high = find_rows(whole.rays, voxels)
        middle = self.low + (self.high - 1) / 2 - (whole.rays.detector[0] - 1) / 2
        rays = replace(whole.rays.shift_detector(rows=middle), detector=(self.high, whole.rays.detector[1]))
        self.model = CTModel(rays, voxels, device=device, dtype=whole.dtype)

    def project(self, slices: Tensor, views: Tensor, out: Tensor) -> None:
        """Add the projections of these slices to data (B, R, C)."""
        out[self._where(views)] += self.model.forward(slices, views)

    def back_project(self, data: Tensor, views: Tensor) -> Tensor:
        """The slices of the adjoint of data (B, R, C)."""
        return self.model.adjoint(data[self._where(views)], views)

    def _where(self, views: Tensor) -> Any:
        low = self.low[views.numpy()]
        if (low == low[0]).all():
            return slice(None), slice(int(low[0]), int(low[0]) + self.high)
        return torch.arange(len(low))[:, None], torch.from_numpy(low)[:, None] + torch.arange(self.high)


def find_rows(rays: Rays, voxels: Voxels) -> tuple[NDArray[np.int64], int]:
    """The first row of each view, (views,), and how many rows see these voxels, the same for all views.

    A ray meets voxels within one voxel of their centres, and the places of the corners of that box on the detector hold
    between them those of all its points. All rows where that is not known, as of curved detectors.
    """
    rows, found = rays.detector[0], map_detector(rays, voxels)
    if found is not None:
        ends = [(-1.0, float(size)) for size in voxels.shape]
        corners = np.array([(z, y, x, 1.0) for z in ends[0] for y in ends[1] for x in ends[2]])
        distance = found[0][:, 2] @ corners.T
        if (distance > 0).all():
            places = (found[0][:, 1] @ corners.T) / distance
            low, high = np.floor(places.min(1)), np.ceil(places.max(1)) + 1
            count = min(rows, max(1, int((high - low).max())))
            return np.clip(low, 0, rows - count).astype(np.int64), count
    return np.zeros(len(rays), dtype=np.int64), rows


def slices_at_once(shape: tuple[int, ...], size: int, memory: float) -> int:
    """How many slices of a volume (D, H, W) of numbers of so many bytes a slab may have."""
    return max(1, min(shape[0], int(memory * (1 - 1 / _SHARE) / (COPIES * size * math.prod(shape[1:])))))
