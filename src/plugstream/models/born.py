"""2D scalar diffraction tomography in the first Born approximation, with the dense Green's matrix."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.errors import InputError
from plugstream.models.base import ModelBase, Views, as_views, check_shape
from plugstream.scans.geometry import BornGeometry

__all__ = ["BornModel", "green_matrix", "incident_fields"]

Complex = NDArray[np.complexfloating[Any, Any]]
ComplexType = type[np.complexfloating[Any, Any]]

# An induced current of 2^22 complex values is 32 MB in single precision: enough rows for the matrix product
# to run at full speed (64 views at 256 x 256), little beside the Green's matrix itself.
_BLOCK_VALUES = 1 << 22


class BornModel(ModelBase):
    r"""The field scattered once by a weak object, at the receivers of each illumination.

    y_i = S (u_i * x), where x is the permittivity contrast eps - eps_b on the grid, u_i the incident field of
    view i, and S the background's Green's function from pixels to receivers,

        S[m, n] = k_0^2 (i/4) H_0^(1)(k |r_m - r_n|) dA,    u_i[n] = (i/4) H_0^(1)(k |t_i - r_n|),

    with k = k_0 sqrt(eps_b), dA the pixel's area and time going as exp(-i w t). The image is real, so the
    adjoint is Re(conj(u_i) * S^H z_i), summed over views.

    Holds where the object scatters weakly: the phase it adds stays well below pi across its diameter.
    It keeps S, (receivers, pixels), and the fields, (views, pixels), and nothing else of that size.

    Arguments:
        geometry: positions, wavelength, background and pixel grid (H, W).
        device, dtype: where and in which real precision to compute; S is complex of that precision.

    Reference: E. Wolf, Optics Communications 1(4), 1969; Kak and Slaney, ch. 6, 1988.
    """

    def __init__(
        self,
        geometry: BornGeometry,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise InputError(f"the image's dtype must be float32 or float64, not {dtype}")
        self.geometry = geometry
        self.n_views = geometry.n_views
        self.image_shape = geometry.grid.shape
        self.data_shape = (geometry.n_receivers,)
        self.device = torch.device(device)
        self.dtype = dtype
        self.data_dtype = torch.complex64 if dtype == torch.float32 else torch.complex128
        self.green = self._place(green_matrix(geometry, self._numpy_dtype))
        fields = geometry.fields if geometry.fields is not None else incident_fields(geometry, self._numpy_dtype)
        self.fields = self._place(np.asarray(fields).reshape(self.n_views, -1))
        self._mask = None if geometry.mask is None else torch.from_numpy(geometry.mask).to(self.device)

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        """(..., H, W) real to (..., B, receivers) complex; computed a block of views at a time."""
        check_shape("image", image, self.image_shape)
        index = as_views(views, self.n_views)
        batch = image.shape[:-2]
        pixels = image.to(self.dtype).reshape(-1, 1, self.green.shape[1])
        out = torch.empty((len(pixels), self._count(index), len(self.green)), dtype=self.data_dtype, device=self.device)
        for rows, fields in self._field_blocks(index, len(pixels)):
            induced = fields * pixels if index is None or len(pixels) > 1 else fields.mul_(pixels[0]).unsqueeze(0)
            out[:, rows] = (induced.flatten(0, 1) @ self.green.T).unflatten(0, induced.shape[:2])
        return self.restrict(out.unflatten(0, batch) if batch else out[0], index)

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        """(..., B, receivers) complex to (..., H, W) real: the sum over views of Re(H_i^H z_i)."""
        index = as_views(views, self.n_views)
        check_shape("data", data, (self._count(index), *self.data_shape))
        batch = data.shape[:-2]
        z = self.restrict(data.to(self.data_dtype), index).reshape(-1, *data.shape[-2:])
        out = torch.zeros((len(z), self.green.shape[1]), dtype=self.dtype, device=self.device)
        for rows, fields in self._field_blocks(index, len(z)):
            out += self._back(z[:, rows].flatten(0, 1)).unflatten(0, (len(z), -1)).mul_(fields).real.sum(1)
        return out.reshape(*batch, *self.image_shape)

    def normal_each(self, images: Tensor, views: Tensor) -> Tensor:
        """Re(H_i^H H_i x_i), an image for each view, at the cost of one image under all of them."""
        index = as_views(views, self.n_views)
        assert index is not None
        fields = self.fields.index_select(0, index.to(self.device))
        scattered = (fields * images.flatten(1)) @ self.green.T
        back = self._back(self.restrict(scattered, index)).mul_(fields).real
        return back.reshape(images.shape)

    def restrict(self, data: Tensor, views: Views = None) -> Tensor:
        """The data with receivers that the geometry masks out set to zero, whatever they hold (NaN too)."""
        if self._mask is None:
            return data
        index = as_views(views, self.n_views)
        mask = self._mask if index is None else self._mask.index_select(0, index.to(self.device))
        return torch.where(mask, data, torch.zeros((), dtype=data.dtype, device=data.device))

    def _back(self, z: Tensor) -> Tensor:
        # conj(S^H z) written as conj(z) S: the product then reads S as it lies. Written z conj(S), torch would
        # first make a conjugated copy of all of S, which costs four times the product for few views. The
        # conjugate left on the result is undone by multiplying with u instead of conj(u) and taking the real part.
        return z.conj().resolve_conj() @ self.green

    def _field_blocks(self, index: Tensor | None, images: int) -> Iterator[tuple[slice, Tensor]]:
        """Slices of the batch of views with their fields; the fields are a copy where `index` is given."""
        step = max(1, _BLOCK_VALUES // (images * self.green.shape[1]))
        for start in range(0, self._count(index), step):
            rows = slice(start, min(start + step, self._count(index)))
            fields = self.fields[rows] if index is None else self.fields[index[rows].to(self.device)]
            yield rows, fields

    def _count(self, index: Tensor | None) -> int:
        return self.n_views if index is None else len(index)

    @property
    def _numpy_dtype(self) -> ComplexType:
        return np.complex64 if self.dtype == torch.float32 else np.complex128

    def _place(self, array: Complex) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device=self.device, dtype=self.data_dtype)


def green_matrix(
    geometry: BornGeometry,
    dtype: ComplexType = np.complex64,
) -> Complex:
    """S[m, n] = k_0^2 (i/4) H_0^(1)(k |r_m - r_n|) dA, (receivers, pixels); see `BornModel`."""
    vacuum = 2 * np.pi / geometry.wavelength
    return _line_sources("receiver", geometry.receivers, geometry, dtype, vacuum**2 * geometry.grid.pixel**2)


def incident_fields(
    geometry: BornGeometry,
    dtype: ComplexType = np.complex64,
) -> Complex:
    """u_i[n] = (i/4) H_0^(1)(k |t_i - r_n|), (views, pixels): line sources at the transmitters."""
    if geometry.transmitters is None:
        raise InputError("this geometry gives its fields, so there are no transmitters to compute them from")
    return _line_sources("transmitter", geometry.transmitters, geometry, dtype, 1.0)


def _line_sources(
    what: str, sources: NDArray[np.float64], geometry: BornGeometry, dtype: ComplexType, scale: float
) -> Complex:
    # Distances times k reach thousands of radians, so they are computed in double precision whatever `dtype`.
    # SciPy's j0 and y0 are used because torch's y0 is off by 1e-6 at small arguments; they release the GIL.
    from scipy.special import j0, y0

    pixels, k = geometry.grid.points(), geometry.wavenumber
    out: Complex = np.empty((len(sources), len(pixels)), dtype=dtype)

    def fill(row: int) -> None:
        distance = k * np.hypot(*(pixels - sources[row]).T)
        if not distance.min() > 0:
            raise InputError(f"{what} {row} lies on the centre of a pixel, where its field is infinite; move it")
        out[row].real = -0.25 * scale * y0(distance)
        out[row].imag = 0.25 * scale * j0(distance)

    with ThreadPoolExecutor(max_workers=torch.get_num_threads()) as pool:
        list(pool.map(fill, range(len(sources))))
    return out
