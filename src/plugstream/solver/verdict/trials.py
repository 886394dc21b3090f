"""Which of the things that a scan may say wrongly would let an image explain its data."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plugstream.fidelity.losses import Amplitude
from plugstream.models.base import Model
from plugstream.models.recording import magnitudes
from plugstream.models.suspects import Suspect, Trial

__all__ = ["Found", "left_over", "refit", "try_suspects"]

# Steps of conjugate gradients of a fit, and after how many of them how many of several trials go on; of intensities,
# whose phases have to be found, more.
_STEPS, _FIRST, _GO_ON = 10, 2, 3
_WAVE_STEPS, _WAVE_FIRST = 30, 6
_DEAR_STEPS, _DEAR_FIRST = 6, 1  # of models that are not linear, whose fields are solved for
_CHANCE = 1.05
# A fit is not asked for less than this part of the data, which is where single precision ends.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Found:
    """How many times less of the data is left where a suspect is taken to be the cause, by which of its trials.

    Arguments: rest, the part of the data that is left then.
    """

    suspect: Suspect
    label: str
    evidence: float
    rest: float


def left_over(model: Model, prediction: Tensor, data: Tensor, views: Tensor) -> tuple[Tensor, Tensor]:
    """What a prediction leaves of the data, and the data, as they are compared: by roots where they are intensities."""
    if model.intensities:
        return data.sqrt() - magnitudes(prediction, model, data, views), data.sqrt()
    return data - prediction, data


def refit(
    model: Model,
    data: Tensor,
    image: Tensor,
    views: Tensor,
    *,
    refine: str = "",
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Iterator[float]:
    r"""What is left of the data, ||H x - y||^2 / ||y||^2, before and after each step of a fit without a prior.

    Gauss-Newton steps along conjugate directions (Polak and Ribiere), each of the length that is best for the
    linearised model: conjugate gradients of a linear one. Of intensities roots are compared. Early steps fit what the
    data agree on, so that a model in which views contradict each other is left behind by one in which they do not.

    Arguments: data of these views; image to begin with (*image_shape); refine, a parameter of the model that takes a
    step after each of the image; bounds, to which the image is clipped after each step.
    Reference: Nocedal and Wright, Numerical Optimization, 2006, chapters 5 and 10.
    """
    x, direction, before = image, torch.zeros_like(image), None
    clipped = not image.is_complex() and bounds != (-math.inf, math.inf)
    energy: float | None = None
    prediction, pullback = model.linearize(x, views)
    while True:
        rest, whole = left_over(model, prediction, data, views)
        energy = float(whole.abs().double().square().sum()) if energy is None else energy
        yield float(rest.abs().double().square().sum()) / max(energy, 1e-300)
        slope = model.restrict(_slope(model, prediction, data, views), views)
        gradient = pullback(slope)
        ratio = 0.0 if before is None else _inner(gradient, gradient - before) / max(_inner(before, before), 1e-300)
        direction, before = max(0.0, ratio) * direction - gradient, gradient
        change = model.forward(direction, views) if model.linear else model.derivative(x, direction, views)
        length = -_inner(slope, change) / max(_inner(change, change), 1e-300)
        x = x + length * direction
        if model.linear and not clipped and not refine:  # which needs no third product
            prediction = prediction + length * change
            continue
        x = x.clamp(*bounds) if clipped else x
        if refine:
            own: Any = model
            slope_of = functools.partial(_slope, own)
            model, before = own.with_parameters(own.refine(x, data, views, (refine,), slope_of)), None
        prediction, pullback = model.linearize(x, views)


@torch.no_grad()
def try_suspects(
    model: Model, data: Tensor, views: Tensor, suspects: Sequence[Suspect], *, enough: float = 0.0
) -> list[Found]:
    """How much less of the data of a few views a free image leaves under each suspect, the likeliest first.

    Evidence is a ratio of two fits from the same start, by as many steps: as the scan says, over the best trial; 1 and
    less speaks against a suspect. Where a suspect has many trials the best three go on after the first steps.

    Arguments: data of these views of the model; enough, the part of the data below which nothing more is asked for,
    such as its noise.
    """
    floor = max(_ROUNDING, enough)
    start, local = _start(model), torch.arange(len(views))
    waves = model.intensities
    steps, first = (_WAVE_STEPS, _WAVE_FIRST) if waves else (_STEPS, _FIRST)
    if not (waves or model.linear):
        steps, first = _DEAR_STEPS, _DEAR_FIRST
    usual = max(floor, _after(refit(model, data, start, views), steps))
    found = []
    for suspect in suspects:
        ends: list[tuple[float, str]] = []
        if suspect.refine and suspect.refine in model.refinable:
            ends.append((_after(refit(model, data, start, views, refine=suspect.refine), steps), "refined"))
        running: list[tuple[float, Trial, Iterator[float]]] = []
        for trial in suspect.trials:
            other = trial.build()
            own = data if trial.turn is None else trial.turn(data).resolve_conj()
            own = _best_phase(other, own, local) if suspect.any_phase else own
            fit = refit(other, own, _start(other), local)
            running.append((_after(fit, first), trial, fit))
        running.sort(key=lambda one: one[0])
        ends += [(_after(fit, steps - first - 1), trial.label) for _, trial, fit in running[:_GO_ON]]
        if ends:
            least, label = min(ends, key=lambda one: one[0])
            # The best of several is a little better by chance.
            chance = _CHANCE if len(suspect.trials) > 1 else 1.0
            found.append(Found(suspect, label, usual / max(floor, least) / chance, least))
    return sorted(found, key=lambda one: -one.evidence)


def _after(fit: Iterator[float], steps: int) -> float:
    """What is left after so many more steps; a fit that breaks down leaves all."""
    value = math.inf
    for _ in range(steps + 1):
        value = next(fit)
        if not math.isfinite(value):
            return math.inf
    return value


def _start(model: Model) -> Tensor:
    begun = model.start_image()
    return torch.zeros(model.image_shape, device=model.device, dtype=model.dtype) if begun is None else begun


def _slope(model: Any, prediction: Tensor, data: Tensor, views: Tensor) -> Tensor:
    """The derivative of half the squared difference, of roots where data are intensities."""
    if model.intensities:
        return Amplitude().for_model(model).derivative(prediction, data, views)
    return prediction - data


def _best_phase(model: Model, data: Tensor, views: Tensor) -> Tensor:
    """Complex data turned by the phase that suits a real image best.

    Of data exp(i f) H x the back-projection is exp(i f) H^H H x, whose values lie about a line through zero: its angle
    is half of that of the sum of their squares.
    """
    if not data.is_complex() or model.dtype.is_complex:
        return data
    start = _start(model)
    _, pullback = model.linearize(start, views)
    real, imaginary = pullback(data).double(), pullback(-1j * data).double()
    angle = 0.5 * math.atan2(float(2 * (real * imaginary).sum()), float((real * real - imaginary * imaginary).sum()))
    return data * complex(math.cos(angle), -math.sin(angle))


def _inner(one: Tensor, other: Tensor) -> float:
    """Re <a, b>, in double precision."""
    return float((one.conj() * other).real.double().sum())
