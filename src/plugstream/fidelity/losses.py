"""How a prediction is compared with the data of a view: value, derivative, and how much the derivative can vary.

A loss is a sum over the data of a view of one function of a predicted value p and a measured one y. Predictions may be
complex; the derivative is then the gradient under <a, b> = Re(sum conj(a) b), so that grad d_i = Re-adjoint of it:

| loss      | of p and y                                  | derivative in p         | curvature at most | convex |
| --------- | ------------------------------------------- | ----------------------- | ----------------- | ------ |
| Gaussian  | w/2 |p - y|^2                               | w (p - y)               | max w             | yes    |
| Huber     | |p - y|^2 / 2, beyond delta a straight line | (p - y) shrunk to delta | 1                 | yes    |
| Poisson   | t - y log t, t = p + background             | 1 - y/t                 | max y / floor^2   | yes    |
| Amplitude | (|p| - sqrt(y))^2 / 2                       | p - sqrt(y) p/|p|       | 1                 | no     |
| Transmission | exp(-p) + exp(-y) p                      | exp(-y) - exp(-p)       | 1                 | yes    |

"Curvature" is a number c with loss(q) <= loss(p) + <loss'(p), q - p> + c/2 |q - p|^2 for all p and q, as a step of
1/(c ||H||^2) needs; for a convex loss it is also the Lipschitz constant of the derivative. Near the data the curvature
is 1 except for Poisson's loss of waves, which has 4 there and a far larger bound. Steps that follow the overlap of
views use that value.

Intensities may be sums over waves that do not interfere, such as the modes of a beam: Amplitude and Poisson sum |p|^2
over the axis of predictions that the model calls `incoherent` (`for_model`). Gains and backgrounds of views that the
model knows (`plugstream.models.recording`) are taken out before both compare.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from plugstream.base.defaults import with_defaults
from plugstream.base.errors import InputError
from plugstream.fidelity.abilities import LossAbilities


@runtime_checkable
class Loss(LossAbilities, Protocol):
    """How predictions (..., B, *data_shape) are compared with data (B, *data_shape) of the same B views.

    `views` are the B indices, on the CPU, for a loss that knows something of each view, or None for all.
    """

    def value(self, prediction: Tensor, data: Tensor, views: Tensor | None = None) -> Tensor:
        """The loss of each datum, real, in the predictions' shape."""

    def derivative(self, prediction: Tensor, data: Tensor, views: Tensor | None = None) -> Tensor:
        """Its gradient with respect to the prediction, in the prediction's shape and dtype."""


def as_loss(loss: Any) -> Loss:
    """A loss; one of your own class gets the defaults of `LossAbilities`."""
    completed: Loss = with_defaults(loss, LossAbilities)
    return completed


@dataclass(frozen=True, eq=False)
class Gaussian(LossAbilities):
    r"""Independent Gaussian noise: w/2 |p - y|^2 for each datum, with w = 1/s^2 for a standard deviation s.

    Arguments:
        weights: w >= 0, of the data's shape (*data_shape) for all views, (views, *data_shape) with a row for each, or
            anything that is indexed by views like that; 1 if not given. A weight of 0 leaves a datum out.
        deviations: s > 0 instead of weights, of the same shapes.
    Convex; its derivative has the Lipschitz constant max w. Without weights it is the paper's least squares.
    """

    weights: Any = None
    deviations: Any = None

    def __post_init__(self) -> None:
        if self.weights is not None and self.deviations is not None:
            raise InputError("give a Gaussian loss weights or standard deviations, not both")
        if hasattr(self.weights, "shape"):
            values = torch.as_tensor(self.weights[:])
            if not bool((torch.isfinite(values) & (values >= 0)).all()):
                raise InputError("weights of a Gaussian loss must be finite and 0 or more")
        if hasattr(self.deviations, "shape"):
            values = torch.as_tensor(self.deviations[:])
            if not bool((torch.isfinite(values) & (values > 0)).all()):
                raise InputError("deviations of a Gaussian loss must be finite and above 0")

    @property
    def plain(self) -> bool:
        return self.weights is None and self.deviations is None

    def is_convex(self, *, waves: bool = False) -> bool:
        return True

    def value(self, prediction: Tensor, data: Tensor, views: Tensor | None = None) -> Tensor:
        return self._weighted(_square(prediction - data) / 2, data, views)

    def derivative(self, prediction: Tensor, data: Tensor, views: Tensor | None = None) -> Tensor:
        return self._weighted(prediction - data, data, views)

    def curvature(self, data: Tensor | None = None, *, waves: bool = False) -> float:
        if self.weights is not None:
            return float(torch.as_tensor(self.weights[:]).max())
        if self.deviations is not None:
            return float(torch.as_tensor(self.deviations[:]).min()) ** -2
        return 1.0

    def _weighted(self, terms: Tensor, data: Tensor, views: Tensor | None) -> Tensor:
        if self.plain:
            return terms
        array = self.weights if self.weights is not None else self.deviations
        if len(array.shape) == data.ndim:  # a row for each view
            array = array[:] if views is None else array[views.numpy() if not isinstance(array, Tensor) else views]
        values = torch.as_tensor(array[:] if not isinstance(array, Tensor) else array)
        factor = values.to(device=terms.device, dtype=terms.real.dtype if terms.is_complex() else terms.dtype)
        return terms * (factor if self.weights is not None else factor**-2)


