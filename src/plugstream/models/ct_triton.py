"""Joseph's projector on CUDA in Triton, in single precision; `ct_joseph.py` is its specification.

Both directions start from the same numbers of every ray, which a first kernel finds in double precision, and gather:
forward from voxels to rays, backward from rays to voxels, whose detector coordinates say which few rays come near. So
nothing is added atomically, and results are the same every time. An image is a volume of one slice.
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

__all__ = ["back_project", "project", "serves"]

_BLOCK = 128
_RAYS_AT_ONCE = 1 << 24  # whose numbers are kept together: 24 bytes each
_MOST_VIEWS = 65535  # of one launch
_MOST = 6  # rows and columns of rays near a voxel; with more, the detector is far finer than the voxels


@cache
def _triton_is_here() -> bool:
    return importlib.util.find_spec("triton") is not None


def serves(values: Tensor, rays: Rays, voxels: Voxels, *, adjoint: bool = False) -> bool:
    """Whether the kernels take these: on CUDA, in single precision, not differentiated, where Triton is installed.

    The adjoint is for flat detectors, not far finer than the voxels, with all voxels on one side of the source.
    """
    return (
        values.is_cuda
        and values.dtype == torch.float32
        and not (values.requires_grad and torch.is_grad_enabled())
        and _triton_is_here()
        and (not adjoint or find_maps(rays, voxels) is not None)
    )


def project(image: Tensor, rays: Rays, voxels: Voxels) -> Tensor:
    """What `ct_joseph.project` does."""
    from plugstream.models import ct_triton_kernel as kernels

    depth, height, width = _solid(voxels.shape)
    lead = image.shape[: image.ndim - len(voxels.shape)]
    volumes = image.reshape(math.prod(lead), depth, height, width).contiguous()
    pixels = math.prod(rays.detector)
    parts = []
    for some in _shares(rays):
        lines = _lines(some, voxels, image.device)
        out = torch.empty((len(volumes), len(some), pixels), dtype=image.dtype, device=image.device)
        kernels.project_rays[(-(-pixels // _BLOCK), len(some), len(volumes))](
            volumes, lines, out, pixels, len(some) * pixels, depth, height, width, BLOCK=_BLOCK
        )
        parts.append(out)
    return torch.cat(parts, 1).reshape(*lead, len(rays), *rays.detector)


def back_project(data: Tensor, rays: Rays, voxels: Voxels) -> Tensor:
    """What `ct_joseph.back_project` does."""
    from plugstream.models import ct_triton_kernel as kernels

    depth, height, width = _solid(voxels.shape)
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
    r"""Which pixel the ray through a voxel hits, and how many rays around it may come within a voxel.

    With X the voxel, s the source, c the detector's centre and n = u x v, the ray through X hits the detector at
    c + a u + b v with

        a = u* . (X - s) / w - u* . (c - s),   w = n . (X - s) / n . (c - s),   u* = v x n / |n|^2,

    and likewise for b with v* = n x u / |n|^2; of a parallel beam along d, a = u* . (X - c) with
    u* = v x d / (u . v x d). A ray with a weight at X passes within one voxel of it along two axes, hence within
    sum_i |da / di| columns, which is largest at a corner or an edge of the volume; it is looked at on 27 places.

    Returns the maps, (views, 14), as `ct_triton_kernel.back_project_rays` takes them, and rows and columns of rays to
    look at; None for curved detectors, a source among the voxels' planes and detectors that are far too fine.
    """
    if np.isfinite(rays.curvature):
        return None
    first, centre, u, v = np.moveaxis(rays.vectors, 1, 0)
    if rays.ndim == 2:
        v = np.broadcast_to([0.0, 0.0, 1.0], u.shape)
    if rays.parallel:
        volume = (u * np.cross(v, first)).sum(1, keepdims=True)
        dual = np.cross(v, first) / volume, np.cross(first, u) / volume
        normal, base = np.zeros_like(u), centre
    else:
        normal = np.cross(u, v)
        square = (normal**2).sum(1, keepdims=True)
        dual = np.cross(v, normal) / square, np.cross(normal, u) / square
        normal, base = normal / (normal * (centre - first)).sum(1, keepdims=True), first
    rows, columns = _detector(rays)
    shares = np.zeros((len(rays), 3, 4))
    spacing, origin = (np.asarray(part) for part in _solid_places(voxels))

    def in_voxels(gradient: NDArray[np.float64], at_base: NDArray[np.float64]) -> NDArray[np.float64]:
        """A linear function of x, y, z with this value at `base`, as one of k, i, j: its shares and constant."""
        backwards = gradient[:, ::-1]
        constant = at_base + (backwards * (origin - base[:, ::-1])).sum(1)
        return np.concatenate([backwards * spacing, constant[:, None]], 1)

    one = np.ones(len(rays)) if rays.parallel else np.zeros(len(rays))
    shares[:, 2] = in_voxels(normal, one)
    for row, (gradient, size) in enumerate(zip(dual, (columns, rows), strict=True)):
        middle = (size - 1) / 2
        off = np.zeros(len(rays)) if rays.parallel else (gradient * (centre - first)).sum(1)
        shares[:, row] = in_voxels(gradient, np.zeros(len(rays))) + (middle - off)[:, None] * shares[:, 2]
    places = np.stack(np.meshgrid(*[np.linspace(0, n - 1, 3) for n in _solid(voxels.shape)], indexing="ij"), -1)
    places = np.concatenate([places.reshape(-1, 3), np.ones((27, 1))], 1)
    distance = shares[:, 2] @ places.T
    if (distance <= 1e-3).any():
        return None
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
    places = np.concatenate(_solid_places(voxels))
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


def _solid(shape: tuple[int, ...]) -> tuple[int, int, int]:
    return (1, *shape) if len(shape) == 2 else shape  # type: ignore[return-value]


def _solid_places(voxels: Voxels) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Spacing and origin along z, y and x; those of a slice do not count."""
    if len(voxels.shape) == 3:
        return np.array(voxels.spacing), np.array(voxels.origin)
    return np.array([1.0, *voxels.spacing]), np.array([0.0, *voxels.origin])


def _detector(rays: Rays) -> tuple[int, int]:
    return (1, rays.detector[0]) if rays.ndim == 2 else (rays.detector[0], rays.detector[1])
