"""A run: a new folder with settings, event log, images and report of one reconstruction."""

from __future__ import annotations

import contextlib
import json
import math
import platform
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from plugstream import __version__
from plugstream.algorithms import ADMM, Algorithm, ProximalGradient, State
from plugstream.errors import DamagedError, InputError, PlugstreamWarning, StorageError, is_refusal
from plugstream.fidelity import Fidelity
from plugstream.image_space import ImageSpace
from plugstream.loss_fidelity import DataFidelity
from plugstream.monitors import quantities_of
from plugstream.progress import report
from plugstream.quantities import Quantity
from plugstream.runs.checkpoints import Checkpoints, Saved
from plugstream.runs.checks import check_mask
from plugstream.runs.events import (
    EventLog,
    Listener,
    Measurement,
    Note,
    Quantities,
    Resume,
    Start,
    Stop as StopEvent,
    Views,
)
from plugstream.runs.folder import check_plain, lock, remove_unbegun, whole_folder, write_text
from plugstream.runs.identity import files_read, identity, settings_identity
from plugstream.runs.liveness import Heartbeats, this_process
from plugstream.runs.plan import Plan
from plugstream.runs.preview import Previews
from plugstream.runs.replay import History, replay
from plugstream.runs.results import bound_notes, write_results
from plugstream.runs.signals import Requests
from plugstream.runs.terminal import Terminal
from plugstream.runs.views import Population, goes_by_lipschitz, wait_for_batch
from plugstream.runs.watch import Watch
from plugstream.sampling import Announced, OnceEach, spread_views
from plugstream.scans.scan import Scan
from plugstream.scans.store import StoredScan, open_scan
from plugstream.settings import Settings, to_toml
from plugstream.solver import Progress, Result, Snapshot, Stop, solve
from plugstream.text import shell_quote

__all__ = ["Kept", "open_run", "reconstruct", "write_down"]

# The report shows a back-projection of this many views at most: of a large scan all of them would take minutes.
_BACKPROJECTED = 1000
# Views of a scan that is not in memory that are looked at for the range of its values, and what sums of them may add.
_RANGED, _ROOM = 8, 100.0
# Distance and cost of a scan that is not in memory are measured on at most so many views, and about so many bytes.
_MEASURED, _MEASURED_BYTES = 1000, 32 << 20


@dataclass(frozen=True)
class Kept:
    """What run.json says: where the scan lies, and the command that repeats the run."""

    source: str | Path
    command: str


def open_run(folder: Path) -> Kept:
    """Read what is needed to go on with the run in a folder."""
    check_plain(folder)
    try:
        content = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not all(isinstance(content.get(name), str) for name in ("scan", "command")):
            raise ValueError("it must tell scan and command, which are texts")
        where = content["scan"]
        return Kept(where if "://" in where else (folder / where).resolve(), content["command"])
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{folder} is not the folder of a run that had begun: it has no run.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"run.json of {folder} cannot be read: {error}; bring it back, or start a new run") from error


def reconstruct(
    scan: Scan,
    planned: Plan,
    folder: Path,
    *,
    command: str,
    source: str | Path,
    go_on: bool = False,
    terminal: Terminal | None = None,
) -> Result[State]:
    """Reconstruct a scan as it was planned, into a new folder, or an existing one that nobody else writes to.

    A new folder appears with what `plugstream resume` needs already in it, and is gone again where what was asked for
    turns out before the first step to be impossible.

    Leaves settings.toml (which repeats the run), run.json, events.jsonl, checkpoints, history.csv, result, truth and
    backprojection as PNG, TIFF and NPY, and report.png (or what `run.report` says).

    Arguments:
        scan: in memory, or stored; then a batch is read when it is drawn, and if `settings.scan` says so new views
            are used as they come and damaged ones left out. planned: for it, by `plan`.
        command: how to repeat it. source: where the scan lies; both are written down for `plugstream resume`.
        go_on: go on from the last checkpoint of this folder, or from the start if there is none yet.
    """
    check_mask(scan.instrument, scan.columns)  # which lay on a disk when it was planned, and may be in memory now
    if go_on or folder.exists():
        return _reconstruct(scan, planned, folder, command, source, go_on, terminal)
    with whole_folder(folder) as partial:
        write_down(partial, planned.settings, command, _place(source, folder))
    try:
        return _reconstruct(scan, planned, folder, command, source, go_on, terminal, fresh=True)
    except InputError as error:
        if is_refusal(error):
            remove_unbegun(folder)
        raise


