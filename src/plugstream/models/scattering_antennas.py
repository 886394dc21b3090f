"""What connects the pixels of a scattering experiment with its antennas: incident fields, and received ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.images.grid import Points
from plugstream.models.born_dense import FIELD_BYTES, DenseBorn, fits
from plugstream.models.born_expansion import Coefficients, Complex
from plugstream.models.born_fast import FastBorn
from plugstream.models.born_geometry import BornGeometry
from plugstream.models.green_fft import Box
from plugstream.models.nufft import make_nufft

_FEW = 160  # directions up to which matrix products are faster than a non-uniform FFT


class DenseAntennas:
    """The incident fields u_i, and S from currents in pixels to receivers, as a matrix, for any geometry."""

    held = 0
    """Bytes kept besides those of the Born model."""

    def __init__(self, engine: DenseBorn) -> None:
        self.engine, self.shape = engine, engine.shape

    def incident(self, views: Sequence[int]) -> Tensor:
        """u_i on the grid: (B, H, W) complex, read-only."""
        fields: Tensor = self.engine.fields_of(torch.tensor(views)).unflatten(1, self.shape)
        return fields

    def receive(self, currents: Tensor, box: Box) -> Tensor:
        """S w of currents that are zero outside a box: (N, h, w) complex to (N, receivers)."""
        green = self.engine.green.unflatten(1, self.shape)[:, *box].flatten(1)
        data: Tensor = currents.flatten(1) @ green.T
        return data

    def radiate(self, data: Tensor) -> Tensor:
        """S^T q on the grid: (N, receivers) complex to (N, H, W)."""
        fields: Tensor = (data @ self.engine.green).unflatten(1, self.shape)
        return fields


class PlaneWaveAntennas:
    """As `DenseAntennas`, through P standing plane waves, as the fast Born model has them.

    u_i = sum_a T[i, a] phi_a and S = R phi^T with phi_a the cosines and sines of P/2 directions: between pixels and
    sums with phi by matrices (`PlaneWaveSums`), or for many directions by a non-uniform FFT at P/2 frequencies on a
    circle. Incident fields are kept up to `FIELD_BYTES`. They are computed one by one, so that their bits do not depend
    on the order in which they are asked for.
    """

    _waves: PlaneWaveSums | WaveNufft

    def __init__(self, engine: FastBorn, geometry: BornGeometry) -> None:
        self.shape, self.data_dtype, self.device = engine.shape, engine.data_dtype, engine.device
        directions = engine.expansion.directions
        frequencies = geometry.wavenumber * geometry.grid.pixel * directions.vectors()[:, ::-1]
        device, dtype = engine.device, engine.dtype
        if len(frequencies) <= _FEW:
            self._waves = PlaneWaveSums(self.shape, frequencies, device=device, dtype=dtype)
        else:
            eps = engine.expansion.nufft_eps
            self._waves = WaveNufft(self.shape, frequencies, eps, device=device, dtype=dtype)
        kind = "plane_waves" if geometry.transmitters is None else "transmitters"
        self._points: Points = getattr(geometry, kind)
        self._sources = Coefficients(geometry, kind, directions)
        self._receivers = self._place(Coefficients(geometry, "receivers", directions)(geometry.receivers))
        values = geometry.n_views * self.shape[0] * self.shape[1]
        self._keeps = fits(FIELD_BYTES, values, engine.device, engine.dtype)
        self._fields: dict[int, Tensor] = {}

    @property
    def held(self) -> int:
        fields = sum(field.nbytes for field in self._fields.values())
        return self._receivers.nbytes + self._waves.held + fields

    def incident(self, views: Sequence[int]) -> Tensor:
        if not self._keeps:
            return torch.cat([self._field(view) for view in views])
        for view in views:
            if view not in self._fields:
                self._fields[view] = self._field(view)
        return torch.cat([self._fields[view] for view in views])

    def receive(self, currents: Tensor, box: Box) -> Tensor:
        return torch.cat(self._waves.sample(currents, box), 1) @ self._receivers.mT

    def radiate(self, data: Tensor) -> Tensor:
        return self._fields_of(data @ self._receivers)

    def _field(self, view: int) -> Tensor:
        return self._fields_of(self._place(self._sources(self._points[view : view + 1])))

    def _place(self, rows: Complex) -> Tensor:
        return torch.from_numpy(rows).to(device=self.device, dtype=self.data_dtype)

    def _fields_of(self, waves: Tensor) -> Tensor:
        """The sums of standing waves with these coefficients: (N, P) complex to (N, H, W)."""
        cosines, sines = waves.chunk(2, 1)
        return self._waves.combine(cosines, sines)


def antennas_of(engine: DenseBorn | FastBorn, geometry: BornGeometry) -> DenseAntennas | PlaneWaveAntennas:
    """The antennas of a geometry, by the Green's matrix or through plane waves, like the engine of its Born model."""
    return DenseAntennas(engine) if isinstance(engine, DenseBorn) else PlaneWaveAntennas(engine, geometry)


