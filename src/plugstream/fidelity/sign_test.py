"""Whether an image should be kept non-negative, asked of the data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.linalg import largest_eigenvalue
from plugstream.fidelity.base import ModelFidelity
from plugstream.models.base import Model
from plugstream.models.views import spread_views

__all__ = ["Preference", "on_bounds", "prefer_bounds"]

# A few views tell. Every fourth value of each is held out, another one in every view.
_VIEWS, _PART = 8, 4
# Steps of a fit, and how often it is looked at: a fit of noisy data is at its best somewhere on the way.
_STEPS, _EVERY = 30, 5
# Non-negativity is given up where it leaves more than this factor, and this part of the data's energy besides. On scans
# of non-negative images, 1 to 60 views, 5 to 40 dB, the factor came to 1.4 at most (12 receivers on a quarter circle),
# and where it was larger (one or two views) both fits were within 0.4 % of the energy.
_FACTOR, _LEAST = 1.5, 0.004
# Where non-negative images leave no more than this factor after the first steps, no further ones are taken.
_SAME = 1.02
# A model that explains less than half of the data, such as Born's of a strong object, has no say in the sign of the
# image; unless a non-negative one explains nothing, of what it is fitted to or of the rest, where a free one does.
_EXPLAINED, _ALL, _FITTED, _HELD = 0.5, 0.995, 0.9, 0.75

# Data of a non-negative model below zero by so many times its noise, beside others below by twice, as a part of all
# data: of noise alone it is 1e-11. So many views are looked at, or as many as these bytes hold.
_BELOW, _BESIDE, _RARE = 6.0, 2.0, 1e-4
_LOOK, _LOOK_BYTES = 64, 64 << 20

_KEPT = "the image is kept non-negative"
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

    A model without negative entries predicts no negative datum from a non-negative image, so that data below zero asks
    by itself, however little of all it is: in X-ray tomography the bright fringes that refraction draws around edges,
    which make the attenuation beside an edge negative. The bound is given up where more than 1e-4 of the data are below
    zero by six times the noise, next to one below by twice; the noise is the median size of negative data over 0.67.
    What a pixel of the detector shows in most views is its fault, and does not count.

    Holds for linear models. Views that cannot be read are left out here; whoever needs them will say so.

    Arguments: fidelity, of one image, its data in memory or not; 8 evenly spaced views of it are read.
    Reference: hold-out validation, Stone, J. R. Stat. Soc. B 36, 1974; FISTA, Beck and Teboulle, SIAM J. Imaging Sci.
    2, 2009.
    """
    model = fidelity.model
    if not model.linear:
        return Preference(0.0, f"{_KEPT}: a nonlinear model is not asked whether its data wants negative values")
    if model.nonnegative and (part := _below_zero(fidelity)) > _RARE:
        told = f"{part:.2%} of the data are below zero by more than noise, as refraction at edges makes them"
        return Preference(None, f"{_FREE}: {told}; --low 0 would keep it non-negative")
    views, data = _readable(fidelity, _VIEWS)
    fit = _Fit(model, views, data) if len(views) else None
    if fit is None or not fit.possible:
        return Preference(
            0.0, f"{_KEPT}: there is too little data, or nothing but zeros, to ask whether it wants negative values"
        )
    bounded, free = _Left(), _Left()
    for one, other in zip(fit.left(0.0, math.inf), fit.left(-math.inf, math.inf), strict=True):
        bounded, free = bounded.best(one), free.best(other)
        if bounded.held <= _SAME * free.held and bounded.fitted < _ALL:
            break
    empty = bounded.fitted >= _ALL and free.fitted < _FITTED
    empty |= bounded.held >= _ALL and free.held < _HELD
    told = (
        f"non-negative images leave {bounded.held:.2g} of the data unexplained and free ones {free.held:.2g} "
        f"(asked of {len(views)} view{'s' * (len(views) > 1)})"
    )
    if not empty and (bounded.held <= _FACTOR * free.held + _LEAST or free.held >= _EXPLAINED):
        return Preference(0.0, f"{_KEPT}: {told}")
    text = f"{_FREE}: {told}; --low 0 would keep it non-negative"
    if min(one.held for one in fit.left(-math.inf, 0.0)) <= _SAME * free.held:
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
    """Which part of the data of real models is below zero by more than its noise, beside others that are, too."""
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
    far, near = data < -_BELOW * noise, data < -_BESIDE * noise
    beside = torch.zeros_like(near)
    beside[..., 1:] |= near[..., :-1]
    beside[..., :-1] |= near[..., 1:]
    return float((far & beside).double().mean())


def _readable(fidelity: ModelFidelity, count: int) -> tuple[Tensor, Tensor]:
    """A few views that can be read, and their data."""
    some = spread_views(fidelity.available, count)
    views, data = [], []
    for view in (fidelity.available if some is None else some).split(1):
        try:
            data.append(fidelity.data(view))
            views.append(view)
        except InputError:  # damaged, or not finite
            continue
    empty = torch.zeros(0, dtype=torch.int64)
    return (torch.cat(views), torch.cat(data)) if views else (empty, empty)


@dataclass(frozen=True)
class _Left:
    """What an image leaves unexplained, as a part of the energy: of the data it is fitted to, and of the rest."""

    fitted: float = 1.0
    held: float = 1.0

    def best(self, other: _Left) -> _Left:
        return _Left(min(self.fitted, other.fitted), min(self.held, other.held))


class _Fit:
    """Images that are fitted to a part of the data, within bounds, and what they leave of the rest."""

    def __init__(self, model: Model, views: Tensor, data: Tensor) -> None:
        self.model, self.views, self.data = model, views, data
        place = torch.arange(math.prod(model.data_shape)).reshape(1, *model.data_shape)
        turn = torch.arange(len(views)).reshape(-1, *(1,) * len(model.data_shape))
        self.held = ((place + turn) % _PART == 0).to(data.device)
        self.energy = self._energies(data)
        self.possible = all(math.isfinite(energy) and energy > 0 for energy in self.energy)

    def left(self, low: float, high: float) -> Iterator[_Left]:
        """What is left after every few steps by an image from low to high."""
        x = torch.zeros(self.model.image_shape, device=self.model.device, dtype=self.model.dtype)
        s, q = x, 1.0
        for k in range(1, _STEPS + 1):
            before, q_before = x, q
            x = (s - self._gradient(s) / self.lipschitz).clamp(low, high)
            q = (1 + math.sqrt(1 + 4 * q * q)) / 2
            s = x + ((q_before - 1) / q) * (x - before)
            if k % _EVERY == 0:
                parts = self._energies(self.model.forward(x, self.views) - self.data)
                yield _Left(parts[0] / self.energy[0], parts[1] / self.energy[1])

    def _energies(self, data: Tensor) -> tuple[float, float]:
        """Of what is fitted, and of what is held out."""
        energy = data.abs().double().square()
        return float((energy * ~self.held).sum()), float((energy * self.held).sum())

    def _gradient(self, image: Tensor) -> Tensor:
        residual = self.model.forward(image, self.views) - self.data
        return self.model.adjoint(residual * ~self.held, self.views)

    @cached_property
    def lipschitz(self) -> float:
        """L of the fit; 20 % are near enough, since it is an upper bound."""

        def normal(image: Tensor) -> Tensor:
            return self.model.adjoint(self.model.forward(image, self.views) * ~self.held, self.views)

        like = torch.empty(self.model.image_shape, device=self.model.device, dtype=self.model.dtype)
        return float(largest_eigenvalue(normal, like, tol=0.2, ndim=like.ndim))
