"""Sums of plane waves on a grid, and sums over a grid with them: by small matrices, or by a non-uniform FFT."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.models.green_fft import Box
from plugstream.models.nufft import make_nufft

__all__ = ["PlaneWaveSums", "WaveNufft"]


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
