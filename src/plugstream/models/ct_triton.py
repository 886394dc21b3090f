"""The adjoint of Joseph's projector on CUDA for rays that `ct_cuda` only projects: tilted, rolled, steep; in Triton.

A first kernel finds the numbers of every ray in double precision; then each voxel looks up the few rays that come near,
which its detector coordinates tell. Nothing is added atomically, so results are the same every time. An image is a
volume of one slice. `ct_joseph.py` is the specification.
"""

from __future__ import annotations

import importlib.util
import math
from functools import cache, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_maps import map_detector, sample_places, solid_places, solid_shape

_BLOCK = 128
_RAYS_AT_ONCE = 1 << 24  # whose numbers are kept together: 24 bytes each
_MOST_VIEWS = 65535  # of one launch
_MOST = 6  # rows and columns of rays near a voxel; with more, the detector is far finer than the voxels


@cache
def _triton_is_here() -> bool:
    return importlib.util.find_spec("triton") is not None


def serves(values: Tensor, rays: Rays, voxels: Voxels) -> bool:
    """Whether the kernels take these: on CUDA, in single precision, not differentiated, where Triton is installed.

    They are for flat detectors, not far finer than the voxels, with all voxels on one side of the source.
    """
    return (
        values.is_cuda
        and values.dtype == torch.float32
        and not (values.requires_grad and torch.is_grad_enabled())
        and _triton_is_here()
        and find_maps(rays, voxels) is not None
    )


def back_project(data: Tensor, rays: Rays, voxels: Voxels) -> Tensor:
    """What `ct_joseph.back_project` does."""
    from plugstream.models import ct_triton_kernel as kernels

    depth, height, width = solid_shape(voxels)
    lead = data.shape[: data.ndim - rays.ndim]
    rows, columns = _detector(rays)
    values = data.reshape(math.prod(lead), len(rays), rows * columns)
    total: Tensor | None = None
    first = 0
    for some in _shares(rays):
        found = find_maps(some, voxels)
        if found is None:
            raise RuntimeError("the kernels are not for these rays; ask serves() first")
        maps, near_rows, near_columns = found
        lines = _lines(some, voxels, data.device)
        part = values[:, first : first + len(some)].contiguous()
        out = torch.empty((len(values), depth, height, width), dtype=data.dtype, device=data.device)
        kernels.back_project_rays[(-(-depth * height * width // _BLOCK), len(values))](
            part, lines, torch.from_numpy(maps).to(data.device), out, len(some), rows, columns,
            len(some) * rows * columns, depth, height, width, ROWS=near_rows, COLUMNS=near_columns, BLOCK=_BLOCK,
        )  # fmt: skip
        total = out if total is None else total.add_(out)
        first += len(some)
    assert total is not None
    return total.reshape(*lead, *voxels.shape)


@lru_cache(maxsize=4)  # who asks whether there are maps wants them next
def find_maps(rays: Rays, voxels: Voxels) -> tuple[NDArray[np.float32], int, int] | None:
    r"""Which pixel the ray through a voxel hits (`map_detector`), and how many rays around it may come within a voxel.

    A ray with a weight at X passes within one voxel of it along two axes, hence within sum_i |da / di| columns, which
    is largest at a corner or an edge of the volume; it is looked at on 27 places.

    Returns the maps, (views, 14), as `ct_triton_kernel.back_project_rays` takes them, and rows and columns of rays to
    look at; None where there is no map, or the detector is far too fine.
    """
    answer = map_detector(rays, voxels)
    if answer is None:
        return None
    shares, distance = answer
    rows, columns = _detector(rays)
    places = sample_places(voxels)
    reach = []
    for row in range(2):
        hit = (shares[:, row] @ places.T) / distance
        change = np.abs(shares[:, row, None, :3] - hit[..., None] * shares[:, 2, None, :3]).sum(-1) / distance
        reach.append(1.05 * change.max(1) + 0.05)
    counts = [min(int(np.floor(2 * far.max())) + 1, size) for far, size in zip(reach, (columns, rows), strict=True)]
    if max(counts) > _MOST:
        return None
    maps = np.concatenate([shares.reshape(len(rays), 12), np.stack(reach, 1)], 1)
    return maps.astype(np.float32), 1 if rows == 1 else counts[1], counts[0]


def _lines(rays: Rays, voxels: Voxels, device: torch.device) -> Tensor:
    """The numbers of every ray, (6, views, rays): see `ct_triton_kernel.find_lines`."""
    from plugstream.models import ct_triton_kernel as kernels

    rows, columns = _detector(rays)
    middles = Rays(rays.vectors, (1, columns) if rays.ndim == 3 else (columns,), rays.parallel, rays.curvature).pixels()
    firsts, ups = rays.vectors[:, 0], rays.vectors[:, 3] * (rays.ndim == 3)
    places = np.concatenate(solid_places(voxels))
    parts = (torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in (firsts, middles, ups, places))
    out = torch.empty((6, len(rays), rows * columns), dtype=torch.float32, device=device)
    kernels.find_lines[(-(-rows * columns // _BLOCK), len(rays))](
        *parts, out, rows, columns, len(rays) * rows * columns, PARALLEL=rays.parallel, BLOCK=_BLOCK
    )
    return out


def _shares(rays: Rays) -> list[Rays]:
    """Views whose rays' numbers fit together."""
    some = min(max(1, _RAYS_AT_ONCE // math.prod(rays.detector)), _MOST_VIEWS)
    if some >= len(rays):
        return [rays]
    return [rays.select(slice(first, first + some)) for first in range(0, len(rays), some)]


def _detector(rays: Rays) -> tuple[int, int]:
    return (1, rays.detector[0]) if rays.ndim == 2 else (rays.detector[0], rays.detector[1])
