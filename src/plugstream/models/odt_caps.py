"""The part of an object's spectrum that each view of diffraction tomography sees: a cap of Ewald's sphere."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from plugstream.models.odt_geometry import Optics, exact_axes

Real = NDArray[np.float64]


@dataclass(frozen=True)
class Cap:
    """What a view with light from one side of its optical axis sees, in the camera's frame.

    Arguments: cells (points,), which of the field's frequencies pass the objective, of rows times columns; vectors
    (points, 3), the wave number that each has in the object's spectrum along the camera's x, y and z, 1/m; factors
    (points,), complex, what the spectrum is multiplied with; most, the largest |factor|.
    """

    cells: NDArray[np.int64]
    vectors: Real
    factors: NDArray[np.complex128]
    most: float


@lru_cache(maxsize=32)  # one if the object turns, one a view if the light does
def cut_cap(optics: Optics, sizes: tuple[int, int], slant: tuple[float, float]) -> Cap:
    r"""The cap of one direction of light.

    By the Fourier diffraction theorem the field that an object with contrast x scatters, divided by the light that
    falls in, has on the camera the spectrum

        D(q) = (i k^2 / 2 k_z) exp(i (k_z - k s_z) d) X(q, k_z - k s_z),    k_z^2 = k^2 - |q + k s|^2,

    X(K) being the integral of x(r) exp(-i K r), s the direction of light with its component s_z along the optical axis,
    d the distance of the plane in focus and fields exp(-i w t). Holds to first order in x (Born), or for the logarithm
    of the field (Rytov); waves beyond the aperture do not come through.

    The factors are for D in pixels of the camera, whose middle is (N - 1) / 2, by a plain inverse FFT.

    Arguments: optics; sizes, rows and columns of the field; slant, s along the camera's x and y.
    Reference: Wolf, Opt. Commun. 1(4), 1969; Kak and Slaney, Principles of Computerized Tomographic Imaging, 1988, 6.3.
    """
    k = optics.wavenumber
    q_y, q_x = (2 * np.pi * np.fft.fftfreq(n, optics.pixel) for n in sizes)
    across = (q_x[None, :] + k * slant[0]) ** 2 + (q_y[:, None] + k * slant[1]) ** 2
    rows, columns = np.nonzero(across <= optics.reach**2)
    k_z = np.sqrt(k**2 - across[rows, columns])
    depth = k_z - k * np.sqrt(1 - slant[0] ** 2 - slant[1] ** 2)
    x, y = q_x[columns], q_y[rows]
    middle = [(n - 1) / 2 * optics.pixel for n in optics.shape]
    weight = k**2 / (2 * k_z) / optics.pixel**2
    phase = depth * optics.distance - y * middle[0] - x * middle[1]
    factors = 1j * weight * np.exp(1j * phase)
    return Cap(rows * sizes[1] + columns, np.stack([x, y, depth], 1), factors, float(weight.max()))


def farthest_waves(optics: Optics, poses: Real) -> tuple[float, float, float]:
    """Upper bounds of the wave numbers that any view sees along x, y and z of the object, 1/m.

    A wave that comes in at the angle a and leaves at b is changed by at most 2 k sin((a + b) / 2).
    """
    k = optics.wavenumber
    across = np.abs((poses[:, :2] @ poses[:, 3, :, None])[..., 0])  # light along the camera's x and y, in parts of k
    steepest = float(np.arcsin(min(1.0, optics.reach / k)))
    slant = float(np.arcsin(min(1.0, np.linalg.norm(across, axis=1).max())))
    most = 2 * k * np.sin(min(steepest + slant, np.pi) / 2)
    largest = []
    for axis, camera in enumerate(exact_axes(poses)):
        if camera is not None:
            largest.append(float(min(optics.reach + k * across[:, camera].max(), np.pi / optics.pixel, most)))
        elif (np.abs(poses[:, 2, axis]) > 1 - 1e-12).all():  # the optical axis
            largest.append(float(k * (1 - np.cos(max(steepest, slant)))))
        else:
            largest.append(float(most))
    return largest[0], largest[1], largest[2]
