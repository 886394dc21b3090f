"""The non-uniform FFT in torch: an FFT on a finer grid, and sparse matrices that interpolate it at the frequencies."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.models import nufft_table, nufft_triton

Real = NDArray[np.float64]

_WIDTHS = range(3, 18)
_OVERSAMPLINGS = (1.5, 1.75, 2.0, 2.25, 2.5, 3.0)


class GridNufft:
    r"""A real image's Fourier transform at any frequencies, by interpolation on a finer grid.

    F(w) = sum_n x_n exp(i n w) = sum_l phi(n_f w / 2 pi - l) X_l up to eps, with X the FFT of length n_f, about 2 N, of
    x_n / phihat(n / n_f), along each axis, and phi the Kaiser-Bessel kernel of a few grid points' width. The image is
    real, so half of the grid is enough, and only the columns near a frequency are computed. The weights are computed in
    double precision, so that single precision loses nothing to rounded frequencies.

    Holds to eps for every pixel: see `choose_kernel`.

    The adjoint is the exact transpose of each step. The transposed sparse matrix is stored as well, so that both are
    read row by row and sums have a fixed order.

    Arguments: shape (H, W); frequencies (points, 2) in radians a pixel along rows and columns, any values, since F has
    the period 2 pi; eps, the relative accuracy; device and real dtype.
    Reference: Beatty, Nishimura and Pauly, IEEE Trans. Med. Imaging 24(6), 2005; Dutt and Rokhlin, SIAM J. Sci.
    Comput. 14(6), 1993.
    """

    name = "grid"

    def __init__(
        self, shape: tuple[int, int], frequencies: Real, eps: float, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.shape, self.dtype = shape, dtype
        kernel = choose_kernel(eps, shape[0] * shape[1], len(frequencies))
        self.kernel, width = kernel, kernel.width
        rows, columns = (fast_size(max(kernel.oversampling * n, 2 * width)) for n in shape)
        # torch's FFT has exp(-i n w), so the transform is taken at -w, and as its conjugate at w where the column
        # frequency would be negative.
        folded = np.mod(-frequencies + np.pi, 2 * np.pi) - np.pi
        flipped = folded[:, 1] < 0
        folded = np.where(flipped[:, None], -folded, folded)
        places = folded * (np.array([rows, columns]) / (2 * np.pi))
        first = np.ceil(places - width / 2).astype(np.int64)
        left = max(0, -int(first[:, 1].min()))  # columns of negative frequency that a kernel reaches
        right = int(first[:, 1].max()) + width
        self._rows, self._columns, self._left, self._right = rows, columns, left, right
        table = _table(places, first, kernel, (rows, left, right), single=dtype == torch.float32)
        self._read = _Product(table, device)
        self._write = _Product(table.T.tocsr(), device)

        def place(array: NDArray[np.generic]) -> Tensor:
            tensor = torch.from_numpy(np.ascontiguousarray(array))
            return tensor.to(device=device, dtype=dtype.to_complex() if tensor.is_complex() else dtype)

        sizes = zip(shape, (rows, columns), strict=True)
        scale = [1 / kernel.transform((np.arange(n) - n // 2) / size) for n, size in sizes]
        self._scale = place(scale[0][:, None] * scale[1])
        if flipped.any():
            self._read.row_sign = self._write.column_sign = place(np.where(flipped, -1.0, 1.0))
        self._half = columns // 2 + 1
        # The inverse real FFT counts every column but the first and the last twice, for the half that is not stored.
        share = np.full(self._half, 0.5)
        share[0] = 1.0
        if columns % 2 == 0:
            share[-1] = 1.0
        self._share = place(share)

    @property
    def held(self) -> int:
        sign = self._read.row_sign
        tensors = [self._scale, self._share, *([] if sign is None else [sign])]
        return sum(t.numel() * t.element_size() for t in tensors) + self._read.held + self._write.held

    def sample(self, images: Tensor) -> Tensor:
        """(n, H, W) real to (n, points) complex."""
        columns = self.take_columns(torch.fft.rfft(self.pad_rows(images)))
        grid = torch.fft.fft(columns).flatten(1)
        return torch.view_as_complex(self._read(torch.view_as_real(grid)))

    def adjoint(self, values: Tensor) -> Tensor:
        """(n, points) complex to (n, H, W) real."""
        grid = torch.view_as_complex(self._write(torch.view_as_real(values.resolve_conj())))
        columns = torch.fft.ifft(grid.unflatten(1, (-1, self._rows)), norm="forward")
        return self.crop_rows(torch.fft.irfft(self.put_columns(columns), n=self._columns, norm="forward"))

    def pad_rows(self, images: Tensor) -> Tensor:
        """Scaled images in rows of the finer grid, the pixel at the centre first: (n, H, W) to (n, H, columns)."""
        if nufft_triton.serves(images):
            return nufft_triton.pad_rows(images, self._scale, self._columns)
        out = torch.zeros((*images.shape[:-1], self._columns), dtype=images.dtype, device=images.device)
        return _roll_in(images * self._scale, out)

    def crop_rows(self, padded: Tensor) -> Tensor:
        """The transpose of `pad_rows`."""
        if nufft_triton.serves(padded):
            return nufft_triton.crop_rows(padded, self._scale, self.shape[1])
        return _roll_out(padded, self.shape[1]).mul_(self._scale)

    def take_columns(self, half: Tensor) -> Tensor:
        """The columns near a frequency, each contiguous, so that the second FFT runs along them.

        (n, H, columns / 2 + 1) to (n, left + right, rows); beyond either end, the spectrum continues as its conjugate.
        """
        left, right, stored = self._left, self._right, self._half
        if nufft_triton.serves(half):
            return nufft_triton.take_columns(half, self._rows, self._columns, left, left + right)
        turned = half.mT
        out = torch.zeros((len(half), left + right, self._rows), dtype=half.dtype, device=half.device)
        inside = min(right, stored)
        _roll_in(turned[:, :inside], out[:, left : left + inside])
        if left:
            _roll_in(turned[:, 1 : left + 1].flip(1).conj(), out[:, :left])
        if right > stored:
            last = self._columns - stored
            over = turned[:, last - (right - stored) + 1 : last + 1]
            _roll_in(over.flip(1).conj(), out[:, left + stored :])
        return out

    def put_columns(self, columns: Tensor) -> Tensor:
        """The transpose of `take_columns`, with columns halved that the inverse real FFT counts twice."""
        left, right, stored = self._left, self._right, self._half
        if nufft_triton.serves(columns):
            return nufft_triton.put_columns(columns, self.shape[0], self._columns, left)
        turned = _roll_out(columns, self.shape[0]).mT
        out = torch.zeros((len(columns), self.shape[0], stored), dtype=columns.dtype, device=columns.device)
        inside = min(right, stored)
        out[..., :inside] = turned[..., left : left + inside]
        if left:
            out[..., 1 : left + 1] += turned[..., :left].flip(-1).conj()
        if right > stored:
            last = self._columns - stored
            out[..., last - (right - stored) + 1 : last + 1] += turned[..., left + stored :].flip(-1).conj()
        return out.mul_(self._share)


def _roll_in(values: Tensor, out: Tensor) -> Tensor:
    """Write (..., N) into zeros (..., size) with the entry N // 2 first and those before it at the end."""
    behind = values.shape[-1] // 2
    out[..., : values.shape[-1] - behind] = values[..., behind:]
    if behind:
        out[..., -behind:] = values[..., :behind]
    return out


