"""The prox of a ridge prior on CUDA, all iterations in one launch (`ridge_cuda.cu`); `ridge_prior.py` specifies it.

At 256 x 256, with 48 filters of 9 x 9, an iteration is 1.7 G multiplications of tensor cores, three for each product of
22 bits; 128 blocks, one a multiprocessor, keep the filters in their caches and their images to themselves, give each
other gradients, and meet once an iteration. On an H200 that takes 11 us, where tensor cores at their peak would take 3.
"""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.cuda_graphs import stream_handle
from plugstream.base.cuda_source import Kernels, compile_kernels
from plugstream.denoisers import forms

if TYPE_CHECKING:
    from plugstream.denoisers.ridge_prior import RidgePotential, Ridges

Numbers = NDArray[np.float64]

_SIZE, _TALL, _WIDE = 9, 16, 32  # of filters, with zeros around smaller ones, and of a tile
_RUNS = 4  # of 16 pixels, which a warp has
_MOST_FILTERS = 64
_REGION = (_TALL + _SIZE - 1) * (_WIDE + _SIZE - 1)  # pixels of a tile and around it, of which five numbers are kept
_SMALL = 512 * 512  # numbers of images whose memory is kept
_MOST_LEVELS = 16  # noise levels whose tables are remembered
_LARGEST = 64.0  # slope in half precision, whose largest number is 65504
_LARGE = 0.03  # residual, relative to the image, beside which the error of products in half precision, 5e-4, is small
_UNITS = 2.0**21  # of the largest share that a pixel may give another: 4 x 81 of them are below 2^31


