"""The Born model with the Green's matrix written out: exact for any geometry, and what faster forms must agree with."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.errors import DamagedError, InputError
from plugstream.base.linalg import largest_eigenvalue
from plugstream.models.born_geometry import BornGeometry

Complex = NDArray[np.complexfloating[Any, Any]]
ComplexType = type[np.complexfloating[Any, Any]]
Which = NDArray[np.int64] | slice

# An induced current of 2^22 complex values is 32 MB in single precision: enough rows for the matrix product
# to run at full speed (64 views at 256 x 256), and little compared with the Green's matrix.
_BLOCK_VALUES = 1 << 22
FIELD_BYTES = {"cpu": 256 << 20, "cuda": 4 << 30}  # the fields of all views are kept up to this
_POINTS = 1 << 16  # transmitters whose nearest pixels are computed at once


class DenseBorn:
    """y_i = S (u_i * x) with S, (receivers, pixels), in memory, and the fields u_i, (views, pixels), if they are few.

    The cost grows as pixels x receivers x views, and S alone is 189 MB at the paper's size. Fields above `FIELD_BYTES`
    are computed or read for a block of views when needed, with the same bits. `BornModel` has the definitions; images
    here are (n, H, W), data (n, B, receivers), and `index` the B views or None for all.
    """

    name = "dense"

    def __init__(self, geometry: BornGeometry, *, device: torch.device, dtype: torch.dtype) -> None:
        self.shape, self.n_views, self.geometry = geometry.grid.shape, geometry.n_views, geometry
        self.device, self.dtype = device, dtype
        self.data_dtype = dtype.to_complex()
        self.kind: ComplexType = np.complex64 if dtype == torch.float32 else np.complex128
        self.green = self._place(green_matrix(geometry, self.kind))
        self.fields: Tensor | None = self._kept_fields(0)

    @property
    def held(self) -> int:
        """Bytes kept beside the geometry."""
        return self.green.nbytes + (0 if self.fields is None else self.fields.nbytes)

    def forward(self, images: Tensor, index: Tensor | None) -> Tensor:
        """A block of views at a time, so that u_i * x never takes much memory."""
        pixels = images.reshape(len(images), 1, -1)
        shape = (len(pixels), self._count(index), len(self.green))
        out = torch.empty(shape, dtype=self.data_dtype, device=self.device)
        for rows, fields in self._field_blocks(index, len(pixels)):
            copied = index is not None and self.fields is not None
            induced = fields.mul_(pixels[0]).unsqueeze(0) if copied and len(pixels) == 1 else fields * pixels
            out[:, rows] = (induced.flatten(0, 1) @ self.green.T).unflatten(0, induced.shape[:2])
        return out

    def adjoint(self, data: Tensor, index: Tensor | None) -> Tensor:
        """The sum over views of Re(conj(u_i) * S^H z_i)."""
        out = torch.zeros((len(data), self.green.shape[1]), dtype=self.dtype, device=self.device)
        for rows, fields in self._field_blocks(index, len(data)):
            out += self._back(data[:, rows].flatten(0, 1)).unflatten(0, (len(data), -1)).mul_(fields).real.sum(1)
        return out.reshape(-1, *self.shape)

    def gradient(
        self, images: Tensor, data: Tensor, index: Tensor | None, weights: Tensor | None, mask: Tensor | None
    ) -> Tensor:
        """Forward and adjoint a block of views at a time, so that each field is read once for both."""
        pixels = images.reshape(len(images), 1, -1)
        out = torch.zeros_like(pixels[:, 0])
        for rows, fields in self._field_blocks(index, len(pixels)):
            residual = ((fields * pixels).flatten(0, 1) @ self.green.T).unflatten(0, (len(pixels), -1))
            residual = weigh(residual.sub_(data[:, rows]), weights, mask, rows)
            out += self._back(residual.flatten(0, 1)).unflatten(0, (len(pixels), -1)).mul_(fields).real.sum(1)
        return out.reshape(images.shape)

    def normal_each(self, images: Tensor, index: Tensor, mask: Tensor | None) -> Tensor:
        """Re(H_i^H H_i x_i), an image for each view, at the cost of one image under all of them."""
        out = torch.empty_like(images).flatten(1)
        for rows, fields in self._field_blocks(index, 1):
            scattered = (fields * images[rows].flatten(1)) @ self.green.T
            out[rows] = self._back(weigh(scattered, None, mask, rows)).mul_(fields).real
        return out.reshape(images.shape)

    def fields_of(self, index: Tensor) -> Tensor:
        """The incident fields of these views: (B, pixels), read-only."""
        if self.fields is None:
            return self._some_fields(index.cpu().numpy())
        return self.fields[index.to(self.device)]

    def with_geometry(self, geometry: BornGeometry) -> DenseBorn:
        """With the views of `geometry`, of which these are the first; the Green's matrix is shared."""
        out = copy.copy(self)
        out.geometry, out.n_views = geometry, geometry.n_views
        more = out._kept_fields(self.n_views)
        out.fields = None if self.fields is None or more is None else torch.cat([self.fields, more])
        return out

    def green_squared_norm(self) -> float:
        """The largest eigenvalue of S^H S, from above."""

        def apply(parts: Tensor) -> Tensor:  # (2, pixels): real and imaginary part
            back = self._back((self.green @ torch.complex(parts[0], parts[1]))[None])[0]
            return torch.stack([back.real, -back.imag])

        like = torch.empty((2, self.green.shape[1]), device=self.device, dtype=self.dtype)
        return float(largest_eigenvalue(apply, like))

    def _back(self, z: Tensor) -> Tensor:
        # conj(S^H z), written as conj(z) S: z conj(S) would first make a conjugated copy of all of S, which costs four
        # times the product for few views. Multiplying by u instead of conj(u) and taking the real part undoes the
        # conjugate.
        return z.conj().resolve_conj() @ self.green

    def _field_blocks(self, index: Tensor | None, images: int) -> Iterator[tuple[slice, Tensor]]:
        """Slices of the batch of views with their fields, which are a copy if `index` and a table are given."""
        step = max(1, _BLOCK_VALUES // (images * self.green.shape[1]))
        for start in range(0, self._count(index), step):
            rows = slice(start, min(start + step, self._count(index)))
            if index is not None:
                fields = self.fields_of(index[rows])
            else:
                fields = self._some_fields(rows) if self.fields is None else self.fields[rows]
            yield rows, fields

    def _kept_fields(self, start: int) -> Tensor | None:
        """The fields of all views from `start` on, None if those of all views are too many to keep."""
        if not fits(FIELD_BYTES, self.n_views * self.green.shape[1], self.device, self.dtype):
            if self.geometry.transmitters is not None:
                peak_intensities(self.geometry, slice(start, None))  # refuses one that lies on a pixel
            return None
        try:
            return self._some_fields(slice(start, self.n_views))
        except DamagedError:
            return None  # on disk; they are read with the views that are drawn, which may not include the bad ones

    def _some_fields(self, views: Which) -> Tensor:
        """(B, pixels), read-only, since they may share memory with the geometry."""
        if self.geometry.fields is None:
            return self._place(_incident(self.geometry, self.kind, views))
        fields = self.geometry.fields[views]
        return self._place(fields.reshape(len(fields), -1))

    def _count(self, index: Tensor | None) -> int:
        return self.n_views if index is None else len(index)

    def _place(self, array: Complex) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device=self.device, dtype=self.data_dtype)