def write_down(folder: Path, settings: Settings, command: str, source: str | Path) -> None:
    """Write settings.toml and run.json, which `plugstream resume` goes by.

    Arguments: command, how to repeat the run; source, where the scan lies, if it is in the folder as seen from there.
    """
    write_text(folder / "settings.toml", to_toml(settings, f"plugstream {__version__}\nrepeat with: {command}"))
    write_text(folder / "run.json", json.dumps({"scan": str(source), "command": command}, indent=1) + "\n")


def _place(source: str | Path, folder: Path) -> str | Path:
    """Where a scan lies, as run.json says it: in the run's own folder relative to it, so that both can be moved."""
    if isinstance(source, str):
        return source
    where, here = source.resolve(), folder.resolve()
    return where.relative_to(here) if where.is_relative_to(here) else where


def _reconstruct(
    scan: Scan,
    planned: Plan,
    folder: Path,
    command: str,
    source: str | Path,
    go_on: bool,
    terminal: Terminal | None,
    fresh: bool = False,
) -> Result[State]:
    settings = planned.settings
    with lock(folder):
        events = folder / "events.jsonl"
        past = replay(events) if go_on else History()
        if isinstance(scan, StoredScan) and settings.scan.follow and not past.views:
            wait_for_batch(scan, settings, partial(_say, terminal))
        views = past.views[0].views if past.views else scan.n_views
        if past.views and (had := past.views[-1].views) > scan.n_views:
            raise InputError(f"the run had {had} views, but the scan {source} has {scan.n_views}")
        checkpoints = Checkpoints(folder / "checkpoints", identity(scan, settings, views))
        saved = checkpoints.load() if go_on else None
        if saved is not None and not past.views:
            raise InputError(
                f"{events} does not tell which views the run used, so it cannot go on from {saved.path}; bring that "
                "file back, or start a new run"
            )
        if saved is not None and not past.knows(saved.content["log"]):
            raise InputError(
                f"lines are missing at the end of {events}, which {saved.path} was written after; bring that file back "
                "from a copy, or start a new run"
            )
        # Whatever is refused has been refused by now, and nothing has been written.
        place = _place(source, folder)

        def write_settings(settings: Settings) -> None:
            write_down(folder, settings, command, place)

        write_settings(settings)
        listeners: tuple[Listener, ...] = () if terminal is None else (terminal,)
        log = EventLog(events, listeners)
        caught: list[warnings.WarningMessage]
        session = _Session(scan, planned, log, checkpoints, go_on, past, saved, terminal, write_settings)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", PlugstreamWarning)
                session.caught = caught
                scan.instrument.warn_if_implausible()
                scan.instrument.warn_if_implausible(scan.columns)
                result, backprojection = session.run()
            _tell(log, caught)
            settings = session.planned.settings
            notes = bound_notes(result.image, settings.denoiser)
            for text in notes:
                log.add(Note(text))
            try:
                write_results(folder, scan, settings, result, backprojection, [str(result.verdict), *notes])
            except OSError as error:
                raise StorageError(
                    f"cannot write the results to {folder}: {error.strerror or error}; fix that, and "
                    f"'plugstream resume {shell_quote(folder)}' writes them"
                ) from error
            log.add(
                StopEvent(
                    step=result.state.k,
                    image_step=result.image_step,
                    time=result.time,
                    wall=result.wall,
                    reason=result.reason.value,
                    failed=result.reason.failed,
                    verdict=result.verdict.name,
                    trusted=result.verdict.trusted,
                    explanation=result.verdict.text,
                )
            )
        except Exception as error:  # of the data, of the disk, of memory, or a mistake of ours: nothing is lost by it
            if fresh and (session.last is None or session.last.state.k == 0) and is_refusal(error):
                raise  # nothing could ever go on with it
            told = _in_one_line(error, folder, source)
            session.keep(str(error if isinstance(error, InputError) else told or repr(error)))
            if told is None or told is error:
                raise
            raise told from error
        finally:
            log.close()
    return result