@dataclass(frozen=True)
class Huber(LossAbilities):
    r"""Noise with outliers: |p - y|^2 / 2 up to |p - y| = delta, and delta |p - y| - delta^2 / 2 beyond.

    Convex, with a derivative of length at most delta and Lipschitz constant 1.

    Arguments: delta > 0, in the data's unit. Reference: Huber, Ann. Math. Statist. 35(1), 1964.
    """

    delta: float

    def __post_init__(self) -> None:
        if not self.delta > 0:
            raise InputError(f"delta of a Huber loss must be > 0, not {self.delta}")

    def is_convex(self, *, waves: bool = False) -> bool:
        return True

    def value(self, prediction: Tensor, data: Tensor, views: Tensor | None = None) -> Tensor:
        size = (prediction - data).abs()
        near = size.clamp_max(self.delta)
        return near * (size - near / 2)

    def derivative(self, prediction: Tensor, data: Tensor, views: Tensor | None = None) -> Tensor:
        change = prediction - data
        return change * (self.delta / change.abs().clamp_min(self.delta))

    def curvature(self, data: Tensor | None = None, *, waves: bool = False) -> float:
        return 1.0


@dataclass(frozen=True)
class Poisson(LossAbilities):
    r"""Counts: the negative log-likelihood t - y log t (+ y log y - y, so that a perfect fit has the value 0).

    For real predictions p, t = p + background is the expected count. Below `floor` the logarithm is continued by its
    parabola there, -log f - (t - f)/f + (t - f)^2 / (2 f^2), which keeps the loss smooth, convex and finite for any p,
    with 0 <= loss'' <= y / floor^2. For complex predictions (waves) t = |p|^2 + background, and the derivative is
    2 (1 - y/t) p; that is not convex, and its curvature is at most 2 + max y / (4 t_0) with t_0 = background + floor
    added to |p|^2, so that no pixel divides by zero.

    Arguments: background >= 0, expected counts of each datum; floor > 0, in counts: about 1, or 0.01 to 0.05 for waves;
    incoherent, the axis of predictions over which |p|^2 is summed, None for none; recording, gains g and backgrounds b
    of views of waves: y / g is compared with |p|^2 + b/g.
    References: Snyder, Hammoud and White, J. Opt. Soc. Am. A 10(5), 1993; Thibault and Guizar-Sicairos, New J. Phys.
    14, 2012.
    """

    background: float = 0.0
    floor: float = 1.0
    incoherent: int | None = None
    recording: Any = None

    def for_model(self, model: Any) -> Self:
        return replace(self, incoherent=model.incoherent, recording=model.recording)

    def __post_init__(self) -> None:
        if not (self.background >= 0 and self.floor > 0):
            raise InputError(
                f"a Poisson loss needs a background >= 0 and a floor > 0, not {self.background} and {self.floor}"
            )

    real_data: ClassVar[bool] = True
    nats: ClassVar[float | None] = 1.0
    bends: ClassVar[bool] = True

    def is_convex(self, *, waves: bool = False) -> bool:
        return not waves

    def value(self, prediction: Tensor, data: Tensor, views: Tensor | None = None) -> Tensor:
        y, f = data.real if data.is_complex() else data, self.floor
        if prediction.is_complex():
            t = _intensity(prediction, self.incoherent)
            y, background = _recorded(self.recording, y, views, t)
            t = t + (self.background + f + background)
            return t - y * t.log() + torch.xlogy(y, y) - y
        least = torch.xlogy(y, y) - y
        t = prediction + self.background
        low = (t - f).clamp_max(0)
        minus_log = -t.clamp_min(f).log() - low / f + low.square() / (2 * f * f)
        return t + y * minus_log + least

    def derivative(self, prediction: Tensor, data: Tensor, views: Tensor | None = None) -> Tensor:
        y, f = data.real if data.is_complex() else data, self.floor
        if prediction.is_complex():
            t = _intensity(prediction, self.incoherent)
            y, background = _recorded(self.recording, y, views, t)
            return 2 * (1 - y / (t + (self.background + f + background))) * prediction
        t = prediction + self.background
        low = (t - f).clamp_max(0)
        return 1 - y * (1 / t.clamp_min(f) - low / (f * f))

    def curvature(self, data: Tensor | None = None, *, waves: bool = False) -> float:
        if data is None:
            return float("inf")
        most = max(float(data.max()), 0.0)
        return 2 + most / (4 * (self.background + self.floor)) if waves else most / self.floor**2

    def bend(self, prediction: Tensor, change: Tensor, data: Tensor, views: Tensor | None = None) -> Tensor:
        """Of waves, the Fisher information 4 along p and 0 across."""
        t = _intensity(prediction, self.incoherent)
        _, background = _recorded(self.recording, data, views, t)
        return 4 * _along(prediction, (t + (self.background + self.floor + background)).sqrt(), change, self.incoherent)

    def fit_curvature(self, *, waves: bool = False) -> float:
        """4 for waves: 2 |p|^2 - 2 y log |p| has the second derivative 2 + 2 y / |p|^2 along p, and 0 across."""
        return 4.0 if waves else float("inf")

    def check(self, data: Tensor) -> None:
        if data.is_complex() or bool((data < 0).any()):
            raise InputError("a Poisson loss is for counts: the data must be real and not negative")


