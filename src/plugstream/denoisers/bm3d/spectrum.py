"""Noise that is not white, by its power spectrum: what BM3D needs to know of it. NumPy only.

The spectrum of noise n of H x W pixels is P = E|fft2(n)|^2, as PyPI's `bm3d` takes it; white noise has P = H W sigma^2.
Its covariance is r(d) = E n(p) n(p + d) = ifft2(P)(d) / (H W), periodic in d.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from plugstream.base.errors import InputError
from plugstream.denoisers.bm3d.transforms import transform

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Covariances below this part of the variance are left out.
_NEGLIGIBLE = 1e-3
# How many times the noise that two blocks share is added to their distance: PyPI's factor, and better than 1 here.
_MATCHING = 3.0


class Coloured(NamedTuple):
    """Noise of one or several channels.

    shared: float32 (2, T, reach + 1, 2 reach + 1, 64), of both stages and T spectra: what coefficients of two blocks
        share that are dy = 0 .. reach and dx = -reach .. reach apart, in units of sigma^2.
    offsets: float32 (2, (2 radius + 1)^2), what is added to the squared distance of each candidate. sigma: (T,).
    """

    shared: NDArray[np.float32]
    offsets: NDArray[np.float32]
    sigma: NDArray[np.float64]


def coloured_noise(spectra: NDArray[Any], radius: int) -> Coloured:
    r"""What BM3D needs to know of noise with the power spectra (T, H, W).

    Coefficient (u, v) of the blocks at p and p + d shares
        rho_uv(d) = sum over e of c_u(e_y) c_v(e_x) r(d + e),    c_u(e) = sum_n a_u[n] a_u[n + e],
    with a_u the rows of the transform. Noise contributes 2 . 64 (r(0) - r(d)) to the squared distance of the blocks, so
    blocks whose noise is alike seem near; adding 128 r(d), up to a constant, corrects that in stage 1.

    Arguments: spectra, >= 0; radius, of the search.
    Reference: Makinen, Azzari and Foi, IEEE Trans. Image Process. 29, 2020.
    """
    if not (np.isfinite(spectra).all() and (spectra >= 0).all() and (spectra.sum((1, 2)) > 0).all()):
        raise InputError("a power spectrum of noise has values >= 0, of which some are more than 0")
    pixels = spectra.shape[1] * spectra.shape[2]
    covariance = np.fft.ifft2(spectra).real / pixels
    variance = covariance[:, 0, 0].copy()
    covariance /= variance[:, None, None]
    most = 2 * radius
    tables = np.stack([[_shared(r, name, most) for r in covariance] for name in ("bior15", "dct")])
    reach = most
    while reach > 1 and np.abs(_beyond(tables, most, reach - 1)).max() < _NEGLIGIBLE:
        reach -= 1
    shared = tables[:, :, : reach + 1, most - reach : most + reach + 1]
    window = np.arange(-radius, radius + 1)
    noise = covariance[0][np.ix_(window % spectra.shape[1], window % spectra.shape[2])].ravel()
    noise[noise.size // 2] = noise.min()  # the reference itself is always there
    first = _MATCHING * 128 * variance[0] * (noise - noise.min())
    offsets = np.stack([first, np.zeros_like(first)])
    return Coloured(np.ascontiguousarray(shared, dtype=np.float32), offsets.astype(np.float32), np.sqrt(variance))


def _shared(covariance: NDArray[Any], name: str, reach: int) -> NDArray[Any]:
    """rho of one spectrum and transform: (reach + 1, 2 reach + 1, 64)."""
    rows = transform(name)
    correlation = np.stack([np.correlate(row, row, "full") for row in rows])  # (8, 15), even
    down, across = np.arange(-7, reach + 8), np.arange(-reach - 7, reach + 8)
    part = covariance[np.ix_(down % covariance.shape[0], across % covariance.shape[1])]
    along = np.lib.stride_tricks.sliding_window_view(part, 15, 1) @ correlation.T  # (down, 2 reach + 1, v)
    both = np.lib.stride_tricks.sliding_window_view(along, 15, 0) @ correlation.T  # (reach + 1, 2 reach + 1, v, u)
    table: NDArray[Any] = both.swapaxes(-1, -2).reshape(reach + 1, 2 * reach + 1, 64)
    return table


def _beyond(tables: NDArray[Any], most: int, reach: int) -> NDArray[Any]:
    """The ring of offsets just outside of a reach."""
    rows = tables[:, :, reach + 1, most - reach - 1 : most + reach + 2]
    sides = tables[:, :, : reach + 2, [most - reach - 1, most + reach + 1]]
    return np.concatenate([rows.reshape(-1), sides.reshape(-1)])