class PlaneWaveSums:
    r"""Cosines and sines of w_p . n on a grid, n = 0 at its centre, summed with coefficients or over pixels.

    cos(w . n) = cos a cos b - sin a sin b and sin(w . n) = sin a cos b + cos a sin b, with a of the rows and b of the
    columns, so that a sum over rows is one product with a real matrix (H, 2 P), and what is left is of one axis. For
    complex fields of N pixels that is 8 N P operations; a non-uniform FFT takes as long for some 200 waves and is
    faster for more, but it has no use for fields that are zero outside a small box.

    Holds for any frequencies, to rounding.

    Arguments: shape (H, W); frequencies (P, 2) in radians a pixel along rows and columns; device; dtype, the real
    precision.
    """

    def __init__(
        self, shape: tuple[int, int], frequencies: NDArray[np.float64], *, device: torch.device, dtype: torch.dtype
    ) -> None:
        angles = [w[:, None] * (np.arange(n) - n // 2) for w, n in zip(frequencies.T, shape, strict=True)]

        def place(array: NDArray[np.float64]) -> Tensor:
            return torch.from_numpy(array).to(device=device, dtype=dtype)

        rows, columns = angles
        self._rows = place(np.concatenate([np.cos(rows), np.sin(rows)]))  # (2 P, H)
        self._cosines, self._sines = place(np.cos(columns)), place(np.sin(columns))  # (P, W)

    @property
    def held(self) -> int:
        """Bytes kept."""
        return self._rows.nbytes + self._cosines.nbytes + self._sines.nbytes

    def sample(self, fields: Tensor, box: Box) -> tuple[Tensor, Tensor]:
        """Sums over pixels with the cosines, and with the sines, of fields that are zero outside a box.

        Arguments: fields (k, h, w) complex.
        Returns: (k, P) complex, twice.
        """
        summed = _multiply(self._rows[:, box[0]], fields)  # (k, 2 P, w)
        cosines, sines = self._cosines[:, box[1]], self._sines[:, box[1]]
        of_cosine, of_sine = summed.chunk(2, 1)
        return (
            (of_cosine * cosines).sum(2).sub_((of_sine * sines).sum(2)),
            (of_sine * cosines).sum(2).add_((of_cosine * sines).sum(2)),
        )

    def combine(self, cosines: Tensor, sines: Tensor) -> Tensor:
        """Waves with these coefficients of their cosines and sines: (k, P) complex, twice, to (k, H, W)."""
        c, s = cosines[..., None], sines[..., None]
        of_cosine = (c * self._cosines).addcmul_(s, self._sines)
        of_sine = (s * self._cosines).addcmul_(c, self._sines, value=-1)
        return _multiply(self._rows.T, torch.cat([of_cosine, of_sine], 1))


class WaveNufft:
    """As `PlaneWaveSums`, by a non-uniform FFT, which many waves need.

    Arguments: as of `PlaneWaveSums`; eps, the relative accuracy.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        frequencies: NDArray[np.float64],
        eps: float,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.shape = shape
        self.nufft = make_nufft(shape, frequencies, eps, device=device, dtype=dtype)

    @property
    def held(self) -> int:
        """Bytes kept."""
        return self.nufft.held

    def sample(self, fields: Tensor, box: Box) -> tuple[Tensor, Tensor]:
        """As of `PlaneWaveSums`."""
        full = fields.new_zeros((len(fields), *self.shape))
        full[:, *box] = fields
        sums = self.nufft.sample(torch.cat([full.real, full.imag]))
        real, imag = sums[: len(full)], sums[len(full) :]
        return torch.complex(real.real, imag.real), torch.complex(real.imag, imag.imag)

    def combine(self, cosines: Tensor, sines: Tensor) -> Tensor:
        """As of `PlaneWaveSums`."""
        parts = [torch.complex(cosines.real, sines.real), torch.complex(cosines.imag, sines.imag)]
        images = self.nufft.adjoint(torch.cat(parts))
        return torch.complex(images[: len(cosines)], images[len(cosines) :])


def _multiply(matrix: Tensor, fields: Tensor) -> Tensor:
    """A real matrix (m, h) and complex fields (k, h, w): (k, m, w)."""
    parts = matrix @ torch.view_as_real(fields).flatten(2)
    return torch.view_as_complex(parts.unflatten(2, (-1, 2)))