class Problem(ctypes.Structure):
    """What the kernel is given; `ridge_cuda.cu` has the meaning of each field."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("count", "height", "width", "down", "across", "team", "limit")),
        ("goal", ctypes.c_double),
        ("coarse", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("z", "start", "rows", "forward", "backward")),
        *((name, ctypes.c_void_p) for name in ("tiles", "sums", "parts", "arrived", "out", "near")),
    )


def read_source(filters: int, ratios: int) -> str:
    """The text of the kernel for so many filters, a multiple of 16, and ratios."""
    text = Path(__file__).with_suffix(".cu").read_text(encoding="utf-8")
    return f"#define FILTERS {filters}\n#define RATIOS {ratios}\n#define RUNS {_RUNS}\n{text}"


def takes(z: Tensor) -> bool:
    """Whether the kernel takes these: float32 on CUDA, images of 8 x 8 or more, without gradients."""
    return (
        z.is_cuda
        and z.dtype == torch.float32
        and z.ndim >= 2
        and min(z.shape[-2:]) >= _SIZE - 1
        and z.numel() > 0
        and not forms.differentiated(z)
    )


def serves(ridges: Ridges, device: torch.device) -> bool:
    """Whether there is a kernel for these: at most 64 filters of up to 9 x 9."""
    return (
        ridges.size <= _SIZE
        and 2 * len(ridges.filters) <= _MOST_FILTERS
        and _find_kernels(2 * len(ridges.filters), len(ridges.ratios), device) is not None
    )


@cache
def _find_kernels(filters: int, ratios: int, device: torch.device) -> Kernels | None:
    if torch.cuda.get_device_capability(device) < (8, 0):  # without these products
        return None
    return compile_kernels(read_source(_padded(filters), ratios), device)


def _padded(filters: int) -> int:
    return 16 * forms.cover(filters, 16)


class Filters:
    """Filters as the tensor cores read them, front and rest of each number in half precision.

    forward: (6 steps of 16 taps, eights of filters, 32 lanes, 4 words); backward: (11 eights of taps, steps of 16
    filters, 32 lanes, 4 words). Both are times `power`, a power of two that makes the largest 8 to 16.
    """

    def __init__(self, kernels: Tensor) -> None:
        weights = kernels[:, 0].double().cpu().numpy()
        by = (_SIZE - weights.shape[-1]) // 2
        weights = np.pad(weights, ((0, _padded(len(weights)) - len(weights)), (by, by), (by, by)))
        self.count = len(weights)
        self.power = float(2.0 ** (3 - np.floor(np.log2(max(np.abs(weights).max(), 1e-30)))))
        weights = weights * self.power
        self.forward = _fragments(_forward_matrix(weights)).to(kernels.device)
        self.backward = _fragments(_backward_matrix(weights)).transpose(0, 1).contiguous().to(kernels.device)


def _forward_matrix(weights: Numbers) -> Numbers:
    """(96, filters): the taps in pairs, five a row, of which the last of a row and the last six are 0."""
    taps = np.zeros((len(weights), _SIZE, _SIZE + 1))
    taps[..., :_SIZE] = weights
    flat = taps.reshape(len(weights), -1)
    return np.pad(flat, ((0, 0), (0, 96 - flat.shape[1]))).T


def _backward_matrix(weights: Numbers) -> Numbers:
    """(filters, 88): ten times two columns of four rows, and the bottom row, whose last tap is with the fifth."""
    columns = np.zeros((len(weights), 11, 8))
    for j in range(10):
        for n in range(8):
            row, column = 4 * (j // 5) + n // 2, 2 * (j % 5) + n % 2
            if column < _SIZE:
                columns[:, j, n] = weights[:, row, column]
    columns[:, 4, 1] = weights[:, 8, 8]
    columns[:, 10] = weights[:, 8, :8]
    return columns.reshape(len(weights), -1)


def _fragments(matrix: Numbers) -> Tensor:
    """A matrix (16 steps, 8 parts) as a warp reads it: (steps, parts, 32, 4) words, two of fronts and two of rests.

    Lane 4 g + t has, of column g, the rows 2 t and 2 t + 1 in its first word, and those and 8 in its second.
    """
    steps, parts = matrix.shape[0] // 16, matrix.shape[1] // 8
    front = matrix.astype(np.float16)
    rest = (matrix - front).astype(np.float16)
    # (front or rest, step, half, t, pair, part, g) to (step, part, g, t, front or rest, half, pair)
    both = np.stack([front, rest]).reshape(2, steps, 2, 4, 2, parts, 8).transpose(1, 5, 6, 3, 0, 2, 4)
    words = np.ascontiguousarray(both).view(np.int32).reshape(steps, parts, 32, 4)
    return torch.from_numpy(words)


def prior_rows(potential: RidgePotential, level: Tensor, filters: Filters) -> Tensor:
    """What the kernel reads of each image's prior, on the device, (N, (2 ratios + 1) filters + 5).

    sigma psi'(u / sigma) = sum_j h_j clip(u / d_j, -1, 1) = sum_j 2 h_j sat(u / (2 d_j) + 1/2) - h_j, where sat clips
    to [0, 1]: for each ratio 1 / (2 d) and 2 h, then - sum_j h, of each filter; the step, the momentum, the unit of
    gradients, units of a product, and the noise level. Slopes are times a power of two.
    """
    height, reach = (torch.stack(part, 1)[..., 0, 0] for part in zip(*potential.profiles, strict=True))
    most = height.sum(1)  # of each filter's slope, (N, filters)
    power = torch.exp2(torch.floor(torch.log2(_LARGEST / most.amax(1))))
    share = (most @ potential.kernels[:, 0].flatten(1).abs()).amax(1)
    unit = share / _UNITS
    parts = torch.stack([0.5 / (reach * filters.power), 2 * power[:, None, None] * height], 2).flatten(1, 2)
    parts = torch.cat([parts, -(power[:, None] * most)[:, None]], 1)
    parts = torch.nn.functional.pad(parts, (0, filters.count - parts.shape[-1])).flatten(1)
    to_units = 1 / (power * filters.power * unit)
    return torch.cat([parts, torch.stack([*potential.heavy_ball(), unit, to_units, level], 1)], 1)


class _Memory:
    """What a launch for images (..., H, W) on a stream needs beside them, and its problem, with that filled in."""

    def __init__(self, shape: torch.Size, device: torch.device, stream: int) -> None:
        count, (height, width) = shape[:-2].numel(), shape[-2:]
        down, across = forms.cover(height, _TALL), forms.cover(width, _WIDE)
        blocks = _processors(device)
        team = min(blocks, down * across)
        teams = min(count, blocks // team)
        self.blocks = team * teams
        self._parts = torch.empty(5 * self.blocks, dtype=torch.float64, device=device)
        tiles = 0 if team == down * across else teams * down * across
        self._tiles = torch.empty((tiles, 5, _REGION), dtype=torch.int32, device=device)
        self._sums = torch.empty((3, *shape), dtype=torch.int32, device=device)
        self._arrived = torch.zeros(teams + 1, dtype=torch.int32, device=device)
        # Of the host, to which the GPU writes.
        self.near = torch.empty(count, dtype=torch.int32, pin_memory=device.type == "cuda")
        p = self.problem = Problem(count, height, width, down, across, team)
        p.tiles, p.sums, p.parts = self._tiles.data_ptr(), self._sums.data_ptr(), self._parts.data_ptr()
        p.arrived, p.near = self._arrived.data_ptr(), self.near.data_ptr()


_kept_memory = lru_cache(maxsize=2)(_Memory)
_lock = threading.Lock()


class Solver:
    """D(z, sigma) on CUDA by the heavy ball.

    Arguments: ridges: on the device, float32. tol, limit: as of `prox` in `ridge_prior.py`. kernels: those of a CPU, in
    tests.
    """

    def __init__(self, ridges: Ridges, tol: float, limit: int, kernels: Kernels | None = None) -> None:
        self.ridges, self.tol, self.limit = ridges, tol, limit
        self._parts = ridges.parts()
        self._filters = Filters(self._parts[0])
        self._kernels, self._ratios = kernels, len(ridges.ratios)
        self._last_rows: OrderedDict[tuple[float, int, int], Tensor] = OrderedDict()

    def __call__(self, z: Tensor, level: float | Tensor, start: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The last image of each, like z, and which of the N reached the tolerance within `limit`, (N,); None if all.

        Images with a level of 0 come out as they are.

        Arguments: z (..., H, W), N images; level, a number or (N,); start, from where to begin if not from z, like z.
        """
        z = z.contiguous()
        start = None if start is None else start.contiguous()
        device, count = z.device, z.shape[:-2].numel()
        stream = stream_handle(device)
        rows = self._level_rows(level) if isinstance(level, Tensor) else self._rows_of(level, count, device, stream)
        kernels = self._kernels or _find_kernels(len(self._parts[0]), self._ratios, device)
        assert kernels is not None
        out = torch.empty_like(z)
        with _lock:  # until its memory is free again
            work = (_kept_memory if z.numel() <= _SMALL else _Memory)(z.shape, device, stream)
            p = work.problem
            p.limit, p.goal, p.coarse = self.limit, self.tol**2, max(_LARGE / self.tol, 10.0) ** 2
            p.z, p.start, p.rows = z.data_ptr(), 0 if start is None else start.data_ptr(), rows.data_ptr()
            p.forward, p.backward = self._filters.forward.data_ptr(), self._filters.backward.data_ptr()
            p.out = out.data_ptr()
            kernels.launch("solve", (work.blocks, 1, 1), (1024 // _RUNS, 1, 1), p, None, None, together=True)
            if z.is_cuda:
                torch.cuda.current_stream(device).synchronize()
            near = work.near.tolist()
        return out, None if all(near) else torch.tensor(near, device=device) > 0

    def _rows_of(self, level: float, count: int, device: torch.device, stream: int) -> Tensor:
        """The rows of images with one level, remembered for each stream, since most runs repeat it."""
        key = level, count, stream
        rows = self._last_rows.get(key)
        if rows is None:
            # Of one image for all, so that an image has the same bits whatever is beside it.
            rows = self._level_rows(torch.full((1,), level, device=device)).expand(count, -1).contiguous()
            if len(self._last_rows) >= _MOST_LEVELS:
                self._last_rows.popitem(last=False)
            self._last_rows[key] = rows
        return rows

    def _level_rows(self, level: Tensor) -> Tensor:
        return prior_rows(self.ridges.at(level.clamp_min(1e-9), self._parts), level, self._filters).contiguous()


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
