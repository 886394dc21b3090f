"""Which numbers of a scan cannot be right, by their neighbours and by an image that is fitted to the others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from plugstream.base.linalg import largest_eigenvalue
from plugstream.base.progress import report
from plugstream.denoisers.tv import TV
from plugstream.models.base import Model
from plugstream.models.outliers import (
    FAR,
    ODD,
    SIGMA,
    Outliers,
    gather,
    neighbour_median,
    noise_of,
    suspect_data,
    usual,
    view_weights,
)
from plugstream.solver.verdict.trials import fit_steps, left_over

# Deviations below these parts do no harm: of a number, of the data's root mean square; of a view, of its energy.
_HARMLESS_NUMBER, _HARMLESS_VIEW, _HARMLESS_ELEMENT = 0.1, 0.1, 0.01
_MOSTLY = 0.75  # An element is as wrong as it is in this part of the views at most: it may see nothing in others.
_OUTLIER = 8.0  # A view stands out where it leaves this many times what is usual.
_MOST = (0.05, 0.1, 0.1)  # parts of the numbers, elements and views: beyond them it is the model that is wrong
_LARGE, _LARGE_IMAGE = 1 << 21, 1 << 18  # numbers, and pixels of the image, from which on the neighbours alone decide
_ROUNDS, _STEPS, _PRIOR_STEPS, _WAVE_STEPS = 2, 30, 10, 30
_PRIOR, _PRIOR_END = 3e-3, 3e-4  # how far TV may move a pixel in a step, as a part of the image's largest value
_ROOT_NOISE = 0.5  # the standard deviation of the root of a photon count


@torch.no_grad()
def find_outliers(build: Callable[[Tensor | None], Model], data: Tensor, *, camera: bool = False) -> Outliers | None:
    r"""Find the numbers of a scan that cannot be right; None where there are none, or where the model does not fit.

    First the neighbours (`suspect_data`). Where they leave any in doubt, an image x is fitted to the others, with TV
    and residuals clipped to 4 s, and judges all, twice. With r = y - H x and m the median of its neighbours, a number
    has no weight if |r| > 8 s, |r| > 0.1 rms(H x), |r| > |H x| / 2 and |y - m| > |r| / 2; an element in doubt, if the
    upper quartile of |r| is four times its neighbours'; a view in doubt, if it leaves eight times what is usual, in all
    and as a part of its own.

    Holds where neighbours on the detector see nearly the same, and faults are rare: beyond 5 % of the numbers or 10 %
    of the elements or views nothing is left out, since it is then the model that does not fit. Intensities are compared
    by their roots. Of more than two million numbers, or 262,144 pixels of the image, the neighbours alone decide.
    Models whose fields are solved for are not looked at. Views of line integrals with more than twice the noise of
    others count less (`view_weights`).

    Arguments: build, the model with data that do not count (views, *data_shape), None for no such data; data, as the
    model compares it, (views, *data_shape); camera, whether its last two axes are rows and columns of a detector.
    Reference: Huber, Ann. Math. Statist. 35(1), 1964.
    """
    model, views = build(None), torch.arange(len(data))
    size = float(data.abs().square().mean())
    if not (model.linear or model.intensities) or not 0 < size < math.inf:
        return None
    whole = model.restrict(torch.ones_like(data), views) != 0  # what counted before
    roots = data.clamp_min(0).sqrt() if model.intensities else data
    least = _ROOT_NOISE if model.intensities and bool((data == data.round()).all()) else 0.0
    rays, mirror, weights = model.rays, None, None
    if rays is not None:
        mirror = torch.from_numpy(rays.mirrored_columns())
        weights = None if model.intensities else view_weights(data, torch.from_numpy(rays.by_angle()))
    found = suspect_data(roots, camera=camera, least=least, mirror=mirror)
    if weights is None and not bool((found.bad & whole).any()):
        return None
    doubt = found.elements, found.views
    if bool((found.bad & whole).any()) and data.numel() <= _LARGE and math.prod(model.image_shape) <= _LARGE_IMAGE:
        away = roots - neighbour_median(roots, camera)
        for _ in range(_ROUNDS):
            keep = ~found.bad & whole
            image, before = _fit(build(found.bad), data, keep), found.bad
            rest, compared = left_over(model, model.forward(image, views), data, views)
            found = _look_at_rest(rest, compared, away, keep, doubt, camera, least)
            if not bool((found.bad & ~before).any()):
                break
    bad = found.bad & whole
    found = Outliers(bad, found.elements, found.views, weights)
    parts = (found.numbers, found.elements, found.views)
    few = all(float(part.double().mean()) <= most for part, most in zip(parts, _MOST, strict=True))
    if not few:
        none = torch.zeros_like
        found = Outliers(none(bad), none(found.elements), none(found.views), weights)
    return found if weights is not None or bool(found.bad.any()) else None


def _look_at_rest(
    rest: Tensor, data: Tensor, away: Tensor, keep: Tensor, suspected: tuple[Tensor, Tensor], camera: bool, least: float
) -> Outliers:
    """What an image leaves of the data, beside the data; suspected, elements and views in doubt."""
    size, predicted = rest.abs(), (data - rest).abs()
    scale = float(predicted.square().mean().sqrt())
    kept = torch.where(keep, size, torch.nan)
    around = neighbour_median(size, camera)
    around = torch.stack([around.roll(shift, 0) for shift in (-1, 0, 1)]).median(0).values
    noise = torch.maximum(noise_of(kept, size, least), SIGMA * around)
    far = (size > FAR * noise) & (size > _HARMLESS_NUMBER * scale)
    far &= torch.minimum(2 * away.abs(), 2 * size - predicted) > size
    typical = size.quantile(_MOSTLY, 0)
    elements = suspected[0] & (typical > ODD * usual(kept.nanquantile(_MOSTLY, 0).nan_to_num(0.0), camera))
    elements &= typical > _HARMLESS_ELEMENT * scale
    left = torch.where(far | elements, 0.0, size).square().flatten(1).mean(1)
    part = left / (data.abs().square() + predicted.square()).flatten(1).mean(1).clamp_min(1e-30)
    sound = keep.flatten(1).double().mean(1) > 0.5
    views = suspected[1] & (left > _OUTLIER * left[sound].median())
    views &= part > max(_HARMLESS_VIEW, _OUTLIER * float(part[sound].median()))
    return gather(far, elements, views)


def _fit(model: Model, data: Tensor, keep: Tensor) -> Tensor:
    """An image that explains the data that count, as far as it is smooth; of intensities, without a prior."""
    views, start = torch.arange(model.n_views), model.start_image()
    x = torch.zeros(model.image_shape, device=model.device, dtype=model.dtype) if start is None else start
    if model.intensities:
        steps = fit_steps(model, model.restrict(data, views), x, views)
        return next(itertools.islice(steps, _WAVE_STEPS, None))[1]
    normal = model.normal(views)
    step = 1 / float(largest_eigenvalue(normal, x, tol=0.2, ndim=x.ndim))
    data = model.restrict(data, views)
    back = model.adjoint(data, views)
    length = float(back.abs().square().sum() / model.forward(back, views).abs().square().sum().clamp_min(1e-300))
    most, warm, s, q = length * float(back.abs().max()), None, x, 1.0
    prior = TV(tol=0.0, max_iterations=_PRIOR_STEPS, ndim=x.ndim - bool(model.channels))
    for k in range(_STEPS):
        report("fitting an image to data that are in no doubt", k, _STEPS)
        rest = model.forward(s, views) - data
        if 3 * k >= _STEPS:  # what is left by then is noise, but for outliers
            size = rest.abs()
            limit = 4 * SIGMA * float(size[keep].median())
            rest = rest * (limit / size.clamp_min(max(limit, 1e-30)))
        sigma = math.sqrt(most * _PRIOR * (_PRIOR_END / _PRIOR) ** (k / (_STEPS - 1)))
        before, q_before = x, q
        x, warm = prior.denoise(s - step * model.adjoint(rest, views), sigma, warm)
        q = (1 + math.sqrt(1 + 4 * q * q)) / 2
        s = x + ((q_before - 1) / q) * (x - before)
    return x
