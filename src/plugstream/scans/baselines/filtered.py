"""Filtered back-projection: of parallel, fan and cone beams, the image that is read off the data at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.progress import report
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_plausible import outlook
from plugstream.scans.baselines.ramp import Filter, equiangular_kernel, ramp_kernel, window
from plugstream.scans.baselines.redundancy import angular_weights, redundancy_weights
from plugstream.scans.baselines.voxel_views import VoxelViews

__all__ = ["FilteredBackProjection", "filtered_back_projection", "is_circular"]

# Bytes of measurements that are filtered at once.
_BLOCK_BYTES = 64 << 20
# Radians by which rays may be tilted out of the plane of rotation, and parts of the distance by which a source may
# climb: beyond them a scan is laminography or a helix, which need other formulas.
_TILT, _CLIMB = 0.02, 0.01


def filtered_back_projection(
    data: Tensor | Callable[[Tensor], Tensor],
    rays: Rays,
    voxels: Voxels,
    *,
    filter: Filter = "ram-lak",
    cutoff: float = 1.0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    r"""The image by filtered back-projection, and of a cone beam by the method of Feldkamp, Davis and Kress.

        x(r) = sum_i dt_i / U_i(r)^2 q_i(s_i(r)),        q_i = h * (w c p_i)

    where s_i(r) is the place on the detector at which view i sees r, h the ramp filter along the detector's rows, c the
    cosine of a ray's angle to the middle one, w the share of a ray among all that run along the same line, dt_i the
    angle that view i stands for, and U_i(r) the distance of r from the source along the middle ray, in distances of the
    axis. Of parallel beams c = U = 1. The result is exact in the limit of many views and fine pixels, for parallel and
    fan beams over half a turn (and the fan's angle) or more, and in the middle plane of a cone beam.

    Holds for rays that turn about the z axis in the plane of z, or a cone about it: not for helices and laminography,
    which are refused. Over shorter arcs, and of objects larger than the detector, the image has artefacts; arcs are not
    scaled up to what is missing.

    Arguments:
        data: line integrals (..., views, *detector), or a function that gives those of some views.
        filter: of `plugstream.scans.baselines.ramp`. cutoff: the highest frequency it lets through, of the detector's.
    References: Kak and Slaney, Principles of computerized tomographic imaging, 1988; Feldkamp, Davis and Kress, J. Opt.
    Soc. Am. A 1(6), 1984.
    """
    plan = FilteredBackProjection(rays, voxels, filter=filter, cutoff=cutoff, device=device, dtype=dtype)
    every = torch.arange(len(rays))
    if isinstance(data, Tensor):
        axis = data.ndim - 1 - len(rays.detector)
        if axis < 0 or tuple(data.shape[axis:]) != (len(rays), *rays.detector):
            raise InputError(f"data has shape {tuple(data.shape)}, but must end in {(len(rays), *rays.detector)}")
        whole = data
        return sum((plan.back_project(whole.index_select(axis, some), some) for some in plan.blocks()), torch.zeros(()))
    total = torch.zeros(voxels.shape, device=device, dtype=dtype)
    for some in plan.blocks():
        report("back-projecting", int(some[0]), len(every))
        total += plan.back_project(data(some), some)
    return total


@dataclass(frozen=True)
class _Beam:
    """What the formula needs of each view: (views,) each."""

    angles: NDArray[np.float64]
    step: NDArray[np.float64]  # of the detector at the axis: metres, or radians of a curved one
    distance: NDArray[np.float64]  # of the source from the axis, along the middle ray


class FilteredBackProjection:
    """Filtered back-projection of some views at a time: the sum over blocks of views is the image.

    Arguments: as of `filtered_back_projection`.
    """

    def __init__(
        self,
        rays: Rays,
        voxels: Voxels,
        *,
        filter: Filter = "ram-lak",
        cutoff: float = 1.0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if filter not in get_args(Filter):
            raise InputError(f"there is no filter {filter!r}; there are {', '.join(get_args(Filter))}")
        if not 0 < cutoff <= 1:
            raise InputError(f"the cutoff of a filter is a part of the highest frequency, from 0 to 1, not {cutoff}")
        if len(voxels.shape) != rays.ndim:
            raise InputError(f"a detector of {rays.detector} sees {rays.ndim} axes, but voxels are {voxels.shape}")
        self.rays, self.voxels = rays, voxels
        self.device, self.dtype = torch.device(device), dtype
        self._beam = _check_beam(rays, voxels)
        self._curved = math.isfinite(rays.curvature)
        self._views = VoxelViews(rays, voxels, self.device, dtype)
        columns = rays.detector[-1]
        self._length = 1 << math.ceil(math.log2(3 * columns))
        pixel = float(np.median(self._beam.step))
        self._pixels = torch.as_tensor(self._beam.step / pixel, device=self.device, dtype=dtype)
        make = equiangular_kernel if self._curved else ramp_kernel
        kernel = make(self._length, pixel)
        response = np.fft.rfft(kernel).real * window(filter, len(kernel) // 2 + 1, cutoff) * pixel
        self._response = torch.as_tensor(response, device=self.device, dtype=dtype)
        self._angular = angular_weights(self._beam.angles, math.pi if rays.parallel else 2 * math.pi)

    def blocks(self) -> tuple[Tensor, ...]:
        """The views some at a time, as many as are filtered at once."""
        size = self.dtype.itemsize * math.prod(self.rays.detector[:-1]) * self._length
        parts: tuple[Tensor, ...] = torch.arange(len(self.rays)).split(max(1, _BLOCK_BYTES // size))
        return parts

    def back_project(self, data: Tensor, views: Tensor) -> Tensor:
        """What these views add to the image: (..., B, *detector) to (..., *shape)."""
        rows = data.to(device=self.device, dtype=self.dtype)
        weights = torch.as_tensor(self._weights(views.numpy()), device=self.device, dtype=self.dtype)
        filtered = self._filter(rows * weights)
        scale = torch.as_tensor(self._angular[views.numpy()], device=self.device, dtype=self.dtype)
        # The kernel is that of the median pixel; one of another size scales it by the inverse.
        scale = (scale / self._pixels[views]).reshape(-1, *(1,) * len(self.rays.detector))
        return self._views.gather(filtered * scale, views, self._beam.distance[views.numpy()])

    def _weights(self, views: NDArray[Any]) -> NDArray[np.float64]:
        """Cosines and shares of the rays, (B, *detector) or what broadcasts to it."""
        rays, beam = self.rays.select(views), self._beam
        if rays.parallel:
            return np.ones((len(views), *(1,) * len(rays.detector)))
        source = rays.vectors[:, 0].reshape(len(views), *(1,) * len(rays.detector), 3)
        pixels = rays.pixels()
        to_pixel = pixels - source
        middle = np.stack([-np.sin(beam.angles[views]), np.cos(beam.angles[views]), np.zeros(len(views))], axis=1)
        ahead = middle.reshape(source.shape)
        cosine = (to_pixel * ahead).sum(-1) / np.linalg.norm(to_pixel, axis=-1)
        if self._curved:
            cosine = cosine * beam.distance[views].reshape(-1, *(1,) * len(rays.detector))
        across = np.cross(
            np.array([0.0, 0.0, 1.0]), ahead
        )  # the turn from the middle ray to the pixel's, counterclockwise
        fan = np.arctan2((to_pixel * across).sum(-1), (to_pixel * ahead).sum(-1))
        share = redundancy_weights(beam.angles, beam.angles[views].reshape(-1, *(1,) * len(rays.detector)), fan)
        return np.asarray(cosine * share)

    def _filter(self, rows: Tensor) -> Tensor:
        """Convolve along the rows; beyond the detector's ends values fade to zero, and so do truncated objects."""
        columns = rows.shape[-1]
        pad = self._length - columns
        right, left = pad // 2, pad - pad // 2
        fade = torch.linspace(0, math.pi / 2, columns + 1, device=rows.device, dtype=rows.dtype).cos()[1:]
        fade = torch.nn.functional.pad(fade, (0, max(0, left - columns)))
        after = rows[..., -1:] * fade[:right]
        before = rows[..., :1] * fade[:left].flip(0)
        # The circle of the Fourier transform: the detector first, then what follows it, then what precedes it.
        whole = torch.cat([rows, after, before], dim=-1)
        filtered: Tensor = torch.fft.irfft(torch.fft.rfft(whole) * self._response, n=self._length)
        return filtered[..., :columns]


def is_circular(rays: Rays, voxels: Voxels) -> bool:
    """Whether the rays are of a scan that filtered back-projection is for."""
    try:
        _check_beam(rays, voxels)
    except InputError:
        return False
    return True


def _check_beam(rays: Rays, voxels: Voxels) -> _Beam:
    """The views of a circular scan; others are refused."""
    seen = outlook(rays, voxels)
    if np.abs(seen.tilt).max() > _TILT and (rays.parallel or len(rays.detector) == 1):
        raise InputError(
            f"rays are tilted by {np.rad2deg(np.abs(seen.tilt).max()):.3g} degrees: filtered back-projection is for "
            "rays in the plane of rotation; use sirt"
        )
    first, center, u, _ = np.moveaxis(rays.vectors, 1, 0)
    if rays.parallel:
        angles = np.arctan2(-first[:, 0], first[:, 1])
        across = np.stack([np.cos(angles), np.sin(angles), np.zeros(len(rays))], axis=1)
        return _Beam(angles, np.abs((u * across).sum(1)), np.ones(len(rays)))
    if np.ptp(first[:, 2]) > _CLIMB * float(np.hypot(first[:, 0], first[:, 1]).mean()):
        raise InputError("the source climbs, as in a helix: filtered back-projection is for circular scans; use sirt")
    # The middle ray is the one through the rotation axis, which is where angles and distances are measured from.
    distance = np.hypot(first[:, 0], first[:, 1])
    angles = np.arctan2(first[:, 0], -first[:, 1])
    ahead = np.stack([-np.sin(angles), np.cos(angles)], axis=1)
    across = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    whole = ((center - first)[:, :2] * ahead).sum(1)
    pixel = np.linalg.norm(u, axis=1)
    if math.isfinite(rays.curvature):
        return _Beam(angles, pixel / rays.curvature, distance)
    return _Beam(angles, np.abs((u[:, :2] * across).sum(1)) * distance / whole, distance)
