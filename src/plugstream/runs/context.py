"""The context of a run: everything that it has while it goes on, in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plugstream.algorithms import State
from plugstream.base.processes import Group
from plugstream.fidelity.by_loss import DataFidelity
from plugstream.images.space import ImageSpace
from plugstream.runs.callbacks import Callback, MeasurementLog, Watcher
from plugstream.runs.checkpoints import Checkpoints, CheckpointWriter, SavedState
from plugstream.runs.commands import Inbox
from plugstream.runs.error_maps import ErrorMap
from plugstream.runs.event_log import EventLog
from plugstream.runs.plan import Plan
from plugstream.runs.replay import History
from plugstream.runs.search import Search, last_trial, with_strength
from plugstream.runs.stages import Stages, check_begun
from plugstream.runs.steering import PlannedChanges
from plugstream.runs.terminal import Viewers
from plugstream.runs.views import GrowingViews
from plugstream.scans.scan import Scan
from plugstream.settings import Change, Settings, parse_changes, with_changes
from plugstream.solver.result import Progress


def _write_nothing(settings: Settings, **also: Any) -> None:
    return


@dataclass
class RunContext:
    """One run while it goes on: what `reconstruct` was given, what is open, and what has come of it so far.

    Whatever takes part in a run is given this and nothing besides.

    Arguments: scan; plan, which is another one where the run is steered, or has found its bounds or its sigma; folder;
    source, where the scan lies; go_on, whether the run had begun before; terminal; viewers; inbox, where people ask for
    something; part, whether it is a block of a volume, whose run writes the results; write, which writes settings.toml
    and run.json down.
    Attributes: log; checkpoints; past, what the log tells of a run that goes on, and saved, its checkpoint, are set by
    `open`. changes, stages, search, writer and measurements are made of these. population, the views of a scan that is
    read as it goes, whole, the fidelity of all views, callbacks, in the order in which they act, and last, the progress
    of the last step, come on the way.
    """

    scan: Scan
    plan: Plan
    folder: Path
    source: str | Path = ""
    go_on: bool = False
    terminal: Watcher | None = None
    viewers: Viewers = field(default_factory=Viewers)
    inbox: Inbox | None = None
    part: bool = False
    write: Callable[..., None] = _write_nothing
    past: History = field(default_factory=History)
    saved: SavedState | None = None
    population: GrowingViews | None = None
    whole: DataFidelity = field(init=False)
    callbacks: tuple[Callback, ...] = ()
    last: Progress[State] | None = None

    def __post_init__(self) -> None:
        self.group: Group = self.plan.parts.group  # the processes that share the work; one of them leads

    def open(self, log: EventLog, checkpoints: Checkpoints) -> None:
        """Begin, in a folder that is locked, with what the log tells by now."""
        self.log, self.checkpoints, settings = log, checkpoints, self.plan.settings
        self.space = ImageSpace.of(self.scan)
        self.commands = Inbox(self.folder) if self.inbox is None else self.inbox
        self.measurements = MeasurementLog(log)
        self.writer = CheckpointWriter(log, checkpoints, settings.run.checkpoint)
        self.changes = PlannedChanges(parse_changes(settings.algorithm.changes), log, self._note_changes)
        n_views = self.past.views[-1].views if self.past.views else self.scan.n_views
        plans = self.plan.stages(self.scan, n_views)
        self.stages = Stages(plans, log) if plans else None
        check_begun(plans, self.past.stages)
        self.search: Search | None = None
        if settings.algorithm.search is not None:
            self.search = Search(
                settings,
                self.scan,
                n_views,
                log,
                self._use_all_views,
                last_trial(self.past.trials, self.begun),
                self.past.found_steps,
                self.past.chosen,
                lambda name: self.plan.with_denoiser(name).denoiser,
            )
        many, steps, seed = settings.run.uncertainty, settings.algorithm.iterations, settings.sampler.seed
        self.error_map = None if many is None else ErrorMap(self.folder, log, self.space, many, steps, seed)

    @property
    def settings(self) -> Settings:
        """As they are by now."""
        return self.plan.settings

    @property
    def begun(self) -> int:
        """The step that the run goes on from."""
        return 0 if self.saved is None else self.saved.step

    @property
    def step(self) -> int:
        """The last step that was taken, or that the run goes on from."""
        return self.begun if self.last is None else self.last.state.k

    def note(self, progress: Progress[State]) -> None:
        """Remember the last progress, before any callback hears of it."""
        self.last = progress

    def _note_changes(self, changes: tuple[Change, ...]) -> None:
        """Write settings.toml with the changes, so that it repeats the run as it was steered."""
        self.plan = self.plan.with_settings(with_changes(self.settings, changes))
        self.write(self.settings)

    def _use_all_views(self, sigma: float, step: float | None, denoiser: str | None) -> Any:
        """The algorithm on the views that were held out, too, with the sigma, step and denoiser that were found."""
        plan = self.plan if denoiser is None else self.plan.with_denoiser(denoiser)
        self.plan = plan.with_settings(with_strength(plan.settings, sigma, step))
        if self.population is None:
            return self.plan.algorithm(self.whole)
        self.population.release()
        return self.population.read_ahead(self.plan.algorithm(self.population.fidelity))
