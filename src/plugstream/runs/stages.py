"""The stages of a run: each begins with the image of the one before, and has views, a sigma and an L of its own.

Settings and scan alone decide after which step a stage begins, so a run that goes on from a checkpoint, or is repeated,
gives the same bits. Momentum, remembered gradients, duals and an L that was found belong to another problem, and are
dropped (`PlugAndPlay.renew`). Distance and cost are of the views of the stage, the misfit is of all views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.schedules import Number, value_at
from plugstream.fidelity.by_loss import DataFidelity
from plugstream.instruments.base import Experiment
from plugstream.instruments.wavelengths import WAVELENGTHS
from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Note, Stage
from plugstream.scans.scan import Scan
from plugstream.settings import Settings, StagePlan, plan_stages


def stages_of(settings: Settings, scan: Scan | Experiment, n_views: int) -> tuple[StagePlan, ...]:
    """The stages that the settings ask for of the first views of a scan, none where they ask for none."""
    if settings.algorithm.stages is None and settings.algorithm.hop is None:
        return ()
    columns = scan.columns
    waves = columns[WAVELENGTHS.name][:] if WAVELENGTHS.name in columns else None
    return plan_stages(settings.algorithm, None if waves is None else waves[:n_views], n_views)


def check_stages(settings: Settings) -> None:
    """Refuse what stages cannot be combined with."""
    a = settings.algorithm
    if a.stages is None and a.hop is None:
        return
    flag = "--stages" if a.stages is not None else "--hop"
    for wrong, advice in (
        (settings.scan.follow, "a scan that is followed grows, so that steps cannot be planned; wait for its end"),
        (a.distance_limit is not None, "the distance is of one stage alone; leave --distance-limit out"),
        (a.settled is not None, "the misfit falls again in each stage; leave --settled out"),
    ):
        if wrong:
            raise InputError(f"{flag} cannot be used: {advice}")
    if ":" in a.name:
        raise InputError(f"{flag} is for our own algorithms, which can begin again from an image, and not for {a.name}")


def check_begun(plans: Sequence[StagePlan], begun: Sequence[Stage]) -> None:
    """Refuse to go on with a run whose stages began, by its log, at other steps than the settings say by now."""
    for event in begun:
        same = event.number <= len(plans) and plans[event.number - 1].begin == event.step
        if not same or event.count != len(plans):
            raise InputError(
                f"stage {event.number} of {event.count} of the run began after step {event.step}, and not where its "
                "settings say; start a new run for other stages"
            )


@dataclass(frozen=True)
class SigmaByStage:
    """The noise level of iteration k: that of the stage it is in, or what it is without stages."""

    stages: tuple[StagePlan, ...]
    usual: Number

    def __call__(self, k: int) -> float:
        sigma = self.stages[_number_at(self.stages, k)].sigma
        return value_at(self.usual, k) if sigma is None else sigma


class Stages:
    """Where a run is among its stages."""

    def __init__(self, plans: Sequence[StagePlan], log: EventLog) -> None:
        self.plans, self.log = tuple(plans), log
        self.number = 0

    def begin_at(self, step: int) -> None:
        """Be as the run was when it had taken this many steps, before another stage began there."""
        self.number = _number_at(self.plans, step)

    @property
    def now(self) -> StagePlan:
        """The stage of the next step."""
        return self.plans[self.number]

    def due(self, step: int) -> bool:
        """Whether the next stage begins once this many steps have been taken."""
        return self.number + 1 < len(self.plans) and self.plans[self.number + 1].begin <= step

    @property
    def to_come(self) -> bool:
        """Whether there is one after the present one."""
        return self.number + 1 < len(self.plans)

    def go_on(self) -> None:
        """Enter the next stage."""
        self.number += 1

    def narrow(self, available: Tensor) -> Tensor:
        """Those of the available views that the stage uses; a stage without any is refused."""
        mine = torch.isin(available, torch.from_numpy(self.now.views))
        if not bool(mine.any()):
            raise InputError(f"stage {self.number + 1}, {self.now.name}, has no views: all are damaged or held out")
        return available[mine]

    def with_sigma(self, algorithm: Any) -> Any:
        """The algorithm with the noise levels that the stages say."""
        if all(plan.sigma is None for plan in self.plans):
            return algorithm
        if algorithm.sigma is None:
            raise InputError("the stages give sigma, but the run is asked to go by lam; leave one of them out")
        return replace(algorithm, sigma=SigmaByStage(self.plans, algorithm.sigma))

    def tell(self, step: int, algorithm: Any, state: Any) -> None:
        """Write down that the stage begins, before a step of it is taken."""
        gamma, sigma = algorithm.parameters(step + 1, state)
        views = len(algorithm.fidelity.available)
        number, count, name = self.number + 1, len(self.plans), self.now.name
        self.log.add(Stage(step, number, count, name, views, sigma, gamma))
        text = f"stage {number} of {count} from step {step + 1} on: {name}, {views} views, sigma {sigma:.4g}"
        self.log.add(Note(f"{text}, step {gamma:.4g}"))
        self.log.sync()


def restrict_views(fidelity: DataFidelity, stages: Stages) -> DataFidelity:
    """The fidelity of all views, in memory, on those of the stage; its L is of these."""
    return fidelity.with_views(fidelity.model, stages.narrow(fidelity.available))


def _number_at(plans: Sequence[StagePlan], step: int) -> int:
    """The stage of iteration `step`, 1, 2, ...; the first for 0."""
    return max([number for number, plan in enumerate(plans) if plan.begin < step], default=0)
