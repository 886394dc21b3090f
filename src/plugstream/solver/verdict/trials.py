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

# Steps of a fit, and after how many of them the best three of several trials continue.
_STEPS, _FIRST, _BEST = 10, 2, 3
_WAVE_STEPS, _WAVE_FIRST = 30, 6  # for intensities, whose phases are unknown
_DEAR_STEPS, _DEAR_FIRST = 6, 1  # for nonlinear models, whose fields are solved for
_CHANCE = 1.05  # by which the best of several is better by chance
_ROUNDING = 1e-9  # of the data: single precision goes no further


@dataclass(frozen=True)
class Evidence:
    """By what factor less of the data is left if a suspect is the cause, by which of its trials.

    Arguments: rest, the part of the data that is left then.
    """

    suspect: Suspect
    label: str
    evidence: float
    rest: float


def left_over(model: Model, prediction: Tensor, data: Tensor, views: Tensor) -> tuple[Tensor, Tensor]:
    """What a prediction leaves of the data, and the data, as they are compared: as roots if they are intensities."""
    if model.intensities:
        return data.sqrt() - magnitudes(prediction, model, data, views), data.sqrt()
    return data - prediction, data


def refit(model: Model, data: Tensor, image: Tensor, views: Tensor, **options: Any) -> Iterator[float]:
    """The misfit ||H x - y||^2 / ||y||^2 before and after each of the `fit_steps`, of which these are the arguments."""
    return (misfit for misfit, _ in fit_steps(model, data, image, views, **options))


def fit_steps(
    model: Model,
    data: Tensor,
    image: Tensor,
    views: Tensor,
    *,
    refine: str = "",
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Iterator[tuple[float, Tensor]]:
    r"""The misfit ||H x - y||^2 / ||y||^2, and the image, before and after each step of a fit without a prior.

    Gauss-Newton steps along conjugate directions (Polak and Ribiere), each of the best length for the linearised model:
    conjugate gradients for a linear one. Intensities are compared by their roots. Early steps fit what the data agree
    on, so a model whose views contradict each other falls behind one whose views do not.

    Arguments: data of these views; image to begin with (*image_shape); refine, a parameter of the model that takes a
    step after each step of the image; bounds, to which the image is clipped after each step.
    Reference: Nocedal and Wright, Numerical Optimization, 2006, chapters 5 and 10.
    """
    x, direction, before = image, torch.zeros_like(image), None
    clipped = not image.is_complex() and bounds != (-math.inf, math.inf)
    energy: float | None = None
    prediction, pullback = model.linearize(x, views)
    while True:
        rest, compared = left_over(model, prediction, data, views)
        energy = float(compared.abs().double().square().sum()) if energy is None else energy
        yield float(rest.abs().double().square().sum()) / max(energy, 1e-300), x
        slope = model.restrict(_slope(model, prediction, data, views), views)
        gradient = pullback(slope)
        ratio = 0.0 if before is None else _inner(gradient, gradient - before) / max(_inner(before, before), 1e-300)
        direction, before = max(0.0, ratio) * direction - gradient, gradient
        change = model.forward(direction, views) if model.linear else model.derivative(x, direction, views)
        length = -_inner(slope, change) / max(_inner(change, change), 1e-300)
        x = x + length * direction
        if model.linear and not clipped and not refine:  # no third product is needed
            prediction = prediction + length * change
            continue
        x = x.clamp(*bounds) if clipped else x
        if refine:
            refinable: Any = model
            parameters = refinable.refine(x, data, views, (refine,), functools.partial(_slope, model))
            model, before = refinable.with_parameters(parameters), None
        prediction, pullback = model.linearize(x, views)


@torch.no_grad()
def try_suspects(
    model: Model, data: Tensor, views: Tensor, suspects: Sequence[Suspect], *, enough: float = 0.0
) -> list[Evidence]:
    """How much less of the data of a few views a free image leaves under each suspect, the likeliest first.

    Evidence is the misfit of a fit as the scan says, over that of the best trial after as many steps from the same
    start; 1 or less speaks against a suspect. Of many trials the best three continue after the first steps.

    Arguments: data of these views of the model; enough, a misfit that need not be improved, such as the noise.
    """
    floor = max(_ROUNDING, enough)
    start, local = _start(model), torch.arange(len(views))
    waves = model.intensities
    steps, first = (_WAVE_STEPS, _WAVE_FIRST) if waves else (_STEPS, _FIRST)
    if not (waves or model.linear):
        steps, first = _DEAR_STEPS, _DEAR_FIRST
    usual = max(floor, _after(refit(model, data, start, views), steps))
    evidence = []
    for suspect in suspects:
        ends: list[tuple[float, str]] = []
        if suspect.refine and suspect.refine in model.refinable:
            ends.append((_after(refit(model, data, start, views, refine=suspect.refine), steps), "refined"))
        running: list[tuple[float, Trial, Iterator[float]]] = []
        for trial in suspect.trials:
            other = trial.build()
            turned = data if trial.turn is None else trial.turn(data).resolve_conj()
            turned = _best_phase(other, turned, local) if suspect.any_phase else turned
            fit = refit(other, turned, _start(other), local)
            running.append((_after(fit, first), trial, fit))
        running.sort(key=lambda one: one[0])
        ends += [(_after(fit, steps - first - 1), trial.label) for _, trial, fit in running[:_BEST]]
        if ends:
            least, label = min(ends, key=lambda one: one[0])
            chance = _CHANCE if len(suspect.trials) > 1 else 1.0
            evidence.append(Evidence(suspect, label, usual / max(floor, least) / chance, least))
    return sorted(evidence, key=lambda one: -one.evidence)


def _after(fit: Iterator[float], steps: int) -> float:
    """The misfit after this many more steps, infinite for a fit that breaks down."""
    value = math.inf
    for _ in range(steps + 1):
        value = next(fit)
        if not math.isfinite(value):
            return math.inf
    return value


def _start(model: Model) -> Tensor:
    image = model.start_image()
    return torch.zeros(model.image_shape, device=model.device, dtype=model.dtype) if image is None else image


def _slope(model: Any, prediction: Tensor, data: Tensor, views: Tensor) -> Tensor:
    """The derivative of half the squared difference, of roots if data are intensities."""
    if model.intensities:
        return Amplitude().for_model(model).derivative(prediction, data, views)
    return prediction - data


def _best_phase(model: Model, data: Tensor, views: Tensor) -> Tensor:
    """Complex data turned by the phase that suits a real image best.

    The back-projection of exp(i f) H x is exp(i f) H^H H x, whose values lie about a line through zero: its angle is
    half that of the sum of their squares.
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
