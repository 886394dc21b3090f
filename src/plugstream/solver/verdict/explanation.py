"""Does the model explain the data: what an image leaves beside the noise, and where it is too much, why."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plugstream.fidelity.abilities import as_fidelity
from plugstream.models.base import Model
from plugstream.models.suspects import Suspect
from plugstream.models.views import spread_views
from plugstream.solver.verdict.noise import Noise, band_noise, difference_noise, photon_noise
from plugstream.solver.verdict.trials import left_over, refit, try_suspects

__all__ = ["TRIED", "Cause", "Explanation", "explain"]

# Views whose residual is looked at, or as many as these bytes hold, and views on which suspects are tried.
_VIEWS, _BYTES, TRIED = 96, 256 << 20, 16
# What is left is looked into where it is more than so many times the noise, or this part of the data where no noise is
# known.
_FACTOR, _SMALL = 1.3, 1e-3
# A cause counts where without it so many times less would be left. Beyond the part of the data below it is flagged
# whatever the cause.
_EVIDENCE, _UNEXPLAINED = 1.6, 0.3
# Where nothing but noise is left without it, less is enough.
_RESOLVED = 1.2
# Of data explained to a thousandth, as real ones are by models that are right but for small things, more is asked.
_CLEAR = 3.0
_FILTERED = 0.03  # of the noise by differences, below which a band of the spectrum says nothing
# A prior that leaves so many times more than a few steps without it is too strong, and likewise a bound.
_STRONG, _HIDDEN = 6.0, 2.5
# What no suspect brings below this part of the data is of another kind than the model.
_FOREIGN = 0.1
# A view or a detector's pixel stands out where it leaves so many times what the median one does.
# More than this part of all are not outliers.
_OUTLIER, _FEW = 8.0, 0.1
# Fields of a model that is not linear are solved for, and fits are dear: none is made where less of the data is left.
_DEAR = 0.05
_FITTED = 6  # steps of the fits from the image


@dataclass(frozen=True)
class Cause:
    """Why data may not be explained: a name, how many times less would be left without it, and what to do."""

    name: str
    evidence: float
    advice: str


@dataclass(frozen=True)
class Explanation:
    """Whether a model with an image explains the data.

    Arguments: misfit, ||H x - y||^2 / ||y||^2 over the views that were looked at; noise of the same data, None where
    nothing is known of it; explained, False where much more than the noise is left, with a reason that can be named, or
    most of the data; causes, the likeliest first.
    """

    misfit: float
    noise: Noise | None
    explained: bool
    causes: tuple[Cause, ...] = ()
    views: int = 0

    @property
    def factor(self) -> float | None:
        """How many times the noise is left, None where that is not known."""
        return None if self.noise is None or not self.noise.fraction > 0 else self.misfit / self.noise.fraction

    @property
    def text(self) -> str:
        """One sentence for people."""
        left = f"{self.misfit:.2%}" if self.misfit >= 1e-3 else f"{self.misfit:.1e}"
        noise = "the noise is not known"
        if self.noise is not None:
            most = "at most " if self.noise.at_most else ""
            noise = f"noise is {most}{self.noise.fraction:.1e}, by {self.noise.way}"
        told = f"the image leaves {left} of the data unexplained ({noise})"
        if self.explained:
            return told
        if not self.causes:
            return f"{told}, and why is not known: compare the scan's numbers and units with the experiment"
        named = "; or ".join(f"{cause.name} (x {cause.evidence:.3g}): {cause.advice}" for cause in self.causes[:2])
        return f"{told}; likely {named}"

    def content(self) -> dict[str, Any]:
        """For the log, as JSON has it."""
        noise = self.noise
        return {
            "misfit": self.misfit,
            "noise": None if noise is None else noise.fraction,
            "noise_way": "" if noise is None else noise.way,
            "noise_at_most": noise is not None and noise.at_most,
            "explained": self.explained,
            "causes": [{"name": c.name, "evidence": c.evidence, "advice": c.advice} for c in self.causes],
            "views": self.views,
        }


@torch.no_grad()
def explain(
    fidelity: Any,
    image: Tensor,
    *,
    suspects: Callable[[], tuple[Tensor, Sequence[Suspect]]] | None = None,
    low: float | None = None,
    high: float | None = None,
    noise: Noise | None = None,
    early: bool = False,
) -> Explanation:
    r"""Whether an image explains the data of a fidelity, and if not, why.

    What is left, ||H x - y||^2 / ||y||^2 over at most 96 spread views, is compared with the noise, which is estimated
    from the data. Where it is more than 1.3 times that, causes are looked for, each with a number: how many times less
    would be left without it. Views and pixels that stand out are left out; the prior and the bounds, by a few steps of
    a fit without them from the image; and what the scan says of its views, by fits from the start to a few views with
    each suspect in turn (`try_suspects`).

    A run is flagged where a cause is clear (1.6 times less, or 1.2 and nothing but noise; 6 for the prior, 2.5 for a
    bound), or where 30 % and more of the data are left, whatever the cause. Model errors of good measurements, which no
    suspect explains, are not flagged below that.

    Arguments: fidelity, at the parameters that a run refined; image (*image_shape); suspects, which gives the views to
    try them on and the suspects, asked only where they are needed; low, high, the bounds of the image; noise where it
    is known; early, whether the image has hardly begun to form, so that missing steps are the cause of what is left.
    """
    whole = as_fidelity(fidelity).whole
    model, views = whole.model, _looked_at(whole)
    data, rest, compared = _residual(whole, image, views)
    energy = float(compared.abs().double().square().sum())
    if not energy > 0:
        return Explanation(math.nan, None, True, (), len(views))
    misfit = float(rest.abs().double().square().sum()) / energy
    if noise is None:
        noise = _estimate(model, data, compared)
    enough = 0.0 if noise is None else noise.fraction
    if misfit <= max(_FACTOR * enough, _SMALL if noise is None else 0.0):
        return Explanation(misfit, noise, True, (), len(views))
    if early:
        missing = Cause("steps that are missing", 1.0, "take more of them")
        return Explanation(misfit, noise, False, (missing,), len(views))
    causes = _outliers(rest, compared, enough)
    dear = not (model.linear or model.intensities)
    if dear and misfit < _DEAR:
        return Explanation(misfit, noise, not causes, tuple(causes), len(views))
    known: tuple[Tensor, Sequence[Suspect]] = (views[:TRIED], ()) if suspects is None else suspects()
    tried, listed = known
    few = whole.data(tried)
    causes += _prior(model, few, image, tried, enough, low, high)
    found = try_suspects(model, few, tried, listed, enough=0.1 * enough)
    level = _FACTOR * enough * _share(compared, left_over(model, fidelity.predict(image, tried), few, tried)[1])
    clear = _EVIDENCE if misfit >= _SMALL else _CLEAR
    named = [
        Cause(f"{one.suspect.name} ({one.label})", one.evidence, one.suspect.advice)
        for one in found
        if one.evidence >= clear or (one.evidence >= _RESOLVED and one.rest <= level)
    ]
    causes = sorted([*causes, *named], key=lambda cause: -cause.evidence)
    best = max([cause.evidence for cause in causes], default=1.0)
    if misfit / best >= _FOREIGN:
        causes.insert(0, Cause(_CONTRAST, misfit / _FOREIGN, _CONTRAST_ADVICE))
    flagged = bool(causes) or misfit >= _UNEXPLAINED
    return Explanation(misfit, noise, not flagged, tuple(causes), len(views))


_LIFT = "lift the bound (--low none), or leave the metal's data out"
_CONTRAST = "an object that the model cannot have: metal, or contrast beyond its bounds and approximations"
_CONTRAST_ADVICE = "use a model with multiple scattering, lift the bounds, or leave the metal's data out"


def _share(whole: Tensor, few: Tensor) -> float:
    """What the noise is as a part of a few views, over what it is of all: views with less data have more of it."""
    means = [float(one.abs().double().square().mean()) for one in (whole, few)]
    return means[0] / means[1] if means[1] > 0 else 1.0


def _looked_at(fidelity: Any) -> Tensor:
    size = max(1, math.prod(fidelity.data_shape)) * fidelity.data_dtype.itemsize
    some = spread_views(fidelity.available, max(4, min(_VIEWS, _BYTES // size)))
    return fidelity.available if some is None else some


def _residual(fidelity: Any, image: Tensor, views: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The data of views, what an image leaves of it, and the data as it is compared."""
    parts = []
    for some in views.split(8):
        data = fidelity.data(some)
        rest, compared = left_over(fidelity.model, fidelity.predict(image, some), data, some)
        parts.append((data, rest, compared))
    first, second, third = (torch.cat(list(one)) for one in zip(*parts, strict=True))
    return first, second, third


