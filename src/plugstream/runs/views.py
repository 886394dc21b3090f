"""Which views each step of a run may draw: those of a scan that have been measured and are not damaged.

The sampler is a pure function of (seed, step, available views), so a run can be repeated to the bit where its log has,
as events `Views`, from which step on there were how many, which of them were damaged, and the L of the step.
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

# The commit record of a live scan is looked at no more often than this, in seconds.
_LOOK = 0.05
# New views, whose L must be bounded, are taken in for so many seconds at once, or for as long as the steps before took,
# and so many at least: where they come faster than that, the rest wait on the disk, and the image goes on.
_INTAKE, _AT_LEAST = 0.25, 16
# How long views that rank 0 has seen may take to be seen by other processes, in seconds.
_LAG = 60.0


def _available(record: Views, hold_out: int | None, stages: Stages | None) -> Tensor | None:
    """The views to draw from, or None for all of the first `views`."""
    if not record.damaged and not record.first and hold_out is None and stages is None:
        return None
    usable = usable_views(record, hold_out)
    if len(usable) == 0:
        or_held_out = " or held out" if hold_out is not None else ""
        raise InputError(f"all {record.views} views of the scan are damaged{or_held_out}")
    return usable if stages is None else stages.narrow(usable)


class GrowingViews:
    """The views of a run that reads its scan as it goes: replays those in its log, then looks for more.

    `fidelity` is of the present views. Where they change it is another one, and so is the run's algorithm.

    L must bound every view's L_i. When a scan is followed it is the largest of the bounds ||H_i||^2 that the model has
    (`Model.squared_norm_bounds`), times the curvature of the loss, which costs little for a new view; it can only grow,
    and the step only shrink. Otherwise the fidelity estimates it. A step that is a number needs none, and a model that
    is not linear has none: the step is then found on the way.

    A scan has ended when its writer says so, or when no view came for the settings' patience. Views that come after
    that are used all the same, and the iterations after the end are counted from there.

    Arguments: scan; plan; log for the records; past, from the log of a run that goes on; stages of the run, each with
    an L of its own; search, which says what no step uses until `release`.
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
        self._most = 4 * _AT_LEAST  # new views that a step may wait for
        self._looked = self._news = self._taken = time.monotonic()
        self._known_until = past.last_step
        now = Views(0, scan.n_views, (), None, scan.complete, self._first(scan.n_views))
        first = self.group.share(past.views[0] if past.views else now)
        self.views_there = self.group.share(scan.n_views)
        self._check_there(first)
        self.model = plan.model(scan.columns, first.views)
        self.bounded = goes_by_lipschitz(settings) and self.model.linear
        self.source = Prefetcher(
            scan,
            threads=settings.scan.readers,
            keep=settings.scan.ahead + 3,
            pin=settings.compute.device.startswith("cuda"),
        )
        self.record = first
        counts = None if self.follow else scan.columns.get("weight")
        self.fidelity = plan.parts.fidelity(self.model, self.source, weights=counts)
        if past.views:
            self._use(first)
        else:
            damaged = self.group.decide(lambda: self._damaged(0))
            count, least = first.views - len(damaged), _first_batch(settings)
            if self.follow and count < least:  # after the settings' patience
                first = replace(first, ended=True)
                log.add(Note(f"there are {count} views, fewer than a batch of {least}: a step uses each of them"))
            self._use(replace(first, damaged=damaged))
            bound = None
            if self.bounded and self.follow:
                bound = self._bound(range(first.views), damaged)
            elif self.bounded and stages is None and self.fidelity.has_lipschitz:
                # Views that are held out only during a search count.
                views = _available(self.record, settings.monitor.hold_out, None)
                bound = self.fidelity.with_views(self.model, views).lipschitz_max
            self._change(replace(self.record, lipschitz=bound), left_out=self.record.damaged)
        self._replay = past.views[1:]

    def begin_at(self, step: int) -> None:
        """Return to how the run was after this many steps, before it looked for views there."""
        while self._replay and self._replay[0].step < step:
            self._use(self._replay.pop(0))
        if self._known_until < 0:
            return
        # Views that are damaged by now are left out from here on, whatever the log says of later steps.
        now = self.group.decide(lambda: self._damaged(0))
        new = tuple(view for view in now if view not in self.record.damaged)
        if new:
            damaged = tuple(sorted((*self.record.damaged, *new)))
            self._change(replace(self.record, step=step, damaged=damaged), left_out=new)
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
        """The algorithm with a sampler that announces its views to the reader, and draws none twice of few."""
        batch, sampler = self.settings.sampler.views, algorithm.sampler
        sampler = sampler if batch is None else OnceEach(sampler, batch)
        return replace(algorithm, sampler=Announcer(sampler, self._expect, self.settings.scan.ahead))

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
        """Whether there are more views after this step; None for no change. L of the record is not known yet."""
        now = time.monotonic()
        record = next((one for one in reversed(self._replay) if one.step == step), self.record)
        over = record.ended and self.scan.complete and self.scan.n_views == record.views
        if not self.follow or over or step <= self._known_until or now - self._looked < _LOOK:
            return None
        self._looked = now
        if _refresh(self.scan, f"fix that, and go on with 'plugstream resume {self.log.path.parent}'"):
            self._news = now
        before = record
        views = min(self.scan.n_views, before.views + self._most)
        patience = self.settings.scan.patience
        ended = self.scan.complete or (patience is not None and now - self._news > patience)
        ended = ended and views == self.scan.n_views
        if views > before.views or (ended and not before.ended):
            damaged = before.damaged + tuple(view for view in self._damaged(before.views) if view < views)
            return Views(step, views, damaged, before.lipschitz, ended, self._first(views))
        return None

    def _turn_to(self, step: int, views: Views | None) -> None:
        """Replay what the log tells of this step, or go over to these views."""
        while self._replay and self._replay[0].step == step:
            self._use(self._replay.pop(0))
        if views is None:
            return
        before, damaged, begun = self.record, views.damaged[len(self.record.damaged) :], time.monotonic()
        self.views_there = views.views
        self._wait_for(views.views)
        lipschitz = before.lipschitz
        if views.views > before.views and self.bounded:
            known = lipschitz or 0.0
            lipschitz = max(known, self._bound(range(before.views, views.views), damaged, known))
        self._change(replace(views, lipschitz=lipschitz), left_out=damaged)
        if views.views > before.views:
            now = time.monotonic()
            budget, each = max(_INTAKE, begun - self._taken), (now - begun) / (views.views - before.views)
            self._most, self._taken = max(_AT_LEAST, int(budget / max(each, 1e-9))), now

    def _wait_for(self, views: int) -> None:
        """Until this process sees what rank 0 saw, which on a disk of the network may take a moment."""
        until = time.monotonic() + _LAG
        while self.scan.n_views < views and time.monotonic() < until:
            if not _refresh(self.scan, "see whether all processes reach it"):
                time.sleep(_LOOK)

    def done(self, step: int) -> bool:
        """Whether the run has taken as many steps after the end of the scan as was asked for."""
        if self.ended_at is None or self.views_there > self.record.views:
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

    def _first(self, views: int) -> int:
        """The oldest of so many views that is not forgotten."""
        window = self.settings.scan.window
        return 0 if window is None else max(0, views - window)

    def _damaged(self, first: int) -> tuple[int, ...]:
        return tuple(sorted(self.scan.damaged(first))) if self.settings.scan.skip_damaged else ()

    def _bound(self, views: range, damaged: tuple[int, ...], known: float = 0.0) -> float:
        """A bound of the L_i of those views that can be used, which the model may not have yet; 0 if none is beyond."""
        fidelity = self.fidelity
        if views.stop > self.model.n_views:
            self.model = self.plan.model(self.scan.columns, views.stop, self.model)
            fidelity = fidelity.with_views(self.model)
        usable = np.setdiff1d(np.arange(views.start, views.stop), damaged)
        return fidelity.bound_lipschitz(torch.from_numpy(usable), known) if len(usable) else 0.0


