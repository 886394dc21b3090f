"""Whether the result of a run explains its data, with what its instrument suspects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from plugstream.fidelity.misfit import relative_misfits, unexplained_light
from plugstream.instruments.base import Columns, Instrument
from plugstream.models.base import Model, as_model
from plugstream.models.suspects import Suspect, Trial
from plugstream.models.views import spread_views
from plugstream.runs.plan import Plan, model_options
from plugstream.scans.scan import Scan
from plugstream.solver.result import Result
from plugstream.solver.verdict.arrival import FEWEST
from plugstream.solver.verdict.explanation import TRIED, Explanation, explain

__all__ = ["explain_result", "explain_run", "mean_misfit"]

# So many views tell at the end whether the image explains anything of the data.
_EXPLAINED = 16


def mean_misfit(fidelity: Any, image: Tensor) -> float:
    """The part of the data that an image leaves unexplained, the mean over a few views, each by itself."""
    some = spread_views(fidelity.available, _EXPLAINED)
    misfit = float(relative_misfits(fidelity, image, some).nanmean())
    if fidelity.model.intensities and misfit > 0:
        return min(misfit, unexplained_light(fidelity, image, some))
    return misfit


def explain_run(plan: Plan, scan: Scan, fidelity: Any, result: Result[Any]) -> Explanation | None:
    """Whether the result of a run explains its data; None where that is not asked, of several images at once.

    Causes are looked for after as many steps as it takes to say how far the image has to go: before, steps are missing.

    Arguments: fidelity of all views that the run has, at the parameters that it refined.
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
    refined, names of those parameters: what is said of them in the scan is no suspect any more; early, whether steps
    are so few that causes are not looked for.
    """
    model: Model = fidelity.whole.model

    def suspects() -> tuple[Tensor, Sequence[Suspect]]:
        # Fields of a model that is not linear are solved for, and each view is dear.
        waves = model.intensities
        count = TRIED if model.linear or waves else TRIED // 2
        views = instrument.trial_views(columns, fidelity.available.numpy(), count)

        def trial(label: str, *, columns: Columns, instrument: Instrument = instrument, turn: Any = None) -> Trial:
            def build() -> Model:
                kind = model.dtype.to_real()
                return as_model(instrument.build_model(columns, len(views), options, device=model.device, dtype=kind))

            return Trial(label, build, turn)

        # Trials are of the scan's own numbers, and say nothing of a model that has found others.
        listed = () if refined else instrument.suspects(columns, views, trial)
        return torch.from_numpy(views), listed

    return explain(fidelity, image, suspects=suspects, low=low, high=high, early=early)
