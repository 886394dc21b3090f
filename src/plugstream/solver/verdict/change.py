"""Did the sample change while it was scanned: what early and late views of the same side leave, compared."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.models.base import Model
from plugstream.solver.verdict.trace import random_sums

# Random signs that are compared with, and the part of them that may be as large by chance.
_SIGNS, _CHANCE = 9999, 1e-3
_FOUR = 4  # views of a group
_FEWEST = 11  # groups whose signs can be at most 1/1000 likely: two of 2^11 give the largest sum
_ROUNDING = 1e-6  # part of the largest weight


def change_evidence(model: Model, rest: Tensor, views: Tensor) -> float | None:
    r"""By what factor the misfit falls, at least, if the image may change linearly with time; None if nothing says so.

    Views are sorted by the direction of their rays, and taken in fours of neighbours. Within each, w_i is what is left
    of the times t_i, the numbers of the views, once what is linear in their directions is taken away, so that no model
    error that is linear in the direction counts. With r_i what the image leaves of the data, the four sees the change
    of the image g = sum w_i A_i' r_i. If the sample changes, these agree, and

        T = || sum over fours of g ||^2

    is large. If it does not, noise is as likely as its opposite in every four, so that T is one of the values that it
    has with random signs of its terms: a change is said if at most one in a thousand of 10,000 draws is as large. This
    holds for any image, prior and noise that is independent and symmetric; a model error that depends on the direction
    in a way that is not smooth counts as noise. Where time is linear in the direction, as in a single turn, all w_i are
    zero: there it cannot be known.

    Holds for views that turn about one axis and rise with time. g is seen through the 256 random sums of `Trace`, which
    keep lengths to 9 %.

    Arguments: model, linear, with `rays`; rest (B, *data_shape), data less prediction; views (B,), by their time.
    Reference: Good, Permutation, Parametric and Bootstrap Tests of Hypotheses, 2005, chapter 3 (sign changes).
    """
    if model.rays is None or not model.linear or len(views) < _FOUR * _FEWEST:
        return None
    vectors = model.rays.vectors[views.cpu().numpy()]
    way = vectors[:, 0] if model.rays.parallel else vectors[:, 1] - vectors[:, 0]
    middle = vectors[:, 1, 2]
    if np.ptp(middle) > 1e-6 * np.linalg.norm(vectors[:, 2:], axis=2).max():  # it moves along its axis, as a helix
        return None
    time = views.double().cpu().numpy()
    time = (time - time.mean()) / max(float(time.std()), 1e-300)
    groups, weights = _fours(np.arctan2(way[:, 1], way[:, 0]) % (2 * math.pi), time)
    size = np.abs(weights).max(1)
    told = size > _ROUNDING * max(size.max(), _ROUNDING)
    if told.sum() < _FEWEST:
        return None
    groups, weights = groups[told], weights[told]
    change = torch.zeros(model.image_shape, device=model.device, dtype=model.dtype)
    sums = []
    for group, weight in zip(groups, weights, strict=True):
        part = model.adjoint(_weigh(rest[group], torch.from_numpy(weight)), views[group])
        change += part
        sums.append(random_sums(part, change.ndim).double().cpu().numpy())
    terms = np.stack(sums)
    products = terms @ terms.T
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (_SIGNS, len(terms)))
    chance = int((((signs @ products) * signs).sum(1) >= (1 - _ROUNDING) * products.sum()).sum()) + 1
    return _factor(model, change, rest, views, time) if chance <= _CHANCE * (_SIGNS + 1) else None


def _fours(angles: NDArray[np.float64], time: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Views in fours of neighbours, (fours, 4), and what is left of their times without what is linear in angles."""
    order = np.argsort(angles, kind="stable")
    groups = order[: len(order) // _FOUR * _FOUR].reshape(-1, _FOUR)
    place, when = (one[groups] - one[groups].mean(1, keepdims=True) for one in (angles, time))
    square = (place**2).sum(1)
    slope = np.divide((place * when).sum(1), square, out=np.zeros(len(square)), where=square > 1e-24)
    return groups, np.asarray(when - slope[:, None] * place)


def _weigh(data: Tensor, weights: Tensor) -> Tensor:
    """Data of views, each times its weight."""
    return data * weights.to(data).reshape(-1, *(1,) * (data.ndim - 1))


def _factor(model: Model, change: Tensor, rest: Tensor, views: Tensor, time: NDArray[np.float64]) -> float:
    """The misfit over that after the best change of the image along this one, linear in time."""
    energy, product, square = (0.0, 0.0, 0.0)
    for block, left, when in zip(views.split(8), rest.split(8), torch.from_numpy(time).split(8), strict=True):
        moved = _weigh(model.forward(change, block), when).double()
        energy += float(left.double().square().sum())
        product += float((moved * left).sum())
        square += float(moved.square().sum())
    explained = product**2 / square if square > 0 else 0.0
    return energy / max(energy - explained, 1e-12 * energy)
