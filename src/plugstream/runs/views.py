"""Which views each step of a run may draw: all of a scan, those that have been measured, those that are not damaged.

The sampler is a pure function of (seed, step, available views), so that a run which writes down when its views changed
can be repeated to the bit: an event `Views` says from which step on there were how many, which of them were damaged,
and the bound L that the step goes by.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugstream.algorithms import Algorithm, State
from plugstream.algorithms.sampling import Announcer, OnceEach
from plugstream.base.errors import DamagedError, InputError, StorageError
from plugstream.fidelity.by_loss import DataFidelity
from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Note, Views
from plugstream.runs.measuring import usable_views
from plugstream.runs.parts import goes_by_lipschitz
from plugstream.runs.plan import Plan
from plugstream.runs.replay import History
from plugstream.runs.search import Search
from plugstream.runs.stages import Stages
from plugstream.scans.chunks import first_of
from plugstream.scans.prefetch import Prefetcher
from plugstream.scans.scan import Scan
from plugstream.scans.store import StoredScan
from plugstream.settings import Settings
from plugstream.solver.result import Progress

__all__ = ["GrowingViews", "open_in_memory", "wait_for_batch", "wait_for_scan", "wait_for_views"]

# The commit record of a live scan is looked at no more often than this, in seconds.
_LOOK = 0.05
# How long views that rank 0 has seen may take to be seen by other processes, in seconds.
_LAG = 60.0


def _available(record: Views, hold_out: int | None, stages: Stages | None) -> Tensor | None:
    """The views to draw from, or None for all of the first `views`."""
    if not record.damaged and hold_out is None and stages is None:
        return None
    left = usable_views(record, hold_out)
    if len(left) == 0:
        others = " or held out" if hold_out is not None else ""
        raise InputError(f"all {record.views} views of the scan are damaged{others}")
    return left if stages is None else stages.narrow(left)


class GrowingViews:
    """The views of a run that reads its scan as it goes: replays what its log tells, then looks for more.

    `fidelity` is that of the views there are. Where they change it is another one, and the run's algorithm has to be.

    L, which the step goes by, must bound every view's L_i. When a scan is followed it is the largest of the bounds
    ||H_i||^2 that the model has (`Model.squared_norm_bounds`), times the curvature of the loss, which costs little for
    a new view; it can only grow, so that the step can only become shorter. Otherwise it is what the fidelity estimates.
    A step that is a number needs none, and for a model that is not linear there is none: the step is then found on the
    way.

    A scan has ended when its writer says so, or when no view came for the settings' patience. In the latter case views
    that come after all are used, and the iterations after the end are counted anew.

    Arguments: scan; plan; log to write records to; past, from the log of a run that goes on; stages of the run, each of
    which has an L of its own; search, which says what no step uses until `release`.
    """

    def __init__(
        self,
        scan: StoredScan,
        plan: Plan,
        log: EventLog,
        past: History,
        stages: Stages | None = None,
        search: Search | None = None,
    ) -> None:
        settings, self.stages, self._search = plan.settings, stages, search
        every = None if search is None else search.interval
        self.hold_out = settings.monitor.hold_out if every is None else every
        self.scan, self.plan, self.settings, self.log = scan, plan, settings, log
        self.follow = settings.scan.follow
        self.group = plan.parts.group
        self.ended_at: int | None = None
        self._looked = self._news = time.monotonic()
        self._known_until = past.last_step
        now = Views(0, scan.n_views, (), None, scan.complete)
        first = self.group.share(past.views[0] if past.views else now)
        self.seen = self.group.share(scan.n_views)
        self._check_there(first)
        self.model = plan.model(scan.columns, first.views)
        known = self.model.linear
        self.bounded = goes_by_lipschitz(settings) and known
        self.source = Prefetcher(
            scan,
            threads=settings.scan.readers,
            keep=settings.scan.ahead + 3,
            pin=settings.compute.device.startswith("cuda"),
        )
        self.record = first
        self.fidelity = plan.parts.fidelity(self.model, self.source)
        if past.views:
            self._use(first)
        else:
            damaged = self.group.decide(lambda: self._damaged(0))
            there, least = first.views - len(damaged), _first_batch(settings)
            if self.follow and there < least:  # for which it has been waited as long as was asked for
                first = replace(first, ended=True)
                log.add(Note(f"there are {there} views, fewer than a batch of {least}: a step uses each of them"))
            self._use(replace(first, damaged=damaged))
            bound = None
            if self.bounded and self.follow:
                bound = self._bound(range(first.views), damaged)
            elif self.bounded and stages is None and self.fidelity.has_lipschitz:
                # Of those that are held out for a while, too.
                kept = _available(self.record, settings.monitor.hold_out, None)
                bound = self.fidelity.with_views(self.model, kept).lipschitz_max
            self._change(replace(self.record, lipschitz=bound), left_out=self.record.damaged)
        self._replay = past.views[1:]

    def begin_at(self, step: int) -> None:
        """Be as the run was when it had taken this many steps, before it looked for views there."""
        while self._replay and self._replay[0].step < step:
            self._use(self._replay.pop(0))
        if self._known_until < 0:
            return
        # What is damaged by now is left out from here on, whatever the log says of later steps.
        now = self.group.decide(lambda: self._damaged(0))
        found = tuple(view for view in now if view not in self.record.damaged)
        if found:
            damaged = tuple(sorted((*self.record.damaged, *found)))
            self._change(replace(self.record, step=step, damaged=damaged), left_out=found)
            self._replay, self._known_until = [], step

    def change_stage(self) -> None:
        """Go over to the views of the stage that the run is in by now."""
        self._use(self.record)

    def change_views(self, progress: Progress[State], views: Views | None) -> Algorithm[State] | None:
        """Go over to what `find_views` of rank 0 found; other views make another fidelity, and that an algorithm."""
        self._turn_to(progress.state.k, views)
        if self.fidelity is progress.algorithm.fidelity:
            return None
        grown: Algorithm[State] = replace(progress.algorithm, fidelity=self.fidelity)  # type: ignore[type-var]
        return grown

    def release(self) -> None:
        """Go over to all data but the views that are to be held out to the end."""
        self.hold_out, self._search = self.settings.monitor.hold_out, None
        self._use(self.record)

    def read_ahead(self, algorithm: Any) -> Any:
        """The algorithm with a sampler that tells the reader which views it will want, and draws none twice of few."""
        settings, sampler = self.settings, algorithm.sampler
        batch = settings.sampler.views
        drawn = sampler if batch is None else OnceEach(sampler, batch)
        return replace(algorithm, sampler=Announcer(drawn, self._expect, settings.scan.ahead))

    def _expect(self, batches: list[Tensor]) -> None:
        """Begin to read what this process will want of these batches."""
        share = self.fidelity.own_parts
        if share is None:
            self.source.expect(batches)
        else:
            parts = [share(views) for views in batches]
            self.source.keep = max(self.source.keep, 2 * sum(len(pieces) for pieces in parts))
            self.source.expect([piece for pieces in parts for piece in pieces])

    def find_views(self, step: int) -> Views | None:
        """Before the next step, when `step` have been taken: whether there are more views; None for no change.

        Of the record L is not known yet.
        """
        now = time.monotonic()
        record = next((one for one in reversed(self._replay) if one.step == step), self.record)
        over = record.ended and self.scan.complete and self.scan.n_views == record.views
        if not self.follow or over or step <= self._known_until or now - self._looked < _LOOK:
            return None
        self._looked = now
        if _refresh(self.scan, f"fix that, and go on with 'plugstream resume {self.log.path.parent}'"):
            self._news = now
        views, before = self.scan.n_views, record
        patience = self.settings.scan.patience
        ended = self.scan.complete or (patience is not None and now - self._news > patience)
        if views > before.views or (ended and not before.ended):
            return Views(step, views, before.damaged + self._damaged(before.views), before.lipschitz, ended)
        return None

    def _turn_to(self, step: int, views: Views | None) -> None:
        """Replay what the log tells of this step, or go over to these views."""
        while self._replay and self._replay[0].step == step:
            self._use(self._replay.pop(0))
        if views is None:
            return
        before, found = self.record, views.damaged[len(self.record.damaged) :]
        self.seen = views.views
        self._wait_for(views.views)
        lipschitz = before.lipschitz
        if views.views > before.views and self.bounded:
            lipschitz = max(lipschitz or 0.0, self._bound(range(before.views, views.views), found))
        self._change(replace(views, lipschitz=lipschitz), left_out=found)

    def _wait_for(self, views: int) -> None:
        """Until this process sees what rank 0 saw, which on a disk of the network may take a moment."""
        until = time.monotonic() + _LAG
        while self.scan.n_views < views and time.monotonic() < until:
            if not _refresh(self.scan, "see whether all processes reach it"):
                time.sleep(_LOOK)

    def done(self, step: int) -> bool:
        """Whether the run has taken as many steps after the end of the scan as was asked for."""
        if self.ended_at is None or self.seen > self.record.views:
            return False
        return step >= self.ended_at + self.settings.algorithm.iterations

    def close(self) -> None:
        """Stop reading ahead."""
        self.source.close()

    def _use(self, record: Views) -> None:
        self._check_there(record)
        if record.views > self.model.n_views:
            self.model = self.plan.model(self.scan.columns, record.views, self.model)
        self.fidelity = self.fidelity.with_views(
            self.model if self._search is None else self._search.restrict_data(self.model),
            _available(record, self.hold_out, self.stages),
            lipschitz_max=record.lipschitz,
        )
        if not record.ended:
            self.ended_at = None
        elif self.ended_at is None or record.views > self.record.views:
            self.ended_at = record.step
        self.record = record

    def _change(self, record: Views, left_out: tuple[int, ...]) -> None:
        """Go over to other views, and write it down before a step is taken with them."""
        self._use(record)
        if left_out:
            self.log.add(Note(f"warning: {len(left_out)} damaged views are left out: {first_of(left_out)}"))
        self.log.add(record)
        self.log.sync()

    def _check_there(self, record: Views) -> None:
        if record.views > self.scan.n_views:
            raise InputError(f"the run had {record.views} views, but the scan {self.scan.path} has {self.scan.n_views}")

    def _damaged(self, first: int) -> tuple[int, ...]:
        return tuple(sorted(self.scan.damaged(first))) if self.settings.scan.skip_damaged else ()

    def _bound(self, views: range, damaged: tuple[int, ...]) -> float:
        """A bound of the L_i of those views that can be used, which the model may not have yet."""
        fidelity = self.fidelity
        if views.stop > self.model.n_views:
            self.model = self.plan.model(self.scan.columns, views.stop, self.model)
            fidelity = fidelity.with_views(self.model)
        usable = np.setdiff1d(np.arange(views.start, views.stop), damaged)
        return fidelity.bound_lipschitz(torch.from_numpy(usable)) if len(usable) else 0.0


def open_in_memory(scan: Scan, plan: Plan, log: EventLog, past: History) -> DataFidelity:
    """The fidelity of a scan in memory, with the views that it had when the run began."""
    views = past.views[-1].views if past.views else scan.n_views  # there may be more by now
    model, hold_out = plan.model(scan.columns, views), plan.settings.monitor.hold_out
    fidelity = plan.parts.fidelity(model, scan.read(torch.arange(views)))
    usable = None if hold_out is None else usable_views(Views(0, views, (), None, True), hold_out)
    if usable is not None or plan.lipschitz is not None:
        fidelity = fidelity.with_views(model, usable, lipschitz_max=plan.lipschitz)
    if plan.lipschitz is None and goes_by_lipschitz(plan.settings) and fidelity.has_lipschitz:
        log.add(Note("estimating the Lipschitz constant L of every view"))
    if not past.views:
        log.add(Views(step=0, views=views, damaged=(), lipschitz=None, ended=True))
        log.sync()
    return fidelity


def wait_for_scan(place: str | Path, patience: float | None, say: Callable[[str], None]) -> None:
    """Wait until there is a scan to follow.

    Arguments: place, a folder, which may not have been made yet, a zip or an address; patience, in seconds, None for as
    long as it takes; say, called when it waits.
    """
    if isinstance(place, Path) and not place.exists() and place.parent.is_dir():
        say(f"waiting for the scan {place}, which is not there yet; Ctrl-C ends this")
        begun = now = time.monotonic()
        while not place.exists():
            if patience is not None and now - begun > patience:
                raise InputError(f"no scan was made at {place} for {patience:g} s; start what writes it")
            time.sleep(_LOOK)
            now = time.monotonic()  # before it looks again: this process may have been stopped meanwhile


def wait_for_views(scan: StoredScan, plan: Plan, say: Callable[[str], None]) -> None:
    """Wait until a scan that is followed has a batch of views, or is finished with fewer, and check the first ones.

    After the settings' patience without a view it goes on with those that there are.
    """
    seen = scan.n_views > 0
    _wait_for_count(scan, _first_batch(plan.settings), say, plan.settings.scan.patience)
    if not seen:
        plan.check_views(scan)


def wait_for_batch(scan: StoredScan, settings: Settings, say: Callable[[str], None]) -> None:
    """Wait until a batch of views can be drawn from a scan that is followed, damaged ones left out.

    It goes on with fewer where the scan is finished, or gets no view for the settings' patience.
    """
    least, patience, told = _first_batch(settings), settings.scan.patience, False
    # Where its time is up it looks once more: this process may have been stopped meanwhile.
    while not scan.complete and (
        patience is None or time.monotonic() - scan.changed <= patience or _refresh(scan, "fix that, and start again")
    ):
        there = scan.n_views - (len(scan.damaged()) if settings.scan.skip_damaged and scan.n_views else 0)
        if there >= least:
            return
        if not told:
            say(f"waiting for {least - there} more views of {scan.path}, to have a batch of {least}; Ctrl-C ends this")
            told = True
        _wait_for_count(scan, scan.n_views + 1, lambda _: None, patience)


def _first_batch(settings: Settings) -> int:
    """How many views a run that follows a scan begins with."""
    return settings.sampler.views or 1


def _wait_for_count(scan: StoredScan, least: int, say: Callable[[str], None], patience: float | None) -> None:
    """Wait until a live scan has this many views, is finished with fewer, or gets none for so many seconds."""
    if scan.n_views < least and not scan.complete:
        say(f"waiting for the first {least} views of {scan.path}; Ctrl-C ends this")
    while scan.n_views < least and not scan.complete:
        time.sleep(_LOOK)
        now = time.monotonic()
        if _refresh(scan, "fix that, and start again"):
            continue
        if patience is not None and now - scan.changed > patience:
            if scan.n_views == 0:
                raise InputError(f"no view came to {scan.path} for {patience:g} s; start what writes it")
            return


def _refresh(scan: StoredScan, then: str) -> bool:
    """Look for more views; whatever became of the scan is told in one line, with what to do `then`."""
    try:
        return scan.refresh()
    except Exception as error:  # a file that is gone, JSON that is none, and all that a distant store may raise
        what = str(error) if isinstance(error, InputError | OSError) else repr(error)
        kind = DamagedError if isinstance(error, DamagedError) else StorageError
        raise kind(f"the scan {scan.path} cannot be followed: {what}".splitlines()[0] + f"; {then}") from error
