"""Whether an image should be kept non-negative, asked of the data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.linalg import largest_eigenvalue
from plugstream.fidelity.base import ModelFidelity
from plugstream.models.base import Model
from plugstream.models.views import spread_views

# A few views suffice. Every fourth value of each is held out, another one in every view.
_VIEWS, _PART = 8, 4
# Steps of a fit, and how often it is judged: a fit of noisy data is best somewhere on the way.
_STEPS, _EVERY = 30, 5
# Non-negativity is given up where it leaves more than this factor, and this part of the data's energy besides. On scans
# of non-negative images, 1 to 60 views, 5 to 40 dB, the factor came to 1.4 at most (12 receivers on a quarter circle),
# and where it was larger (one or two views) both fits were within 0.4 % of the energy.
_FACTOR, _LEAST = 1.5, 0.004
# If non-negative images leave no more than this factor, the fit ends early.
_SAME = 1.02
# A model that explains less than half of the data, such as Born's of a strong object, does not decide on the sign,
# unless a non-negative image explains nothing, of the fitted data or of the rest, and a free one does.
_EXPLAINED, _ALL, _FITTED, _HELD_OUT = 0.5, 0.995, 0.9, 0.75

# The part of the data of a non-negative model below zero by this many times its noise, next to others below by twice:
# 1e-11 for noise alone. It is counted in this many views, or as many as these bytes hold.
_BELOW, _NEIGHBOUR, _RARE = 6.0, 2.0, 1e-4
_LOOK, _LOOK_BYTES = 64, 64 << 20

_BOUNDED = "the image is kept non-negative"
_FREE = "the image may be negative"


@dataclass(frozen=True)
class Preference:
    """The least value that an image should have, None for no bound, and why, in one sentence."""

    low: float | None
    reason: str


@torch.no_grad()
def prefer_bounds(fidelity: ModelFidelity) -> Preference:
    r"""Does the data ask for negative values?

    Fits two images to three quarters of the data of a few views, by a few steps of FISTA on 1/2 ||H x - y||^2 from
    zero, one of them non-negative and one free, and compares what they leave of the last quarter,
    e = ||H x - y||^2 / ||y||^2. Noise is fitted by neither there, so a free image is the better one only where negative
    values explain something. A bound at 0 is given up where e_nonnegative > 1.5 e_free + 0.004 and e_free < 1/2, and
    where nothing of the data can be explained with it.

    A model without negative entries predicts no negative datum from a non-negative image, so even a little data below
    zero decides: in X-ray tomography the bright fringes of refraction around edges. The bound is given up if more than
    1e-4 of the data are below zero by six times the noise, next to one below by twice; the noise is the median size of
    negative data over 0.67. What a detector pixel shows in most views is its fault, and does not count.

    Holds for linear models. Views that cannot be read are left out.

    Arguments: fidelity, of one image, its data in memory or not; 8 evenly spaced views of it are read.
    Reference: hold-out validation, Stone, J. R. Stat. Soc. B 36, 1974; FISTA, Beck and Teboulle, SIAM J. Imaging Sci.
    2, 2009.
    """
    model = fidelity.model
    if not model.linear:
        return Preference(0.0, f"{_BOUNDED}: a nonlinear model is not asked whether its data wants negative values")
    if model.nonnegative and (part := _below_zero(fidelity)) > _RARE:
        reason = f"{part:.2%} of the data are below zero by more than noise, as refraction at edges makes them"
        return Preference(None, f"{_FREE}: {reason}; --low 0 would keep it non-negative")
    views, data = _readable(fidelity, _VIEWS)
    fit = _Fit(model, views, data) if len(views) else None
    if fit is None or not fit.possible:
        return Preference(
            0.0, f"{_BOUNDED}: there is too little data, or nothing but zeros, to ask whether it wants negative values"
        )
    bounded, free = _Unexplained(), _Unexplained()
    for one, other in zip(fit.steps(0.0, math.inf), fit.steps(-math.inf, math.inf), strict=True):
        bounded, free = bounded.best(one), free.best(other)
        if bounded.held_out <= _SAME * free.held_out and bounded.fitted < _ALL:
            break
    empty = bounded.fitted >= _ALL and free.fitted < _FITTED
    empty |= bounded.held_out >= _ALL and free.held_out < _HELD_OUT
    reason = (
        f"non-negative images leave {bounded.held_out:.2g} of the data unexplained and free ones {free.held_out:.2g} "
        f"(judged by {len(views)} view{'s' * (len(views) > 1)})"
    )
    if not empty and (bounded.held_out <= _FACTOR * free.held_out + _LEAST or free.held_out >= _EXPLAINED):
        return Preference(0.0, f"{_BOUNDED}: {reason}")
    text = f"{_FREE}: {reason}; --low 0 would keep it non-negative"
    if min(one.held_out for one in fit.steps(-math.inf, 0.0)) <= _SAME * free.held_out:
        text += ", and --high 0 non-positive, which the data allows"
    return Preference(None, text)


def on_bounds(image: Tensor, low: float | None, high: float | None) -> list[tuple[str, float, float]]:
    """Which part of an image sits on its bounds: (name, bound, part) for "low" and "high" where there is one.

    A value counts that is within 1e-4 of the image's range from the bound; an image of one value has no range, and
    counts where it is the bound itself. A complex image has no bounds.
    """
    if image.is_complex():
        return []
    margin = 1e-4 * float(image.max() - image.min())
    bounds = [(name, bound) for name, bound in (("low", low), ("high", high)) if bound is not None]
    return [(name, bound, float(((image - bound).abs() <= margin).double().mean())) for name, bound in bounds]


def _below_zero(fidelity: ModelFidelity) -> float:
    """The part of the data of real models below zero by more than its noise, next to others that are too."""
    model = fidelity.model
    if model.data_dtype.is_complex:
        return 0.0
    size = max(1, math.prod(model.data_shape)) * model.data_dtype.itemsize
    views, data = _readable(fidelity, max(_VIEWS, min(_LOOK, _LOOK_BYTES // size)))
    if len(views) < _VIEWS:
        return 0.0
    negative = data < 0
    if not bool(negative.any()):
        return 0.0
    noise = float(data[negative].abs().median()) / 0.6745
    data = data - data.median(0).values.clamp_max(0)
    far, near = data < -_BELOW * noise, data < -_NEIGHBOUR * noise
    neighbour = torch.zeros_like(near)
    neighbour[..., 1:] |= near[..., :-1]
    neighbour[..., :-1] |= near[..., 1:]
    return float((far & neighbour).double().mean())


def _readable(fidelity: ModelFidelity, count: int) -> tuple[Tensor, Tensor]:
    """A few views that can be read, and their data."""
    chosen = spread_views(fidelity.available, count)
    views, data = [], []
    for view in (fidelity.available if chosen is None else chosen).split(1):
        try:
            data.append(fidelity.data(view))
            views.append(view)
        except InputError:  # damaged, or not finite
            continue
    empty = torch.zeros(0, dtype=torch.int64)
    return (torch.cat(views), torch.cat(data)) if views else (empty, empty)


class _Unexplained(NamedTuple):
    """The part of the energy that an image leaves unexplained, of the fitted data and of those held out."""

    fitted: float = 1.0
    held_out: float = 1.0

    def best(self, other: _Unexplained) -> _Unexplained:
        return _Unexplained(min(self.fitted, other.fitted), min(self.held_out, other.held_out))


class _Fit:
    """Images fitted to a part of the data, within bounds, and what they leave of the rest."""

    def __init__(self, model: Model, views: Tensor, data: Tensor) -> None:
        self.model, self.views, self.data = model, views, data
        place = torch.arange(math.prod(model.data_shape)).reshape(1, *model.data_shape)
        turn = torch.arange(len(views)).reshape(-1, *(1,) * len(model.data_shape))
        self.held_out = ((place + turn) % _PART == 0).to(data.device)
        self.energy = self._energies(data)
        self.possible = all(math.isfinite(energy) and energy > 0 for energy in self.energy)

    def steps(self, low: float, high: float) -> Iterator[_Unexplained]:
        """What an image from low to high leaves, after every few steps."""
        x = torch.zeros(self.model.image_shape, device=self.model.device, dtype=self.model.dtype)
        s, q = x, 1.0
        for k in range(1, _STEPS + 1):
            before, q_before = x, q
            x = (s - self._gradient(s, self.data) / self.lipschitz).clamp(low, high)
            q = (1 + math.sqrt(1 + 4 * q * q)) / 2
            s = x + ((q_before - 1) / q) * (x - before)
            if k % _EVERY == 0:
                parts = self._energies(self.model.forward(x, self.views) - self.data)
                yield _Unexplained(parts[0] / self.energy[0], parts[1] / self.energy[1])

    def _energies(self, data: Tensor) -> tuple[float, float]:
        """Of the fitted data, and of those held out."""
        energy = data.abs().double().square()
        return float((energy * ~self.held_out).sum()), float((energy * self.held_out).sum())

    def _gradient(self, image: Tensor, data: Tensor | float) -> Tensor:
        residual = self.model.forward(image, self.views) - data
        return self.model.adjoint(residual * ~self.held_out, self.views)

    @cached_property
    def lipschitz(self) -> float:
        """L of the fit, an upper bound within 20 %."""
        like = torch.empty(self.model.image_shape, device=self.model.device, dtype=self.model.dtype)
        return float(largest_eigenvalue(lambda x: self._gradient(x, 0.0), like, tol=0.2, ndim=like.ndim))