@dataclass
class _Session:
    """One reconstruction from its start, or from a checkpoint, to its result: what `reconstruct` was given, opened."""

    scan: Scan
    planned: Plan
    log: EventLog
    checkpoints: Checkpoints
    go_on: bool
    past: History
    saved: Saved | None
    terminal: Terminal | None
    write_settings: Callable[[Settings], None]
    caught: list[warnings.WarningMessage] = field(default_factory=list)
    population: Population | None = None
    last: Progress[State] | None = None
    logged: bool = False  # what was measured there
    watch: Watch | None = None
    saved_at: int = 0

    def run(self) -> tuple[Result[State], torch.Tensor | None]:
        """The result and the first back-projection, which only a linear model has."""
        settings, log, past = self.planned.settings, self.log, self.past
        me = this_process()
        log.add(
            Start(
                iterations=settings.algorithm.iterations,
                settings=settings.model_dump(mode="json"),
                files=files_read(settings),
                plugstream=__version__,
                torch=torch.__version__,
                python=platform.python_version(),
                pid=me.pid,
                started=me.started,
                machine=me.machine,
            )
        )
        log.add(Note(f"building the model of {self.scan.n_views} views on {settings.compute.device}"))
        if isinstance(self.scan, StoredScan):
            if settings.scan.skip_damaged:
                log.add(Note("reading every view, to leave out those that are damaged"))
            self.population = Population(self.scan, self.planned, log, past)
            fidelity = self.population.fidelity
        else:
            fidelity = _in_memory(self.scan, self.planned, log, past)
        try:
            if self.go_on:
                self._tell_where()
                fidelity = fidelity if self.population is None else self.population.fidelity
            self._settle_bounds(fidelity)
            return self._iterate(fidelity)
        finally:
            if self.population is not None:
                self.population.close()

    def _check_range(self, fidelity: DataFidelity) -> None:
        """Refuse data whose squares, or those of the image that it makes, leave the range of the precision.

        The image is about as large as ||y_i|| / ||H_i||. Of a scan that is not in memory a few views are looked at.
        """
        available, most = fidelity.available, fidelity.n_views if self.population is None else _RANGED
        some = spread_views(available, most)
        some = available if some is None else some
        rows = self.scan.read(some)
        model = fidelity.model
        rows = model.restrict(rows.to(model.device, model.data_dtype), some)
        size = float(rows.abs().max()) * math.sqrt(math.prod(model.data_shape))
        sizes = [size]
        if (
            goes_by_lipschitz(self.planned.settings)
            and fidelity.has_lipschitz
            and 0 < fidelity.lipschitz_max < math.inf
        ):
            sizes.append(size / math.sqrt(fidelity.lipschitz_max))
        limits = torch.finfo(fidelity.dtype)
        if size > 0 and not all(math.sqrt(limits.tiny) < value < math.sqrt(limits.max) / _ROOM for value in sizes):
            name = str(fidelity.dtype).removeprefix("torch.")
            wider = "use --dtype float64, or scale the data" if name == "float32" else "scale the data"
            raise InputError(
                f"the data has values of {float(rows.abs().max()):.2g}, and the image would be of about "
                f"{sizes[-1]:.2g}: their squares are outside the range of {name}, {limits.tiny:.0e} to "
                f"{limits.max:.0e}; {wider}"
            )

    def _settle_bounds(self, fidelity: DataFidelity) -> None:
        """Ask the data for the lower bound if nobody gave it, once: what it said stays in the settings of the run."""
        self.planned, reason = self.planned.settle_bounds(fidelity)
        if reason is not None:
            self.log.add(Note(reason))
            self.checkpoints.about |= settings_identity(self.planned.settings)
            self.write_settings(self.planned.settings)

    def _iterate(self, fidelity: DataFidelity) -> tuple[Result[State], torch.Tensor | None]:
        settings, log, population = self.planned.settings, self.log, self.population
        if (describe := getattr(fidelity.model, "describe", None)) is not None:
            log.add(Note(describe()))
        for text in self.planned.notes:
            log.add(Note(text))
        made: Any = self.planned.algorithm(fidelity)
        if population is not None:
            batch = settings.sampler.views
            drawn = made.sampler if batch is None else OnceEach(made.sampler, batch)
            sampler = Announced(drawn, population.source.expect, settings.scan.ahead)
            made = replace(made, sampler=sampler)
        watch = self.watch = Watch.over(made, settings, log) if settings.monitor.watch_theory else None
        if watch is not None:
            made = watch.algorithm
            if self.saved is not None:
                watch.restore(replay(log.path))
        algorithm: Algorithm[State] = made
        if self.saved is None:
            self._check_range(fidelity)
        state = algorithm.init()
        gamma, sigma = algorithm.parameters(1, state)
        # A step that is a number needs no L, which may take longer than the run.
        known = goes_by_lipschitz(settings) and fidelity.has_lipschitz
        bound = f"L = {fidelity.lipschitz_max:.4g}, " if known else ""
        log.add(Note(f"{bound}step {gamma:.6g}, sigma {sigma:.4g}"))
        _tell(log, self.caught)
        if (some := self._measured_views(fidelity)) is not None and "distance" in settings.monitor.names:
            few = f"on {len(some)} evenly spaced views of {self.scan.n_views}"
            log.add(Note(f"the distance is measured {few}; --measured-views says on how many"))
        snapshot = None if self.saved is None else self._snapshot(self.saved, made, state)
        live = population is not None and settings.scan.follow
        saved = time.monotonic()
        heartbeats = Heartbeats(log, None if live else settings.algorithm.iterations)
        previews = Previews(log.path.parent, ImageSpace.of(self.scan), log, settings.run.preview)

        def follow(progress: Progress[State]) -> None:
            nonlocal saved
            k = progress.state.k
            stepped, self.last, self.logged = self.last is None or self.last.state.k < k, progress, False
            if progress.measured:
                values: dict[str, float | None] = {name: float(v) for name, v in progress.measured.items()}
                log.add(Measurement(k, round(progress.time, 4), values))
            self.logged = True
            if watch is not None:
                watch.look(progress.state, measured=bool(progress.measured))
            if self.terminal is not None:
                self.terminal.tick(k, progress.time)
            heartbeats.after_step(k)
            previews.after_step(k, progress.state.image)
            if k > 0 and time.monotonic() - saved >= settings.run.checkpoint:
                self._save(progress)
                saved = time.monotonic()
            if requests.came and stepped:  # `solve` ends as it would for a Ctrl-C at this instant
                raise KeyboardInterrupt

        def look(progress: Progress[State]) -> Algorithm[State] | None:
            """See whether there are other views by now; they make another fidelity, and that another algorithm."""
            if population is None:
                return None
            population.look(progress.state.k)
            now = population.fidelity
            if now is progress.algorithm.fidelity:
                return None
            grown: Algorithm[State] = replace(progress.algorithm, fidelity=now)  # type: ignore[type-var]
            if watch is not None:
                watch.algorithm = grown
            return grown

        def done(progress: Progress[State]) -> bool:
            return population is not None and live and population.done(progress.state.k)

        begun = 0 if snapshot is None else snapshot.state.k
        iterations = max(0, settings.algorithm.iterations - begun)
        if population is not None and live:  # until the callback says so
            iterations = 0 if population.done(begun) else sys.maxsize
        monitors = self.planned.monitors(self._measured_views)
        quantities = quantities_of(monitors)
        log.add(Quantities(tuple(quantity.content() for quantity in quantities)))
        over = None if snapshot is None else _over(snapshot, settings, quantities)
        with Requests() as requests:
            result: Result[State] = solve(
                algorithm,
                state=state if snapshot is None else None,
                resume=snapshot,
                iterations=iterations if over is None else 0,
                monitors=monitors,
                every=settings.monitor.every,
                time_limit=settings.algorithm.time_limit,
                distance_limit=settings.algorithm.distance_limit,
                callbacks=[follow, look, done],
            )
        if over is not None:
            result = replace(result, reason=over)
        elif result.reason is Stop.CALLBACK:  # so many steps after the end of the scan
            result = replace(result, reason=Stop.ITERATIONS)
        if self.last is not None and result.state.k > 0:
            self._save(self.last)
        if watch is not None:
            watch.end(result)
        fidelity = fidelity if population is None else population.fidelity
        if not fidelity.linear:
            return result, None
        some = None if population is None else spread_views(fidelity.available, _BACKPROJECTED)
        if some is not None:
            log.add(Note(f"the back-projection is of {len(some)} views"))
        report("forming the back-projection")
        return result, fidelity.backprojection(some)

    def _measured_views(self, fidelity: Fidelity) -> torch.Tensor | None:
        """The views that distance and cost are measured on, None for all, which is what the theory speaks of."""
        settings, population = self.planned.settings, self.population
        monitor = settings.monitor
        most = monitor.measured_views
        large = population is not None and population.scan.nbytes > settings.scan.in_memory * 1e6
        if large and most is None and not monitor.watch_theory:
            view = math.prod(self.scan.instrument.data_shape) * self.scan.dtype.itemsize
            most = min(_MEASURED, max(_MEASURED // 10, _MEASURED_BYTES // view))
        return None if most is None else spread_views(fidelity.available, most)

    def _tell_where(self) -> None:
        """Say where the run goes on from, and have the views that it had there."""
        step = 0 if self.saved is None else self.saved.step
        for text in [] if self.saved is None else self.saved.notes:
            self.log.add(Note(f"warning: {text}"))
        self.log.add(Resume(step))
        self.log.add(Note(f"going on from step {step}"))
        if self.population is not None:
            self.population.begin_at(step)

    def _snapshot(self, saved: Saved, algorithm: ProximalGradient | ADMM, like: State) -> Snapshot[State]:
        """Where to go on from."""
        snapshot: Snapshot[Any] = saved.snapshot(like)
        changed = self.population is not None and self.population.record.step == saved.step
        if changed and isinstance(algorithm, ProximalGradient) and not isinstance(algorithm.gradient, str):
            # Views are left out from here on, and what SAGA and SVRG remember is a mean over all that there were.
            memory = algorithm.gradient.begin(algorithm.fidelity, snapshot.state.s)
            snapshot = replace(snapshot, state=replace(snapshot.state, **memory._asdict()))
        return snapshot

    def keep(self, reason: str) -> None:
        """Whatever ended the run, keep its last good state as a checkpoint, if it took a step, and say why it ended.

        A disk that is full, say, takes neither; then the checkpoint before is what there is to go on from.
        """
        last, before = self.last, 0 if self.saved is None else self.saved.step
        step = before if last is None else last.state.k
        seconds = (0.0, 0.0) if last is None else (last.time, last.wall)
        with contextlib.suppress(InputError, MemoryError):  # what went wrong first is what is told
            if last is not None and self.logged and step > max(before, self.saved_at):
                self._save(last)
        with contextlib.suppress(InputError, MemoryError):
            self.log.add(StopEvent(step, step, *seconds, reason=reason, failed=True))

    def _save(self, progress: Progress[State]) -> None:
        """Write a checkpoint, and before it the log of what led there."""
        if self.watch is not None:
            self.watch.remember(progress.state.k)
        self.log.sync()
        self.checkpoints.save(progress.snapshot(), self.log.check)
        self.saved_at = progress.state.k


def _in_one_line(error: Exception, folder: Path, source: str | Path) -> InputError | None:
    """What ended a run, with what to do; None for what is not a person's to repair."""
    resume = f"plugstream resume {shell_quote(folder)}"
    again = f"go on with '{resume}'"
    if not (folder / "run.json").exists():
        return StorageError(
            f"the folder {folder} was removed or moved while the run went on; where it is now, 'plugstream resume' "
            "goes on from its last checkpoint, and otherwise start the run again"
        )
    if isinstance(error, DamagedError | OSError) and (gone := _why_unreadable(source)) is not None:
        moved = f"or if it was moved with '{resume} --scan PLACE'"
        return StorageError(f"the scan {source} cannot be read any more: {gone}; bring it back, and {again}, {moved}")
    if isinstance(error, DamagedError) and error.views:
        return DamagedError(f"{error}; to go on without it: {resume} --skip-damaged")
    if isinstance(error, InputError):
        return error
    if isinstance(error, OSError):
        return StorageError(f"{error.filename or source}: {error.strerror or error}; fix that, and {again}")
    # torch raises RuntimeError for the CPU's memory, and a kind of it for a GPU's.
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return InputError(f"there is not enough memory; free some, or use a smaller batch, and {again}")
    return None


def _why_unreadable(source: str | Path) -> str | None:
    """Why a scan that was open cannot be opened any more: it was moved, its disk or network is gone; None if it can."""
    try:
        open_scan(source)
    except InputError as error:
        return str(error)
    except Exception as error:  # whatever a distant store raises
        return repr(error)
    return None


def _say(terminal: Terminal | None, text: str) -> None:
    """A line for a person, before there is a log."""
    if terminal is not None:
        terminal(Note(text))


def _over(snapshot: Snapshot[State], settings: Settings, quantities: Sequence[Quantity]) -> Stop | None:
    """Why the run had already ended when this was saved, None if it had not; steps are counted elsewhere."""
    a, k = settings.algorithm, snapshot.state.k
    for quantity in quantities:
        if a.distance_limit is None or not quantity.stops or quantity.name not in snapshot.rows:
            continue
        step, _, value = snapshot.rows[quantity.name][-1]
        # Where a run was interrupted there is a measurement more, for which it would not have stopped.
        regular = step == k and (k - snapshot.first) % settings.monitor.every == 0
        if regular and all(quantity.reaches(one, a.distance_limit) for one in value.flatten().tolist()):
            return Stop.DISTANCE
    return Stop.TIME if a.time_limit is not None and snapshot.wall >= a.time_limit else None


def _in_memory(scan: Scan, planned: Plan, log: EventLog, past: History) -> DataFidelity:
    views = scan.n_views
    if past.views:  # there may be more by now, if it was still being measured when the run began
        views = past.views[-1].views
    index = torch.arange(views)
    model = planned.model(scan.columns, views)
    fidelity = planned.parts.fidelity(model, scan.read(index))
    if goes_by_lipschitz(planned.settings) and fidelity.has_lipschitz:
        log.add(Note("estimating the Lipschitz constant L of every view"))
    if not past.views:
        log.add(Views(step=0, views=views, damaged=(), lipschitz=None, ended=True))
        log.sync()
    return fidelity


def _tell(log: EventLog, caught: list[warnings.WarningMessage]) -> None:
    """Pass warnings on as events, once each."""
    for text in dict.fromkeys(str(w.message) for w in caught):
        log.add(Note(f"warning: {text}"))
    caught.clear()
