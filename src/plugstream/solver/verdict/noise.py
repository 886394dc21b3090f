"""How strong the noise of data is, estimated from the data alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Orders of differences, and the sums of the squares of their weights: binomial(2n, n).
_ORDERS = {2: 6.0, 3: 20.0, 4: 70.0}
_FEWEST = 8  # values along an axis for differences to say something
_RINGS = 8  # of frequencies
_EIGHTHS = 8  # parts of samples, by their level
_VALUES = 64  # of a sample, whose variance is taken
_MANY = 300  # differences by which noise is told from what is smooth, to a tenth
# Of the noise of counts: levels below this part of the largest see nothing, and a range of levels below this one says
# little; the variance of a log variance times its samples (2.28, and 1.36 for samples of the 3 x 3 that overlap).
_SEEN, _LEAST_RANGE, _LOG_ERROR = 0.02, 0.5, 3.1
# Below the first of these slopes, or the second by its error, noise grows too little; above the third too much.
_SLOPES = (0.7, 0.85, 1.1)
_UNLIKE = 10.0  # squares of deviations from a line, in those of chance
_ALIKE = -0.3  # the least slope of noise that is alike at all levels, of which an image fits some
_AIR = 0.05  # of the mean of all data: elements below it see air
# The median of |e|^2 over its mean, of real and of complex white noise.
_REAL, _COMPLEX = 0.45494, math.log(2)
# Up to this many expected photons the variance of roots is summed; beyond, two terms of its expansion are enough.
_SUMMED = 12.0


@dataclass(frozen=True)
class Noise:
    """The energy of the noise as a part of the data's, ||e||^2 / ||y||^2, and how it was estimated.

    Arguments: at_most, whether it is an upper bound, since data themselves vary from sample to sample; error, its
    relative standard error, None if that is not known.
    """

    fraction: float
    way: str
    at_most: bool = False
    error: float | None = None


def difference_noise(data: Tensor, levels: Tensor | None = None) -> Noise | None:
    r"""White noise from differences of neighbouring samples along the last axis.

    A difference of order n removes polynomials below that degree, and multiplies the variance of white noise by
    binomial(2n, n); the median of its squares ignores edges. The least of orders 2 to 4 is an upper bound, since the
    data's own structure adds to it. Values that are exactly zero, as under a mask, are left out.

    Noise that grows with what is measured, as that of line integrals, has a median for each eighth of the `levels`: one
    of all would be less than the mean.

    Arguments: data (views, ..., samples), real or complex; levels, alike, without noise. None if there are too few
    samples, or all are zero.
    Reference: Rice, Ann. Statist. 12, 1984; Donoho and Johnstone, Biometrika 81, 1994 (the median).
    """
    energy = float(data.abs().double().square().sum())
    if data.ndim < 2 or data.shape[-1] < _FEWEST or not energy > 0:
        return None
    part = _COMPLEX if data.is_complex() else _REAL
    measured = data != 0
    variances = []
    for order, gain in _ORDERS.items():
        complete = measured.unfold(-1, order + 1, 1).all(-1)
        squares = data.diff(n=order, dim=-1).abs().double().square()[complete]
        if len(squares) >= _FEWEST * _EIGHTHS and levels is not None:
            place = levels.unfold(-1, order + 1, 1).mean(-1)[complete].argsort(stable=True)
            medians = [squares[some].median() * len(some) for some in place.tensor_split(_EIGHTHS)]
            variances.append(float(sum(medians)) / len(squares) / part / gain)
        elif len(squares) >= _FEWEST:
            variances.append(float(squares.median()) / part / gain)
    if not variances:
        return None
    return Noise(min(variances) * int(measured.sum()) / energy, "differences of neighbouring samples", at_most=True)


def count_law(rest: Tensor, levels: Tensor) -> float | None:
    r"""How the noise of line integrals differs from that of counts, None where it does not, or that cannot be said.

    Of N exp(-p) counts the variance of p is exp(p) / N, so log variance over p has the slope 1. With an offset of the
    counts, as of a wrong dark field, it is exp(p) / N (1 - c exp(p)): the slope is less, and more where c < 0. The
    variance is that of what is left less its mean over 3 x 3 samples, from means of magnitudes, in eighths of the
    levels. What an image fits of the noise makes the slope of good scans 0.75 to 1.05. Noise that is alike at all
    levels is not of counts.

    Arguments: rest (views, ..., samples), real; levels, the predictions. Returns the variance at the highest levels
    over that which counts would have.
    """
    if rest.is_complex() or min(len(rest), rest.shape[-1]) < _FEWEST:
        return None
    rest, levels = (part.double().reshape(len(part), -1, part.shape[-1]).transpose(0, 1) for part in (rest, levels))
    rest = rest - rest.median(1, keepdim=True).values  # stripes are no noise of counts
    rough = (rest - torch.nn.functional.avg_pool2d(rest, 3, 1, 1, count_include_pad=False))[:, 1:-1, 1:-1]
    level = levels[:, 1:-1, 1:-1]
    seen = level > _SEEN * level.max()
    rough, level = rough[seen].abs(), level[seen]
    if len(level) < _MANY * _EIGHTHS:
        return None
    parts = level.argsort(stable=True).tensor_split(_EIGHTHS)
    x, y = (torch.stack([values[part].mean() for part in parts]) for values in (level, rough))
    if not bool((y > 0).all()) or x[-1] - x[0] < _LEAST_RANGE:
        return None
    y, error = 2 * y.log(), math.sqrt(_LOG_ERROR * _EIGHTHS / len(level))
    away = x - x.mean()
    slope, least = float((away * (y - y.mean())).sum() / away.square().sum()), error / float(away.square().sum().sqrt())
    unlike = float((y - y.mean() - slope * away).square().sum()) / error**2 / (_EIGHTHS - 2)
    alike = _ALIKE <= slope <= 2 * least and unlike <= _UNLIKE
    low, high = min(_SLOPES[0], _SLOPES[1] - 2.5 * least), _SLOPES[2] + 2.5 * least
    if alike or (low <= slope <= high and unlike <= _UNLIKE):
        return None
    return float((y[-1] - y[0] - (x[-1] - x[0])).exp())


def ring_level(data: Tensor) -> tuple[float, float]:
    r"""Whether elements of a detector disagree in all views, which draws rings: the gains that the flat field missed.

    Of d, the fourth differences along the last axis, the mean over views is noise, of s / sqrt(views), where s is its
    spread over views; a gain g of each element adds log g to every view. What a sample has there moves from view to
    view. Medians over elements, so that a few wrong ones, and edges about the axis, say nothing.

    Holds for line integrals of samples without rings of their own. Elements that see air alone are left out.

    Arguments: data (views, ..., elements), real. Returns the standard deviation of log g, and that of the mean over
    that of its noise: 1 without rings, to 1.5 for few views.
    Reference: Rice, Ann. Statist. 12, 1984 (differences).
    """
    if data.is_complex() or len(data) < _FEWEST or data.shape[-1] < 2 * _FEWEST:
        return 0.0, 1.0
    rough = data.double().diff(n=4, dim=-1)
    seen = (data.abs().double().mean(0) > _AIR * data.abs().double().mean()).unfold(-1, 5, 1).all(-1)
    seen &= (data != 0).all(0).unfold(-1, 5, 1).all(-1)
    if int(seen.sum()) < 2 * _FEWEST:
        return 0.0, 1.0
    mean, noise = rough.mean(0)[seen].abs() / math.sqrt(_REAL), rough.std(0)[seen] / math.sqrt(len(rough))
    rings = (float(mean.median()) ** 2 - float(noise.median()) ** 2) / _ORDERS[4]
    return math.sqrt(max(0.0, rings)), float((mean / noise.clamp_min(1e-30)).median())


def band_noise(data: Tensor) -> Noise | None:
    r"""White noise from the quietest band of the data's spectrum, where the instrument passes nothing.

    The mean power of data over views and rings of frequencies; white noise has the same everywhere, so the least one is
    an upper bound.

    Arguments: data (views, rows, columns), or (views, samples). None if views have fewer than 32 values.
    """
    energy = float(data.abs().double().square().sum())
    axes = tuple(range(1, data.ndim))[-2:]
    if not axes or min(data.shape[a] for a in axes) < _FEWEST or data[0].numel() < 4 * _FEWEST or not energy > 0:
        return None
    for axis in axes:  # so that the ends, which do not meet, do not spread over all bands
        taper = torch.hann_window(data.shape[axis], periodic=False, device=data.device).double().add(1e-3)
        taper = taper / taper.square().mean().sqrt()
        data = data * taper.to(data.abs().dtype).reshape([-1 if a == axis else 1 for a in range(data.ndim)])
    power = torch.fft.fftn(data, dim=axes, norm="ortho").abs().double().square()
    power = power.reshape(-1, *power.shape[axes[0] :]).mean(0)
    away = torch.zeros_like(power)
    for axis, size in enumerate(power.shape):
        shape = [-1 if a == axis else 1 for a in range(power.ndim)]
        away = away + torch.fft.fftfreq(size, device=data.device).square().reshape(shape)
    ring = (away.sqrt() * 2 * _RINGS).long().clamp_max(_RINGS - 1).flatten()
    count = torch.bincount(ring, minlength=_RINGS)
    mean = torch.bincount(ring, power.flatten(), minlength=_RINGS) / count.clamp_min(1)
    least = float(mean[count >= min(_FEWEST, int(count.max()))].min())
    return Noise(least * data.numel() / energy, "the quietest band of the data's spectrum", at_most=True)


def steady_noise(data: Tensor) -> Noise | None:
    r"""White noise from the samples that differ least from view to view, such as the middle of k-space.

    The variance over views of each sample, and of what lies half-way between samples by interpolation of order 2 and 4
    with weights of norm 1, the mean over all coils or rows. White noise has the same in each, and what changes from
    view to view adds to it, so the least is an upper bound. Spokes and spirals all pass through k = 0, where nothing
    but noise changes.

    Holds for complex data with the same noise in every view. Samples with a value that is exactly zero, as under a
    mask, are left out.

    Arguments: data (views, ..., samples), complex. None for real data, or with fewer than 64 values a sample.
    """
    energy = float(data.abs().double().square().sum())
    if not data.is_complex() or data.ndim < 2 or data[..., 0].numel() < _VALUES or data.shape[-1] < 4 or not energy > 0:
        return None
    values = data.reshape(len(data), -1, data.shape[-1]).to(torch.complex128)
    variances, measured = [], (values != 0).all(0).all(0)
    for weights in ((1.0,), (1.0, 1.0), (-1.0, 9.0, 9.0, -1.0)):
        w = torch.tensor(weights, dtype=values.dtype, device=values.device)
        between = values.unfold(-1, len(w), 1) @ (w / torch.linalg.vector_norm(w))
        variances += between.var(0).mean(0)[measured.unfold(-1, len(w), 1).all(-1)].tolist()
    if not variances:
        return None
    # The least of several is less than their mean by chance, by two standard deviations at most.
    error = 1 / math.sqrt(values[1:, :, 0].numel())
    least = min(variances) * (1 + 2 * error)
    return Noise(least * int((values != 0).sum()) / energy, "the steadiest samples", at_most=True, error=error)


def structure(rest: Tensor) -> float:
    r"""By what factor what an image leaves of the data is larger than white noise of the same differences.

    The mean square over that of differences of order 2 to 4 of neighbouring samples along the last axis, over
    binomial(2n, n), the largest of the three. White noise has 1, whatever its strength in each view and sample if that
    changes slowly, and what follows noise has less; what is smooth has more. Exact zeros are left out.

    Arguments: rest (views, ..., samples), real or complex. 1 if there are too few samples.
    """
    measured, factors = rest != 0, list[float]()
    for order, gain in _ORDERS.items() if rest.ndim >= 2 and rest.shape[-1] >= _FEWEST else ():
        complete = measured.unfold(-1, order + 1, 1).all(-1)
        squares = rest.diff(n=order, dim=-1).abs().double().square()[complete]
        here = rest.unfold(-1, order + 1, 1)[..., order // 2].abs().double().square()[complete]
        if len(squares) >= _MANY and float(squares.sum()) > 0:
            factors.append(gain * float(here.sum()) / float(squares.sum()))
    return max(factors, default=1.0)


def photon_noise(counts: Tensor) -> Noise | None:
    r"""Noise of the roots of counted photons, E (sqrt(n) - sqrt(m))^2 of Poisson's distribution with the mean m.

    It is 1/4 from a few photons on, and m for almost none; m is the mean of three by three pixels. None if counts are
    not whole numbers, since they then are not photon counts.

    Arguments: counts (views, ..., rows, columns).
    """
    energy = float(counts.double().sum())
    if counts.ndim < 3 or not energy > 0 or not bool((counts == counts.round()).all()):
        return None
    pixels = counts.double().reshape(-1, 1, *counts.shape[-2:])
    expected = torch.nn.functional.avg_pool2d(pixels, 3, stride=1, padding=1, count_include_pad=False)
    return Noise(float(_root_variance(expected).sum()) / energy, "photon statistics")


def _root_variance(mean: Tensor) -> Tensor:
    """E (sqrt(n) - sqrt(m))^2 = 2 m - 2 sqrt(m) E sqrt(n)."""
    few = mean.clamp_max(_SUMMED)
    term, root = torch.exp(-few), torch.zeros_like(few)
    for n in range(1, 48):
        term = term * few / n
        root = root + term * math.sqrt(n)
    summed = 2 * few - 2 * few.sqrt() * root
    return torch.where(mean < _SUMMED, summed, 0.25 + 7 / (64 * mean.clamp_min(1)))
