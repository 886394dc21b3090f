"""The field that currents in the pixels send to all pixels: a convolution with Green's function, by FFT."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.device_gmres import Rooms
from plugstream.models.nufft_grid import fast_size
from plugstream.models.torus import Convolution, Span, even_size, torus_symbol

Box = tuple[slice, slice]
"""Rows and columns of a grid."""

_KEPT = 4  # symbols of boxes in the cache
_NEAR = 1e-2  # of |s - k| L, below which a quotient of two vanishing numbers is a mean of derivatives


class GreenFFT:
    r"""f -> k_0^2 int g(r - r') f(r') dr' on the pixels of a grid or of a box of it, g = (i/4) H_0^(1)(k |r|).

    g is cut off beyond the grid's diagonal, which no pair of pixels notices. Its transform is then smooth and known
    (`truncated_green`), so that the sum over pixels converges as fast as f is smooth: at second order for an object
    with edges whose pixels hold averages. The operator is a symmetric matrix, complex and not Hermitian: its adjoint is
    its conjugate.

    A product costs an FFT there and back of twice the box's sides.

    Arguments: shape (H, W) of the grid; pixel in metres; wavenumber k in the background; scale, k_0^2; device; dtype,
    the real precision.
    Reference: Vico, Greengard and Ferrando, J. Comput. Phys. 323, 2016.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        pixel: float,
        wavenumber: float,
        scale: float,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.shape, self.pixel, self.wavenumber, self.scale = shape, pixel, wavenumber, scale
        self._device, self._dtype = device, dtype
        kernel = scale * truncated_green(shape, pixel, wavenumber)
        self._kernel = torch.from_numpy(kernel).to(device=device, dtype=dtype.to_complex())
        self._symbols: dict[tuple[Span, Span], Tensor] = {}
        self.rooms = Rooms()  # of Krylov spaces on a GPU, for boxes that come again
        self._coarser: GreenFFT | None = None

    @property
    def held(self) -> int:
        """Bytes kept."""
        below = 0 if self._coarser is None else self._coarser.held
        return below + self._kernel.nbytes + self.rooms.held + sum(symbol.nbytes for symbol in self._symbols.values())

    def coarser(self) -> GreenFFT:
        """The same for pixels twice as large, half as many a side, rounded up; kept."""
        if self._coarser is None:
            height, width = (-(-n // 2) for n in self.shape)
            self._coarser = GreenFFT(
                (height, width), 2 * self.pixel, self.wavenumber, self.scale, device=self._device, dtype=self._dtype
            )
        return self._coarser

    def apply(self, currents: Tensor) -> Tensor:
        """The field of currents in a box of the grid, in that box: (k, h, w) complex to the same."""
        height, width = currents.shape[-2:]
        spans = _spans((height, width))
        return Convolution(self._symbol(spans), spans)(torch.zeros_like(currents), currents)

    def lippmann_schwinger(self, contrast: Tensor) -> LippmannSchwinger:
        """u -> u - G (x u) in a box of the grid, for repeated use.

        Arguments: contrast x in the box, (h, w).
        """
        spans = _spans((contrast.shape[0], contrast.shape[1]))
        return LippmannSchwinger(Convolution(self._symbol(spans), spans, -contrast), contrast.shape)

    def spread(self, incident: Tensor, currents: Tensor, box: Box) -> Tensor:
        """The sum of an incident field, (k, H, W), and that of currents in a box, (k, h, w), on the grid: (k, H, W).

        The torus is as large as grid and box together, half of what `apply` needs for a small box.
        """
        (top, left), (height, width) = (side.start or 0 for side in box), currents.shape[-2:]
        spans = (top, height, self.shape[0]), (left, width, self.shape[1])
        return Convolution(self._symbol(spans), spans)(incident, currents)

    def _symbol(self, spans: tuple[Span, Span]) -> Tensor:
        """The transform of the kernel on a torus on which no two pairs of pixels coincide; the last few are cached."""
        if spans not in self._symbols:
            rows, columns = (2 * even_size(-(-(length + pixels - 1) // 2)) for _, length, pixels in spans)
            if len(self._symbols) >= _KEPT:  # boxes come and go
                self._symbols.pop(next(iter(self._symbols)))
            self._symbols[spans] = torus_symbol(self._kernel, spans, (rows, columns))
        return self._symbols[spans]


class LippmannSchwinger:
    """u -> u - G (x u) in a box: (k, h w) complex to the same. Arguments: convolution with -x; shape (h, w)."""

    def __init__(self, convolution: Convolution, shape: torch.Size) -> None:
        self._convolution, self._shape = convolution, shape

    def __call__(self, fields: Tensor, out: Tensor | None = None) -> Tensor:
        """In `out` if it is given."""
        u = fields.unflatten(1, self._shape)
        result = self._convolution(u, u, None if out is None else out.unflatten(1, self._shape))
        return result.flatten(1)

    def load(self, contrast: Tensor) -> None:
        """Have this contrast x, (h, w), from now on."""
        self._convolution.load(-contrast)


def _spans(shape: tuple[int, int]) -> tuple[Span, Span]:
    """Of a box whose field is wanted inside it."""
    return (0, shape[0], shape[0]), (0, shape[1], shape[1])


def truncated_green(shape: tuple[int, int], pixel: float, wavenumber: float) -> NDArray[np.complex128]:
    r"""The field of a unit in one pixel at another one, a rows and b columns away: (H, W) complex, a < H and b < W.

    With g cut off at L, the grid's diagonal, its Fourier transform is

        G(s) = (1 + (i pi/2) (L s J_1(L s) H_0(k L) - k L J_0(L s) H_1(k L))) / (s^2 - k^2),

    H of the first kind. The inverse FFT of its samples, on a torus of at least L plus a side so that no copies
    overlap, is the kernel that is exact for f without frequencies above the pixels'. All are even functions, so that a
    quarter of the samples is enough.

    Reference: Vico, Greengard and Ferrando, J. Comput. Phys. 323, 2016, eq. (20).
    """
    diagonal = math.hypot(*shape)
    sizes = [fast_size(n + diagonal + 1) for n in shape]
    v, u = (2 * np.pi / (n * pixel) * np.arange(n // 2 + 1) for n in sizes)
    transform = _transform(np.hypot(v[:, None], u), wavenumber, diagonal * pixel)
    out = np.empty(shape, dtype=np.complex128)
    for part, values in ((out.real, transform.real), (out.imag, transform.imag)):
        rows = np.fft.irfft(values, n=sizes[0], axis=0)[: shape[0]]
        part[...] = np.fft.irfft(rows, n=sizes[1], axis=1)[:, : shape[1]]
    return out


def _transform(s: NDArray[np.float64], k: float, reach: float) -> NDArray[np.complex128]:
    from scipy.special import hankel1, j0, j1

    h0, h1 = hankel1(0, k * reach), hankel1(1, k * reach)
    near = np.abs(s - k) * reach < _NEAR
    with np.errstate(divide="ignore", invalid="ignore"):
        top = 1 + 0.5j * np.pi * reach * (s * j1(reach * s) * h0 - k * j0(reach * s) * h1)
        out = np.asarray(top / (s * s - k * k))
    if near.any():
        # top(k) = 0, so top(s) is the integral of its derivative from k to s: two Gauss points are exact to 1e-12.
        def slope(t: NDArray[np.float64]) -> NDArray[np.complex128]:
            return np.asarray(0.5j * np.pi * reach**2 * (t * j0(reach * t) * h0 + k * j1(reach * t) * h1))

        place = s[near]
        points = [k + (place - k) * (0.5 + side / math.sqrt(12)) for side in (-1.0, 1.0)]
        out[near] = (slope(points[0]) + slope(points[1])) / (2 * (place + k))
    return out
