"""One reconstruction from its start, or from a checkpoint, to its result."""

from __future__ import annotations

import contextlib
import sys
import warnings
from dataclasses import replace
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
from plugstream.runs.answers import answer_explanation, answer_strength, leave_unasked
from plugstream.runs.callbacks import Callback
from plugstream.runs.checkpoints import SavedState, restore_snapshot
from plugstream.runs.checks import check_range
from plugstream.runs.commands import Requests
from plugstream.runs.context import RunContext
from plugstream.runs.controls import Forecasts, RunControls, reason_to_stop
from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Finishing, Note, Quantities, Resume, Space, Stop as StopEvent
from plugstream.runs.identity import log_start, settings_identity
from plugstream.runs.liveness import Heartbeats
from plugstream.runs.measuring import MeasuredViews
from plugstream.runs.parts import describe_step, goes_by_lipschitz
from plugstream.runs.preview import Previews
from plugstream.runs.refined import RefinementNotes
from plugstream.runs.replay import replay
from plugstream.runs.results import METHODS, Compared, bound_notes, form_comparison, write_known, write_results
from plugstream.runs.search import last_step
from plugstream.runs.stages import restrict_views
from plugstream.runs.views import GrowingViews, open_in_memory
from plugstream.scans.baselines.first_image import form_baseline, usual_method
from plugstream.scans.store import StoredScan
from plugstream.settings import Settings
from plugstream.solver.loop import solve
from plugstream.solver.monitors import Distance, Monitor, quantities_of
from plugstream.solver.result import Result, Snapshot, Stop

# The report compares with an image of this many views at most: of a large scan all of them would take minutes.
_COMPARED = 1000


