"""A run: a new folder with settings, event log, images and report of one reconstruction."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from plugstream.algorithms import State
from plugstream.base.errors import DamagedError, InputError, StorageError, is_refusal
from plugstream.base.text import shell_quote
from plugstream.models.outliers import Outliers
from plugstream.runs.callbacks import Watcher
from plugstream.runs.checkpoints import Checkpoints, SavedState, check_history
from plugstream.runs.checks import check_mask
from plugstream.runs.commands import Inbox
from plugstream.runs.context import RunContext
from plugstream.runs.event_log import EventLog, SilentLog
from plugstream.runs.events import Note
from plugstream.runs.execution import execute, rescue, restore
from plugstream.runs.folder import lock, place_of, remove_unbegun, whole_folder, write_down
from plugstream.runs.identity import identity
from plugstream.runs.outliers import describe_outliers, mark_outliers
from plugstream.runs.plan import Plan
from plugstream.runs.replay import History, replay
from plugstream.runs.search import last_choice, last_step, last_trial, with_strength, without_strength
from plugstream.runs.terminal import Viewers
from plugstream.runs.views import wait_for_batch
from plugstream.scans.outliers import without_outliers
from plugstream.scans.scan import Scan
from plugstream.scans.store import StoredScan, open_scan
from plugstream.settings import Change, Settings, with_changes
from plugstream.solver.result import Result


def reconstruct(
    scan: Scan,
    plan: Plan,
    folder: Path,
    *,
    command: str,
    source: str | Path,
    go_on: bool = False,
    terminal: Watcher | None = None,
    viewers: Viewers | None = None,
    inbox: Inbox | None = None,
    part: bool = False,
) -> Result[State]:
    """Reconstruct a scan as it was planned, into a new folder, or an existing one that nobody else writes to.

    A new folder appears with what `plugstream resume` needs already in it, and is gone again where what was asked for
    turns out before the first step to be impossible.

    Leaves settings.toml (which repeats the run), run.json, events.jsonl, checkpoints, history.csv, result, truth and
    what it is compared with as PNG, TIFF and NPY, and report.html (or what `run.report` says).

    Arguments:
        scan: in memory, or stored; then a batch is read when it is drawn, and if `settings.scan` says so new views
            are used as they come and damaged ones left out. plan: made for it.
        command: how to repeat it. source: where the scan lies; both are written down for `plugstream resume`.
        go_on: go on from the last checkpoint of this folder, or from the start if there is none yet.
        viewers: what else shows it while it goes on. inbox: where people ask for something, if not in the folder.
        part: whether it is a block of a volume (`plugstream.runs.volume`): then it writes no results.
    Of several processes (`Parts.share`) all call it; rank 0 does all this, and the others help.
    """
    check_mask(scan.instrument, scan.columns)  # which lay on a disk when it was planned, and may be in memory now
    run = RunContext(scan, plan, folder, source, go_on, terminal, viewers or Viewers(), inbox, part)
    if not run.group.leads:
        _open_as_helper(run)
        return execute(run)
    run.viewers.check()
    run.write = partial(write_down, folder, command=command, source=place_of(source, folder))
    fresh = not go_on and not folder.exists()
    if fresh:
        with whole_folder(folder) as partly:
            write_down(partly, plan.settings, command, place_of(source, folder))
    try:
        with lock(folder):
            _open(run)
            return _execute(run, fresh=fresh)
    except InputError as error:
        if fresh and is_refusal(error):
            remove_unbegun(folder)
        raise


def _open(run: RunContext) -> None:
    """Read what the run has behind it, refuse what it cannot go on with, and open its log."""
    checkpoints = _read_past(run)
    # Whatever is refused has been refused by now, and nothing has been written.
    run.write(run.settings)
    found = _leave_out(run)
    listeners = run.viewers.listeners(run.folder)
    log = EventLog(run.folder / "events.jsonl", (*(() if run.terminal is None else (run.terminal,)), *listeners))
    run.open(log, checkpoints)
    if found is not None and run.saved is None:
        run.log.add(Note(describe_outliers(run.scan.instrument, found)))


@contextmanager
def at_checkpoint(scan: Scan, plan: Plan, folder: Path) -> Iterator[tuple[Settings, Any, State]]:
    """The settings, the algorithm and the state of a run at its last checkpoint, to take steps; nothing is written.

    Arguments: as of `reconstruct`.
    """
    if plan.partition is not None:
        raise InputError(f"{folder} went by blocks of slices, which keep no state to go on from")
    run = RunContext(scan, plan, folder, go_on=True)
    checkpoints = _read_past(run)
    if run.saved is None:
        raise InputError(f"{folder} has no checkpoint to go on from; resume the run, or start a new one")
    _leave_out(run)
    run.open(SilentLog(folder / "events.jsonl"), checkpoints)
    try:
        if run.search is not None and run.search.running:
            raise InputError(f"{folder} still searches for sigma; resume it first")
        algorithm, state = restore(run)
        yield run.settings, algorithm, state
    finally:
        if run.population is not None:
            run.population.close()


def _read_past(run: RunContext) -> Checkpoints:
    """Read what the run has behind it, and refuse what it cannot go on with."""
    scan, settings, events = run.scan, run.settings, run.folder / "events.jsonl"
    past = run.past = replay(events) if run.go_on else History()
    if isinstance(scan, StoredScan) and settings.scan.follow and not past.views:
        wait_for_batch(scan, settings, lambda text: None if run.terminal is None else run.terminal(Note(text)))
    if past.views and (before := past.views[-1].views) > scan.n_views:
        raise InputError(f"the run had {before} views, but the scan {run.source} has {scan.n_views}")
    first = past.views[0].views if past.views else scan.n_views
    about = identity(scan, settings, first)
    if past.trials or settings.algorithm.search is not None:
        about = without_strength(
            about, step=bool(past.found_steps or settings.algorithm.fall), denoiser=bool(past.chosen)
        )
    checkpoints = Checkpoints(run.folder / "checkpoints", about)
    run.saved = checkpoints.load() if run.go_on else None
    if run.saved is not None:
        check_history(run.saved, past, str(events))
    run.group.share((past, run.saved))
    run.plan = _with_changes(run.plan, past, run.saved)
    return checkpoints


def _open_as_helper(run: RunContext) -> None:
    """Open the run for a process that neither writes nor decides."""
    if isinstance(run.scan, StoredScan) and run.settings.scan.follow and not run.go_on:
        wait_for_batch(run.scan, run.settings, lambda text: None)
    run.past, run.saved = run.group.share((History(), cast(SavedState | None, None)))
    run.plan = _with_changes(run.plan, run.past, run.saved)
    _leave_out(run)
    run.terminal, run.viewers, run.inbox, run.part = None, Viewers(), None, False
    run.open(SilentLog(run.folder / "events.jsonl"), Checkpoints(run.folder / "checkpoints", {}))


def _leave_out(run: RunContext) -> Outliers | None:
    """Go over to the scan without the numbers that cannot be right."""

    def find() -> Outliers | None:
        run.plan, found = mark_outliers(
            run.scan,
            run.plan,
            run.folder,
            begun=run.saved is not None,
            whole=not run.part and run.plan.partition is None,
        )
        return found

    found = run.group.decide(find)
    if found is not None:
        run.scan = without_outliers(run.scan, found)
    return found


def _execute(run: RunContext, *, fresh: bool) -> Result[State]:
    """Carry out the run; whatever ends it, nothing is lost."""
    try:
        return execute(run)
    except Exception as error:  # of the data, of the disk, of memory, or a mistake of ours
        if fresh and run.step == 0 and is_refusal(error):
            raise  # nothing could ever go on with it
        explained = explain_failure(error, run.folder, run.source)
        rescue(run, str(error if isinstance(error, InputError) else explained or repr(error)))
        if explained is None or explained is error:
            raise
        raise explained from error
    finally:
        run.log.close()
        run.viewers.close()


def _with_changes(plan: Plan, past: History, saved: SavedState | None) -> Plan:
    """The plan with the changes in the log of a run, which goes on where somebody asked it to stop."""
    if past.start is None:
        return plan
    begun = 0 if saved is None else saved.step
    trial = last_trial(past.trials, begun)
    if trial is not None:
        plan = plan.with_settings(with_strength(plan.settings, trial.sigma, last_step(past.found_steps)))
        if (name := last_choice(past.chosen)) is not None:
            plan = plan.with_denoiser(name)
    changes = [replace(change, stop=change.stop and change.step > begun) for change in past.changes]
    changes = [change for change in changes if change != Change(change.step)]
    return plan.with_settings(with_changes(plan.settings, changes))


def explain_failure(error: Exception, folder: Path, source: str | Path) -> InputError | None:
    """What ended a run, with what to do; None for what a person cannot repair."""
    resume = f"plugstream resume {shell_quote(folder)}"
    again = f"go on with '{resume}'"
    if not (folder / "run.json").exists():
        return StorageError(
            f"the folder {folder} was removed or moved while the run went on; where it is now, 'plugstream resume' "
            "goes on from its last checkpoint, and otherwise start the run again"
        )
    if isinstance(error, DamagedError | OSError) and (gone := _why_unreadable(source)) is not None:
        moved = f"or if it was moved with '{resume} --scan PLACE'"
        return StorageError(f"the scan {source} cannot be read any more: {gone}; restore it, and {again}, {moved}")
    if isinstance(error, DamagedError) and error.views:
        return DamagedError(f"{error}; to go on without it: {resume} --skip-damaged")
    if isinstance(error, InputError):
        return error
    if isinstance(error, OSError):
        # What only reads is never out of room; a write to a handle does not say to which file.
        nameless = f"the disk of {folder}" if error.errno in (errno.ENOSPC, errno.EDQUOT) else source
        return StorageError(f"{error.filename or nameless}: {error.strerror or error}; fix that, and {again}")
    # torch raises RuntimeError for the CPU's memory, and a kind of it for a GPU's.
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        blocks = ""
        if isinstance(error, torch.OutOfMemoryError):
            blocks = "; or start a new run with --along z and --memory, so that a volume goes by blocks of slices"
        return InputError(f"there is not enough memory; free some, or use a smaller batch, and {again}{blocks}")
    return None


def _why_unreadable(source: str | Path) -> str | None:
    """Why a scan that was open cannot be opened any more; None if it can."""
    try:
        open_scan(source)
    except InputError as error:
        return str(error)
    except Exception as error:  # whatever a distant store raises
        return repr(error)
    return None