def weigh(residual: Tensor, weights: Tensor | None, mask: Tensor | None, rows: slice = slice(None)) -> Tensor:
    """A residual (..., B, receivers), changed in place, with its views weighed and masked receivers at zero."""
    if weights is not None:
        residual.mul_(weights[rows, None])
    if mask is not None:
        residual.masked_fill_(~mask[rows], 0)  # and not a product, since NaN times zero is NaN
    return residual


def green_matrix(geometry: BornGeometry, dtype: ComplexType = np.complex64) -> Complex:
    """The Green's matrix from currents in pixels to receivers: (receivers, pixels).

    S[m, n] = k_0^2 (i/4) H_0^(1)(k |r_m - r_n|) dA, or for receivers in the far field, which are directions s_m,
    S[m, n] = k_0^2 exp(i pi/4) / sqrt(8 pi k) exp(-i k s_m . r_n) dA, the former's limit times sqrt(r) exp(-i k r).

    Holds for receivers that do not lie on the centre of a pixel.
    """
    scale = (2 * np.pi / geometry.wavelength) ** 2 * geometry.grid.pixel**2
    if geometry.far_field:
        limit = np.exp(0.25j * np.pi) / np.sqrt(8 * np.pi * geometry.wavenumber)
        return _plane_waves(-geometry.receivers, geometry, dtype, scale * limit)
    return _line_sources("receiver", range(geometry.n_receivers), geometry.receivers, geometry, dtype, scale)


def incident_fields(geometry: BornGeometry, dtype: ComplexType = np.complex64) -> Complex:
    """The illumination of each view on the grid: (views, pixels).

    u_i[n] = (i/4) H_0^(1)(k |t_i - r_n|) for line sources at the transmitters, exp(i k s_i . r_n) for plane waves.
    """
    if geometry.fields is not None:
        raise InputError("this geometry gives its fields, so there are no transmitters to compute them from")
    return _incident(geometry, dtype, slice(None))