def _roll_out(values: Tensor, count: int) -> Tensor:
    """The transpose of `_roll_in`: (..., size) to (..., count)."""
    behind = count // 2
    return torch.cat([values[..., values.shape[-1] - behind :], values[..., : count - behind]], -1)


@dataclass(frozen=True)
class Kernel:
    """The Kaiser-Bessel kernel I_0(beta sqrt(1 - (2 x / width)^2)) exp(-beta) on |x| <= width / 2, zero beyond."""

    width: int
    oversampling: float

    @property
    def beta(self) -> float:
        # Beatty's choice: the first alias of the outermost pixel lies where the transform begins to oscillate.
        ratio = self.width / self.oversampling
        return float(np.pi * np.sqrt(ratio**2 * (self.oversampling - 0.5) ** 2 - 0.8))

    def __call__(self, x: Real) -> Real:
        from scipy.special import i0e

        root = np.sqrt(np.maximum(1 - (2 * x / self.width) ** 2, 0))
        inside = np.abs(x) <= self.width / 2
        return np.asarray(np.where(inside, i0e(self.beta * root) * np.exp(self.beta * (root - 1)), 0.0))

    def transform(self, nu: Real) -> Real:
        """Its Fourier transform: width sinh(z) / z exp(-beta) with z^2 = beta^2 - (pi width nu)^2, a sine beyond."""
        square = self.beta**2 - (np.pi * self.width * nu) ** 2
        root = np.maximum(np.sqrt(np.abs(square)), 1e-300)
        above = np.exp(np.minimum(root, self.beta) - self.beta) * -np.expm1(-2 * root) / (2 * root)
        return np.asarray(self.width * np.where(square >= 0, above, np.exp(-self.beta) * np.sin(root) / root))

    @property
    @cache  # noqa: B019 - a hundred kernels there are, of which every model asks again
    def error(self) -> float:
        """The relative error of the worst pixel, in the mean square over the frequencies.

        A pixel n returns with the aliases n + j n_f, j != 0, each weighted with phihat(n / n_f + j) against
        phihat(n / n_f): the error is the root of the sum of their squares, largest at the image's edge, times sqrt(2)
        for two axes.
        """
        modes = np.linspace(0, 0.5 / self.oversampling, 33)
        shifts = np.concatenate([np.arange(-40, 0), np.arange(1, 41)])
        aliases = self.transform(modes[:, None] + shifts)
        return float(np.sqrt(2) * (np.sqrt(np.sum(aliases**2, 1)) / np.abs(self.transform(modes))).max())


