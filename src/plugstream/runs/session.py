"""One reconstruction from its start, or from a checkpoint, to its result."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from plugstream.algorithms import SigmaRace, State
from plugstream.base.errors import InputError, PlugstreamWarning, StorageError
from plugstream.base.progress import report
from plugstream.base.quantities import TO_GO
from plugstream.base.text import shell_quote
from plugstream.fidelity.by_loss import DataFidelity
from plugstream.images.space import ImageSpace
from plugstream.models.views import spread_views
from plugstream.runs.answers import answer_explanation, answer_strength
from plugstream.runs.callbacks import Callback, Callbacks, MeasurementLog, Watcher
from plugstream.runs.checkpoints import Checkpoints, SavedState
from plugstream.runs.checks import check_range
from plugstream.runs.commands import Inbox
from plugstream.runs.decisions import Decisions, Steerage
from plugstream.runs.error_maps import ErrorMap
from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Finishing, Note, Quantities, Resume, Space, Stop as StopEvent
from plugstream.runs.identity import settings_identity
from plugstream.runs.liveness import Heartbeats
from plugstream.runs.machine import log_start
from plugstream.runs.measuring import MeasuredViews
from plugstream.runs.plan import Plan
from plugstream.runs.preview import Previews
from plugstream.runs.refined import RefinementNotes
from plugstream.runs.replay import History, replay
from plugstream.runs.results import Comparison, bound_notes, form_comparison, write_known, write_results
from plugstream.runs.saving import CheckpointWriter, reason_to_stop, restore_snapshot
from plugstream.runs.search import Search, last_trial, with_sigma
from plugstream.runs.signals import Requests
from plugstream.runs.stages import Stages, check_begun, restrict_views
from plugstream.runs.steering import Course
from plugstream.runs.steps import describe_step, goes_by_lipschitz
from plugstream.runs.viewers import Viewers
from plugstream.runs.views import Population, open_in_memory
from plugstream.runs.watch import Watch
from plugstream.scans.scan import Scan
from plugstream.scans.store import StoredScan
from plugstream.settings import Change, parse_changes, with_changes
from plugstream.solver.loop import solve
from plugstream.solver.monitors import Distance, quantities_of
from plugstream.solver.result import Result, Stop

__all__ = ["Session"]

# The report compares with an image of this many views at most: of a large scan all of them would take minutes.
_COMPARED = 1000


@dataclass
class Session:
    """A reconstruction into a folder that is locked: what `reconstruct` was given, opened.

    Arguments: scan; plan; folder; log; checkpoints; go_on, whether the run had begun before; past, what its log
    tells; saved, the checkpoint to go on from; terminal; write, which writes settings.toml and run.json down; viewers;
    inbox, where people ask for something; part, whether it is a block of a volume, whose run writes the results.
    """

    scan: Scan
    plan: Plan
    folder: Path
    log: EventLog
    checkpoints: Checkpoints
    go_on: bool
    past: History
    saved: SavedState | None
    terminal: Watcher | None
    write: Callable[..., None]
    viewers: Viewers = field(default_factory=Viewers)
    inbox: Inbox | None = None
    part: bool = False
    population: Population | None = None
    callbacks: Callbacks = field(default_factory=lambda: Callbacks([]))

    def __post_init__(self) -> None:
        self.group = self.plan.parts.group
        self.measurements = MeasurementLog(self.log)
        self.writer = CheckpointWriter(self.log, self.checkpoints, self.plan.settings.run.checkpoint)
        self.course = Course(parse_changes(self.plan.settings.algorithm.changes), self.log, self._note_changes)
        self._inbox = Inbox(self.folder) if self.inbox is None else self.inbox
        self._had = self.past.views[-1].views if self.past.views else self.scan.n_views
        plans = self.plan.stages(self.scan, self._had)
        self.stages = Stages(plans, self.log) if plans else None
        check_begun(plans, self.past.stages)
        found = last_trial(self.past.trials, 0 if self.saved is None else self.saved.step), self.past.chosen
        run = (self.plan.settings, self.scan, self._had, self.log)
        self.search = Search.of(*run, self._use_all_views, *found, lambda name: self.plan.with_denoiser(name).denoiser)
        many, steps = self.plan.settings.run.uncertainty, self.plan.settings.algorithm.iterations
        seed = self.plan.settings.sampler.seed
        space = ImageSpace.of(self.scan)
        self._map_errors = None if many is None else ErrorMap(self.folder, self.log, space, many, steps, seed)

    @property
    def step(self) -> int:
        """The last step that was taken, or that the run goes on from."""
        last = self.callbacks.last
        return last.state.k if last is not None else 0 if self.saved is None else self.saved.step

    def run(self) -> Result[State]:
        """The result, after all of it was written."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", PlugstreamWarning)
            self._start()
            if self.group.leads:
                self._inbox.clear()  # what was asked of another process
            self.scan.instrument.warn_if_implausible()
            self.scan.instrument.warn_if_implausible(self.scan.columns)
            try:
                fidelity = self._open_views()
                self._settle_bounds(fidelity)
                result, compared = self._iterate(fidelity, caught)
            finally:
                if self.population is not None:
                    self.population.close()
        self._tell(caught)
        notes = bound_notes(result.image, self.plan.settings.denoiser)
        if self._map_errors is not None and result.uncertainty is not None and self.group.leads:
            truth = None if self.plan.truth is None else torch.from_numpy(self.plan.truth)
            notes = [*notes, self._map_errors.write(result.uncertainty, result.image, truth)]
        for text in notes:
            self.log.add(Note(text))
        if not self.group.leads:
            return result
        if not self.part:
            self._write_results(result, compared, notes)
        if self.search is not None and self.search.sigma is not None:  # so that it can be repeated without a search
            self.write(self.search.repeat(self.plan.settings))
        verdict, reason = result.verdict, result.reason
        ends = (result.state.k, result.image_step, result.time, result.wall, reason.value, reason.failed)
        self.log.add(StopEvent(*ends, **verdict.content()))
        self._write_page()
        return result

    def _write_results(self, result: Result[State], compared: Comparison | None, notes: list[str]) -> None:
        try:
            told = [f"{question} {answer}" for question, answer in result.verdict.answers.items()] + notes
            write_results(self.folder, self.scan, self.plan.settings, result, compared, told)
        except OSError as error:
            raise StorageError(
                f"cannot write the results to {self.folder}: {error.strerror or error}; fix that, and "
                f"'plugstream resume {shell_quote(self.folder)}' writes them"
            ) from error

    def _write_page(self) -> None:
        """Write report.html, which shows how the run ended, and so comes after the log says it."""
        if self.part or "html" not in self.plan.settings.run.report_formats:
            return
        from plugstream.runs.pages.report import write_report

        report("writing report.html")
        try:
            write_report(self.folder)
        except (OSError, InputError) as error:  # the run is over, and all else of it written
            why = getattr(error, "strerror", None) or error
            again = f"plugstream report {shell_quote(self.folder)}"
            self.log.add(Note(f"warning: cannot write report.html: {why}; fix that, and '{again}' writes it"))

    def rescue(self, reason: str) -> None:
        """Whatever ended the run, keep its last good state as a checkpoint, if it took a step, and say why it ended.

        A disk that is full, say, takes neither; then the checkpoint before is what there is to go on from.
        """
        last, before = self.callbacks.last, 0 if self.saved is None else self.saved.step
        seconds = (0.0, 0.0) if last is None else (last.time, last.wall)
        with contextlib.suppress(InputError, MemoryError):  # what went wrong first is what is told
            if last is not None and last is self.measurements.last and self.step > max(before, self.writer.step):
                self.writer.write(last)
        with contextlib.suppress(InputError, MemoryError):
            self.log.add(StopEvent(self.step, self.step, *seconds, reason=reason, failed=True))
        if self.step > 0:
            with contextlib.suppress(Exception):
                self._write_page()

    def _start(self) -> None:
        settings = self.plan.settings
        log_start(self.log, settings, self.group.size)
        if (space := ImageSpace.of(self.scan)) != self.past.space:
            self.log.add(Space(space.content()))
        self.log.add(Note(f"building the model of {self.scan.n_views} views on {settings.compute.device}"))

    def _open_views(self) -> DataFidelity:
        """The fidelity of the views that the run has, or had where it goes on from."""
        scan, log = self.scan, self.log
        if self.stages is not None:
            self.stages.begin_at(self.step)
        if isinstance(scan, StoredScan):
            if self.plan.settings.scan.skip_damaged:
                log.add(Note("reading every view, to leave out those that are damaged"))
            self.population = Population(scan, self.plan, log, self.past, self.stages, self.search)
            fidelity = self.population.fidelity
        else:
            fidelity = open_in_memory(scan, self.plan, log, self.past)
        if self.go_on:
            step = 0 if self.saved is None else self.saved.step
            for text in () if self.saved is None else self.saved.notes:
                log.add(Note(f"warning: {text}"))
            log.add(Resume(step))
            log.add(Note(f"going on from step {step}"))
            if self.population is not None:
                self.population.begin_at(step)
                fidelity = self.population.fidelity
        return fidelity

    def _settle_bounds(self, fidelity: DataFidelity) -> None:
        """Ask the data for bounds that nobody gave, once: what it said stays in the settings of the run."""
        bounds = self.group.decide(lambda: self.plan.settle_bounds(fidelity, self.scan.columns, ask=self.saved is None))
        if (plan := self.plan.with_bounds(bounds)) is not self.plan:
            self.plan = plan
            for reason in bounds.reasons:
                self.log.add(Note(reason))
            self.checkpoints.about |= settings_identity(self.plan.settings)
            self.write(self.plan.settings)

    def _iterate(
        self, fidelity: DataFidelity, caught: list[warnings.WarningMessage]
    ) -> tuple[Result[State], Comparison | None]:
        """The result, and what to compare it with, where there is something."""
        settings, log, population = self.plan.settings, self.log, self.population
        for note in filter(None, (fidelity.model.describe(), *self.plan.advice, *self.plan.notes)):
            log.add(Note(note))
        whole = fidelity
        if self.stages is not None and population is None:
            fidelity = restrict_views(whole, self.stages)
        if self.search is not None and population is None:
            fidelity = self.search.restrict_views(whole)
        self._whole = whole
        algorithm: Any = self.plan.algorithm(fidelity)
        algorithm = algorithm if self.stages is None else self.stages.with_sigma(algorithm)
        algorithm = self.course.begin_at(self.step, algorithm)
        algorithm = algorithm if population is None else population.read_ahead(algorithm)
        watch = Watch.over(algorithm, settings, log) if settings.monitor.watch_theory else None
        algorithm = algorithm if watch is None else watch.algorithm
        if self.search is not None:
            damaged = () if population is None else population.record.damaged
            algorithm = self.search.begin(algorithm, damaged, whole)
        if self.saved is None:
            check_range(self.scan, fidelity, by_lipschitz=goes_by_lipschitz(settings))
        state, snapshot = algorithm.init(), None
        if self.group.leads and not self.part:
            write_known(self.folder, self.scan, state.image)
        if self.saved is not None:
            changed = population is not None and population.record.step == self.saved.step
            snapshot = restore_snapshot(self.saved, algorithm, state, changed=changed)
            state = snapshot.state
        if self.stages is not None and state.k == 0:
            self.stages.tell(0, algorithm, state)
        choice = describe_step(settings, algorithm, state)
        self.write = partial(self.write, step=choice.content())
        self.write(settings)
        log.add(Note(str(choice)))
        self._tell(caught)
        views = MeasuredViews(self.scan, settings, lambda: () if population is None else population.record.damaged)
        if (text := views.describe(fidelity)) is not None:
            log.add(Note(text))
        if (every := settings.monitor.hold_out) is not None:
            log.add(Note(f"every {every}th view is held out: no step uses it, and the misfit on those is measured"))
        monitors = self.plan.monitors(views, searched=self.search is not None or bool(self.past.trials))
        if self.stages is not None:
            begins = tuple(plan.begin for plan in self.stages.plans if plan.begin > 0)
            monitors = [replace(m, begins=begins) if isinstance(m, Distance) else m for m in monitors]
        quantities = [*quantities_of(monitors), TO_GO]
        log.add(Quantities(tuple(quantity.content() for quantity in quantities)))
        last_stage = self.stages is None or not self.stages.to_come
        over = None if snapshot is None else reason_to_stop(snapshot, settings, quantities, last_stage=last_stage)
        several, limit = self.group.size > 1, settings.algorithm.time_limit
        with Requests(several=several) as requests:
            steerage, late = Steerage(self.course, self._inbox, settings), limit if several else None
            decisions = Decisions(self.group, requests, population, late, steerage, self.stages, whole, self.search)
            self._gather_callbacks(watch, decisions)
            steerage.callbacks = self.callbacks
            result: Result[State] = solve(
                algorithm,
                state=state if snapshot is None else None,
                resume=snapshot,
                iterations=self._iterations(state.k) if over is None else 0,
                monitors=monitors,
                every=settings.monitor.every,
                time_limit=None if several else limit,
                distance_limit=settings.algorithm.distance_limit,
                callbacks=self.callbacks.functions,
            )
        if not self.part:
            self.log.add(Finishing(result.state.k))
        if over is not None:
            result = replace(result, reason=over)
        elif result.reason is Stop.CALLBACK and decisions.reason is not None:
            result = replace(result, reason=decisions.reason)
        if self.callbacks.last is not None and result.state.k > 0 and self.group.leads:
            self.writer.write(self.callbacks.last)
        if self.group.leads:
            self._inbox.clear()
        if watch is not None:
            watch.settings = self.plan.settings  # with what was changed on the way
        result = self._with_errors(result)
        result = self._answer(result, whole if population is None else population.fidelity, views.held_out(fidelity))
        if result.parameters:
            shown = fidelity.model.report_parameters(result.parameters)
            result = replace(result, parameters=shown)
        self.callbacks.end(result)
        return result, self._compare(whole if population is None else population.fidelity)

    def _with_errors(self, result: Result[State]) -> Result[State]:
        """The result with the error map that was asked for, of a run that has come to its end."""
        last = self.callbacks.last
        over = not result.reason.failed and result.reason is not Stop.INTERRUPTED
        algorithm: Any = None if last is None else last.algorithm  # a race, where somebody stopped on the way
        if self._map_errors is None or last is None or not over or isinstance(algorithm, SigmaRace):
            return result
        found = self._map_errors.find(algorithm, result.state, writes=self.group.leads)
        return replace(result, uncertainty=found)

    def _use_all_views(self, sigma: float, denoiser: str | None) -> Any:
        """The algorithm on the views that were held out, too, with the sigma and the denoiser that were found."""
        plan = self.plan if denoiser is None else self.plan.with_denoiser(denoiser)
        self.plan = plan.with_settings(with_sigma(plan.settings, sigma))
        if self.population is None:
            return self.plan.algorithm(self._whole)
        self.population.release()
        return self.population.read_ahead(self.plan.algorithm(self.population.fidelity))

    def _answer(self, result: Result[State], fidelity: DataFidelity, held_out: torch.Tensor | None) -> Result[State]:
        """The result with the other two answers of its verdict."""
        if self.part:
            return result
        report("asking whether the image explains the data")
        result = answer_explanation(result, fidelity, self.scan, self.plan, self.group)
        last = self.callbacks.last
        searched = self.search is not None
        trials = self.group.decide(lambda: replay(self.log.path).trials if searched else self.past.trials)
        algorithm = None if last is None else last.algorithm
        return answer_strength(result, algorithm, self.plan, trials, held_out)

    def _note_changes(self, changes: tuple[Change, ...]) -> None:
        """Write settings.toml with the changes, so that it repeats the run as it was steered."""
        self.plan = self.plan.with_settings(with_changes(self.plan.settings, changes))
        self.write(self.plan.settings)

    def _gather_callbacks(self, watch: Watch | None, decisions: Decisions) -> None:
        """The callbacks, in the order in which they act after a step; of several processes rank 0 writes and decides.

        What was measured is in the log before a checkpoint tells of it, and the theory is watched on the views of the
        step. Last it is decided whether to end, and by which views to go on."""
        population, settings = self.population, self.plan.settings
        steps = None if settings.scan.follow and population is not None else settings.algorithm.iterations
        space = ImageSpace.of(self.scan)
        order: list[Callback | None] = [
            self.measurements,
            RefinementNotes(self.log),
            watch,
            self.terminal,
            Heartbeats(self.log, steps),
            None if self.part else Previews(self.folder, space, self.log, settings.run.preview),
            *self.viewers.callbacks(space, self.log),
            self.writer,
            decisions,
        ]
        if not self.group.leads:
            order = [watch, decisions]
        self.callbacks = self.writer.callbacks = Callbacks([callback for callback in order if callback is not None])
        if self.saved is not None:
            self.callbacks.restore(replay(self.log.path) if self.group.leads else self.past)

    def _iterations(self, begun: int) -> int:
        """How many steps to take; as many as it takes where the scan is followed, which `Decisions` ends."""
        if self.population is not None and self.population.follow:
            return 0 if self.population.done(begun) else sys.maxsize
        return max(0, self.plan.settings.algorithm.iterations - begun)

    def _compare(self, fidelity: DataFidelity) -> Comparison | None:
        if self.part:
            return None
        usable = fidelity.available
        some = None if self.population is None else spread_views(usable, _COMPARED)
        some = usable if some is None and len(usable) < self.scan.n_views else some  # others are damaged, or too new
        compared = form_comparison(self.scan, fidelity, self.plan.parts, some)
        if some is not None and compared is not None:
            self.log.add(Note(f"the {compared.name} is of {len(some)} views"))
        return compared

    def _tell(self, caught: list[warnings.WarningMessage]) -> None:
        """Pass warnings on as events, once each."""
        for text in dict.fromkeys(str(warning.message) for warning in caught):
            self.log.add(Note(f"warning: {text}"))
        caught.clear()