def peak_intensities(geometry: BornGeometry, views: Which = slice(None)) -> NDArray[np.float64]:
    """The largest |u_i[n]|^2 of each view on the grid, in blocks, for millions of views: (views,).

    A line source is strongest at the pixel that is nearest to it, since |H_0^(1)| falls; a plane wave is 1 everywhere.
    """
    numbers = _numbers(geometry, views)
    out = np.ones(len(numbers))
    if geometry.plane_waves is not None:
        return out
    pixels = geometry.grid.shape[0] * geometry.grid.shape[1]
    step = _POINTS if geometry.fields is None else max(1, _BLOCK_VALUES // pixels)
    for start in range(0, len(numbers), step):
        part = numbers[start : start + step]
        rows = slice(part.start, part.stop, part.step) if isinstance(part, range) else part
        if geometry.fields is not None:
            out[start : start + step] = np.abs(geometry.fields[rows]).max((1, 2)).astype(np.float64) ** 2
        else:
            out[start : start + step] = _peaks_of_transmitters(geometry, rows)
    return out


def _peaks_of_transmitters(geometry: BornGeometry, views: Which) -> NDArray[np.float64]:
    from scipy.special import j0, y0

    assert geometry.transmitters is not None
    grid = geometry.grid
    size, center = np.array(grid.shape[::-1]), np.array(grid.center)  # x goes with columns
    offset = geometry.transmitters[views] - center
    place = np.clip(np.round(offset / grid.pixel), -(size // 2), size - 1 - size // 2)
    distance = np.hypot(*(offset - place * grid.pixel).T)
    if not distance.min() > 0:
        _refuse("transmitter", _numbers(geometry, views)[int(np.argmin(distance))])
    x = geometry.wavenumber * distance
    return np.asarray((j0(x) ** 2 + y0(x) ** 2) / 16)


def fits(limits: Mapping[str, int], values: int, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether so many complex values, in the precision of `dtype`, are within the device's limit of bytes."""
    return values * 2 * dtype.itemsize <= limits.get(device.type, limits["cpu"])


def _incident(geometry: BornGeometry, dtype: ComplexType, views: Which) -> Complex:
    if geometry.plane_waves is not None:
        return _plane_waves(geometry.plane_waves[views], geometry, dtype, 1.0)
    assert geometry.transmitters is not None
    numbers = _numbers(geometry, views)
    return _line_sources("transmitter", numbers, geometry.transmitters[views], geometry, dtype, 1.0)


def _numbers(geometry: BornGeometry, views: Which) -> range | NDArray[np.int64]:
    return range(geometry.n_views)[views] if isinstance(views, slice) else views


def _refuse(antenna: str, number: int) -> NoReturn:
    raise InputError(f"{antenna} {number} lies on the centre of a pixel, where its field is infinite; move it")


def _line_sources(
    antenna: str,
    numbers: range | NDArray[np.int64],
    sources: NDArray[np.float64],
    geometry: BornGeometry,
    dtype: ComplexType,
    scale: float,
) -> Complex:
    # Distances times k reach thousands of radians, so they are computed in double precision whatever `dtype`.
    # SciPy's j0 and y0 are used because torch's y0 is off by 1e-6 at small arguments; they release the GIL.
    from scipy.special import j0, y0

    pixels, k = geometry.grid.points(), geometry.wavenumber
    out: Complex = np.empty((len(sources), len(pixels)), dtype=dtype)

    def fill(row: int) -> None:
        distance = k * np.hypot(*(pixels - sources[row]).T)
        if not distance.min() > 0:
            _refuse(antenna, numbers[row])
        out[row].real = -0.25 * scale * y0(distance)
        out[row].imag = 0.25 * scale * j0(distance)

    _fill_all(fill, len(sources))
    return out


def _plane_waves(
    directions: NDArray[np.float64], geometry: BornGeometry, dtype: ComplexType, scale: complex
) -> Complex:
    pixels, k = geometry.grid.points(), geometry.wavenumber
    out: Complex = np.empty((len(directions), len(pixels)), dtype=dtype)

    def fill(row: int) -> None:
        out[row] = scale * np.exp(1j * k * (pixels @ directions[row]))

    _fill_all(fill, len(directions))
    return out


def _fill_all(fill: Any, count: int) -> None:
    if (threads := torch.get_num_threads()) == 1:  # handing rows to another thread takes longer than small ones do
        for row in range(count):
            fill(row)
        return
    with ThreadPoolExecutor(max_workers=threads) as pool:
        list(pool.map(fill, range(count)))
