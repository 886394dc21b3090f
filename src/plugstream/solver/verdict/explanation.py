"""Does the model explain the data: the misfit of an image beside the noise, and the likely cause if it is larger."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from plugstream.fidelity.abilities import as_fidelity
from plugstream.models.base import Model
from plugstream.models.suspects import Suspect
from plugstream.models.views import spread_views
from plugstream.solver.verdict.change import change_evidence
from plugstream.solver.verdict.noise import (
    Noise,
    band_noise,
    count_law,
    difference_noise,
    photon_noise,
    ring_level,
    steady_noise,
    structure,
)
from plugstream.solver.verdict.trials import left_over, refit, try_suspects

# Views whose residual is measured, or as many as these bytes hold, and views on which suspects are tried.
_VIEWS, _BYTES, TRIED = 96, 256 << 20, 16
# Causes are looked for if the misfit is more than this many times the noise, or than this if no noise is known.
_FACTOR, _SMALL = 1.3, 1e-3
_ERRORS, _SURE = (
    1.5,
    1.1,
)  # instead of _FACTOR by so many errors of the noise, where it is known, and at least the second
# A cause counts if the misfit without it is this many times less. A misfit above the second number is always flagged.
_EVIDENCE, _UNEXPLAINED = 1.6, 0.3
_RESOLVED = 1.2  # instead of _EVIDENCE, if only noise is left without the cause
_CLEAR = 3.0  # instead of _EVIDENCE, for data explained to a thousandth: real data are no better with a good model
_ALIKE = 1.03  # instead of _RESOLVED, where views that follow each other are off alike
_BRIGHT = 2.5  # times the noise of the sums of views, from which on they are off
_FAINT = 1e-5  # of the data: what is left need not be noise below it
# Elements disagree whose means over views have so many times their noise, by gains beyond the rounding of exact data.
_RINGS, _LEAST_GAIN = 2.2, 1e-3
_FILTERED = 0.03  # of the noise by differences; a band of the spectrum below it was filtered away
_STILL = 1e-4  # of the noise before; samples that differ less from view to view were not measured
# A prior is too strong if a few steps without it leave this many times less; the second number is for a bound.
_STRONG, _HIDDEN = 6.0, 2.5
_FOREIGN = 0.1  # of the data, beside noise: what no suspect brings below this is not of the model's kind
# A view or a pixel stands out if it leaves this many times the median; more than this part of all are no outliers.
_OUTLIER, _FEW = 8.0, 0.1
_DEAR = 0.05  # misfit below which a nonlinear model, whose fits are dear, is not fitted again
_FITTED = 6  # steps of the fits from the image


@dataclass(frozen=True)
class Cause:
    """Why data may not be explained: a name, by what factor the misfit falls without it, and what to do."""

    name: str
    evidence: float
    advice: str


@dataclass(frozen=True)
class Explanation:
    """Whether a model with an image explains the data.

    Arguments: misfit, ||H x - y||^2 / ||y||^2 over this many `views`; noise of the same data, None if it is not known;
    explained, False if the misfit has a cause that can be named, or is most of the data; causes, the likeliest first;
    structure of what is left, 1 for noise (`plugstream.solver.verdict.noise.structure`).
    """

    misfit: float
    noise: Noise | None
    explained: bool
    causes: tuple[Cause, ...] = ()
    views: int = 0
    structure: float = 1.0

    @property
    def factor(self) -> float | None:
        """The misfit over the noise, None if that is not known."""
        return None if self.noise is None or not self.noise.fraction > 0 else self.misfit / self.noise.fraction

    @property
    def beyond(self) -> bool:
        """Whether more is left than the noise can be, or something smooth, and nobody knows why."""
        return self.explained and ((self.factor or 0.0) > _limit(self.noise) or self.structure > _FACTOR)

    @property
    def word(self) -> str:
        """In short."""
        if self.beyond:
            return f"explained but for {max(self.factor or 0.0, self.structure):.2g} x the noise"
        return "explained" if self.explained else "not explained"

    @property
    def text(self) -> str:
        """One sentence for people."""
        misfit = f"{self.misfit:.2%}" if self.misfit >= 1e-3 else f"{self.misfit:.1e}"
        noise = "the noise is not known"
        if self.noise is not None:
            most = "at most " if self.noise.at_most else ""
            noise = f"noise is {most}{self.noise.fraction:.1e}, by {self.noise.way}"
        summary = f"the image leaves {misfit} of the data unexplained ({noise})"
        if self.structure > _FACTOR:
            summary += f", {self.structure:.2g} times what it is from sample to sample, so that it is not noise alone"
        if self.beyond:
            return f"{summary}; no cause found: compare what the scan says with the experiment, and its views in time"
        if self.explained:
            return summary
        if not self.causes:
            return f"{summary}, and why is not known: compare the scan's numbers and units with the experiment"
        causes = "; or ".join(f"{cause.name} (x {cause.evidence:.3g}): {cause.advice}" for cause in self.causes[:2])
        return f"{summary}; likely {causes}"

    def content(self) -> dict[str, Any]:
        """For the log, as JSON has it."""
        noise = self.noise
        return {
            "misfit": self.misfit,
            "noise": None if noise is None else noise.fraction,
            "noise_way": "" if noise is None else noise.way,
            "noise_at_most": noise is not None and noise.at_most,
            "explained": self.explained,
            "causes": [asdict(cause) for cause in self.causes],
            "views": self.views,
            "structure": self.structure,
        }


def _limit(noise: Noise | None) -> float:
    """How many times the noise a misfit may be."""
    return _FACTOR if noise is None or noise.error is None else min(_FACTOR, max(_SURE, 1 + _ERRORS * noise.error))


@torch.no_grad()
def explain(
    fidelity: Any,
    image: Tensor,
    *,
    suspects: Callable[[], tuple[Tensor, Sequence[Suspect]]] | None = None,
    low: float | None = None,
    high: float | None = None,
    early: bool = False,
) -> Explanation:
    r"""Whether an image explains the data of a fidelity, and if not, why.

    The misfit ||H x - y||^2 / ||y||^2 over at most 96 spread views is compared with the noise, which is estimated from
    the data. If it is more than 1.3 times that, or 1.1 to 1.3 times a noise that is known, causes are looked for, each
    with the factor by which the misfit falls without it: without views and pixels that stand out; after a few steps
    from the image without the prior or the bounds; and after fits from the start to a few views with each suspect of
    the scan in turn (`try_suspects`).

    A run is flagged if a cause is clear (a factor of 1.6, or of 1.2 down to the noise; 6 for the prior, 2.5 for a
    bound), whatever the misfit if the sample changed while it was scanned (`change_evidence`), elements disagree
    (`ring_level`) or noise is not that of counts (`count_law`), or if 30 % or more of the data are unexplained. A
    smaller misfit that no suspect explains is `beyond` the noise, and not called explained.

    Arguments: fidelity, at the parameters that a run refined; image (*image_shape); suspects, a function that gives
    views to try and the suspects, called if needed; low, high, the bounds of the image; early, whether the image has
    hardly begun to form, so that the cause is missing steps.
    """
    full = as_fidelity(fidelity).whole
    model, views = full.model, _spread(full)
    data, rest, compared = _residual(full, image, views)
    energy = float(compared.abs().double().square().sum())
    if not energy > 0:
        return Explanation(math.nan, None, True, (), len(views))
    misfit = float(rest.abs().double().square().sum()) / energy
    noise = _estimate(model, data, compared, views, compared - rest)
    enough = 0.0 if noise is None else noise.fraction
    factor = None if early else change_evidence(model, rest, views)
    changes = [] if factor is None else [Cause(_CHANGED, factor, _CHANGED_ADVICE)]
    gains, seen = ring_level(compared) if model.rays is not None else (0.0, 1.0)
    if seen > _RINGS and gains > _LEAST_GAIN:
        changes.append(Cause(f"rings: elements of the detector disagree by {gains:.1%}", seen, _RINGS_ADVICE))
    smooth = structure(rest) if misfit >= _FAINT else 1.0
    if misfit >= _FAINT and smooth <= _FACTOR and not (early or model.rays is None or model.intensities):
        changes += _brightness(rest)
        law = count_law(rest, compared - rest)
        changes += [] if law is None else [Cause(_OFFSET, max(law, 1 / law), _OFFSET_ADVICE)]
    said: Callable[..., Explanation] = functools.partial(Explanation, misfit, noise, views=len(views), structure=smooth)
    if misfit <= max(_limit(noise) * enough, _SMALL if noise is None else 0.0) and smooth <= _FACTOR:
        return said(not changes, tuple(changes))
    if early:
        missing = Cause("steps that are missing", 1.0, "take more of them")
        return said(False, (missing,))
    causes = changes + _outliers(rest, compared, enough)
    dear = not (model.linear or model.intensities)
    if dear and misfit < _DEAR:
        return said(not causes, tuple(causes))
    tried, listed = (views[:TRIED], ()) if suspects is None else suspects()
    few = full.data(tried)
    causes += _prior(model, few, image, tried, enough, low, high)
    level = _FACTOR * enough * _share(compared, left_over(model, fidelity.predict(image, tried), few, tried)[1])
    clear = _EVIDENCE if misfit >= _SMALL else _CLEAR
    for one in try_suspects(model, few, tried, listed, enough=0.1 * enough):
        if one.evidence >= clear or (one.evidence >= _RESOLVED and one.rest <= level):
            causes.append(Cause(f"{one.suspect.name} ({one.label})", one.evidence, one.suspect.advice))
    causes.sort(key=lambda cause: -cause.evidence)
    best = max([cause.evidence for cause in causes], default=1.0)
    if misfit / best - enough >= _FOREIGN:
        causes.insert(0, Cause(_CONTRAST, misfit / _FOREIGN, _CONTRAST_ADVICE))
    flagged = bool(causes) or misfit >= _UNEXPLAINED
    return said(not flagged, tuple(causes))


def _brightness(rest: Tensor) -> list[Cause]:
    """Whether views are too bright or too dark as a whole: the squares of their sums over those of their samples.

    Of white noise this is 1 in the mean, with a standard deviation of sqrt(2 / views). The noise of the air that an
    import subtracts adds little of the whole, and differs from view to view.
    """
    sums, samples = rest.double().flatten(1).sum(1), rest.double().square().flatten(1)
    whole, energy = float(sums.square().sum()), float(samples.sum())
    if not whole > energy * max(_BRIGHT, 1 + 6 * math.sqrt(2 / len(rest))):
        return []
    evidence = energy / max(energy - whole / samples.shape[1], 1e-12 * energy)
    alike = float((sums[1:] * sums[:-1]).sum()) > whole / 2
    return [Cause(_FIELDS, evidence, _FIELDS_ADVICE)] if evidence >= (_ALIKE if alike else _RESOLVED) else []


_FIELDS = "views that are too bright or too dark as a whole"
_FIELDS_ADVICE = "check the dark and flat fields, the beam, and whether the detector sees the whole sample"
_OFFSET = "noise of the thickest rays that is not what counted photons have"
_OFFSET_ADVICE = "check the dark field, and whether other light, as scattered, reaches the detector"
_RINGS_ADVICE = "try --stripes 9 at import, or a flat field taken nearer in time"
_CHANGED = "a sample, or a beam, that changed during the scan"
_CHANGED_ADVICE = "the image is a mean over time; --window N takes the last N views of a scan that is followed"
_LIFT = "lift the bound (--low none), or leave the metal's data out"
_CONTRAST = "an object that the model cannot have: metal, or contrast beyond its bounds and approximations"
_CONTRAST_ADVICE = "use a model with multiple scattering, lift the bounds, or leave the metal's data out"


def _share(data: Tensor, few: Tensor) -> float:
    """The relative noise of a few views over that of all: views with less data have more of it."""
    means = [float(one.abs().double().square().mean()) for one in (data, few)]
    return means[0] / means[1] if means[1] > 0 else 1.0


def _spread(fidelity: Any) -> Tensor:
    size = max(1, math.prod(fidelity.data_shape)) * fidelity.data_dtype.itemsize
    views = spread_views(fidelity.available, max(4, min(_VIEWS, _BYTES // size)))
    return fidelity.available if views is None else views


def _residual(fidelity: Any, image: Tensor, views: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The data of views, what an image leaves of it, and the data as it is compared."""
    parts = []
    for block in views.split(8):
        data = fidelity.data(block)
        parts.append((data, *left_over(fidelity.model, fidelity.predict(image, block), data, block)))
    data, rest, compared = (torch.cat(blocks) for blocks in zip(*parts, strict=True))
    return data, rest, compared