def open_in_memory(scan: Scan, plan: Plan, log: EventLog, past: History) -> DataFidelity:
    """The fidelity of a scan in memory, with the views that it had when the run began."""
    views = past.views[-1].views if past.views else scan.n_views  # there may be more by now
    model, hold_out = plan.model(scan.columns, views), plan.settings.monitor.hold_out
    fidelity = plan.parts.fidelity(model, scan.read(torch.arange(views)), weights=scan.columns.get("weight"))
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
    """Wait until there is a scan to follow, at most `patience` seconds; `say` is called when it waits."""
    if isinstance(place, Path) and not place.exists() and place.parent.is_dir():
        say(f"waiting for the scan {place}, which is not there yet; press Ctrl-C to stop")
        begun = now = time.monotonic()
        while not place.exists():
            if patience is not None and now - begun > patience:
                raise InputError(f"no scan was made at {place} for {patience:g} s; start the program that writes it")
            time.sleep(_LOOK)
            now = time.monotonic()  # before it looks again: this process may have been stopped meanwhile


def wait_for_views(scan: StoredScan, plan: Plan, say: Callable[[str], None]) -> None:
    """Wait until a scan that is followed has a batch of views, or ended with fewer, and check the first ones.

    After the settings' patience without a view it goes on with those that there are.
    """
    checked = scan.n_views > 0
    _wait_for_count(scan, _first_batch(plan.settings), say, plan.settings.scan.patience)
    if not checked:
        plan.check_views(scan)


