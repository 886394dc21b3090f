r"""Joseph's projector on CUDA in single precision, in CUDA C++ (`ct_cuda.cu`); `ct_joseph.py` is its specification.

Both directions gather, so that nothing is added atomically and results are the same every time. What decides the speed
is how volumes and data lie in memory: z and the detector's rows are fastest, so that a warp, which is one column of the
detector or one column of voxels, reads neighbours; a copy there and back costs one reading and one writing each.

- Slices that rays do not leave (parallel beams whose rows see one slice each, stacks of fans): a thread has four slices
  and one weight for them. The adjoint of a voxel is the few columns within one voxel of it; four neighbours share the
  values that they read.
- Cones whose detector columns are parallel to the rotation axis, helices too: of each such column the rows near a voxel
  follow from two numbers, so that the adjoint is two or three columns by two or three rows.
- Other rays (tilted, rolled, steep): forward as any ray; their adjoint, of flat detectors, is `ct_cells`'.

Roofline, a voxel and view, of 512^3 voxels and 180 views on an H200, whose profiler counted the instructions:
forward, slices read 8 bytes from the L1 cache for two multiply-adds, and each number comes from the L2 cache once a
view, 97 GB in 21 ms, which limits them. Their adjoint takes 9 instructions and uses two thirds of the L1 cache's rate
(12 ms). The cone takes 27 instructions forward, waiting for memory half of the time (43 ms), and about 45 backward,
issuing three quarters of what it could (40 ms).
"""

from __future__ import annotations

import ctypes
import math
from copy import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.cuda_source import Kernels, compile_kernels, takes
from plugstream.models.ct_cells import CELLS_HIGH, CellGather
from plugstream.models.ct_forms import find_forms
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_maps import (
    centre_maps,
    column_axes,
    find_spans,
    map_detector,
    sample_places,
    solid_places,
    solid_shape,
)
from plugstream.models.ct_problem import GrowingTable, Problem, choose_views, launch_move, read_source
from plugstream.models.ct_stack import blend_slices, is_stack, small_part

_MARGIN = 2  # voxels of zeros on either side, along x and y
_Z_MARGIN = 4  # along z, for rays that cross slices: a whole number of 16 bytes
_ACROSS = 4  # voxels that a thread of an adjoint adds up
_BEYOND = _ACROSS + 1  # how far off the volume the last of them may be, and the rays next to it
_DEEP = 128  # along z, that a warp of a cone's adjoint adds up
_AT_ONCE = 1 << 24  # numbers of data of one launch, which the L2 cache can hold most of


def serves(values: Tensor) -> bool:
    """Whether the kernels take these: on CUDA, in single precision, not differentiated."""
    return takes(values, read_source())


def make_projector(rays: Rays, voxels: Voxels, device: torch.device) -> CudaProjector:
    """The projector of these rays on a CUDA device."""
    kernels = compile_kernels(read_source(), device)
    if kernels is None:
        raise RuntimeError("torch has no CUDA compiler; ask serves() first")
    return CudaProjector(rays, voxels, device, kernels)


