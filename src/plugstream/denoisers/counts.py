r"""Anscombe's transform of counts and its exact unbiased inverse. NumPy only; tensors are taken, too.

Counts have noise that grows with their mean. With z = gain p + n, p of Poisson's distribution and n Gaussian with the
standard deviation `read_noise`,

    f(z) = 2 sqrt(max(z / gain + 3/8 + s^2, 0)),    s = read_noise / gain,

has noise of standard deviation 1, nearly, whatever the mean. A denoiser for sigma = 1 then estimates E f(z), of which
f^-1 would be a biased estimate of the mean: f is concave. The exact unbiased inverse is that of lambda -> E f(z).

References: Anscombe, Biometrika 35, 1948; Makitalo and Foi, IEEE Trans. Image Process. 20(1), 2011, and 22(1), 2013.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError

# Means up to this many counts are inverted by a table; beyond, d^2/4 - 1/8 is within 7e-6 counts of them.
LARGEST = 50.0
_POINTS = 512


def anscombe(z: Any, gain: float = 1.0, read_noise: float = 0.0) -> Any:
    """2 sqrt(z / gain + 3/8 + s^2), s = read_noise / gain: counts with noise of standard deviation 1.

    Arguments: z, an array or a tensor of any shape, gain times counts, without the detector's offset; gain, z of one
    count; read_noise, the standard deviation of Gaussian noise in z.
    """
    spread = _check(gain, read_noise)
    if not hasattr(z, "__truediv__"):
        raise InputError(f"z must be a tensor, an array or a number, not {type(z).__name__}")
    shifted = z / gain + (0.375 + spread**2)
    return 2 * (shifted * (shifted > 0)) ** 0.5


def inverse_anscombe(d: Any, gain: float = 1.0, read_noise: float = 0.0) -> Any:
    """The mean of z for which `anscombe(z)` has the mean d: the exact unbiased inverse, never negative.

    Means up to 50 counts come from a table with cubic interpolation, to 1e-9 counts; larger ones from the asymptote
    d^2/4 - 1/8 - s^2, whose error is below 7e-6 counts there (6e-4 with much read noise, 1e-5 of the mean) and falls
    with the square of the mean. In single precision, rounding is the larger error.
    """
    spread = _check(gain, read_noise)
    plain = isinstance(d, np.ndarray | float | int | list | np.number)
    values: Any = np.asarray(d, dtype=np.result_type(np.asarray(d).dtype, np.float32)) if plain else d
    first, last, table = _table(spread)
    step = (last - first) / (_POINTS - 1)
    place = ((values - first) / step).clip(0, _POINTS - 1)
    cell: Any = place.astype(np.int64) if plain else place.long()
    cell = cell.clip(0, _POINTS - 2)
    t = place - cell
    knots: Any = table.astype(values.dtype) if plain else values.new_tensor(table)
    low, high = knots[cell], knots[cell + 1]
    rise = high[..., 0] - low[..., 0]
    bend = (low[..., 1] + high[..., 1]) * step - 2 * rise
    near = low[..., 0] + t * (low[..., 1] * step + t * (rise - low[..., 1] * step - bend + t * bend))
    root = values.clip(last, None)
    far = root**2 / 4 - 0.125 - spread**2
    return gain * (near * (values <= last) + far * (values > last))


def _check(gain: float, read_noise: float) -> float:
    if not (0 < gain < np.inf and 0 <= read_noise < np.inf):
        raise InputError(f"counts need a gain > 0 and a read noise >= 0, not {gain!r} and {read_noise!r}")
    if read_noise > 100 * gain:
        raise InputError(f"a read noise of {read_noise / gain:.3g} counts hides Poisson's; use sigma alone")
    return read_noise / gain


def mean_of_transform(means: NDArray[Any], spread: float = 0.0) -> tuple[NDArray[Any], NDArray[Any]]:
    """E f(z) for counts of these means, (N,), and its derivative, exactly: sums over Poisson's distribution.

    With read noise of `spread` counts, f is averaged over it first, by a sum over 801 points up to 8 of its standard
    deviations.
    """
    most = float(np.max(means))
    counts = np.arange(int(most + 12 * most**0.5 + 32) + 1, dtype=np.float64)
    values = 2 * np.sqrt(counts + 0.375 + spread**2)
    if spread > 0:
        nodes = np.linspace(-8, 8, 801)
        weights = np.exp(-(nodes**2) / 2)
        inner = counts[:, None] + spread * nodes + 0.375 + spread**2
        values = 2 * np.sqrt(np.maximum(inner, 0)) @ (weights / weights.sum())
    logs = np.concatenate([[0], np.cumsum(np.log(counts[1:]))])
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.exp(np.where(counts == 0, 0, counts * np.log(means[:, None])) - means[:, None] - logs)
    return share @ values, share[:, :-1] @ np.diff(values)  # the derivative of a Poisson mean is that of differences


@cache
def _table(spread: float) -> tuple[float, float, NDArray[Any]]:
    """First and last mean of f in the table; at equal steps between, the mean of z and its derivative by that of f."""
    (first, last), _ = mean_of_transform(np.array([0.0, LARGEST]), spread)
    wanted = np.linspace(first, last, _POINTS)
    means = np.linspace(0, LARGEST**0.5, _POINTS) ** 2
    for _ in range(50):  # Newton's method; E f is concave and rises
        value, slope = mean_of_transform(means, spread)
        change = (wanted - value) / slope
        means = np.clip(means + change, 0, LARGEST)
        if np.abs(change[1:-1]).max() < 1e-10:
            break
    return float(first), float(last), np.stack([means, 1 / mean_of_transform(means, spread)[1]], axis=-1)