@dataclass(frozen=True)
class Amplitude(LossAbilities):
    r"""Intensities of waves, compared by their roots: 1/2 (|p| - sqrt(y))^2 for complex predictions p.

    The root turns Poisson noise into noise of nearly constant variance 1/4 from a few counts on. The derivative
    p - sqrt(y) p/|p| is zero at p = 0, where none exists. Not convex; the curvature is at most 1, radially, and less
    across.

    Arguments: roots, True if the data is sqrt(y) already; incoherent, the axis of predictions over which |p|^2 is
    summed, None for none; recording, gains g and backgrounds b of views: sqrt(|p|^2 + b/g) is compared with sqrt(y/g).
    Reference: Yeh et al., Opt. Express 23(26), 2015.
    """

    roots: bool = False
    incoherent: int | None = None
    recording: Any = None

    def for_model(self, model: Any) -> Self:
        return replace(self, incoherent=model.incoherent, recording=model.recording)

    real_data: ClassVar[bool] = True
    nats: ClassVar[float | None] = 4.0  # roots of counts have the variance 1/4
    bends: ClassVar[bool] = True

    def value(self, prediction: Tensor, data: Tensor, views: Tensor | None = None) -> Tensor:
        size, root = self._sizes(prediction, data, views)
        return (size - root).square() / 2

    def derivative(self, prediction: Tensor, data: Tensor, views: Tensor | None = None) -> Tensor:
        size, root = self._sizes(prediction, data, views)
        least = torch.finfo(size.dtype).tiny * (1 + root)  # below which root / size would leave the range of numbers
        factor = 1 - root / torch.where(size > least, size, 1.0)
        return prediction * torch.where(size > least, factor, 0.0)

    def bend(self, prediction: Tensor, change: Tensor, data: Tensor, views: Tensor | None = None) -> Tensor:
        """1 along p and 0 across."""
        return _along(prediction, self._sizes(prediction, data, views)[0], change, self.incoherent)

    def curvature(self, data: Tensor | None = None, *, waves: bool = False) -> float:
        return 1.0

    def check(self, data: Tensor) -> None:
        if data.is_complex() or bool((data < 0).any()):
            raise InputError("an amplitude loss is for intensities: the data must be real and not negative")

    def _sizes(self, prediction: Tensor, data: Tensor, views: Tensor | None) -> tuple[Tensor, Tensor]:
        """The roots of the predicted and of the measured intensity."""
        if self.recording is not None:
            t = _intensity(prediction, self.incoherent)
            y, background = _recorded(self.recording, data.square() if self.roots else data, views, t)
            return (t + background).sqrt(), y.sqrt()
        size = prediction.abs() if self.incoherent is None else _intensity(prediction, self.incoherent).sqrt()
        return size, data if self.roots else data.sqrt()


