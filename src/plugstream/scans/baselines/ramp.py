"""The ramp filter of filtered back-projection, sampled, and the windows that tame its high frequencies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError

__all__ = ["Filter", "equiangular_kernel", "ramp_kernel", "window"]

Filter = Literal["ram-lak", "shepp-logan", "cosine", "hamming", "hann"]
"""By how much the highest frequencies are damped, from not at all to entirely."""


def ramp_kernel(length: int, step: float) -> NDArray[np.float64]:
    """The ramp |f| up to the highest frequency 1/(2 step), as a kernel to convolve samples with, times `step`.

        h(0) = 1/(4 step^2),    h(n) = -1/(pi n step)^2 for odd n,    0 for even n

    Its transform is right at f = 0 too, where |f| sampled in frequency would take the mean away.

    Arguments: length, even, of the circle that h lies on, the negative n at its end; step of the samples.
    Reference: Ramachandran and Lakshminarayanan, Proc. Natl. Acad. Sci. 68(9), 1971.
    """
    n = np.fft.fftfreq(length, 1 / length)
    kernel = np.zeros(length)
    kernel[0] = 1 / (4 * step**2)
    odd = n % 2 == 1
    kernel[odd] = -1 / (np.pi * n[odd] * step) ** 2
    return kernel


def equiangular_kernel(length: int, step: float) -> NDArray[np.float64]:
    """The ramp for samples at equal angles of a fan, (g / sin g)^2 h(g): a curved detector's.

    Beyond a quarter turn, which no fan has, it is 0.

    Arguments: as of `ramp_kernel`, step in radians.
    Reference: Kak and Slaney, Principles of computerized tomographic imaging, 1988, section 3.4.1.
    """
    angle = np.abs(np.fft.fftfreq(length, 1 / length)) * step
    with np.errstate(divide="ignore", invalid="ignore"):
        stretch = np.where(angle > 0, angle / np.sin(angle), 1.0) ** 2
    return np.where(angle < np.pi / 2, stretch, 0.0) * ramp_kernel(length, step)


def window(name: Filter, count: int, cutoff: float = 1.0) -> NDArray[np.float64]:
    """By what the ramp is multiplied at `count` frequencies from 0 to the highest; 0 above `cutoff` of it.

    With t = f / f_max / cutoff: ram-lak 1, shepp-logan sin(pi t/2) / (pi t/2), cosine cos(pi t/2), hamming
    0.54 + 0.46 cos(pi t), hann (1 + cos(pi t))/2.
    """
    t = np.linspace(0, 1, count) / cutoff
    shapes: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
        "ram-lak": lambda t: np.ones_like(t),
        "shepp-logan": lambda t: np.sinc(t / 2),
        "cosine": lambda t: np.cos(np.pi * t / 2),
        "hamming": lambda t: 0.54 + 0.46 * np.cos(np.pi * t),
        "hann": lambda t: 0.5 + 0.5 * np.cos(np.pi * t),
    }
    if name not in shapes:
        raise InputError(f"there is no filter {name!r}; there are {', '.join(get_args(Filter))}")
    return np.asarray(np.where(t <= 1 + 1e-12, shapes[name](t), 0.0))