def execute(run: RunContext) -> Result[State]:
    """Carry out a run that is open, from its start or its checkpoint: the result, after all of it was written."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PlugstreamWarning)
        _start(run)
        if run.group.leads:
            run.commands.clear()  # what was asked of another process
        run.scan.instrument.warn_if_implausible()
        run.scan.instrument.warn_if_implausible(run.scan.columns)
        try:
            fidelity = _open_views(run)
            _settle_bounds(run, fidelity)
            result, compared = _iterate(run, fidelity, caught)
            result = replace(result, space=ImageSpace.of(run.scan))
        finally:
            if run.population is not None:
                run.population.close()
    _pass_on(run, caught)
    notes = bound_notes(result.image, run.settings.denoiser)
    if run.error_map is not None and result.uncertainty is not None and run.group.leads:
        truth = None if run.plan.truth is None else torch.from_numpy(run.plan.truth)
        notes = [*notes, run.error_map.write(result.uncertainty, result.image, truth)]
    for text in notes:
        run.log.add(Note(text))
    if not run.group.leads:
        return result
    if not run.part:
        _write_results(run, result, compared)
    settings = run.settings
    if run.search is not None and run.search.sigma is not None:  # so that it can be repeated without a search
        settings = run.search.repeat(settings)
        run.write(settings)
    verdict, reason = result.verdict, result.reason
    ends = (result.state.k, result.image_step, result.time, result.wall, reason.value, reason.failed)
    run.log.add(StopEvent(*ends, **verdict.content()))
    if not run.part:
        write_reports(run.folder, run.log, settings)
    return result


def _write_results(run: RunContext, result: Result[State], compared: Compared) -> None:
    try:
        write_results(run.folder, run.scan, result, compared)
    except OSError as error:
        raise StorageError(
            f"cannot write the results to {run.folder}: {error.strerror or error}; fix that, and "
            f"'plugstream resume {shell_quote(run.folder)}' writes them"
        ) from error


def write_reports(folder: Path, log: EventLog, settings: Settings, *, figures: bool = True) -> None:
    """Write the reports that are asked for; they show how the run ended, and so come after the log says it.

    Arguments: figures, False for a run that failed, which has a page and no image to draw.
    """
    for ending in settings.run.report_formats:
        if ending != "html" and not figures:
            continue
        from plugstream.runs.pages.report import write_report

        path = folder / f"report.{ending}"
        report(f"writing {path.name}")
        try:
            write_report(folder, path, settings)
        except (OSError, InputError) as error:  # the run is over, and all else of it written
            why = getattr(error, "strerror", None) or error
            again = f"plugstream report {shell_quote(folder)} --out {shell_quote(path)}"
            log.add(Note(f"warning: cannot write {path.name}: {why}; fix that, and '{again}' writes it"))


def rescue(run: RunContext, reason: str) -> None:
    """Keep the last good state of a run that failed as a checkpoint, and say why it ended, where the disk allows it."""
    last = run.last
    seconds = (0.0, 0.0) if last is None else (last.time, last.wall)
    with contextlib.suppress(InputError, MemoryError):  # the first error is the one to report
        if last is not None and last is run.measurements.last and run.step > max(run.begun, run.writer.step):
            run.writer.write(last)
    with contextlib.suppress(InputError, MemoryError):
        run.log.add(StopEvent(run.step, run.step, *seconds, reason=reason, failed=True))
    if run.step > 0 and not run.part:
        with contextlib.suppress(Exception):
            write_reports(run.folder, run.log, run.settings, figures=False)


def _start(run: RunContext) -> None:
    settings = run.settings
    log_start(run.log, settings, run.group.size)
    if run.space != run.past.space:
        run.log.add(Space(run.space.content()))
    run.log.add(Note(f"building the model of {run.scan.n_views} views on {settings.compute.device}"))


def _open_views(run: RunContext) -> DataFidelity:
    """The fidelity of the views that the run has, or had where it goes on from."""
    scan, log = run.scan, run.log
    if run.stages is not None:
        run.stages.begin_at(run.step)
    if isinstance(scan, StoredScan):
        if run.settings.scan.skip_damaged:
            log.add(Note("reading every view, to leave out those that are damaged"))
        run.population = GrowingViews(scan, run.plan, log, run.past, run.stages, run.search)
        fidelity = run.population.fidelity
    else:
        fidelity = open_in_memory(scan, run.plan, log, run.past)
    if run.go_on:
        step = run.begun
        for text in () if run.saved is None else run.saved.notes:
            log.add(Note(f"warning: {text}"))
        log.add(Resume(step))
        log.add(Note(f"going on from step {step}"))
        if run.population is not None:
            run.population.begin_at(step)
            fidelity = run.population.fidelity
    return fidelity


def _settle_bounds(run: RunContext, fidelity: DataFidelity) -> None:
    """Ask the data for bounds that nobody gave, once: what it said stays in the settings of the run."""
    bounds = run.group.decide(lambda: run.plan.settle_bounds(fidelity, run.scan.columns, ask=run.saved is None))
    if (plan := run.plan.with_bounds(bounds)) is not run.plan:
        run.plan = plan
        for reason in bounds.reasons:
            run.log.add(Note(reason))
        run.checkpoints.about |= settings_identity(run.settings)
        run.write(run.settings)


def _iterate(
    run: RunContext, fidelity: DataFidelity, caught: list[warnings.WarningMessage]
) -> tuple[Result[State], Compared]:
    """The result, and what to compare it with, where there is something."""
    settings, log, population = run.settings, run.log, run.population
    for text in filter(None, (fidelity.model.describe(), *run.plan.advice, *run.plan.notes)):
        log.add(Note(text))
    fidelity, algorithm = _build_algorithm(run, fidelity)
    if run.saved is None:
        check_range(run.scan, fidelity, by_lipschitz=goes_by_lipschitz(settings))
    state, snapshot = _first_state(run, algorithm)
    choice = describe_step(settings, algorithm, state)
    run.write = partial(run.write, step=choice.content())
    run.write(settings)
    log.add(Note(str(choice)))
    _pass_on(run, caught)
    views = MeasuredViews(run.scan, settings, lambda: None if population is None else population.record)
    monitors = _choose_monitors(run, views, fidelity)
    quantities = [*quantities_of(monitors), TO_GO]
    log.add(Quantities(tuple(quantity.content() for quantity in quantities)))
    last_stage = run.stages is None or not run.stages.to_come
    over = None if snapshot is None else reason_to_stop(snapshot, settings, quantities, last_stage=last_stage)
    several, limit = run.group.size > 1, settings.algorithm.time_limit
    with Requests(several=several) as requests:
        controls = RunControls(run, requests, limit if several else None)
        _gather_callbacks(run, controls)
        result: Result[State] = solve(
            algorithm,
            state=state if snapshot is None else None,
            resume=snapshot,
            iterations=_iterations(run, state.k) if over is None else 0,
            monitors=monitors,
            every=settings.monitor.every,
            time_limit=None if several else limit,
            distance_limit=settings.algorithm.distance_limit,
            callbacks=[run.note, *(callback.after_step for callback in run.callbacks)],
        )
    if not run.part:
        log.add(Finishing(result.state.k))
    if over is not None:
        result = replace(result, reason=over)
    elif result.reason is Stop.CALLBACK and controls.reason is not None:
        result = replace(result, reason=controls.reason)
    if run.last is not None and result.state.k > 0 and run.group.leads:
        run.writer.write(run.last)
    if run.group.leads:
        run.commands.clear()
    result = _with_errors(run, result)
    whole = run.whole if population is None else population.fidelity
    result = _answer(run, result, whole, views.held_out(whole))
    if result.parameters:
        shown = fidelity.model.report_parameters(result.parameters)
        result = replace(result, parameters=shown)
    for callback in run.callbacks:
        callback.end(result)
    return result, _compare(run, whole)


def restore(run: RunContext) -> tuple[Any, State]:
    """The algorithm and the state of a run at its checkpoint; nothing is written."""
    fidelity = _open_views(run)
    _settle_bounds(run, fidelity)
    _, algorithm = _build_algorithm(run, fidelity)
    assert run.saved is not None
    return algorithm, _restore_snapshot(run, run.saved, algorithm, algorithm.init()).state


def _build_algorithm(run: RunContext, fidelity: DataFidelity) -> tuple[DataFidelity, Any]:
    """The fidelity that steps use of that of all views, and the algorithm that the run goes on with."""
    population, run.whole = run.population, fidelity
    if run.stages is not None and population is None:
        fidelity = restrict_views(run.whole, run.stages)
    if run.search is not None and population is None:
        fidelity = run.search.restrict_views(run.whole)
    algorithm: Any = run.plan.algorithm(fidelity)
    algorithm = algorithm if run.stages is None else run.stages.with_sigma(algorithm)
    algorithm = run.changes.begin_at(run.step, algorithm)
    algorithm = algorithm if population is None else population.read_ahead(algorithm)
    if run.search is not None:
        damaged = () if population is None else population.record.damaged
        algorithm = run.search.begin(algorithm, damaged, run.whole)
    return fidelity, algorithm


def _first_state(run: RunContext, algorithm: Any) -> tuple[State, Snapshot[State] | None]:
    """The state that the run begins with, and what was saved with it, None at its start."""
    state, snapshot = algorithm.init(_first_image(run, algorithm.fidelity)), None
    if run.group.leads and not run.part:
        write_known(run.folder, run.scan, state.image)
    if run.saved is not None:
        snapshot = _restore_snapshot(run, run.saved, algorithm, state)
        state = snapshot.state
    if run.stages is not None and state.k == 0:
        run.stages.tell(0, algorithm, state)
    return state, snapshot


def _restore_snapshot(run: RunContext, saved: SavedState, algorithm: Any, like: State) -> Snapshot[State]:
    changed = run.population is not None and run.population.record.step == saved.step
    return restore_snapshot(saved, algorithm, like, changed=changed)


def _first_image(run: RunContext, fidelity: DataFidelity) -> torch.Tensor | None:
    """Filtered back-projection of the views that steps use, where a detector saw part of a sample; otherwise None.

    Data hardly tell the slowest changes of such an image, which steps from zero are long in finding.
    """
    if not run.scan.instrument.image.seen or usual_method(run.scan) != "filtered":
        return None
    return form_baseline(run.scan, "filtered", fidelity.available, device=fidelity.device, dtype=fidelity.dtype)


def _choose_monitors(run: RunContext, views: MeasuredViews, fidelity: DataFidelity) -> list[Monitor]:
    """What is measured, and on which views."""
    if (text := views.describe(fidelity)) is not None:
        run.log.add(Note(text))
    if (every := run.settings.monitor.hold_out) is not None:
        run.log.add(Note(f"every {every}th view is held out: no step uses it, and the misfit on those is measured"))
    monitors = run.plan.monitors(views, searched=run.search is not None or bool(run.past.trials))
    if run.stages is None:
        return monitors
    begins = tuple(plan.begin for plan in run.stages.plans if plan.begin > 0)
    return [replace(m, begins=begins) if isinstance(m, Distance) else m for m in monitors]


def _with_errors(run: RunContext, result: Result[State]) -> Result[State]:
    """The result with the error map that was asked for, of a run that has come to its end."""
    last = run.last
    over = not result.reason.failed and result.reason is not Stop.INTERRUPTED
    algorithm: Any = None if last is None else last.algorithm  # a race, where somebody stopped on the way
    if run.error_map is None or last is None or not over or isinstance(algorithm, SigmaRace):
        return result
    return replace(result, uncertainty=run.error_map.find(algorithm, result.state, writes=run.group.leads))


def _answer(
    run: RunContext, result: Result[State], fidelity: DataFidelity, held_out: torch.Tensor | None
) -> Result[State]:
    """The result with the other two answers of its verdict."""
    if run.part:
        return leave_unasked(result, fidelity, "the volume went by blocks")
    report("checking whether the image explains the data")
    result = answer_explanation(result, fidelity, run.scan, run.plan, run.group)
    last = run.last
    searched = run.search is not None
    past = run.group.decide(lambda: replay(run.log.path) if searched else run.past)
    algorithm = None if last is None else last.algorithm
    strength = answer_strength(result, algorithm, run.plan, past.trials, held_out, last_step(past.found_steps))
    return replace(result, verdict=replace(result.verdict, strength=strength))


def _gather_callbacks(run: RunContext, controls: RunControls) -> None:
    """The callbacks, in the order in which they act after a step; of several processes rank 0 writes and decides.

    What was measured is in the log before a checkpoint tells of it. Last it is decided whether to end, and by which
    views to go on."""
    population, settings = run.population, run.settings
    steps = None if settings.scan.follow and population is not None else settings.algorithm.iterations
    order: list[Callback | None] = [
        None if run.part else Forecasts(run),
        run.measurements,
        RefinementNotes(run.log),
        run.terminal,
        Heartbeats(run.log, steps),
        None if run.part else Previews(run.folder, run.space, run.log, settings.run.preview, live=settings.scan.follow),
        *run.viewers.callbacks(run.space, run.log),
        run.writer,
        controls,
    ]
    if not run.group.leads:
        order = [controls]
    run.callbacks = run.writer.callbacks = tuple(callback for callback in order if callback is not None)
    if run.saved is not None:
        history = replay(run.log.path) if run.group.leads else run.past
        for callback in run.callbacks:
            callback.restore(history)


def _iterations(run: RunContext, begun: int) -> int:
    """How many steps to take; as many as it takes where the scan is followed, which `RunControls` ends."""
    if run.population is not None and run.population.follow:
        return 0 if run.population.done(begun) else sys.maxsize
    return max(0, run.settings.algorithm.iterations - begun)


def _compare(run: RunContext, fidelity: DataFidelity) -> Compared:
    if run.part:
        return None
    usable = fidelity.available
    views = None if run.population is None else spread_views(usable, _COMPARED)
    views = usable if views is None and len(usable) < run.scan.n_views else views  # others are damaged, or too new
    compared = form_comparison(run.scan, fidelity, run.plan.parts, views)
    if views is not None and compared is not None:
        run.log.add(Note(f"the {METHODS[compared[1]]} is of {len(views)} views"))
    return compared


def _pass_on(run: RunContext, caught: list[warnings.WarningMessage]) -> None:
    """Pass warnings on as events, once each."""
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        run.log.add(Note(f"warning: {text}"))
    caught.clear()