@cache
def choose_kernel(
    eps: float,
    pixels: int,
    points: int,
    axes: int = 2,
    fft: float = 1.0,
    oversamplings: tuple[float, ...] = _OVERSAMPLINGS,
) -> Kernel:
    """The kernel with an error of at most eps and the cheapest interpolation and FFT.

    Arguments: eps; pixels of an image and points; axes along which frequencies lie between those of the grid; fft, the
    cost of a cell of the finer grid relative to that of a cell that a point touches; oversamplings to choose from.
    """
    fits = [
        kernel
        for kernel in (Kernel(width, s) for width in _WIDTHS for s in oversamplings if width * (1 - 0.5 / s) > 1)
        if kernel.error * np.sqrt(axes / 2) <= eps
    ]
    if not fits:
        raise InputError(f"an accuracy of {eps:.1e} is beyond the non-uniform FFT; use 1e-13 or more")
    return min(fits, key=lambda kernel: points * kernel.width**axes + fft * pixels * kernel.oversampling**axes)


def table_bytes(shape: tuple[int, int], points: int, eps: float, dtype: torch.dtype) -> int:
    """Bytes of the two sparse matrices of a `GridNufft`."""
    width = choose_kernel(eps, shape[0] * shape[1], points).width
    return int(2 * points * width**2 * (4 + dtype.itemsize) + 8 * shape[0] * shape[1] * 4)


def fast_size(least: float) -> int:
    """The smallest even number from `least` on with no prime factor above 5, for which FFTs are fast."""
    from scipy.fft import next_fast_len

    return 2 * int(next_fast_len(int(np.ceil(least / 2)), real=True))


class _Product:
    """A real sparse matrix in rows, times complex vectors given as pairs: (n, columns, 2) to (n, rows, 2).

    Results are conjugated where `row_sign` is -1, and entries of the vectors where `column_sign` is.
    """

    def __init__(self, table: Any, device: torch.device) -> None:
        arrays = (table.indptr, table.indices, table.data)
        self.starts, self.columns, self.values = (torch.from_numpy(array).to(device) for array in arrays)
        self.shape: tuple[int, int] = table.shape
        self.row_sign: Tensor | None = None
        self.column_sign: Tensor | None = None
        forms = (
            (nufft_table.product, nufft_table.serves(self.values, self.columns)),
            (nufft_triton.product, nufft_triton.serves(self.values)),
        )
        self._fast = next((product for product, serves in forms if serves), None)
        self._sparse = None if self._fast else _sparse(self.starts, self.columns, self.values, self.shape)

    @property
    def held(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.starts, self.columns, self.values))

    def __call__(self, vectors: Tensor) -> Tensor:
        if self._fast is not None:
            signs = {"row_sign": self.row_sign, "column_sign": self.column_sign}
            return self._fast(self.starts, self.columns, self.values, vectors, **signs)
        assert self._sparse is not None
        if self.column_sign is not None:
            vectors = torch.stack([vectors[..., 0], vectors[..., 1] * self.column_sign], -1)
        out = torch.empty((len(vectors), self.shape[0], 2), dtype=vectors.dtype, device=vectors.device)
        for vector, place in zip(vectors, out, strict=True):
            torch.mm(self._sparse, vector, out=place)
        if self.row_sign is not None:
            out[..., 1].mul_(self.row_sign)
        return out


def _sparse(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse (CSR tensor support is in beta|invariant checks)")
        return torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False)


def _table(places: Real, first: NDArray[np.int64], kernel: Kernel, grid: tuple[int, int, int], *, single: bool) -> Any:
    """The interpolation as a SciPy matrix, (points, cells), filled some points at a time to save memory.

    Arguments: places of the frequencies in units of the grid; first, the first cell of each along both axes; grid, the
    rows, and the columns to the left and right of frequency zero.
    """
    from scipy.sparse import csr_array

    rows, left, right = grid
    width, taps = kernel.width, np.arange(kernel.width)
    shape = (len(places), rows * (left + right))
    size = len(places) * width**2
    kind = np.int32 if max(size, *shape) < np.iinfo(np.int32).max else np.int64
    index = np.empty((len(places), width, width), dtype=kind)
    value = np.empty((len(places), width, width), dtype=np.float32 if single else np.float64)
    for start in range(0, len(places), 1 << 16):
        block = slice(start, start + (1 << 16))
        cells = first[block, :, None] + taps
        weights = kernel(cells - places[block, :, None])
        value[block] = weights[:, 0, :, None] * weights[:, 1, None, :]
        index[block] = (cells[:, 1] + left)[:, None, :] * rows + np.mod(cells[:, 0], rows)[:, :, None]
    starts = np.arange(0, size + 1, width**2, dtype=kind)
    return csr_array((value.reshape(-1), index.reshape(-1), starts), shape=shape)