def _estimate(model: Model, data: Tensor, compared: Tensor, views: Tensor, predicted: Tensor) -> Noise | None:
    if model.intensities:
        return photon_noise(data) or difference_noise(compared)
    if not data.is_complex() or model.stored_shape != model.data_shape:
        return _least_noise(data, None if model.rays is None else predicted)
    # Noise is white before samples are weighed, as by the density of k-space.
    roots = model.convert(torch.ones_like(data), views).abs()
    raw = torch.where(roots > 0, data / roots, 0)
    noise = _least_noise(raw)
    if noise is None:
        return None
    level = noise.fraction * float(raw.abs().double().square().sum()) / int((raw != 0).sum())
    weights = float((roots * (data != 0)).double().square().sum())
    return replace(noise, fraction=level * weights / float(data.abs().double().square().sum()))


def _least_noise(data: Tensor, levels: Tensor | None = None) -> Noise | None:
    """The least upper bound, but for one where noise was filtered away."""
    least = difference_noise(data, levels)
    for other, filtered in ((band_noise(data), _FILTERED), (steady_noise(data), _STILL)):
        if least is not None and other is not None and filtered * least.fraction < other.fraction < least.fraction:
            least = other
    return least


def _outliers(rest: Tensor, compared: Tensor, noise: float) -> list[Cause]:
    """Views and detector pixels that leave far more than others, both in all and as a part of their data.

    A bright view may leave more than dark ones, and a dark one a larger part: neither is a fault.
    """
    squares, energy = rest.abs().double().square().flatten(1), compared.abs().double().square().flatten(1)
    energy = energy + (compared - rest).abs().double().square().flatten(1)  # a dead view has none of its own
    causes, total = [], float(squares.sum())
    # Noise is no fault of a view or a pixel.
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
            causes.append(Cause(f"{name} ({int(bad.sum())} of {len(sums)})", total / without, advice))
    return causes


def _prior(
    model: Model, data: Tensor, image: Tensor, views: Tensor, noise: float, low: float | None, high: float | None
) -> list[Cause]:
    """Whether the denoiser, or a bound, keeps the image from explaining the data."""
    start, free = _fit(model, data, image, views, (-math.inf, math.inf))
    causes = []
    strong = start / max(free, noise)
    if not image.is_complex() and (low is not None or high is not None):
        bounds = (-math.inf if low is None else low, math.inf if high is None else high)
        _, bounded = _fit(model, data, image, views, bounds)
        hidden = bounded / max(free, noise)
        if hidden >= _HIDDEN:
            causes.append(Cause("contrast that a bound of the image hides, as of metal", hidden, _LIFT))
        strong = start / max(bounded, noise)
    if strong >= _STRONG:
        advice = "lower sigma, or take more steps if it has not arrived"
        causes.append(Cause("the denoiser, which is too strong", strong, advice))
    return causes


def _fit(model: Model, data: Tensor, image: Tensor, views: Tensor, bounds: tuple[float, float]) -> tuple[float, float]:
    """The misfit before and after a few steps from the image."""
    values = list(itertools.islice(refit(model, data, image, views, bounds=bounds), _FITTED + 1))
    return values[0], min(values)