@dataclass(frozen=True, eq=False)
class Transmission(LossAbilities):
    r"""Line integrals of photons that were counted: Poisson's likelihood of the counts, before their logarithm.

    A ray with N exp(-p) expected photons and n = N exp(-y) counted ones has the negative log-likelihood
    N (exp(-p) + exp(-y) p) + const; the loss is this per photon of the beam, 0 for a perfect fit. Near p = y it is
    exp(-y) (p - y)^2 / 2: rays count by what came through. Below p = 0 exp(-p) is continued by its parabola, so the
    curvature is at most 1, and L and step are those of least squares.

    Holds for a beam of about equal strength in all pixels, and no counts without it. If a scan holds the counts and the
    beam of each pixel (`ct-counts`), each datum is weighted by its beam over the median one, and the loss is the
    Poisson likelihood of the raw counts.

    It takes the model as exact. If that is wrong by s in a ray's integral, thin rays, which are counted best, get too
    much weight. With a `limit` r = 1 / (N s^2) counts are negative binomial, of variance m + s^2 m^2 for a mean m, and
    no ray has a weight above r:

        (exp(-y) + r) log(r + exp(-p)) + exp(-y) p,    near p = y:  r exp(-y) / (r + exp(-y)) (p - y)^2 / 2,

    convex, with a curvature of at most (exp(-y) + r) / 4. A large r is Poisson's; a small one weights rays alike.
    Arguments: counts, with `weights(views)` and the `strongest` of them, as in `plugstream.models.ct_counts`; limit
    r > 0, the largest weight of a ray, relative to an unattenuated one; None for Poisson's likelihood.
    Reference: Lange and Carson, J. Comput. Assist. Tomogr. 8(2), 1984.
    """

    counts: Any = None
    limit: float | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and not 0 < self.limit < math.inf:
            raise InputError(f"the limit of a transmission loss must be above 0, not {self.limit}")

    def for_model(self, model: Any) -> Self:
        return replace(self, counts=model.counts)  # the beam of its data

    real_data: ClassVar[bool] = True

    def is_convex(self, *, waves: bool = False) -> bool:
        return not waves

    def value(self, prediction: Tensor, data: Tensor, views: Tensor | None = None) -> Tensor:
        if (r := self.limit) is not None:
            share, log_r = torch.exp(-data), torch.full_like(prediction, math.log(r))
            rest = torch.logaddexp(log_r, -prediction) - torch.logaddexp(log_r, -data)
            return self._weighted((share + r) * rest + share * (prediction - data), views)
        share, below = torch.exp(-data), prediction.clamp_max(0)
        decay = torch.exp(-prediction.clamp_min(0)) - below + below.square() / 2
        least = torch.where(data >= 0, share + share * data, 1 - (share - 1).square() / 2)
        return self._weighted(decay + share * prediction - least, views)

    def derivative(self, prediction: Tensor, data: Tensor, views: Tensor | None = None) -> Tensor:
        if (r := self.limit) is not None:
            share = torch.exp(-data)
            return self._weighted(share - (share + r) * torch.sigmoid(-prediction - math.log(r)), views)
        slope = torch.exp(-data) - torch.exp(-prediction.clamp_min(0)) + prediction.clamp_max(0)
        return self._weighted(slope, views)

    def curvature(self, data: Tensor | None = None, *, waves: bool = False) -> float:
        if waves or (self.limit is not None and data is None):
            return float("inf")
        strongest = 1.0 if self.counts is None else float(self.counts.strongest)
        if self.limit is None or data is None:
            return strongest
        return strongest * (math.exp(-min(float(data.min()), 0.0)) + self.limit) / 4

    def check(self, data: Tensor) -> None:
        if data.is_complex():
            raise InputError("a transmission loss is for line integrals, which are real")

    def _weighted(self, terms: Tensor, views: Tensor | None) -> Tensor:
        return terms if self.counts is None else terms * self.counts.weights(views).to(terms)


def _square(value: Tensor) -> Tensor:
    """|v|^2, without the root that abs would take."""
    return value.real.square() + value.imag.square() if value.is_complex() else value.square()


def _intensity(waves: Tensor, incoherent: int | None) -> Tensor:
    """|p|^2, summed over the axis of waves that do not interfere, kept at length 1."""
    squares = _square(waves)
    return squares if incoherent is None else squares.sum(incoherent, keepdim=True)


def _along(waves: Tensor, size: Tensor, change: Tensor, incoherent: int | None) -> Tensor:
    """u Re(conj(u) change) with u = p / size, summed over waves that do not interfere."""
    unit = waves / size.clamp_min(torch.finfo(size.dtype).tiny ** 0.5)
    part = (unit.conj() * change).real
    return unit * (part if incoherent is None else part.sum(incoherent, keepdim=True))


def _recorded(recording: Any, data: Tensor, views: Tensor | None, intensity: Tensor) -> tuple[Tensor, Tensor | float]:
    """The data as it would be recorded with a gain of 1, and the background then."""
    if recording is None:
        return data, 0.0
    scaled: tuple[Tensor, Tensor] = recording.scale(data, views, intensity.detach())
    return scaled
