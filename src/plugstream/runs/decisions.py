"""What a run decides once a step, by its clock, its disk and signals; of several processes rank 0, for all."""

from __future__ import annotations

from dataclasses import dataclass

from plugstream.algorithms import Algorithm, State
from plugstream.ranks import Group
from plugstream.result import Progress, Stop
from plugstream.runs.callbacks import Callback
from plugstream.runs.events import Views
from plugstream.runs.signals import Requests
from plugstream.runs.views import Population

__all__ = ["Decisions"]


@dataclass(frozen=True)
class _Decision:
    """Of one step: whether somebody interrupted it or time is up, and the views of the next, if they are others."""

    interrupted: bool = False
    late: bool = False
    views: Views | None = None


class Decisions(Callback):
    """Whether to stop and which views there are, decided by rank 0 after each step, in one message to all.

    No process goes by its own clock, disk or signals, so that none leaves while others wait for it. A process by itself
    is its own rank 0. `reason` says why the run ended, where it did so here.

    Arguments: group; requests, the signals that came; population, the views of a scan that is read as it goes;
    time_limit in seconds, None where `solve` looks at its own clock, as it may where there is one process.
    """

    def __init__(
        self, group: Group, requests: Requests, population: Population | None, time_limit: float | None
    ) -> None:
        self.group, self.requests, self.population, self.time_limit = group, requests, population, time_limit
        self.reason: Stop | None = None

    def after_step(self, progress: Progress[State]) -> bool | Algorithm[State] | None:
        decision = self.group.decide(lambda: self._decide(progress))
        if decision.interrupted:
            raise KeyboardInterrupt
        changed, population = None, self.population
        if population is not None:
            changed = population.change_views(progress, decision.views)
            if population.follow and population.done(progress.state.k):
                self.reason = Stop.ITERATIONS
                return True
        if decision.late:
            self.reason = Stop.TIME
            return True
        return changed

    def _decide(self, progress: Progress[State]) -> _Decision:
        if self.requests.due(progress.state.k):
            return _Decision(interrupted=True)
        late = self.time_limit is not None and progress.state.k > 0 and progress.wall >= self.time_limit
        views = None if self.population is None else self.population.find_views(progress.state.k)
        return _Decision(late=late, views=views)