def wait_for_batch(scan: StoredScan, settings: Settings, say: Callable[[str], None]) -> None:
    """Wait until a batch of views can be drawn from a scan that is followed, damaged ones left out.

    It goes on with fewer where the scan is finished, or gets no view for the settings' patience.
    """
    least, patience, waits = _first_batch(settings), settings.scan.patience, False
    # Where its time is up it looks once more: this process may have been stopped meanwhile.
    while not scan.complete and (
        patience is None or time.monotonic() - scan.changed <= patience or _refresh(scan, "fix that, and start again")
    ):
        count = scan.n_views - (len(scan.damaged()) if settings.scan.skip_damaged and scan.n_views else 0)
        if count >= least:
            return
        if not waits:
            more = least - count
            say(f"waiting for {more} more views of {scan.path}, to have a batch of {least}; press Ctrl-C to stop")
            waits = True
        _wait_for_count(scan, scan.n_views + 1, lambda _: None, patience)


def _first_batch(settings: Settings) -> int:
    """How many views a run that follows a scan begins with."""
    return settings.sampler.views or 1


def _wait_for_count(scan: StoredScan, least: int, say: Callable[[str], None], patience: float | None) -> None:
    """Wait until a live scan has this many views, is finished with fewer, or gets none for so many seconds."""
    if scan.n_views < least and not scan.complete:
        say(f"waiting for the first {least} views of {scan.path}; press Ctrl-C to stop")
    while scan.n_views < least and not scan.complete:
        time.sleep(_LOOK)
        now = time.monotonic()
        if _refresh(scan, "fix that, and start again"):
            continue
        if patience is not None and now - scan.changed > patience:
            if scan.n_views == 0:
                raise InputError(f"no view came to {scan.path} for {patience:g} s; start the program that writes it")
            return


def _refresh(scan: StoredScan, then: str) -> bool:
    """Look for more views; where that fails the error is one line, with what to do `then`."""
    try:
        return scan.refresh()
    except Exception as error:  # a file that is gone, JSON that is none, and all that a distant store may raise
        why = str(error) if isinstance(error, InputError | OSError) else repr(error)
        kind = DamagedError if isinstance(error, DamagedError) else StorageError
        raise kind(f"the scan {scan.path} cannot be followed: {why}".splitlines()[0] + f"; {then}") from error
