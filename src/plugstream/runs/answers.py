"""The second and third answer of a run: does the model explain the data, and was the strength chosen by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from plugstream.algorithms import SigmaRace, State
from plugstream.base.errors import InputError
from plugstream.base.processes import Group
from plugstream.fidelity.by_loss import DataFidelity
from plugstream.fidelity.misfit import compares_data, relative_misfits, unexplained_light
from plugstream.instruments.base import Columns, Instrument
from plugstream.models.base import Model, as_model
from plugstream.models.suspects import Suspect, Trial as SuspectTrial
from plugstream.models.views import spread_views
from plugstream.runs.events import Trial
from plugstream.runs.plan import Plan, model_options
from plugstream.scans.scan import Scan
from plugstream.solver.result import Result, Stop
from plugstream.solver.verdict import Answer, found_strength, probe_strength
from plugstream.solver.verdict.arrival import FEWEST
from plugstream.solver.verdict.explanation import TRIED, Explanation, explain

# An image that leaves this part of the data unexplained, the mean over so many views, explains nothing.
_NOTHING, _VIEWS = 0.9, 16
_PART = "the detector saw part of it"


def answer_explanation(
    result: Result[State], fidelity: DataFidelity, scan: Scan, plan: Plan, group: Group
) -> Result[State]:
    """The result with the answer whether its image explains the data; the first process of the group asks."""
    verdict, why = result.verdict, ""
    if result.reason.failed:
        why = "the run failed"
    elif not compares_data(fidelity):
        why = "the loss does not compare predictions with data as they are"
    if why:
        return leave_unasked(result, fidelity, why)
    if result.parameters:
        fidelity = fidelity.with_parameters(result.parameters)
    nothing = mean_misfit(fidelity, result.image) >= _NOTHING
    explanation = group.decide(lambda: explain_run(plan, scan, fidelity, result))
    if explanation is None:
        return leave_unasked(result, fidelity, "there are several images", nothing=nothing)
    good = None if explanation.beyond else explanation.explained
    part = f"; {_PART}" if scan.instrument.image.seen else ""
    answer = Answer(explanation.word + part + _limits(fidelity), good, explanation.text, 100 * explanation.misfit)
    return replace(result, verdict=verdict.with_explanation(answer, nothing=nothing))


def leave_unasked(result: Result[State], fidelity: Any, why: str, *, nothing: bool = False) -> Result[State]:
    """The result without that answer, but for the directions that were not measured."""
    answer = Answer(f"not asked{_limits(fidelity)}", None, why)
    return replace(result, verdict=result.verdict.with_explanation(answer, nothing=nothing))


def _limits(fidelity: Any) -> str:
    """The end of an answer's word where directions were not measured."""
    rays = fidelity.whole.model.rays if isinstance(fidelity, DataFidelity) else None
    unseen = None if rays is None else rays.unseen()
    return "" if unseen is None else "; edges along {:.0f} to {:.0f} degrees were not measured".format(*unseen)


def answer_strength(
    result: Result[State],
    algorithm: Any,
    plan: Plan,
    trials: Sequence[Trial],
    held_out: Tensor | None,
    step: float | None = None,
) -> Answer:
    """Whether the strength of the denoiser was chosen by the data.

    Arguments: algorithm that the run ended with; trials, rounds of a search for sigma; held_out, views that no step
    used, None where there are none; step, where the search found that.
    """
    settings = plan.settings
    ended = next((trial for trial in reversed(trials) if trial.ended), None)
    if ended is not None:
        return found_strength(ended.sigma, ended.round, ended.ratio, ended.misfit, step)
    skipped = [
        (result.reason.failed or result.reason is Stop.INTERRUPTED, "the run was not finished"),
        (result.reason is Stop.TIME, "there was no time left for it"),
        (isinstance(algorithm, SigmaRace), "the search for it was not finished"),
        (settings.scan.follow, "the scan was still growing"),
        (held_out is None, "all views made the image, and none can judge its strength; --hold-out 10 keeps some"),
        (":" in settings.algorithm.name, "the algorithm is one of your own"),
        (result.state.k < FEWEST, "too few steps were taken"),
    ]
    for holds, why in skipped:
        if holds:
            return Answer("not asked", None, why)
    assert held_out is not None
    try:
        return probe_strength(algorithm, result.state, held_out, steps=result.state.k)
    except InputError as error:
        return Answer("not asked", None, f"held-out data cannot be used: {error}")
    except KeyboardInterrupt:
        return Answer("not asked", None, "it was interrupted while held-out data was checked")


def mean_misfit(fidelity: Any, image: Tensor) -> float:
    """The part of the data that an image leaves unexplained, the mean over a few views, each by itself."""
    views = spread_views(fidelity.available, _VIEWS)
    misfit = float(relative_misfits(fidelity, image, views).nanmean())
    if fidelity.model.intensities and misfit > 0:
        return min(misfit, unexplained_light(fidelity, image, views))
    return misfit


def explain_run(plan: Plan, scan: Scan, fidelity: Any, result: Result[Any]) -> Explanation | None:
    """Whether the result of a run explains its data, `fidelity` being of all views; None for several images at once.

    Causes are looked for once there are enough steps to say how far the image has to go; before, steps are missing.
    """
    image = result.image
    if tuple(image.shape) != tuple(fidelity.image_shape) or fidelity.batch_shape:
        return None
    bounds, options = plan.settings.denoiser, model_options(plan.settings, scan.instrument)
    return explain_result(
        fidelity,
        image,
        scan.instrument,
        scan.columns,
        options,
        low=bounds.low if isinstance(bounds.low, float | int) else None,
        high=bounds.high if isinstance(bounds.high, float | int) else None,
        refined=tuple(result.parameters),
        early=result.image_step < FEWEST,
    )


def explain_result(
    fidelity: Any,
    image: Tensor,
    instrument: Instrument,
    columns: Columns,
    options: Any = None,
    *,
    low: float | None = None,
    high: float | None = None,
    refined: Sequence[str] = (),
    early: bool = False,
) -> Explanation:
    """Whether an image explains the data of a scan, and if not, why; as `explain` says.

    Arguments: fidelity, at the parameters that the run refined; columns of all of its views; options of the model;
    refined, names of those parameters, whose values in the scan are no suspects; early, whether there are too few steps
    to look for causes.
    """
    model: Model = fidelity.whole.model

    def suspects() -> tuple[Tensor, Sequence[Suspect]]:
        # Fields of a model that is not linear are solved for, and each view takes long.
        count = TRIED if model.linear or model.intensities else TRIED // 2
        views = instrument.trial_views(columns, fidelity.available.numpy(), count)

        def trial(
            label: str, *, columns: Columns, instrument: Instrument = instrument, turn: Any = None
        ) -> SuspectTrial:
            def build() -> Model:
                kind = model.dtype.to_real()
                return as_model(instrument.build_model(columns, len(views), options, device=model.device, dtype=kind))

            return SuspectTrial(label, build, turn)

        # Trials are of the scan's own numbers, and say nothing of a model that has found others.
        listed = () if refined else instrument.suspects(columns, views, trial)
        return torch.from_numpy(views), listed

    return explain(fidelity, image, suspects=suspects, low=low, high=high, early=early)