def _estimate(model: Model, data: Tensor, compared: Tensor) -> Noise | None:
    if model.intensities:
        return photon_noise(data) or difference_noise(compared)
    found, band = difference_noise(data), band_noise(data)
    # A band without any noise was filtered away.
    if found is not None and band is not None and _FILTERED * found.fraction < band.fraction < found.fraction:
        return band
    return found


def _outliers(rest: Tensor, compared: Tensor, noise: float) -> list[Cause]:
    """Views, and pixels of the detector, that leave far more than others do, in all and as a part of their data.

    A bright view may leave more than dark ones, and a dark one a larger part: neither is a fault.
    """
    squares, energy = rest.abs().double().square().flatten(1), compared.abs().double().square().flatten(1)
    energy = energy + (compared - rest).abs().double().square().flatten(1)  # a dead view has none of its own
    found, total = [], float(squares.sum())
    # What the noise makes of a view or a pixel is no fault of either.
    least = noise * float(compared.abs().double().square().sum())
    for name, axis, advice in (
        ("single views, dead, blank or misplaced", 1, "leave them out (import with --omit)"),
        ("pixels or receivers of the detector", 0, "mask them"),
    ):
        sums, parts = squares.sum(axis), squares.sum(axis) / energy.sum(axis).clamp_min(1e-300)
        if len(sums) < 8:
            continue
        usual = max(float(sums.median()), least / len(sums))
        bad = (sums > _OUTLIER * usual) & (parts > _OUTLIER * parts.median())
        without = float(sums[~bad].sum()) + usual * int(bad.sum())
        if 0 < int(bad.sum()) <= _FEW * len(sums) and without > 0 and total / without >= _EVIDENCE:
            found.append(Cause(f"{name} ({int(bad.sum())} of {len(sums)})", total / without, advice))
    return found


def _prior(
    model: Model, data: Tensor, image: Tensor, views: Tensor, noise: float, low: float | None, high: float | None
) -> list[Cause]:
    """Whether the denoiser, or a bound, keeps the image from explaining the data."""
    start, free = _fit(model, data, image, views, (-math.inf, math.inf))
    found = []
    strong = start / max(free, noise)
    if not image.is_complex() and (low is not None or high is not None):
        bounds = (-math.inf if low is None else low, math.inf if high is None else high)
        _, held = _fit(model, data, image, views, bounds)
        hidden = held / max(free, noise)
        if hidden >= _HIDDEN:
            found.append(Cause("contrast that a bound of the image hides, as of metal", hidden, _LIFT))
        strong = start / max(held, noise)
    if strong >= _STRONG:
        advice = "lower sigma, or take more steps if it has not arrived"
        found.append(Cause("the denoiser, which is too strong", strong, advice))
    return found


def _fit(model: Model, data: Tensor, image: Tensor, views: Tensor, bounds: tuple[float, float]) -> tuple[float, float]:
    """What is left before and after a few steps from the image."""
    steps = refit(model, data, image, views, bounds=bounds)
    values = [next(steps) for _ in range(_FITTED + 1)]
    return values[0], min(values)