class CudaProjector:
    """The projections of all views of a scan, of which each call takes some.

    Arguments: rays, all of them; voxels; device; kernels, launched on its current stream.
    """

    def __init__(self, rays: Rays, voxels: Voxels, device: torch.device, kernels: Kernels) -> None:
        self.rays, self.voxels, self.device, self.kernels = rays, voxels, device, kernels
        self.solid = rays.ndim == 3
        self.rows, self.columns = rays.detector if self.solid else (1, rays.detector[0])
        blend = blend_slices(rays, voxels) if is_stack(rays) else None
        self.in_slices = not self.solid or (is_stack(rays) and (blend is None or bool((blend == blend[0]).all())))
        self.blend = None if blend is None or not self.in_slices else torch.from_numpy(blend[0]).to(device)
        found = map_detector(rays, voxels)
        axes = column_axes(rays, voxels)
        upright = self.solid and not rays.parallel and small_part(rays.vectors[:, 3, :2], rays.vectors[:, 3])
        margin = self._find_margin(found[0]) if found is not None and upright and axes is not None else None
        forms = find_forms(rays, voxels, CELLS_HIGH) if self.solid and not self.in_slices and margin is None else None
        self._cells = None if forms is None else CellGather(forms, kernels, device)
        self.gathers = self._cells is not None or (found is not None and (self.in_slices or margin is not None))
        self._vectors = self._on_device(rays.vectors.reshape(len(rays), 12))
        curved = np.isfinite(rays.curvature)
        flat = Rays(rays.vectors, (1, self.columns) if self.solid else (self.columns,), rays.parallel, rays.curvature)
        self._middles = self._on_device(flat.pixels().reshape(len(rays), self.columns, 3)) if curved else None
        self._row_margin, self._column_margin, self._gather_cone = 0, 0, ""
        self._maps: GrowingTable | None = None
        self._spans: GrowingTable | None = None
        if self.gathers and self._cells is None and found is not None and axes is not None:
            shares, _ = found
            self._maps = self._on_device(centre_maps(shares, voxels))
            self._spans = self._on_device(find_spans(axes))
            if self.in_slices and rays.parallel:
                self._column_margin = math.ceil(3 + 2.2 * float(np.abs(shares[:, 0, 1:3]).max()))
            elif margin is not None:
                self._row_margin, self._gather_cone = margin

    def grow(self, rays: Rays) -> CudaProjector:
        """The projector of these rays, whose first ones are those here: tables are made of the others alone.

        Where those need another kernel, as no two views of one scan do as a rule, all are made anew.
        """
        new = CudaProjector(rays.select(slice(len(self.rays), None)), self.voxels, self.device, self.kernels)
        if self._cells is not None or self._kind() != new._kind():
            return CudaProjector(rays, self.voxels, self.device, self.kernels)
        grown = copy(self)
        grown.rays = rays
        grown._row_margin = max(self._row_margin, new._row_margin)
        grown._column_margin = max(self._column_margin, new._column_margin)
        for name in ("_vectors", "_middles", "_maps", "_spans"):
            before, more = getattr(self, name), getattr(new, name)
            setattr(grown, name, None if before is None else before.append(more.rows))
        return grown

    def _kind(self) -> tuple[Any, ...]:
        """What views must have in common for one table."""
        blend = None if self.blend is None else tuple(self.blend.flatten().tolist())
        return self.in_slices, self.gathers, self._cells is None, self._gather_cone, blend

    def project(self, image: Tensor, index: NDArray[np.int64]) -> Tensor:
        """(..., *image_shape) to (..., views, *detector)."""
        lead = image.shape[: image.ndim - len(self.voxels.shape)]
        out = torch.empty((*lead, len(index), *self.rays.detector), dtype=torch.float32, device=self.device)
        if not out.numel():
            return out
        flat = out.reshape(math.prod(lead), len(index), self.rows, self.columns)
        image = image.reshape(math.prod(lead), *solid_shape(self.voxels))
        if self.in_slices:
            if self.blend is not None:
                image = torch.einsum("rd,ldij->lrij", self.blend, image)
            self._project(image.reshape(1, -1, *image.shape[2:])[0], index, flat)
        else:
            for volume, part in zip(image, flat, strict=True):
                self._project(volume, index, part[None])
        return out

    def back_project(self, data: Tensor, index: NDArray[np.int64]) -> Tensor:
        """The adjoint: (..., views, *detector) to (..., *image_shape), summed over views."""
        lead = data.shape[: data.ndim - self.rays.ndim]
        flat = data.reshape(math.prod(lead), len(index), self.rows, self.columns)
        if self._cells is not None:
            volumes = [self._back_project_cells(part, index, self._cells) for part in flat]
        elif not self.in_slices:
            volumes = [self._back_project(part[None], index) for part in flat]
        else:
            volumes = [self._back_project(flat, index)]
        image = torch.cat(volumes) if len(volumes) != 1 else volumes[0]
        if self.in_slices:
            image = image.reshape(len(flat), self.rows, *image.shape[1:])
            if self.blend is not None:
                image = torch.einsum("rd,lrij->ldij", self.blend, image)
        return image.reshape(*lead, *self.voxels.shape)

    def _project(self, volume: Tensor, index: NDArray[np.int64], out: Tensor) -> None:
        """Slices (Z, H, W) to (lead, views, rows, columns) with lead rows = Z, or a volume to (1, views, ...)."""
        p = self._problem(volume.shape)
        packed = self._pack_volume(p, volume)
        lanes = p.z_size // 4 if self._vector(p) else p.z_size
        for first, chunk in self._chunks(p, index):
            lines = p.z_size if self.in_slices else self.rows
            values = torch.empty((len(chunk), self.columns, lines), dtype=torch.float32, device=self.device)
            held = choose_views(p, chunk, self.device)
            if self.in_slices:
                wide = min(32, 1 << (lanes - 1).bit_length())
                grid = (-(-lanes // wide), -(-self.columns * wide // 256), len(chunk))
                name = "project_four_slices" if self._vector(p) else "project_one_slice"
                self.kernels.launch(name, grid, (wide, 256 // wide, 1), p, packed, values)
            else:
                grid = (-(-self.rows // 32), -(-self.columns // 8), len(chunk))
                self.kernels.launch("project_rays", grid, (32, 8, 1), p, packed, values)
            del held
            for line, target in self._by_view(out[:, first : first + len(chunk)]):
                self._move("unpack", p, values[..., line:], target)

    def _back_project(self, data: Tensor, index: NDArray[np.int64]) -> Tensor:
        """(lead, views, rows, columns) to slices (lead rows, H, W), or (1, views, ...) to a volume (1, D, H, W)."""
        depth, height, width = solid_shape(self.voxels)
        slices = len(data) * self.rows if self.in_slices else depth
        p = self._problem((slices, height, width))
        gathered = torch.empty((height, width, p.z_size if self.in_slices else depth), device=self.device)
        if not len(index):
            gathered.zero_()
        for first, chunk in self._chunks(p, index):
            held = choose_views(p, chunk, self.device)
            if self.in_slices:
                size, margin, p.scaled = p.z_size, 0, 1
            else:
                size, margin, p.scaled = p.row_size, p.row_margin, 2
            table = torch.empty((3 * self.columns + 2, len(chunk), 4), dtype=torch.float32, device=self.device)
            p.table, p.steps = table.data_ptr(), table[2 * self.columns :].data_ptr()
            p.ranges = table[3 * self.columns :].data_ptr()
            self._tabulate(p, 1)
            wide = self.columns + 2 * p.column_margin
            values = torch.empty((len(chunk), wide, size), dtype=torch.float32, device=self.device)
            if p.column_margin:
                values[:, : p.column_margin], values[:, -p.column_margin :] = 0, 0
            if margin:
                values[..., :margin], values[..., margin + self.rows :] = 0, 0
            for line, part in self._by_view(data[:, first : first + len(chunk)]):
                self._move("pack", p, values[:, p.column_margin :, margin + line :], part)
            p.scaled = 0
            for axis in (1, 2):
                if axis == 2 and not p.parallel:
                    self._tabulate(p, 2)
                p.axis = axis
                p.sum = int(first > 0 or p.axis == 2)
                across, planes = (width, height) if p.axis == 1 else (height, width)
                if self.in_slices:
                    lanes = p.z_size // 4 if self._vector(p) else p.z_size
                    name = "gather_four_slices" if self._vector(p) else "gather_one_slice"
                    wide = min(32, 1 << (lanes - 1).bit_length())
                    count, high = -(-lanes // wide), 8
                else:
                    name, wide, count, high = self._gather_cone, 32, -(-depth // _DEEP), 4
                beside = 32 // wide
                grid = (count, -(-across // (_ACROSS * beside)), -(-planes // high))
                self.kernels.launch(name, grid, (wide, beside, high), p, values, gathered)
            del held, table
        out = torch.empty((slices, height, width), dtype=torch.float32, device=self.device)
        self._move("unpack", p, gathered, out.movedim(1, 0))
        return out if self.in_slices else out[None]

    def _back_project_cells(self, data: Tensor, index: NDArray[np.int64], cells: CellGather) -> Tensor:
        """(views, rows, columns) to a volume (1, D, H, W)."""
        depth, height, width = shape = solid_shape(self.voxels)
        p = self._problem(shape)
        gathered = cells.gather(p, data, index)
        out = torch.empty((depth, height, width), dtype=torch.float32, device=self.device)
        self._move("unpack", p, gathered, out.movedim(1, 0))
        return out[None]

    def _problem(self, shape: tuple[int, ...] | torch.Size) -> Problem:
        depth, height, width = shape
        if self.in_slices:
            size, margin = 4 * math.ceil(depth / 4) if depth >= 4 else depth, 0
        else:
            size, margin = 4 * math.ceil(depth / 4) + 2 * _Z_MARGIN, _Z_MARGIN
        spacing, origin = solid_places(self.voxels)
        p = Problem(
            rows=self.rows, columns=self.columns, depth=depth, height=height, width=width,
            parallel=int(self.rays.parallel), margin=_MARGIN, z_margin=margin, z_size=size,
            row_margin=self._row_margin, row_size=4 * math.ceil(self.rows / 4) + 2 * self._row_margin,
            column_margin=self._column_margin, large=int((height + 4) * (width + 4) * size >= 1 << 32),
            vectors=self._vectors.address, middles=None if self._middles is None else self._middles.address,
        )  # fmt: skip
        p.spacing, p.origin = (ctypes.c_double * 3)(*spacing), (ctypes.c_double * 3)(*origin)
        if self._maps is not None and self._spans is not None:
            p.maps, p.spans = self._maps.address, self._spans.address
        return p

    def _find_margin(self, shares: NDArray[np.float64]) -> tuple[int, str] | None:
        """How many rows of zeros the adjoint reads on either side, and the kernel: one of them stays near the data.

        A warp goes on to a whole number of `_DEEP` along z, and a thread to `_BEYOND` voxels off the volume across;
        None if the source may be there.
        """
        places = sample_places(self.voxels)
        last = places.max(0)
        places[:, 1:3] += _BEYOND * np.sign(places[:, 1:3] - last[1:3] / 2)
        ends = places.copy()
        places[:, 0], ends[:, 0] = 0, _DEEP * math.ceil((last[0] + 1) / _DEEP)
        places = np.concatenate([places, ends])
        distance = shares[:, 2] @ places.T
        if (distance <= 1e-3).any():
            return None
        reach = 1.1 * float((np.abs(shares[:, 1, 0]) / distance.min(1)).max())
        rows = (shares[:, 1] @ places.T) / distance
        beyond = max(-rows.min(), rows.max() - self.rows, 0.0) + 2 * reach + 4
        if beyond <= self.rows:
            return 4 * math.ceil(beyond / 4), "gather_cone_inside"
        return 4 * math.ceil((4 + 2 * reach) / 4), "gather_cone_beyond"

    def _tabulate(self, p: Problem, axis: int) -> None:
        p.axis = axis
        grid = (-(-self.columns // 128), p.views, 1)
        self.kernels.launch("tabulate", grid, (128, 1, 1), p, None, None)

    def _chunks(self, p: Problem, index: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
        """Views whose data are copied together, and the number of the first."""
        each = self.columns * max(p.z_size, p.row_size)
        count = min(max(1, _AT_ONCE // each), 65535)
        return [(first, index[first : first + count]) for first in range(0, len(index), count)]

    def _by_view(self, data: Tensor) -> list[tuple[int, Tensor]]:
        """(lead, views, rows, columns) as parts (views, lines, columns), each with the number of its first line."""
        if self.rows == 1:
            return [(0, data[:, :, 0].movedim(1, 0))]
        return [(number * self.rows, part) for number, part in enumerate(data)]

    def _vector(self, p: Problem) -> bool:
        return self.in_slices and p.z_size % 4 == 0

    def _pack_volume(self, p: Problem, volume: Tensor) -> Tensor:
        """(Z, H, W) as [y][x][z], with zeros around."""
        _, height, width = volume.shape
        packed = torch.empty((height + 2 * _MARGIN, width + 2 * _MARGIN, p.z_size), device=self.device)
        packed[:_MARGIN], packed[-_MARGIN:] = 0, 0
        packed[:, :_MARGIN], packed[:, -_MARGIN:] = 0, 0
        if p.z_margin:
            packed[..., : p.z_margin], packed[..., p.z_margin + p.depth :] = 0, 0
        inside = packed[_MARGIN : _MARGIN + height, _MARGIN : _MARGIN + width, p.z_margin :]
        self._move("pack", p, inside, volume.contiguous().movedim(1, 0))
        return packed

    def _move(self, name: str, p: Problem, packed: Tensor, own: Tensor) -> None:
        """From [batch][line][place] to [batch][place][line] or back; places are neighbours."""
        if own.stride(2) != 1:
            raise ValueError("the last axis must have neighbours")
        p.batches, p.lines, p.length = own.shape
        p.batch_stride, p.line_stride = own.stride(0), own.stride(1)
        p.packed_batch, p.packed_place, p.packed_line = packed.stride()
        launch_move(self.kernels, name, p, *((own, packed) if name == "pack" else (packed, own)))

    def _on_device(self, values: NDArray[Any]) -> GrowingTable:
        return GrowingTable(torch.from_numpy(np.ascontiguousarray(values)).to(self.device))
