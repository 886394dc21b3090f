"""The second and third answer of a run: does the model explain the data, and was the strength chosen by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from plugstream.algorithms import SigmaRace, State
from plugstream.base.errors import InputError
from plugstream.base.processes import Group
from plugstream.fidelity.by_loss import DataFidelity
from plugstream.fidelity.misfit import compares_data
from plugstream.runs.events import Trial
from plugstream.runs.explaining import explain_run, mean_misfit
from plugstream.runs.plan import Plan
from plugstream.scans.scan import Scan
from plugstream.solver.result import Result, Stop
from plugstream.solver.verdict import Answer, found_strength, probe_strength
from plugstream.solver.verdict.arrival import FEWEST

__all__ = ["answer_explanation", "answer_strength"]

# An image that leaves this part of the data unexplained explains nothing.
_NOTHING = 0.9


def answer_explanation(
    result: Result[State], fidelity: DataFidelity, scan: Scan, plan: Plan, group: Group
) -> Result[State]:
    """The result with the answer whether its image explains the data.

    Arguments: result; fidelity of the views that the run had; scan; plan; group, of which the first process asks.
    """
    verdict, why = result.verdict, ""
    if result.reason.failed:
        why = "the run failed"
    elif not compares_data(fidelity):
        why = "the loss does not compare predictions with data as they are"
    if why:
        return replace(result, verdict=replace(verdict, explanation=Answer("not asked", None, why)))
    if result.parameters:
        fidelity = fidelity.with_parameters(result.parameters)
    nothing = mean_misfit(fidelity, result.image) >= _NOTHING
    found = group.decide(lambda: explain_run(plan, scan, fidelity, result))
    if found is None:
        answer = Answer("not asked", None, "there are several images")
    else:
        word = "explained" if found.explained else "not explained"
        answer = Answer(word, found.explained, found.text, 100 * found.misfit)
    return replace(result, verdict=verdict.with_explanation(answer, nothing=nothing))


def answer_strength(
    result: Result[State],
    algorithm: Any,
    plan: Plan,
    trials: Sequence[Trial],
    held_out: Tensor | None,
) -> Result[State]:
    """The result with the answer whether the strength of the denoiser was chosen by the data.

    Arguments: result; algorithm that the run ended with; plan; trials, of a run that searched for sigma, its rounds;
    held_out, views that no step used, None where there are none.
    """
    return replace(
        result, verdict=replace(result.verdict, strength=_strength(result, algorithm, plan, trials, held_out))
    )


def _strength(
    result: Result[State], algorithm: Any, plan: Plan, trials: Sequence[Trial], held_out: Tensor | None
) -> Answer:
    settings = plan.settings
    ended = next((trial for trial in reversed(trials) if trial.ended), None)
    if ended is not None:
        return found_strength(ended.sigma, ended.round, ended.ratio, ended.misfit)
    skipped = [
        (result.reason.failed or result.reason is Stop.INTERRUPTED, "the run was not finished"),
        (result.reason is Stop.TIME, "there was no time left for it"),
        (isinstance(algorithm, SigmaRace), "the search for it was not finished"),
        (settings.scan.follow, "the scan was still growing"),
        (":" in settings.algorithm.name, "the algorithm is one of your own"),
        (result.state.k < FEWEST, "too few steps were taken"),
    ]
    for holds, why in skipped:
        if holds:
            return Answer("not asked", None, why)
    try:
        return probe_strength(
            algorithm, result.state, steps=result.state.k, seed=settings.sampler.seed, held_out=held_out
        )
    except InputError as error:
        return Answer("not asked", None, f"held-out data cannot be asked: {error}")
    except KeyboardInterrupt:
        return Answer("not asked", None, "it was interrupted while held-out data was asked")
